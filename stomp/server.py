"""STOMP over TCP: runs a session on each connection, with a timer for its heart-beats."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

from curbstone.access.caller import Caller
from curbstone.core.names import QueueName, parse_queue_name
from curbstone.core.traffic import Traffic
from curbstone.net.acceptor import Acceptor
from curbstone.net.connection_limits import Slot
from curbstone.net.fair_reader import Turns
from curbstone.net.peer import Peer
from curbstone.net.repeats import BriefLog
from curbstone.net.tcp import Connection, TcpServer
from curbstone.stomp.errors import one_line
from curbstone.stomp.limits import Limits
from curbstone.stomp.session import Session
from curbstone.stomp.tick_timer import TickTimer

if TYPE_CHECKING:
    from curbstone.access.authenticator import Authenticator
    from curbstone.core.host import Host

log = logging.getLogger("curbstone.stomp")


class StompServer(TcpServer):
    """Serves STOMP over TCP."""

    def __init__(
        self,
        authenticator: Authenticator,
        host: Host,
        *,
        limits: Limits | None = None,
        single_queue: QueueName | str | None = None,
        turns: Turns | None = None,
        acceptor: Acceptor | None = None,
        name: str = "curbstone",
        greeting: tuple[str, ...] = (),
    ) -> None:
        """`turns` and `acceptor` are shared by the whole process; without them the server has its own.

        `name` is the server header of CONNECTED: name, slash, version. `greeting` are more of its header lines.
        """
        self.limits = limits or Limits()
        super().__init__(turns or Turns(host), acceptor)
        self.authenticator = authenticator
        self.host = host
        self.single_queue = parse_queue_name(single_queue) if isinstance(single_queue, str) else single_queue
        self.sync = authenticator.everyone.health().sync
        self.name = name
        self.greeting = greeting
        self.traffic = Traffic()
        """The counters of all its connections."""
        self.failures = BriefLog(host.call_later, log)
        """Logs why connections failed."""

    async def stop(self) -> None:
        await super().stop()
        self.failures.close()

    def connection(self, peer: Peer, slot: Slot) -> _Client:
        return _Client(self, peer, slot)

    def refusal(self, text: str) -> bytes:
        return b"ERROR\nmessage:" + text.encode() + b"\n\n\0"


class _Client(Connection[Session]):
    """One connection. A client that breaks a rule gets an ERROR, as do all clients when the server stops."""

    def __init__(self, server: StompServer, peer: Peer, slot: Slot) -> None:
        super().__init__(server, peer, slot, server.limits.output_bytes_max)
        self._server = server
        self._host = server.host
        self._pulse: TickTimer
        self._ended = False

    def open(self) -> Session:
        server = self._server
        self.session = Session(
            server.authenticator,
            server.authenticator.anonymous,
            server.limits,
            self.changed,
            caller=Caller.of(self.peer, "stomp"),
            name=secrets.token_hex(8),
            now_ms=self._host.now_ms(),
            sync=server.sync,
            server=server.name,
            greeting=server.greeting,
            single_queue=server.single_queue,
            traffic=server.traffic,
            send_at_once=self.send_at_once,
        )
        self._pulse = TickTimer(self._host, self.session.tick)
        self._pulse.check()
        self.session.on_connected = self._on_connected
        return self.session

    def _on_connected(self, user: str) -> None:
        self._pulse.check()  # CONNECT may have changed the interval
        self.slot.logged_in(user)

    def receive(self, data: bytes) -> None:
        self.session.receive(data, self._host.now_ms(), self._host.wall_ms())

    def reading(self, on: bool) -> None:
        self.session.reading(on, self._host.now_ms())

    def shutdown(self) -> None:
        self.session.shut_down("the server is shutting down")

    def refuse_client(self, reason: str) -> None:
        self.session.shut_down(reason)

    def ended(self) -> None:
        self._pulse.stop()
        if not self._ended and self._is_parting and self.session.failure:
            self._server.failures.info(self.peer, self.peer.source, one_line(self.session.failure))
        self._ended = True
