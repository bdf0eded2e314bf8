"""WebSocket frames (RFC 6455), server side, without a socket.

Whole unfragmented data messages, which is nearly all there is, are read and written here: at tens of
thousands a second that costs an eighth of a general parser. Everything else (control frames, fragments,
what breaks the protocol) is left to the sans-IO protocol of `websockets`, frame by frame.
"""

from __future__ import annotations

from typing import NamedTuple

from websockets.exceptions import PayloadTooBig
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side, State

try:
    from websockets.speedups import apply_mask
except ImportError:  # no compiled wheel for this platform
    from websockets.utils import apply_mask

PING = b"\x89\x00"
TEXT = 0x81
BINARY = 0x82
_WHOLE = frozenset((TEXT, BINARY))
_MASKED = 0x80
_CONTROL = 0x08
_INVALID_DATA = 1007


class Inbound(NamedTuple):
    """One whole message from the peer."""

    is_text: bool
    data: bytes


def text_frame(data: bytes) -> bytes:
    """Return a text message as it is sent; `data` is UTF-8."""
    return _head(TEXT, len(data)) + data


def binary_frame(data: bytes) -> bytes:
    """Return a binary message as it is sent."""
    return _head(BINARY, len(data)) + data


def _head(first: int, size: int) -> bytes:
    if size < 126:
        return bytes((first, size))
    if size < 0x10000:
        return bytes((first, 126)) + size.to_bytes(2, "big")
    return bytes((first, 127)) + size.to_bytes(8, "big")


class Frames:
    """The frames of one connection after its handshake.

    `receive` takes bytes as they come and returns the whole messages among them, in order. After each
    call `take_output` has what must be written in answer (pongs, the close frame). Once `is_closed`,
    nothing more is received. `too_big` tells that a message above the limit began: it is not read, and
    the owner has to say so to the peer and `close`.
    """

    def __init__(self, message_bytes_max: int) -> None:
        self._bytes_max = message_bytes_max
        self._protocol = Protocol(Side.SERVER, state=State.OPEN, max_size=message_bytes_max)
        self._buffer = bytearray()
        self._wanted = 2
        self._skipped = 0
        self._partial: bytearray | None = None
        self._is_text = False
        self.is_closed = False
        self.peer_closed = False
        self.too_big = False

    def receive(self, data: bytes) -> list[Inbound]:
        """Take what was read; return the whole messages it completes."""
        messages: list[Inbound] = []
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
        return messages

    def _read(self, data: bytes, messages: list[Inbound]) -> None:
        at = 0
        end = len(data)
        while end - at >= 2:
            first = data[at]
            size = data[at + 1] - _MASKED
            body = at + 6
            # Of a head that is not whole yet, a length read too short is still below the real one.
            if size == 126:
                body = at + 8
                size = int.from_bytes(data[at + 2 : at + 4], "big")
            elif size == 127:
                body = at + 14
                size = int.from_bytes(data[at + 2 : at + 10], "big")
            stop = body + size
            if size > self._bytes_max and not first & _CONTROL:
                self.too_big = True
                self._skipped = stop
                self._after_close(data)
                return
            if size < 0 or (first & _CONTROL and size > 125):
                # Not masked, or a long control frame: the general parser refuses it by its head alone.
                self._general(data[at:], messages)
                return
            if stop > end:
                self._wanted = (stop if end >= body - 4 else body - 4) - at
                break
            if first in _WHOLE and self._partial is None:
                payload = apply_mask(data[body:stop], data[body - 4 : body])
                if first == TEXT and not payload.isascii() and not self._is_utf8(payload):
                    return
                messages.append(Inbound(first == TEXT, payload))
            else:
                self._general(data[at:stop], messages)
                if self.is_closed or self.too_big:
                    return
            at = stop
        else:
            self._wanted = 2
        if at < end:
            self._buffer += data[at:]

    def _general(self, frame: bytes, messages: list[Inbound]) -> None:
        protocol = self._protocol
        protocol.receive_data(frame)
        for event in protocol.events_received():
            assert isinstance(event, Frame)
            if event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                self._fragment(event, messages)
            elif event.opcode is Opcode.CLOSE:
                self.is_closed = self.peer_closed = True
        if protocol.parser_exc is not None:
            self.too_big = isinstance(protocol.parser_exc, PayloadTooBig)
            self.is_closed = self.peer_closed = True

    def _fragment(self, frame: Frame, messages: list[Inbound]) -> None:
        if self._partial is None:
            self._partial = bytearray()
            self._is_text = frame.opcode is Opcode.TEXT
        self._partial += frame.data
        if frame.fin:
            payload = bytes(self._partial)
            self._partial = None
            if not self._is_text or self._is_utf8(payload):
                messages.append(Inbound(self._is_text, payload))

    def _is_utf8(self, payload: bytes) -> bool:
        try:
            payload.decode()
        except UnicodeDecodeError:
            self._protocol.fail(_INVALID_DATA, "a text message that is not UTF-8")
            self.is_closed = self.peer_closed = True
            return False
        return True

    def _after_close(self, data: bytes) -> None:
        """Look for the peer's close frame in what it sent before it saw ours."""
        if self.peer_closed:
            return
        if self._skipped >= len(data):
            self._skipped -= len(data)
            return
        self._protocol.receive_data(data[self._skipped :])
        self._skipped = 0
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode is Opcode.CLOSE:
                self.peer_closed = True
        if self._protocol.parser_exc is not None:
            self.peer_closed = True

    def close(self, code: int, reason: str) -> None:
        """Send the close frame, once; what the peer sent before it saw that is dropped."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code, reason)
        if self._buffer:
            # The beginning of a frame: without it the general parser would not find the next one.
            rest = bytes(self._buffer)
            self._buffer.clear()
            self._after_close(rest)

    def take_output(self) -> bytes:
        """Return what to write now: pongs and the close frame."""
        return b"".join(self._protocol.data_to_send())
