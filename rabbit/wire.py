"""The bytes of one connection to RabbitMQ, between the socket and pika.

Deliveries and confirms are read here and handed to whoever takes them; every other frame goes on to pika, byte by byte
and in its place. What pika and the engine send in one turn goes out in one go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from curbstone.rabbit import frames
from curbstone.rabbit.door import Arrived, Confirmed


class Wire(asyncio.Protocol):
    """To the socket a protocol, to pika the transport; `protocol` is pika's own."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], protocol: Any) -> None:
        self._call_soon = call_soon
        self._protocol = protocol
        self._transport: asyncio.Transport
        self._gathered: list[bytes] = []
        self._rest = b""
        """A frame that is not here whole."""
        self._is_over = False
        self.consumers: dict[tuple[int, bytes], Callable[[Arrived], None]] = {}
        """Who takes deliveries, by channel and consumer tag."""
        self.confirmed: dict[int, Confirmed] = {}
        """Who takes confirms, by channel."""
        self.on_received: Callable[[int], None] = lambda _count: None
        """Told of bytes that pika does not see, so that it knows the node to be alive."""

    # --- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is connected."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by what it can do only
        self._protocol.connection_made(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """It is no more."""
        self._is_over = True
        self._gathered.clear()
        self._protocol.connection_lost(exc)

    def eof_received(self) -> bool | None:
        """The node sends nothing any more."""
        return bool(self._protocol.eof_received())

    def data_received(self, data: bytes) -> None:
        """Read what is for the engine, and let pika have the rest."""
        if self._rest:
            data = self._rest + data
        at = given = taken = 0
        while at + frames.AROUND <= len(data) and not self._is_over:
            kind, channel, size = frames.START.unpack_from(data, at)
            end = at + frames.AROUND + size
            if kind not in frames.KINDS:  # as when the node speaks another version
                at = len(data)
                break
            if end > len(data):
                break
            if kind == frames.METHOD and frames.method(data, at) in frames.HOT:
                self._give(data, given, at)  # it comes first, and may end what this one is for
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
        """Hand over the delivery or confirm that begins at `at`: return where it ends, None if it is for pika."""
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
        if end > start and not self._is_over:
            self._protocol.data_received(data[start:end])

    # --- pika's transport

    def write(self, data: bytes) -> None:
        """Send with all else of this turn."""
        if not self._gathered:
            self._call_soon(self._send)
        self._gathered.append(data)

    def _send(self) -> None:
        if self._gathered:
            self._transport.write(b"".join(self._gathered))
            self._gathered.clear()

    def abort(self) -> None:
        """End it now; what was not sent is dropped."""
        self._is_over = True
        self._gathered.clear()
        self._transport.abort()

    def get_protocol(self) -> Any:
        """Return pika's protocol."""
        return self._protocol

    def get_write_buffer_size(self) -> int:
        """Return how many bytes are not on their way yet."""
        return sum(map(len, self._gathered)) + self._transport.get_write_buffer_size()
