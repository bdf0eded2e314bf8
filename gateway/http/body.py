"""Reading a request's body, never more of it than its limit."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.types import Receive

from curbstone.gateway.http.problem import ClientGone, Problem
from curbstone.gateway.http.scope import AnyScope


async def read_body(scope: AnyScope, receive: Receive, bytes_max: int) -> bytes:
    """Return the whole body; raise Problem 413 for a larger one, before reading where its length was announced.

    What is left of a refused body is read and dropped by the HTTP server, so that the client sees
    the refusal in place of a reset connection.
    """
    check_length(scope, bytes_max)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
        return body
    return await _read_rest(body, receive, bytes_max)


def check_length(scope: AnyScope, bytes_max: int) -> None:
    """Raise Problem 413 for a body that is announced as larger."""
    if scope["length"] > bytes_max:
        raise _too_large(bytes_max)


async def pieces_of(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the body as it comes; raise ClientGone where the client goes before its end."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece: bytes = message.get("body", b"")
        if piece:
            yield piece
        more = message.get("more_body", False)


async def _read_rest(first: bytes, receive: Receive, bytes_max: int) -> bytes:
    pieces = [first]
    size = len(first)
    more = True
    while more:
        if size > bytes_max:
            raise _too_large(bytes_max)
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece = message.get("body", b"")
        pieces.append(piece)
        size += len(piece)
        more = message.get("more_body", False)
    if size > bytes_max:
        raise _too_large(bytes_max)
    return b"".join(pieces)


def _too_large(bytes_max: int) -> Problem:
    return Problem(413, f"the body is larger than {bytes_max} bytes")
