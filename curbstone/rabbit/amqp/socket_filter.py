"""Sits between the socket of one connection to RabbitMQ and pika.

It parses deliveries and confirms, and hands them to the registered callbacks. It passes every other frame to pika
unchanged and in order. All output of pika and the engine in one turn of the loop is sent in one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from curbstone.rabbit.amqp import frames
from curbstone.rabbit.amqp.port import Arrived, Confirmed


class SocketFilter(asyncio.Protocol):
    """A protocol for the socket, and a transport for pika. `protocol` is pika's own protocol."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], protocol: Any) -> None:
        self._call_soon = call_soon
        self._protocol = protocol
        self._transport: asyncio.Transport
        self._gathered: list[bytes] = []
        self._rest = b""
        """The bytes of an incomplete frame."""
        self._is_done = False
        self.consumers: dict[tuple[int, bytes], Callable[[Arrived], None]] = {}
        """The consumers of deliveries, by channel and consumer tag."""
        self.confirmed: dict[int, Confirmed] = {}
        """The consumers of confirms, by channel."""
        self.on_received: Callable[[int], None] = lambda _count: None
        """Called with the number of bytes that bypass pika, for its liveness check."""

    # --- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from this class
        self._protocol.connection_made(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio.Protocol. Notify pika."""
        self._is_done = True
        self._gathered.clear()
        self._protocol.connection_lost(exc)

    def eof_received(self) -> bool | None:
        return bool(self._protocol.eof_received())

    def data_received(self, data: bytes) -> None:
        """Parse the frames for the engine, and pass the others to pika."""
        if self._rest:
            data = self._rest + data
        at = given = taken = 0
        while at + frames.AROUND <= len(data) and not self._is_done:
            kind, channel, size = frames.START.unpack_from(data, at)
            end = at + frames.AROUND + size
            if kind not in frames.KINDS:  # for example, if the node speaks another version
                at = len(data)
                break
            if end > len(data):
                break
            if kind == frames.METHOD and frames.method(data, at) in frames.HOT:
                self._give(data, given, at)  # pika must see the earlier frames first; one may end this frame's channel
                given = at
                if (after := self._take(data, at, channel)) is not None:
                    taken += after - at
                    at = given = after
                    continue
            at = end
        self._rest = data[at:]
        self._give(data, given, at)
        if taken:
            self.on_received(taken)

    def _take(self, data: bytes, at: int, channel: int) -> int | None:
        """Hand over the delivery or confirm that begins at `at`. Return its end, or None if it is for pika."""
        if frames.method(data, at) == frames.ACK:
            confirmed = self.confirmed.get(channel)
            if confirmed is None:
                return None
            tag, multiple, end = frames.confirmed(data, at)
            confirmed(tag, multiple, True)
            return end
        found = frames.delivered(data, at)
        take = self.consumers.get((channel, found.consumer)) if found is not None else None
        if found is None or take is None:
            return None
        take(found.arrived)
        return found.end

    def _give(self, data: bytes, start: int, end: int) -> None:
        if end > start and not self._is_done:
            self._protocol.data_received(data[start:end])

    # --- pika's transport

    def write(self, data: bytes) -> None:
        """Send bytes, together with everything else of this turn."""
        if not self._gathered:
            self._call_soon(self._send)
        self._gathered.append(data)

    def _send(self) -> None:
        if self._gathered:
            self._transport.write(b"".join(self._gathered))
            self._gathered.clear()

    def abort(self) -> None:
        """End the connection at once. Bytes that were not sent are dropped."""
        self._is_done = True
        self._gathered.clear()
        self._transport.abort()

    def get_protocol(self) -> Any:
        """Return pika's protocol."""
        return self._protocol

    def get_write_buffer_size(self) -> int:
        """Return how many bytes have not been sent yet."""
        return sum(map(len, self._gathered)) + self._transport.get_write_buffer_size()
