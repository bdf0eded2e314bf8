"""Parses the lines of MQKS into requests, and encodes answers.

A request is `{request_id} {action} {data}` and LF. An answer is `{request_id} ok {data}` or `{request_id} error
{error_id}`. A CR and spaces at the end of a request are removed. Everything between its second space and its end is the
action's data, byte for byte. An answer without data still has the space before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from curbstone.core import headers
from curbstone.mqks.errors import RequestError

NO_ID = b"None"
"""The id in an answer to a request whose id could not be read."""

HEAD_BYTES = 1024
"""How many bytes of an overlong line are kept."""

ID_HEADER, EVENT_HEADER = "mqks-id", "mqks-event"
"""The header lines that store the publisher's id for a message, and the event it was published to."""

# In a message that was moved over HTTP, they are metadata.
_ID_HEADERS = (ID_HEADER, "x-msg-x-" + ID_HEADER)
_EVENT_HEADERS = (EVENT_HEADER, "x-msg-x-" + EVENT_HEADER)

_CONFIRM = b"--confirm "
_IN_ONE_LINE = ((b"\r", b"\\r"), (b"\n", b"\\n"), (b"\t", b"\\t"))


class Line(NamedTuple):
    """One line without its LF; of an overlong line, only the beginning."""

    text: bytes
    is_whole: bool


class LineReader:
    """Cuts a stream into lines. It searches each byte once and keeps at most one line."""

    def __init__(self, line_bytes_max: int) -> None:
        self._bytes_max = line_bytes_max
        self._begun = bytearray()
        self.overlong_bytes = 0
        """The length so far of the unfinished line if it is too long; else 0."""

    @property
    def unfinished_bytes(self) -> int:
        """The length so far of the unfinished line."""
        return self.overlong_bytes or len(self._begun)

    def feed(self, data: bytes) -> list[Line]:
        """Return the lines that `data` completes."""
        *ended, rest = data.split(b"\n")
        lines = []
        for piece in ended:
            self._add(piece)
            lines.append(Line(bytes(self._begun), not self.overlong_bytes))
            self._begun.clear()
            self.overlong_bytes = 0
        self._add(rest)
        return lines

    def drop(self) -> None:
        """Forget the unfinished line, whose rest will never arrive."""
        self._begun.clear()

    def _add(self, piece: bytes) -> None:
        begun = self._begun
        if not self.overlong_bytes:
            if len(begun) + len(piece) <= self._bytes_max:
                begun += piece
                return
            self.overlong_bytes = len(begun)
        self.overlong_bytes += len(piece)
        begun += piece[: max(HEAD_BYTES - len(begun), 0)]
        del begun[HEAD_BYTES:]


class Request(NamedTuple):
    """A request, split; `rest` are the arguments of its action."""

    request_id: bytes
    action: bytes
    rest: bytes
    confirm: bool


def parse_request(text: bytes) -> Request:
    """Return the request in a line; raise RequestError. After an error, `request_id_of` finds the id."""
    words = text.rstrip(b" \r").split(b" ", 2)
    if len(words) < 3 or not words[0]:
        raise RequestError("a request must be {request_id} {action} {data}")
    request_id, action, rest = words
    confirm = rest.startswith(_CONFIRM)
    return Request(request_id, action, rest[len(_CONFIRM) :] if confirm else rest, confirm)


def request_id_of(text: bytes, bytes_max: int) -> bytes:
    """Return the id for an answer to this line."""
    words = text.rstrip(b" \r").split(b" ", 2)
    if len(words) < 3 or not words[0] or len(words[0]) > bytes_max or b"\t" in words[0]:
        return NO_ID
    return words[0]


def ok(request_id: bytes, data: bytes = b"") -> bytes:
    """Return the answer to a request that was carried out."""
    return b"%b ok %b\n" % (request_id, data)


def error(request_id: bytes, error_id: bytes, retry_after_s: int = 0) -> bytes:
    """Return an error answer. `retry_after_s` is for an `auth` that was not checked: when to try again."""
    retry = b" retry-after=%d" % retry_after_s if retry_after_s else b""
    return b"%b error %b%b\n" % (request_id, error_id, retry)


def delivery(consumer_id: bytes, msg_id: bytes, event: bytes, tries: int, body: bytes) -> bytes:
    """Return the line of a delivery. CR, LF and tab would end the line or the connection, so they are escaped."""
    if b"\n" in body or b"\t" in body or b"\r" in body:
        for plain, written in _IN_ONE_LINE:
            body = body.replace(plain, written)
    if tries:
        return b"%b ok %b event=%b,retry=%d %b\n" % (consumer_id, msg_id, event, tries, body)
    return b"%b ok %b event=%b %b\n" % (consumer_id, msg_id, event, body)


def block_of(msg_id: str, event: str, more: Mapping[str, str]) -> bytes:
    """Return the header block for a message that is published over MQKS, with some more headers."""
    return headers.encode(((ID_HEADER, msg_id), (EVENT_HEADER, event), *more.items()))


def names_in(block: bytes) -> tuple[bytes, bytes]:
    """Return the msg_id and the event in a header block; b"" for one that is missing or does not fit into a line."""
    if b"mqks-" not in block:
        return b"", b""
    msg_id = event = ""
    for name, value in headers.decode(block):
        if name in _ID_HEADERS:
            msg_id = msg_id or value
        elif name in _EVENT_HEADERS:
            event = event or value
    return _one_word(msg_id), _one_word(event)


def _one_word(text: str) -> bytes:
    # Over another protocol a client can set this header to anything, so it must not break the line.
    return text.encode() if text.isprintable() and " " not in text else b""
