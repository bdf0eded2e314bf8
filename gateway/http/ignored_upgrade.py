"""Reads on after a head that offers an upgrade to another protocol which is ignored, as Java offers h2c.

The parser takes such a head for a complete message, and all that follows for bytes of the other protocol. So a new
parser is made for it, which is given a head with the same body length and no upgrade.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httptools

from curbstone.gateway.http.fields import Header


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


def asks_for_websocket(fields: Sequence[Header]) -> bool:
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
