"""One request and its answer, as an ASGI application sees them: implements `receive` and `send`.

If an answer has a length and its body is in one piece, head and body are sent in one write. A second write would be
a second system call, for most answers their most expensive part.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Scope

from curbstone.gateway.http.fields import Header

if TYPE_CHECKING:
    from curbstone.gateway.connection import HttpConnection

JOINED_BYTES_MAX = 64 * 1024
"""A body up to this size is appended to the head; a larger one is written by itself."""

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_NOT_IN_A_FIELD = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_NO_BODY = frozenset((204, 304))

logger = logging.getLogger("curbstone.gateway")


class Cycle:
    """One request and its answer."""

    __slots__ = (
        "body", "disconnected", "keep_alive", "more_body", "response_complete", "response_started", "scope",
        "task", "expects_continue",
        "_connection", "_has_body", "_head", "_is_chunked", "_is_received", "_left", "_waiting",
    )  # fmt: skip

    def __init__(self, scope: Scope, connection: HttpConnection, *, keep_alive: bool, expects_continue: bool) -> None:
        """`expects_continue`: whether the client sends the body only after a 100 (Continue)."""
        self.scope = scope
        self._connection = connection
        self.keep_alive = keep_alive
        self.expects_continue = expects_continue
        self.task: Any = None
        """The task that runs this request, kept here because the loop refers to tasks only weakly."""
        self.disconnected = False
        self.body: bytes | bytearray = b""
        """The part of the body that has arrived and was not received by the application."""
        self.more_body = True
        self.response_started = False
        self.response_complete = False
        self._head = b""
        """The head of an answer, kept until the first piece of its body."""
        self._has_body = True
        self._is_chunked = False
        self._is_received = False
        """Whether the application has received all of the request's body."""
        self._left = 0
        """How many bytes of the answer's body are still missing; -1 if the head gives no length."""
        self._waiting: Any = None
        """The future on which the application waits for more of the body, or for the client to leave."""

    # ------------------------------------------------------------ what the connection calls

    def take(self, piece: bytes) -> None:
        """Add a piece of the body."""
        if not self.body:
            self.body = piece
        elif isinstance(self.body, bytes):
            self.body = bytearray(self.body + piece)
        else:
            self.body += piece
        if self._waiting is not None:
            self._wake()

    def finish(self) -> None:
        """Mark the body as complete."""
        self.more_body = False
        if self._waiting is not None:
            self._wake()

    def connection_lost(self) -> None:
        """Note that the client is gone or its request was refused."""
        self.disconnected = True
        if self._waiting is not None:
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if not waiting.done():
            waiting.set_result(None)

    async def run(self, app: ASGIApp) -> None:
        """Run the application. If it does not complete an answer, this is logged and the connection closes."""
        failure = "the application returned without a complete answer"
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:
            failure = repr(error)
            raise
        finally:
            if not self.response_complete:
                self.scope["slot"].account.set_aside(0)  # else the page of a client that has left would count for ever
            if not self.response_complete and not self.disconnected:
                logger.error("%s %r was not answered: %s", self.scope["method"], self.scope["path"], failure)
                self._connection.transport.close()

    # ------------------------------------------------------------ what the application calls

    async def receive(self) -> Message:
        """See ASGI: return new bytes of the body, or that the client is gone or was answered. One call at a time."""
        connection = self._connection
        if self.expects_continue:
            self.expects_continue = False
            if not connection.transport.is_closing():
                connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self.disconnected or self.response_complete):
            if self.body or not (self.more_body or self._is_received):
                body, self.body = self.body, b""
                self._is_received = not self.more_body
                if not connection.is_reading:
                    connection.body_was_taken()
                return {"type": "http.request", "body": bytes(body), "more_body": self.more_body}
            self._waiting = connection.loop.create_future()
            await self._waiting
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """See ASGI. Raise RuntimeError for messages that do not form an answer."""
        if self._connection.is_full and not self.disconnected:
            await self._connection.writable()
        if self.disconnected:
            return
        if not self.response_started:
            self._begin(message)
        elif not self.response_complete:
            self._proceed(message)
        else:
            raise RuntimeError(f"{message['type']} after the end of an answer")

    def _begin(self, message: Message) -> None:
        """Take the head. If it has no length, write it now, because its body may take long to arrive."""
        if message["type"] != "http.response.start":
            raise RuntimeError(f"an answer can't begin with {message['type']}")
        if self.more_body:
            self._connection.before_early_answer(self)
        status: int = message["status"]
        length, fields = _length_and_lines(message.get("headers", ()))
        self.response_started = True
        self.expects_continue = False
        self._has_body = status not in _NO_BODY and self.scope["method"] != "HEAD"
        # HTTP/1.0 has no chunks: there a body without a length ends with the connection (RFC 9112 section 6.3).
        self._is_chunked = self._has_body and length < 0 and self.scope["http_version"] != "1.0"
        self._left = length
        end = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        if self._is_chunked:
            end = b"transfer-encoding: chunked\r\n" + end
        self._head = b"".join((_STATUS_LINES[status], self._connection.common_fields(), fields, end))
        if length < 0:
            self._write(b"")

    def _proceed(self, message: Message) -> None:
        """Take a piece of the body, maybe the last one."""
        if message["type"] != "http.response.body":
            raise RuntimeError(f"{message['type']} in the body of an answer")
        body: bytes = message.get("body", b"")
        is_last = not message.get("more_body", False)
        account = self.scope["slot"].account
        if is_last and account.page:
            account.set_aside(0)  # from now on the unsent bytes of the answer are counted
        if self._is_chunked:
            piece = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            self._write(piece + b"0\r\n\r\n" if is_last else piece)
        elif self._has_body:
            if self._left >= 0:
                self._left -= len(body)
                if self._left < 0 or (is_last and self._left):
                    raise RuntimeError("the body of an answer differs in length from its content-length")
            self._write(body)
        elif is_last:
            self._write(b"")
        if is_last:
            self.response_complete = True
            if self._waiting is not None:
                self._wake()
            if not self.keep_alive:
                self._connection.end()
            self._connection.on_response_complete()

    def _write(self, piece: bytes) -> None:
        """Write the head if it was kept, and a piece of the body."""
        head, self._head = self._head, b""
        write = self._connection.transport.write
        if len(piece) <= JOINED_BYTES_MAX:
            piece = head + piece
        elif head:
            write(head)
        if piece:
            write(piece)


def _length_and_lines(headers: Iterable[Header]) -> tuple[int, bytes]:
    """Return the length of the body (-1 if it is not given) and the lines of these header fields."""
    fields = [*headers]
    count = len(fields)
    lines = b"".join([b"%b: %b\r\n" % field for field in fields])
    # A CR or LF inside a value would begin another field or another answer.
    if lines.count(b"\r") != count or lines.count(b"\n") != count or _NOT_IN_A_FIELD.search(lines):
        raise RuntimeError("a control character in a field of an answer's head")
    return int(dict(fields).get(b"content-length", -1)), lines
