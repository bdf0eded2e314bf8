"""The TCP side of a protocol whose connections are sessions without a socket: bytes in, bytes out.

It accepts, feeds what it reads to the session in its turn, and sends what comes out in a turn in one write. Two kinds
of pressure are passed on. To the consumers: a full socket holds them. To the client: it is not read while too much
of what it sent is on its way to the disk, or while too much output waits for it to read. A peer that vanished
without a word is found by TCP keepalive. It knows no protocol and nothing of queues.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from curbstone.net.admission import Admission
from curbstone.net.turns import Intake, Turns

WRITE_BUFFER_BYTES = 256 * 1024
"""Unsent output at which consumers are held."""
BACKLOG = 1024
KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Seconds and probes after which a peer that vanished without a word is given up, where the system can."""
LINGER_S = 2.0
"""After the last of the output the client gets this long to read it and close; see `Connection._part`."""
STOP_S = 5.0
"""How long `stop` waits for the clients to go before it cuts them off."""


class Session(Protocol):
    """What a connection asks of its session, which calls `Connection.changed` when it has output or is done."""

    @property
    def ending(self) -> bool:
        """Whether nothing more is read; the last output may still wait for the disk."""

    @property
    def closing(self) -> bool:
        """Whether the output is complete: send it, then close."""

    @property
    def congested(self) -> bool:
        """Whether reading should stop until `changed` is called and this is false again."""

    def take_output(self) -> list[bytes]:
        """Return the bytes to send, in order, and forget them."""

    def hold(self) -> None:
        """Deliver nothing more: the socket is full."""

    def resume(self) -> None:
        """Go on after `hold`."""

    def end_input(self) -> None:
        """The client sends no more; it may still wait for its last answers."""

    def lose(self) -> None:
        """The socket is gone."""


S = TypeVar("S", bound=Session)

Leave = Callable[[], None]


def _nothing() -> None:
    """Nobody counts."""


FULL = "the server has as many connections as it may; try again later"
"""What a client is told that is sent away."""


CROWDED = "{} connections from this address are open, and there may be no more"


class SentAway(asyncio.Protocol):
    """A connection beyond those that are admitted: it is told why, and closed."""

    def __init__(self, word: bytes) -> None:
        self._word = word

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say it, and close."""
        stream = cast(asyncio.Transport, transport)
        stream.write(self._word)
        stream.close()


class Entrance(asyncio.Protocol):
    """Looks where a client comes from, and makes way for what serves it, or sends it away."""

    def __init__(self, admission: Admission, serve: Callable[[Leave], asyncio.Protocol], word: bytes) -> None:
        """`serve(leave)` returns what serves the client, and calls `leave` when that is over."""
        self._admission = admission
        self._serve = serve
        self._word = word

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Decide."""
        address = str(transport.get_extra_info("peername", ("?", 0))[0])
        if self._admission.enter(address):
            protocol = self._serve(partial(self._admission.leave, address))
        else:
            protocol = SentAway(self._word)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


class TcpServer(ABC):
    """Accepts clients, knows who is there, and takes leave of them."""

    def __init__(self, turns: Turns) -> None:
        """`turns`: those of all that is read in the process."""
        self.turns = turns
        self._listener: asyncio.Server | None = None
        self._clients: set[Connection[Any]] = set()
        self._empty = asyncio.Event()
        self._stopping = False
        self._admission: Admission | None = None

    @abstractmethod
    def connection(self) -> Connection[Any]:
        """Return what serves a new client."""

    @abstractmethod
    def word(self, text: str) -> bytes:
        """Return what a client is told that is sent away."""

    def admit_by(self, admission: Admission) -> None:
        """Serve only as many clients as `admission` lets in."""
        self._admission = admission
        admission.add(lambda: len(self._clients))

    def _accept(self) -> asyncio.Protocol:
        admission = self._admission
        if admission is None:
            return self.connection()
        if not admission.admits(asyncio.get_running_loop().call_soon):
            return SentAway(self.word(FULL))
        return Entrance(admission, self._serve, self.word(CROWDED.format(admission.address_most)))

    def _serve(self, leave: Leave) -> Connection[Any]:
        connection = self.connection()
        connection.leave = leave
        return connection

    async def start(self, address: tuple[str, int]) -> tuple[str, int]:
        """Listen and return the address bound; OSError where that is impossible."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._accept, *address, backlog=BACKLOG)
        bound = self._listener.sockets[0].getsockname()
        return bound[0], bound[1]

    async def stop(self) -> None:
        """Accept no more, tell the clients, let commits under way confirm, close."""
        self._stopping = True
        if self._listener is not None:
            self._listener.close()
        for client in list(self._clients):
            client.shut_down()
        if self._clients:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), STOP_S)
        for client in list(self._clients):
            client.abort()

    def joined(self, client: Connection[Any]) -> None:
        """A client connected."""
        self._clients.add(client)
        self._empty.clear()
        if self._stopping:
            client.shut_down()

    def left(self, client: Connection[Any]) -> None:
        """A client is gone."""
        self._clients.discard(client)
        if self._admission is not None:
            self._admission.left()
        if not self._clients:
            self._empty.set()


class Connection(asyncio.Protocol, ABC, Generic[S]):
    """One connection. A protocol says how its session is made, fed and told of the server's end."""

    def __init__(self, server: TcpServer, output_bytes_max: int) -> None:
        """`output_bytes_max`: unsent output at which the client is not read."""
        self._tcp_server = server
        self._output_bytes_max = output_bytes_max
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._session: S
        self._peer = ""
        self._intake = Intake(server.turns, self)
        self._linger: asyncio.TimerHandle | None = None
        self._flushing = False
        self._reading = True
        self._full = False
        self._parting = False
        self._eof = False
        self.leave: Leave = _nothing
        """Called when the connection is closed."""

    # --- what a protocol adds

    @abstractmethod
    def open(self) -> S:
        """Return a new session."""

    @abstractmethod
    def receive(self, data: bytes) -> None:
        """Hand what was read to the session."""

    @abstractmethod
    def shut_down(self) -> None:
        """Take leave of the client: the server stops."""

    def reading(self, on: bool) -> None:
        """Reading stopped, or goes on."""

    def ended(self) -> None:
        """The last output is sent, or the socket is closed; may be called twice."""

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket up and start the session."""
        # A cast, for uvloop's transports have the methods and not the type.
        self._transport = cast(asyncio.Transport, transport)
        raw: socket.socket | None = transport.get_extra_info("socket")
        if raw is not None:
            # asyncio sets it only on sockets made with the TCP protocol number; without it a small
            # reply waits 40 ms for the client's delayed acknowledgment.
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                if (option := getattr(socket, name, None)) is not None:
                    raw.setsockopt(socket.IPPROTO_TCP, option, value)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._peer = "{}:{}".format(*transport.get_extra_info("peername", ("?", 0))[:2])
        self._session = self.open()
        self._tcp_server.joined(self)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        session = self._session
        if session.ending:
            return
        self._intake.receive(data)
        if session.congested or self._full or self._intake.is_waiting:
            self._steer()

    def eof_received(self) -> bool:
        """The client sends no more; it may have closed only its half and wait for the last answers."""
        self._eof = True
        if self._parting:
            return False
        self._session.end_input()
        return True

    def pause_writing(self) -> None:
        """The socket is full."""
        self._full = True
        self._session.hold()
        self._steer()

    def resume_writing(self) -> None:
        """The socket takes more."""
        self._full = False
        if not self._session.ending:
            self._session.resume()
        self._steer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        if self._linger is not None:
            self._linger.cancel()
        self._intake.close()
        self.ended()
        self._session.lose()
        self.leave()
        self._tcp_server.left(self)

    # --- what turns ask, see `net.turns.Taker`

    def take(self, data: bytes) -> None:
        """Hand what was read to the session; nothing where it is ending."""
        if not self._session.ending:
            self.receive(data)

    def caught_up(self) -> None:
        """Nothing waits any more."""
        self._steer()

    # --- what comes out

    def changed(self) -> None:
        """The session has output, or is done: flush once for everything of this turn."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def abort(self) -> None:
        """Cut the connection."""
        self._transport.abort()

    def _flush(self) -> None:
        self._flushing = False
        session = self._session
        output = session.take_output()
        if output and not self._transport.is_closing():
            self._transport.write(b"".join(output))
        if session.closing:
            self._part()
        elif not self._reading:
            self._steer()

    def _steer(self) -> None:
        """Read or do not read, as the session, the socket and the turns can take it."""
        session = self._session
        if session.ending or self._transport.is_closing():
            return
        full = self._full and self._transport.get_write_buffer_size() > self._output_bytes_max
        reading = not session.congested and not full and not self._intake.is_waiting
        if reading == self._reading:
            return
        self._reading = reading
        self.reading(reading)
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _part(self) -> None:
        """End so that the client really gets the last of the output.

        Closing a socket with unread input makes the kernel send a reset, which destroys what the client has
        not read yet. So only our half is closed, its input is read and dropped until it closes its half.
        """
        if self._parting or self._transport.is_closing():
            return
        self._parting = True
        self.ended()
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        if self._eof:
            self._transport.close()
        elif self._transport.can_write_eof():
            self._transport.write_eof()
        self._linger = self._loop.call_later(LINGER_S, self._transport.abort)
