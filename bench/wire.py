"""One blocking TCP connection of the load, which reads while a send waits for the server."""

import select
import socket
import struct
from typing import Protocol

Address = tuple[str, int]


class BenchError(Exception):
    """The run can't continue: the server refused, answered wrongly, closed the connection or sent nothing."""


class Silence(BenchError):
    """Nothing has arrived within the time limit."""


class Stream(Protocol):
    """The methods of a connection that a reader needs."""

    def receive(self) -> bytes: ...

    def send(self, data: bytes | memoryview) -> None: ...


class Wire:
    def __init__(self, address: Address, *, silence_s: int = 30, chunk: int = 262_144) -> None:
        """`silence_s` is the time limit of a receive, `chunk` the most bytes of one receive."""
        self._socket = socket.create_connection(address, timeout=silence_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel's own time limit, because Python's would cost a poll before every receive.
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", silence_s, 0))
        self._silence_s = silence_s
        self._chunk = chunk
        self._kept: list[bytes] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, data: bytes | memoryview) -> None:
        """Send everything. Bytes that arrive while the socket is full are kept for `receive`."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._socket.send(rest, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                self._wait_for_room()

    def _wait_for_room(self) -> None:
        readable, writable, _ = select.select([self._socket], [self._socket], [], self._silence_s)
        if readable:
            self._kept.append(self._receive_now())
        elif not writable:
            raise BenchError(f"the server read nothing for {self._silence_s} s")

    def receive(self) -> bytes:
        """Return the received bytes, at least one."""
        if self._kept:
            return self._kept.pop(0)
        return self._receive_now()

    def _receive_now(self) -> bytes:
        try:
            data = self._socket.recv(self._chunk)
        except BlockingIOError:
            raise Silence(f"the server sent nothing for {self._silence_s} s") from None
        except ConnectionResetError:
            data = b""
        if not data:
            raise BenchError("the server closed the connection")
        return data

    def receive_until(self, end: bytes) -> bytes:
        """Return the bytes up to and including `end`. Later bytes are kept."""
        data = b""
        while end not in data:
            data += self.receive()
        at = data.index(end) + len(end)
        if len(data) > at:
            self._kept.insert(0, data[at:])
        return data[:at]

    def close(self) -> None:
        self._socket.close()
