"""A WebSocket as the session on it sees it: what a protocol that is spoken over one asks of who has the socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

NORMAL, GOING_AWAY, PROTOCOL_ERROR, POLICY_VIOLATION, TOO_BIG, TRY_AGAIN = 1000, 1001, 1002, 1008, 1009, 1013
"""The codes of close frames (RFC 6455 section 7.4.1)."""

_REASON_BYTES_MAX = 120


class Wire(Protocol):
    """The way to the peer. What is sent in one turn of the loop leaves in one write, unless it is very much."""

    def send(self, frames: bytes) -> None:
        """Send encoded frames; after `close` nothing."""

    def close(self, code: int, reason: str = "") -> None:
        """Close after what was sent; the session hears `closed` before this returns."""

    def at_flush(self, fn: Callable[[], None], more_bytes: int = 0) -> None:
        """Call `fn`, which is always the same, before what was sent leaves: at the end of this turn, or at once.

        `more_bytes`: by how much what it will send has grown; see `Stream.changed`.
        """

    def limit_unsent(self, bytes_max: int) -> None:
        """Read nothing while the socket is full and more than that waits for the peer to read."""

    def hold(self) -> None:
        """Stop reading for a while, so that the peer can't send more."""

    def resume(self) -> None:
        """Go on reading."""


def reason_text(text: str) -> str:
    """Return as much of a text as a close frame has room for."""
    return text.encode()[:_REASON_BYTES_MAX].decode("utf-8", "ignore")
