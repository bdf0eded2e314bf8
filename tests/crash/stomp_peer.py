"""A small STOMP 1.2 client on a blocking socket: frames in, frames out, nothing hidden."""

from __future__ import annotations

import socket
from typing import NamedTuple

READ_BYTES = 65536


class HungUp(ConnectionError):
    """The server is gone."""


class StompFrame(NamedTuple):
    """A frame of the server. Values are as they came: what is read here holds nothing that needs an escape."""

    command: str
    headers: dict[str, str]
    body: bytes


def encode(command: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """Return the bytes of a frame; its headers must need no escapes."""
    lines = [command, *(f"{name}:{value}" for name, value in headers.items())]
    if body:
        lines.append(f"content-length:{len(body)}")
    return "\n".join(lines).encode() + b"\n\n" + body + b"\0"


class StompPeer:
    """A connection. Everything raises OSError (HungUp) once the server is gone."""

    def __init__(
        self, address: tuple[str, int], timeout_s: float, heart_beat: str = "0,0", login: tuple[str, str] | None = None
    ) -> None:
        """`login`: a user, and its token."""
        self._timeout_s = timeout_s
        self.beats = 0
        """Heart-beats, and line ends between frames, that came."""
        self._socket = socket.create_connection(address, timeout_s)
        self._buffer = b""
        try:
            headers = {"accept-version": "1.2", "host": "localhost", "heart-beat": heart_beat}
            if login is not None:
                headers |= {"login": login[0], "passcode": login[1]}
            self.send(encode("CONNECT", headers))
            while not (frames := self.read()):
                pass
        except BaseException:
            self.close()
            raise
        assert frames[0].command == "CONNECTED", frames

    def __enter__(self) -> StompPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self, timeout_s: float | None = None) -> list[StompFrame]:
        """Wait for bytes and return the frames they complete; TimeoutError where none come."""
        self._socket.settimeout(timeout_s or self._timeout_s)
        try:
            data = self._socket.recv(READ_BYTES)
        finally:
            self._socket.settimeout(self._timeout_s)
        if not data:
            raise HungUp("the server closed the connection")
        buffer = self._buffer + data
        frames: list[StompFrame] = []
        at = 0
        while True:
            while buffer[at : at + 1] == b"\n":  # heart-beats, and line ends between frames
                at += 1
                self.beats += 1
            head_end = buffer.find(b"\n\n", at)
            if head_end < 0:
                break
            command, *lines = buffer[at:head_end].decode().split("\n")
            headers = dict(line.split(":", 1) for line in reversed(lines))
            start = head_end + 2
            length = headers.get("content-length")
            end = start + int(length) if length is not None else buffer.find(b"\0", start)
            if end < start or len(buffer) <= end:
                break
            assert buffer[end] == 0, buffer[at : end + 1]
            frames.append(StompFrame(command, headers, buffer[start:end]))
            at = end + 1
        self._buffer = buffer[at:]
        return frames

    def call(self, command: str, headers: dict[str, str], body: bytes = b"") -> StompFrame:
        """Send a frame with a receipt and wait for its RECEIPT or an ERROR; nothing else may come."""
        self.send(encode(command, {**headers, "receipt": "r"}, body))
        while not (frames := self.read()):
            pass
        assert [frame.command in ("RECEIPT", "ERROR") for frame in frames] == [True], frames
        return frames[0]
