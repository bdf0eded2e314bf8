"""TCP servers and connections for protocols whose sessions do no I/O: bytes in, bytes out.

A connection passes its input to its session, and sends the output of a turn in one write. If the socket is full,
deliveries pause. If too much of the client's input is being processed, or too much output waits for the client, the
client is not read. `acceptor` accepts the connections.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar, cast

from curbstone.net.acceptor import Acceptor, Listener
from curbstone.net.address import Address
from curbstone.net.budget import REFUSED
from curbstone.net.connection_limits import Slot
from curbstone.net.connection_set import ConnectionSet
from curbstone.net.fair_reader import Turns
from curbstone.net.limits import LINGER_S, STOP_S, WRITE_BUFFER_BYTES
from curbstone.net.linger import Linger
from curbstone.net.peer import Peer
from curbstone.net.stream import TurnStream


class Session(Protocol):
    """The session of a connection. It calls `Connection.changed` when it has output or has ended.

    `take_output` may be called before that call returns.
    """

    @property
    def ending(self) -> bool:
        """Whether the session accepts no more input. Its last output may still wait for the disk."""

    @property
    def closing(self) -> bool:
        """Whether the output is complete, so that the connection closes after sending it."""

    @property
    def congested(self) -> bool:
        """Whether reading must stop, until the session calls `changed` and this is false again."""

    @property
    def unfinished_bytes(self) -> int:
        """The size of the input that it holds after the last read, because it is incomplete or must wait."""

    @property
    def is_another(self) -> bool:
        """Whether the last read completed a message, so that the incomplete one is new."""

    def take_output(self) -> list[bytes]:
        """Return and remove the output, in order."""

    def pause(self) -> None:
        """Pause deliveries."""

    def resume(self) -> None:
        """Resume deliveries."""

    def end_input(self) -> None:
        """Handle the end of input; the client may still wait for its last replies."""

    def connection_lost(self) -> None:
        """Handle the loss of the connection."""


S = TypeVar("S", bound=Session)


class TcpServer(ABC):
    """Accepts the clients of one protocol, keeps track of them, and lets them finish when it stops."""

    def __init__(self, turns: Turns, acceptor: Acceptor | None = None) -> None:
        """All servers of the process share `turns` and `acceptor`."""
        self.turns = turns
        self.acceptor = acceptor or Acceptor()
        self._listeners: list[Listener] = []
        self.clients: ConnectionSet[Connection[Any]] = ConnectionSet()
        self._stopping = False

    @abstractmethod
    def connection(self, peer: Peer, slot: Slot) -> Connection[Any]:
        """Return the connection for a new client."""

    @abstractmethod
    def refusal(self, text: str) -> bytes:
        """Return the reply to a refused client with this reason, encoded for the protocol."""

    def connections(self) -> Mapping[str, int]:
        """Return the number of connections, with the key ""."""
        return {"": len(self.clients)}

    async def start(self, address: tuple[str, int] | Address) -> tuple[str, int]:
        """Listen on one more address; return the host and port bound. Raise OSError if that fails."""
        listener = await self.acceptor.listen(address, self.connection, self.refusal)
        self._listeners.append(listener)
        return listener.bound

    async def stop(self) -> None:
        """Stop accepting, shut the clients down after their commits in progress, and close."""
        self._stopping = True
        for listener in self._listeners:
            listener.close()
        await self.clients.shut_down(STOP_S)

    def add_client(self, client: Connection[Any]) -> None:
        self.clients.add(client)
        if self._stopping:
            client.shutdown()

    def remove_client(self, client: Connection[Any]) -> None:
        self.clients.discard(client)


class Connection(TurnStream, asyncio.Protocol, Generic[S]):
    """One connection. Each protocol has a subclass that creates the session, feeds it, and shuts it down."""

    def __init__(self, server: TcpServer, peer: Peer, slot: Slot, output_bytes_max: int) -> None:
        """`output_bytes_max`: unsent output above which the client is not read."""
        self._loop = asyncio.get_running_loop()
        super().__init__(self._loop, server.turns, slot.account)
        self.peer = peer
        self.slot = slot
        self._tcp_server = server
        self._unsent_bytes_max = output_bytes_max
        self._transport: asyncio.Transport
        self.session: S
        self._linger: Linger | None = None
        self._socket_fd: int | None = None
        """The descriptor of the socket; -1 if it must not be written to directly, None until it is first needed."""
        self._is_parting = False
        self._eof = False

    # --- implemented by protocols

    @abstractmethod
    def open(self) -> S:
        """Return the session of this connection. Called once, when the connection is made."""

    @abstractmethod
    def receive(self, data: bytes) -> None:
        """Pass input to the session."""

    @abstractmethod
    def shutdown(self) -> None:
        """Shut the session down, because the server is stopping."""

    @abstractmethod
    def refuse_client(self, reason: str) -> None:
        """Close the connection, and send the reason if the protocol can."""

    def ended(self) -> None:
        """Called when the last output was sent or the socket was closed, possibly twice."""

    # --- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's transports have the methods of asyncio's type but do not inherit from it.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.session = self.open()
        self._tcp_server.add_client(self)
        self._account.set_holder(self)

    def data_received(self, data: bytes) -> None:
        session = self.session
        if session.ending:
            return
        self._intake.receive(data)
        if session.congested or self.is_full or self._intake.is_waiting:
            self._adjust_flow()

    def eof_received(self) -> bool:
        """Keep the connection open for the last replies, because the client may have closed only its half."""
        self._eof = True
        if self._is_parting:
            return False
        self.session.end_input()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._linger is not None:
            self._linger.close()
        self._intake.close()
        self.ended()
        self.session.connection_lost()
        self.slot.leave()
        self._tcp_server.remove_client(self)

    # --- called by `net.stream` and the budget

    def take(self, data: bytes) -> None:
        session = self.session
        if not session.ending:
            self.receive(data)
            self._account.hold_input(session.unfinished_bytes, session.is_another)

    def evict(self) -> None:
        self.refuse_client(REFUSED)

    def _pause_deliveries(self) -> None:
        if not self.session.ending:
            self.session.pause()

    def _resume_deliveries(self) -> None:
        if not self.session.ending:
            self.session.resume()

    def _has_too_much(self) -> bool:
        return self.session.congested

    def _adjust_flow(self) -> None:
        if not self.session.ending:
            super()._adjust_flow()

    def _flush(self) -> None:
        self._flush_due = False
        self._gathered_bytes = 0
        session = self.session
        output = session.take_output()
        if output and not self._transport.is_closing():
            self._transport.write(b"".join(output))
            if self.is_full:
                self._account.hold_output(self._transport.get_write_buffer_size())
        if session.closing:
            self._close_after_output()
        elif not self.is_reading:
            self._adjust_flow()

    def send_at_once(self, data: bytes) -> bool:
        """Write output to the socket directly; return False, and send nothing, if the transport has to send it.

        That is so if earlier output waits, the socket is full or failed, or the output is encrypted.
        """
        transport = self._transport
        if self._flush_due or self.is_full or transport.is_closing() or transport.get_write_buffer_size():
            return False
        if self._socket_fd is None:
            self._socket_fd = self._find_socket()
        if self._socket_fd < 0:
            return False
        try:
            sent = os.write(self._socket_fd, data)
        except OSError:  # the socket is full, or the transport will meet the error, too
            return False
        if sent < len(data):
            transport.write(data[sent:])
        return True

    def _find_socket(self) -> int:
        socket = self._transport.get_extra_info("socket")
        if socket is None or self._transport.get_extra_info("sslcontext") is not None:
            return -1
        return cast(int, socket.fileno())

    def _close_after_output(self) -> None:
        """Close the connection so that the client receives all of the output."""
        if self._is_parting or self._transport.is_closing():
            return
        self._is_parting = True
        self.ended()
        if not self.is_reading:
            self.is_reading = True
            self._transport.resume_reading()
        self._linger = Linger(self._transport, self._loop, LINGER_S)
        if self._eof:
            self._transport.close()
