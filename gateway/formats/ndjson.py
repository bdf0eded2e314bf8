"""A staged part as lines of JSON: cuts a body into lines as it arrives, and encodes their messages as frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from curbstone.core.errors import BadRequest, CurbstoneError
from curbstone.core.frames import encode_frame
from curbstone.core.message import Message
from curbstone.gateway.formats.json_message import check_message, message_of, put_body
from curbstone.gateway.http.json_body import parse_json
from curbstone.gateway.http.problem import Problem, status_of

if TYPE_CHECKING:
    from curbstone.core.port import Queue

BUFFER_BYTES = 256 * 1024
"""How many bytes of lines are collected before frames are made, so that messages of a queue share a frame."""


class Lines:
    """Turns pieces of a body into frames, and keeps the order of messages within a queue."""

    def __init__(self, find: Callable[[str], Queue], line_bytes_max: int, message_bytes_max: int, max_ttl_s: float):
        self._find = find
        """Returns the queue with a name, or raises."""
        self._line_bytes_max = line_bytes_max
        self._message_bytes_max = message_bytes_max
        self._max_ttl_s = max_ttl_s
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._number = 0
        self._gathered: dict[str, list[Message]] = {}
        self._gathered_bytes = 0

    def feed(self, piece: bytes) -> bytes:
        """Return frames if enough lines were collected; raise Problem or CurbstoneError, which names the line."""
        *lines, rest = piece.split(b"\n")
        if not lines:
            self._keep(piece)
            return b""
        lines[0] = b"".join([*self._rest, lines[0]])
        self._rest, self._rest_bytes = [], 0
        for line in lines:
            self._take(line)
        self._keep(rest)
        return self._frames() if self._gathered_bytes >= BUFFER_BYTES else b""

    def end(self) -> bytes:
        """Return the last frames. The last line need not end with a line break."""
        self._take(b"".join(self._rest))
        return self._frames()

    def _keep(self, rest: bytes) -> None:
        self._rest.append(rest)
        self._rest_bytes += len(rest)
        if self._rest_bytes > self._line_bytes_max:
            raise Problem(413, f"line {self._number + 1} is longer than {self._line_bytes_max} bytes")

    def _take(self, line: bytes) -> None:
        self._number += 1
        if not line.strip():
            return
        try:
            name, message = self._message(line)
        except CurbstoneError as error:
            raise Problem(status_of(error), f"line {self._number}: {error}") from None
        self._gathered.setdefault(name, []).append(message)
        self._gathered_bytes += len(line)

    def _message(self, line: bytes) -> tuple[str, Message]:
        fields = parse_json(line)
        if not isinstance(fields, dict):
            raise BadRequest("the line is not a JSON object")
        name = fields.get("queue")
        if not isinstance(name, str):
            raise BadRequest("bad queue: it must be a string")
        queue = self._find(name)
        check_message(fields, ("queue",))
        message = message_of(fields, self._max_ttl_s)
        if message.orders is not None and message.orders.batched:
            raise BadRequest("a message of a staged transaction can't be of a batch")
        put_body(message, fields, min(self._message_bytes_max, queue.options.max_message_size))
        return name, message

    def _frames(self) -> bytes:
        gathered, self._gathered, self._gathered_bytes = self._gathered, {}, 0
        return b"".join([encode_frame(name, messages) for name, messages in gathered.items()])
