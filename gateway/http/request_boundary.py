"""Finds where requests end in the received bytes, and creates parsers, also for input after an ignored upgrade.

The parser never gets more than the head or the body of one request, so the next request stays unparsed until this one
is answered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import httptools

from curbstone.gateway.http.fields import Header

_BLANK_LINE = b"\r\n\r\n"
_EMPTY_LINES = re.compile(rb"[\r\n]*")


class RequestBoundary:
    """Finds the ends, one after the other.

    A head and a body in chunks end with a blank line, which may be cut by a read.
    """

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""
        """The last bytes that were searched, in case a blank line begins in them."""

    def next(self, data: bytes, start: int, is_under_way: bool) -> int:
        """Return where to stop parsing from `start` on. `is_under_way`: a head or such a body has begun."""
        tail, self._tail = self._tail, b""
        if not is_under_way:
            lines = _EMPTY_LINES.match(data, start)
            assert lines
            start = lines.end()  # empty lines before a request end nothing
        if tail:
            found = (tail + data).find(_BLANK_LINE) - len(tail)
            is_found = found >= -len(tail)
        else:
            found = data.find(_BLANK_LINE, start)
            is_found = found >= 0
        if is_found:
            return found + len(_BLANK_LINE)
        self._tail = (tail + data[-3:])[-3:]
        return len(data)


def new_parser(protocol: Any) -> httptools.HttpRequestParser:
    """Return a parser that calls `protocol`. What follows a last request is not parsed, and so it is no error."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def parser_behind(protocol: Any, length: int) -> httptools.HttpRequestParser:
    """Return a parser for the body, whose length is -1 if it is in chunks, and for the requests after it.

    If there is no body, `on_message_complete` is called before this returns.
    """
    parser = new_parser(_Rest(protocol))
    framing = b"transfer-encoding: chunked" if length < 0 else b"content-length: %d" % length
    parser.feed_data(b"POST / HTTP/1.1\r\nhost: -\r\n%b\r\n\r\n" % framing)
    return parser


def requests_websocket(fields: Sequence[Header]) -> bool:
    """Return whether the head offers an upgrade to a WebSocket; other protocols are ignored."""
    offered = upgrade = b""
    for name, value in fields:
        if name == b"connection":
            offered = value
        elif name == b"upgrade":
            upgrade = value
    return upgrade.lower() == b"websocket" and b"upgrade" in [token.strip() for token in offered.lower().split(b",")]


class _Rest:
    """Passes the parser's callbacks on, except those for the head that it was given."""

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._is_told = True
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete

    def on_message_begin(self) -> None:
        if not self._is_told:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._is_told:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_told:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._is_told:
            self._protocol.on_headers_complete()
        self._is_told = False
