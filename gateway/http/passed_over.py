"""What stands behind the head of a request that offers another protocol, as Java offers h2c, and is not given it.

The parser takes such a head for the whole message, and what follows for the other protocol's. So another one goes on
behind it, which is told of a body of that length and of no offer.
"""

from __future__ import annotations

from typing import Any

import httptools


def parser_behind(protocol: Any, length: int) -> httptools.HttpRequestParser:
    """Return a parser for the body, -1 for one in chunks, and for the requests behind it.

    Where there is no body `on_message_complete` is called before this returns.
    """
    parser = httptools.HttpRequestParser(_Rest(protocol))
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
    framing = b"transfer-encoding: chunked" if length < 0 else b"content-length: %d" % length
    parser.feed_data(b"POST / HTTP/1.1\r\nhost: -\r\n%b\r\n\r\n" % framing)
    return parser


class _Rest:
    """Passes on what the parser says, but for the head that it was told."""

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
