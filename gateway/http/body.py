"""Reads request bodies, never more of one than its limit."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.types import Receive

from curbstone.gateway.http.problem import ClientGone, Problem
from curbstone.gateway.http.scope import AnyScope
from curbstone.net.budget import Account


async def read_body(scope: AnyScope, receive: Receive, bytes_max: int) -> bytes:
    """Return the whole body; raise Problem 413 if it is larger than `bytes_max`.

    If the length is announced, a larger body is refused before any of it is read. The HTTP server reads and drops the
    rest of a refused body, so that the client sees the answer and not a reset connection.
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
    return await _read_rest(body, receive, bytes_max, scope["slot"].account)


def check_length(scope: AnyScope, bytes_max: int) -> None:
    """Raise Problem 413 if the announced length is larger."""
    if scope["length"] > bytes_max:
        raise _too_large(bytes_max)


async def pieces_of(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the body as it arrives; raise ClientGone if the client leaves before its end."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece: bytes = message.get("body", b"")
        if piece:
            yield piece
        more = message.get("more_body", False)


async def _read_rest(first: bytes, receive: Receive, bytes_max: int, account: Account) -> bytes:
    """Return the rest of the body. Its bytes count as the client's until the request is answered."""
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
        account.hold_input(size, is_complete=not more)
    if size > bytes_max:
        raise _too_large(bytes_max)
    return b"".join(pieces)


def _too_large(bytes_max: int) -> Problem:
    return Problem(413, f"the body is larger than {bytes_max} bytes")
