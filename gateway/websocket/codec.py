"""WebSocket frames (RFC 6455), server side, without a socket.

Data frames and pings are parsed and encoded here. At tens of thousands of messages a second, this costs an eighth of a
general parser, and a flood of tiny frames delays no other client. Only the latest ping must be answered (RFC 6455
§5.5.3), so pongs can't pile up. The sans-IO protocol of `websockets` handles the rest (the close, and violations of the
protocol), frame by frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side, State

try:
    from websockets.speedups import apply_mask
except ImportError:  # there is no compiled wheel for this machine, or no such module in this version

    def apply_mask(data: bytes | bytearray | memoryview, mask: bytes | bytearray) -> bytes:
        """Return data with its mask removed."""
        key = int.from_bytes((mask * (len(data) // 4 + 1))[: len(data)], "big")
        return (int.from_bytes(data, "big") ^ key).to_bytes(len(data), "big")


PING = b"\x89\x00"
TEXT = 0x81
BINARY = 0x82
_WHOLE = frozenset((TEXT, BINARY))
_FIN = 0x80
_FRAGMENTS = frozenset((TEXT & ~_FIN, BINARY & ~_FIN, 0, _FIN))
_PROTOCOL_ERROR = 1002
_PING = 0x89
_PONG = 0x8A
_MASKED = 0x80
_CONTROL = 0x08
_SIZE_2 = 126
"""The length byte that announces a length in two bytes; the byte above it announces one in eight."""
_TINY_BYTES = 64
_INVALID_DATA = 1007


class Inbound(NamedTuple):
    """One complete message from the peer."""

    is_text: bool
    data: bytes


def text_frame(data: bytes) -> bytes:
    """Return a text message as a frame; `data` is UTF-8."""
    return _head(TEXT, len(data)) + data


def binary_frame(data: bytes) -> bytes:
    """Return a binary message as a frame."""
    return _head(BINARY, len(data)) + data


def messages_in(frames: bytes) -> Iterator[Inbound]:
    """Yield the messages in frames that `text_frame` and `binary_frame` returned."""
    at = 0
    while at < len(frames):
        first, size = frames[at], frames[at + 1]
        at += 2
        if size >= _SIZE_2:
            more = 2 if size == _SIZE_2 else 8
            size = int.from_bytes(frames[at : at + more], "big")
            at += more
        yield Inbound(first == TEXT, frames[at : at + size])
        at += size


def _head(first: int, size: int) -> bytes:
    if size < 126:
        return bytes((first, size))
    if size < 0x10000:
        return bytes((first, 126)) + size.to_bytes(2, "big")
    return bytes((first, 127)) + size.to_bytes(8, "big")


class Frames:
    """The frames of one connection after its handshake.

    `receive` takes bytes and returns the messages that they complete, in order. After each call, `take_output` returns
    the bytes that must be written (the close frame), and `take_pong` those that may be written when there is room. Once
    `is_closed` is true, nothing more is received. `too_big` is set when a message above the limit has begun: it is not
    read, and the owner must send the peer the reason and `close`.
    """

    def __init__(self, message_bytes_max: int) -> None:
        self._bytes_max = message_bytes_max
        self._protocol = Protocol(Side.SERVER, state=State.OPEN, max_size=message_bytes_max)
        self._buffer = bytearray()
        self._wanted = 2
        self._skipped = 0
        self._partial: bytearray | None = None
        self._is_text = False
        self._ping = b""
        """The payload of the latest ping."""
        self.is_pinged = False
        """Whether that ping has not been answered."""
        self._tail = b""
        self.pieces = 0
        """How many pings, pongs and tiny fragments the last read had."""
        self.is_another = False
        """Whether the last read completed a message or a control frame, so that the unfinished one is a new one."""
        self.is_closed = False
        self.peer_closed = False
        self.too_big = False

    def receive(self, data: bytes) -> list[Inbound]:
        """Take bytes; return the messages that they complete."""
        messages: list[Inbound] = []
        self.is_another = False
        self.pieces = 0
        if self.is_closed or self.too_big:
            self._after_close(data)
            return messages
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._wanted:
                return messages
            data = bytes(self._buffer)
            self._buffer.clear()
        self._read(data, messages)
        self.is_another = self.is_another or bool(messages)
        return messages

    def drop(self) -> None:
        """Forget the unfinished frame or message, whose rest will never arrive."""
        self._buffer.clear()
        self._partial = None
        self._tail = b""

    @property
    def unfinished_bytes(self) -> int:
        """The bytes held of an unfinished message or frame; above 0 if there is one."""
        return len(self._buffer) + (0 if self._partial is None else len(self._partial) + 1)

    def _read(self, data: bytes, messages: list[Inbound]) -> None:
        at = 0
        end = len(data)
        while end - at >= 2:
            first = data[at]
            size = data[at + 1] - _MASKED
            body = at + 6
            if first & _CONTROL and size > 125:
                self._protocol.fail(_PROTOCOL_ERROR, "control frame too long")  # RFC 6455, 5.5
                self.is_closed = self.peer_closed = True
                return
            if size == 126:
                body = at + 8
                size = int.from_bytes(data[at + 2 : at + 4], "big")
            elif size == 127:
                body = at + 14
                size = int.from_bytes(data[at + 2 : at + 10], "big")
            stop = body + size
            if end < body - 4:  # the length is incomplete
                self._wanted = body - 4 - at
                break
            if size > self._bytes_max:
                self.too_big = True
                self._skipped = stop
                self._after_close(data)
                return
            if size < 0:  # not masked: the general parser refuses it because of its head
                self._general(data[at:])
                return
            if stop > end:
                self._wanted = stop - at
                break
            if first in _WHOLE and self._partial is None:
                payload = apply_mask(data[body:stop], data[body - 4 : body])
                if first == TEXT and not payload.isascii() and not self._is_utf8(payload):
                    return
                messages.append(Inbound(first == TEXT, payload))
            elif first in (_PING, _PONG):
                if first == _PING:
                    self._ping = apply_mask(data[body:stop], data[body - 4 : body])
                    self.is_pinged = True
                self.is_another = self.is_another or self._partial is None
                self.pieces += 1
            elif first in _FRAGMENTS and (first & ~_FIN == 0) is (self._partial is not None):
                self.pieces += size < _TINY_BYTES
                payload = apply_mask(data[body:stop], data[body - 4 : body]) if size else b""
                if not self._fragment(first, payload, messages):
                    self._after_close(data[stop:])
                    return
            elif self._partial is not None and first & ~_FIN in (TEXT & ~_FIN, BINARY & ~_FIN):
                self._protocol.fail(_PROTOCOL_ERROR, "expected a continuation frame")
                self.is_closed = self.peer_closed = True
                return
            else:
                self._general(data[at:stop])
                if self.is_closed or self.too_big:
                    return
            at = stop
        else:
            self._wanted = 2
        if at < end:
            self._buffer += data[at:]

    def _general(self, frame: bytes) -> None:
        protocol = self._protocol
        protocol.receive_data(frame)
        for event in protocol.events_received():
            assert isinstance(event, Frame)
            if event.opcode is Opcode.CLOSE:
                self.is_closed = self.peer_closed = True
        if protocol.parser_exc is not None:
            self.is_closed = self.peer_closed = True

    def _fragment(self, first: int, payload: bytes, messages: list[Inbound]) -> bool:
        """Take a fragment of a message; return whether to read on."""
        if self._partial is None:
            self._partial = bytearray()
            self._is_text = first == TEXT & ~_FIN
        self._partial += payload
        if len(self._partial) > self._bytes_max:
            self.too_big = True
            return False
        if first & _FIN:
            whole = bytes(self._partial)
            self._partial = None
            if self._is_text and not self._is_utf8(whole):
                return False
            messages.append(Inbound(self._is_text, whole))
        return True

    def _is_utf8(self, payload: bytes) -> bool:
        try:
            payload.decode()
        except UnicodeDecodeError:
            self._protocol.fail(_INVALID_DATA, "a text message that is not UTF-8")
            self.is_closed = self.peer_closed = True
            return False
        return True

    def _after_close(self, data: bytes) -> None:
        """Find the peer's close frame behind frames sent before it saw ours. Only the heads of frames are read."""
        if self.peer_closed:
            return
        if self._tail:
            data = self._tail + data
        at = self._skipped
        end = len(data)
        while end - at >= 2:
            size = data[at + 1] & ~_MASKED
            body = at + 2 + (4 if data[at + 1] & _MASKED else 0)
            if size >= _SIZE_2:
                more = 2 if size == _SIZE_2 else 8
                if end - at < 2 + more:
                    break
                size = int.from_bytes(data[at + 2 : at + 2 + more], "big")
                body += more
            if data[at] & 0x0F == Opcode.CLOSE:
                self.peer_closed = True
                return
            at = body + size
        self._skipped = max(at - end, 0)
        self._tail = data[at:]

    def close(self, code: int, reason: str) -> None:
        """Send the close frame, once. Other frames that still arrive from the peer are dropped."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code, reason)
        self._partial = None
        if self._buffer:
            # The buffer has the beginning of a frame, which is needed to find where the next one begins.
            rest = bytes(self._buffer)
            self._buffer.clear()
            self._after_close(rest)

    def take_pong(self) -> bytes:
        """Return the pong for the latest ping, or b"" if there was none."""
        is_due = self.is_pinged and not self.is_closed
        self.is_pinged = False
        return _head(_PONG, len(self._ping)) + self._ping if is_due else b""

    def take_output(self) -> bytes:
        """Return the bytes that must be written now: the close frame."""
        return b"".join(self._protocol.data_to_send())
