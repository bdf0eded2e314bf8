"""The TCP side of a protocol whose connections are sessions without a socket: bytes in, bytes out.

It feeds what a stream (`stream`) reads to the session, and sends what comes out in a turn in one write. Two kinds of
pressure are passed on. To the consumers: a full socket holds them. To the client: it is not read while too much of what
it sent is on its way to the disk, or while too much output waits for it to read. It knows no protocol and nothing of
queues, and not whether what it sends is encrypted on the way: how clients come in is the business of `entrance`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar, cast

from curbstone.net.address import Address
from curbstone.net.admission import Visit
from curbstone.net.crowd import Crowd
from curbstone.net.entrance import Entrance, Listener
from curbstone.net.limits import LINGER_S, STOP_S, WRITE_BUFFER_BYTES
from curbstone.net.linger import Linger
from curbstone.net.peer import Peer
from curbstone.net.stream import Stream
from curbstone.net.turns import Turns
from curbstone.net.unfinished import Unfinished


class Session(Protocol):
    """What a connection asks of its session, which calls `Connection.changed` when it has output or is done.

    It says each time how many bytes of output have come; `take_output` may be called before this returns.
    """

    @property
    def ending(self) -> bool:
        """Whether nothing more is read; the last output may still wait for the disk."""

    @property
    def closing(self) -> bool:
        """Whether the output is complete: send it, then close."""

    @property
    def congested(self) -> bool:
        """Whether reading should stop until `changed` is called and this is false again."""

    @property
    def unfinished_bytes(self) -> int:
        """How many bytes of an incomplete message the last read left."""

    @property
    def began_anew(self) -> bool:
        """Whether that read completed a message, so that the incomplete one is new."""

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


EVICTED = "too much of too many large messages is under way; send it again later"
"""Said to the one of them that began the longest ago."""

S = TypeVar("S", bound=Session)


class TcpServer(ABC):
    """Accepts clients, knows who is there, and takes leave of them."""

    def __init__(self, turns: Turns, entrance: Entrance | None = None, *, message_bytes_max: int = 0) -> None:
        """`turns`: those of all that is read in the process; `entrance`: that of all who connect to it."""
        self.turns = turns
        self.unfinished = Unfinished.for_messages(message_bytes_max)
        """What all its clients have begun to send."""
        self.entrance = entrance or Entrance()
        self._listeners: list[Listener] = []
        self._clients: Crowd[Connection[Any]] = Crowd()
        self._stopping = False

    @abstractmethod
    def connection(self, peer: Peer, visit: Visit) -> Connection[Any]:
        """Return what serves a new client."""

    @abstractmethod
    def word(self, text: str) -> bytes:
        """Return what a client is told when it is sent away."""

    def connections(self) -> Mapping[str, int]:
        """Return how many there are; they are all of this server's protocol."""
        return {"": len(self._clients)}

    async def start(self, address: tuple[str, int] | Address) -> tuple[str, int]:
        """Listen there, too, and return host and port bound; OSError where that is impossible."""
        listener = await self.entrance.listen(address, self.connection, self.word)
        self._listeners.append(listener)
        return listener.bound

    async def stop(self) -> None:
        """Accept no more, tell the clients, let commits under way confirm, close."""
        self._stopping = True
        for listener in self._listeners:
            listener.close()
        await self._clients.leave(STOP_S)

    def joined(self, client: Connection[Any]) -> None:
        """A client connected."""
        self._clients.add(client)
        if self._stopping:
            client.shutdown()

    def left(self, client: Connection[Any]) -> None:
        """A client is gone."""
        self._clients.discard(client)


class Connection(Stream, asyncio.Protocol, Generic[S]):
    """One connection. A subclass for each protocol makes the session, feeds it, and tells it that the server stops."""

    def __init__(self, server: TcpServer, peer: Peer, visit: Visit, output_bytes_max: int) -> None:
        """`output_bytes_max`: unsent output at which the client is not read."""
        self._loop = asyncio.get_running_loop()
        super().__init__(self._loop, server.turns)
        self.peer = peer
        self.visit = visit
        self._tcp_server = server
        self._unsent_bytes_max = output_bytes_max
        self._transport: asyncio.Transport
        self._session: S
        self._linger: Linger | None = None
        self._parting = False
        self._eof = False

    # --- what a protocol adds

    @abstractmethod
    def open(self) -> S:
        """Return a new session."""

    @abstractmethod
    def receive(self, data: bytes) -> None:
        """Hand what was read to the session."""

    @abstractmethod
    def shutdown(self) -> None:
        """Take leave of the client: the server stops."""

    @abstractmethod
    def send_away(self, reason: str) -> None:
        """End the connection, and tell the client why if there is a word for it."""

    def ended(self) -> None:
        """The last output is sent, or the socket is closed; may be called twice."""

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the session."""
        # A cast, for uvloop's transports have the methods and not the type.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._session = self.open()
        self._tcp_server.joined(self)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        session = self._session
        if session.ending:
            return
        self._intake.receive(data)
        if session.congested or self._is_full or self._intake.is_waiting:
            self._steer()

    def eof_received(self) -> bool:
        """The client sends no more; it may have closed only its half and wait for the last answers."""
        self._eof = True
        if self._parting:
            return False
        self._session.end_input()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        if self._linger is not None:
            self._linger.close()
        self._intake.close()
        self._tcp_server.unfinished.note(self, 0, True)
        self.ended()
        self._session.lose()
        self.visit.leave()
        self._tcp_server.left(self)

    # --- what its stream asks, see `net.stream`

    def take(self, data: bytes) -> None:
        """Hand what was read to the session; nothing if it is ending."""
        session = self._session
        if not session.ending:
            self.receive(data)
            self._tcp_server.unfinished.note(self, session.unfinished_bytes, session.began_anew)

    def evict(self) -> None:
        """See `unfinished.Holder`."""
        self.send_away(EVICTED)

    def _hold(self) -> None:
        self._session.hold()

    def _go_on(self) -> None:
        if not self._session.ending:
            self._session.resume()

    def _is_congested(self) -> bool:
        return self._session.congested

    def _steer(self) -> None:
        if not self._session.ending:
            super()._steer()

    def _flush(self) -> None:
        self._flush_due = False
        self._gathered_bytes = 0
        session = self._session
        output = session.take_output()
        if output and not self._transport.is_closing():
            self._transport.write(b"".join(output))
        if session.closing:
            self._part()
        elif not self._is_reading:
            self._steer()

    def _part(self) -> None:
        """End so that the client really gets the last of the output."""
        if self._parting or self._transport.is_closing():
            return
        self._parting = True
        self.ended()
        if not self._is_reading:
            self._is_reading = True
            self._transport.resume_reading()
        self._linger = Linger(self._transport, self._loop, LINGER_S)
        if self._eof:
            self._transport.close()
