"""A connection whose bytes travel in binary WebSocket messages, each small enough for the servers."""

import base64
import os

from bench import login
from bench.wire import Address, BenchError, Wire

BINARY = 0x82
PING, CLOSE = 0x89, 0x88
PONG = 0x8A
MASKED = 0x80
NO_MASK = b"\0\0\0\0"
MESSAGE_BYTES_MAX = 1024 * 1024
"""A window of large frames is split into several messages. STOMP frames may be cut anywhere."""


def web_wire(address: Address, path: str, **options: int) -> "WebWire":
    """Connect with the subprotocol of STOMP 1.2. Raise BenchError if that is refused."""
    wire = WebWire(address, **options)
    key = base64.b64encode(os.urandom(16)).decode()
    wire.send_plain(
        (
            f"GET {path} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: v12.stomp\r\n"
            f"{login.header()}\r\n"
        ).encode()
    )
    wire.open()
    return wire


class WebWire(Wire):
    def __init__(self, address: Address, **options: int) -> None:
        super().__init__(address, **options)
        self._rest = b""

    def send_plain(self, data: bytes | memoryview) -> None:
        super().send(data)

    def open(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += super().receive()
        head, _, self._rest = head.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101"):
            raise BenchError(f"no WebSocket: {head.splitlines()[0].decode(errors='replace')}")

    def send(self, data: bytes | memoryview) -> None:
        """Send the bytes, masked with the key 0, which changes no byte."""
        for start in range(0, len(data), MESSAGE_BYTES_MAX):
            piece = data[start : start + MESSAGE_BYTES_MAX]
            super().send(frame_head(BINARY, len(piece)) + piece)

    def receive(self) -> bytes:
        """Return the received payloads, at least one byte."""
        while True:
            payloads = self._payloads()
            if payloads:
                return b"".join(payloads)
            self._rest += super().receive()

    def receive_until(self, end: bytes) -> bytes:
        """Return the bytes up to and including `end`. Nothing may follow it yet."""
        data = b""
        while end not in data:
            data += self.receive()
        if not data.endswith(end) and data.rstrip(b"\n") != data[: data.index(end) + len(end)]:
            raise BenchError("data after the response")
        return data

    def _payloads(self) -> list[bytes]:
        payloads = []
        rest, at = self._rest, 0
        while (found := frame_at(rest, at)) is not None:
            opcode, payload, at = found
            if opcode == PING:
                super().send(frame_head(PONG, len(payload)) + payload)
            elif opcode == CLOSE:
                raise BenchError(f"the server closed the WebSocket: {payload[2:].decode(errors='replace')}")
            elif payload:
                payloads.append(payload)
        self._rest = rest[at:]
        return payloads


def frame_head(opcode: int, length: int) -> bytes:
    """Return the head of a client's frame."""
    if length < 126:
        return bytes((opcode, MASKED | length)) + NO_MASK
    if length < 65_536:
        return bytes((opcode, MASKED | 126)) + length.to_bytes(2) + NO_MASK
    return bytes((opcode, MASKED | 127)) + length.to_bytes(8) + NO_MASK


def frame_at(data: bytes, at: int) -> tuple[int, bytes, int] | None:
    """Return (opcode byte, payload, end) of the server's frame at `at`, or None if it is incomplete."""
    if len(data) - at < 2:
        return None
    length, start = data[at + 1], at + 2
    if length >= 126:
        width = 2 if length == 126 else 8
        length, start = int.from_bytes(data[start : start + width]), start + width
        if start > len(data):
            return None
    return (data[at], data[start : start + length], start + length) if len(data) >= start + length else None
