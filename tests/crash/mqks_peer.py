"""A small MQKS client on a blocking socket: lines in, lines out, nothing hidden."""

from __future__ import annotations

import socket
from typing import NamedTuple

from tests.crash.stomp_peer import HungUp

READ_BYTES = 65536


class Answer(NamedTuple):
    """A line of the server, split: to which request, whether it is an `ok`, and what it says."""

    request_id: str
    is_ok: bool
    data: bytes


class MqksPeer:
    """A connection. Everything raises OSError (HungUp) once the server is gone."""

    def __init__(self, address: tuple[str, int], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._socket = socket.create_connection(address, timeout_s)
        self._buffer = b""

    def __enter__(self) -> MqksPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, *lines: bytes) -> None:
        self._socket.sendall(b"".join(line + b"\n" for line in lines))

    def read(self, timeout_s: float | None = None) -> list[Answer]:
        """Wait for bytes and return the lines they complete; TimeoutError where none come."""
        self._socket.settimeout(timeout_s or self._timeout_s)
        try:
            data = self._socket.recv(READ_BYTES)
        finally:
            self._socket.settimeout(self._timeout_s)
        if not data:
            raise HungUp("the server closed the connection")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        answers = []
        for line in lines:
            request_id, status, rest = line.split(b" ", 2)
            assert status in (b"ok", b"error"), line
            answers.append(Answer(request_id.decode(), status == b"ok", rest))
        return answers

    def call(self, request_id: str, rest: str) -> None:
        """Send a request with `--confirm` and wait for its ok; nothing else may come."""
        self.send(f"{request_id} {rest}".encode())
        while not (answers := self.read()):
            pass
        assert answers[0].request_id == request_id and answers[0].is_ok, answers
