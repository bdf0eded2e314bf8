"""A blocking STOMP client over a socket, for tests of the server as a process."""

from __future__ import annotations

import socket
from collections import deque

from tests.kit.engine import WAIT_S
from tests.stomp.harness import Received, read_frames

CONNECTED = "CONNECT|accept-version:1.2|host:/"


def encode(text: str, body: bytes | None = None) -> bytes:
    """Return a frame written as `LINE|LINE||body`, with `|` for LF; `body` instead of the last part may hold NULs."""
    head, blank, rest = text.partition("||")
    if body is not None:
        head += f"|content-length:{len(body)}"
        return f"{head}\n\n".replace("|", "\n").encode() + body + b"\0"
    return f"{head.replace('|', chr(10))}\n\n{rest if blank else ''}\0".encode()


class Raw:
    """One connection; a context manager."""

    def __init__(self, address: tuple[str, int], connect: str = CONNECTED) -> None:
        self.socket = socket.create_connection(address, timeout=WAIT_S)
        self._buffer = b""
        self._waiting: deque[Received] = deque()
        if connect:
            self.send(connect)
            self.connected = self.frame()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_error: object) -> None:
        self.socket.close()

    def send(self, *frames: str | bytes) -> None:
        """Send frames; bytes go as they are."""
        self.socket.sendall(b"".join([each if isinstance(each, bytes) else encode(each) for each in frames]))

    def frame(self) -> Received:
        return self._waiting.popleft() if self._waiting else self._read()

    def _read(self) -> Received:
        while True:
            self._buffer = self._buffer.lstrip(b"\n")
            if (size := self._size()) and len(self._buffer) >= size:
                (frame,) = read_frames(self._buffer[:size])
                self._buffer = self._buffer[size:]
                return frame
            part = self.socket.recv(65536)
            assert part, f"the connection ended behind {self._buffer!r}"
            self._buffer += part

    def _size(self) -> int:
        """Return the size of the first frame; 0 where that is not known."""
        head, blank, rest = self._buffer.partition(b"\n\n")
        if not blank:
            return 0
        for line in head.split(b"\n"):
            if line.startswith(b"content-length:"):
                return len(head) + 2 + int(line[15:]) + 2
        end = rest.find(b"\0\n")
        return len(head) + 2 + end + 2 if end >= 0 else 0

    def frames(self, count: int) -> list[Received]:
        return [self.frame() for _ in range(count)]

    def read_all(self) -> list[Received]:
        """Return all frames up to the server's end of the connection."""
        while part := self.socket.recv(65536):
            self._buffer += part
        return read_frames(self._buffer)

    def error(self, *frames: str) -> Received:
        """Send frames and return the ERROR, which must be the last frame before the server closes."""
        self.send(*frames)
        last = self.read_all()[-1]
        assert last.command == "ERROR", last
        return last

    def confirm(self, frame: str, receipt: str = "confirmed", body: bytes | None = None) -> None:
        """Send a frame and wait for its RECEIPT; what comes before that is kept for `frame`."""
        head, blank, rest = frame.partition("||")
        self.send(encode(f"{head}|receipt:{receipt}{blank}{rest}", body))
        while (answer := self._read()).headers.get("receipt-id") != receipt:
            self._waiting.append(answer)
        assert answer.command == "RECEIPT", answer

    def waiting(self) -> list[Received]:
        """Return what came that nobody has asked for, up to the RECEIPT of a frame sent now."""
        self.send("BEGIN|transaction:waiting")
        self.confirm("ABORT|transaction:waiting")
        waiting, self._waiting = list(self._waiting), deque()
        return waiting
