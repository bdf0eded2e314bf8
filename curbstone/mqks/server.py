"""MQKS over TCP: runs a session on each connection, with a timer for the deadlines of its lines."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from curbstone.access.caller import Caller
from curbstone.mqks.error_log import ErrorLog
from curbstone.mqks.limits import Limits
from curbstone.mqks.registry import Registry
from curbstone.mqks.session import Session
from curbstone.net.acceptor import Acceptor
from curbstone.net.address import Address
from curbstone.net.connection_limits import Slot
from curbstone.net.fair_reader import Turns
from curbstone.net.peer import Peer
from curbstone.net.tcp import Connection, TcpServer

if TYPE_CHECKING:
    from curbstone.access.authenticator import Authenticator
    from curbstone.core.host import Host, Timer


class MqksServer(TcpServer):
    """Serves MQKS over TCP."""

    def __init__(
        self,
        authenticator: Authenticator,
        host: Host,
        *,
        limits: Limits | None = None,
        turns: Turns | None = None,
        acceptor: Acceptor | None = None,
    ) -> None:
        """`turns` and `acceptor` are shared by the whole process; without them the server has its own."""
        self.limits = limits or Limits()
        super().__init__(turns or Turns(host), acceptor)
        self.host = host
        self.registry = Registry(authenticator, host)
        self.reports = ErrorLog(host.call_later)
        self._is_open = False

    async def start(self, address: tuple[str, int] | Address) -> tuple[str, int]:
        """See `TcpServer.start`. From here on, unused queues with the option are deleted."""
        bound = await super().start(address)
        if not self._is_open:
            self._is_open = True
            self.registry.open()
        return bound

    async def stop(self) -> None:
        """See `TcpServer.stop`. Queues are not deleted because their consumers end now."""
        self.registry.close()
        await super().stop()
        self.reports.close()

    def connection(self, peer: Peer, slot: Slot) -> _Client:
        return _Client(self, peer, slot)

    def refusal(self, text: str) -> bytes:
        """See `TcpServer.refusal`. MQKS has no line for it, because each error answers a line of the client."""
        return b""


class _Client(Connection[Session]):
    """One connection."""

    def __init__(self, server: MqksServer, peer: Peer, slot: Slot) -> None:
        super().__init__(server, peer, slot, server.limits.output_bytes_max)
        self._server = server
        self._host = server.host
        self._timer: Timer | None = None

    def open(self) -> Session:
        host = self._host
        session = Session(
            self._server.registry,
            self._server.limits,
            self.changed,
            partial(_report, self._server.reports, self.peer),
            host.call_later,
            host.now_ms(),
            Caller.of(self.peer, "mqks"),
            self.slot.logged_in,
        )
        self._timer = host.call_later(session.tick_ms, self._tick)
        return session

    def receive(self, data: bytes) -> None:
        session = self.session
        session.receive(data, self._host.now_ms())
        if self._timer is None and session.tick_ms:
            self._timer = self._host.call_later(session.tick_ms, self._tick)

    def reading(self, on: bool) -> None:
        self.session.reading(on, self._host.now_ms())

    def ended(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def shutdown(self) -> None:
        self.session.shut_down()

    def refuse_client(self, reason: str) -> None:
        self.session.refuse_client(reason)

    def _tick(self) -> None:
        session = self.session
        session.tick(self._host.now_ms())
        self._timer = self._host.call_later(session.tick_ms, self._tick) if session.tick_ms else None


def _report(reports: ErrorLog, peer: Peer, text: str, is_mistake: bool) -> bytes:
    return reports.report(str(peer), peer.source, text, is_mistake=is_mistake)
