"""A WebSocket as a session sees it: what a protocol spoken over WebSocket needs from the owner of the socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

NORMAL, GOING_AWAY, PROTOCOL_ERROR, POLICY_VIOLATION, TOO_BIG, TRY_AGAIN = 1000, 1001, 1002, 1008, 1009, 1013
"""Codes of close frames (RFC 6455 section 7.4.1)."""

_REASON_BYTES_MAX = 120


class WebSocketPort(Protocol):
    """The output side of a WebSocket. Output of one turn of the loop leaves in one write, unless it is very much."""

    def send(self, frames: bytes) -> None:
        """Send encoded frames. After `close`, does nothing."""

    def close(self, code: int, reason: str = "") -> None:
        """Close after everything that was sent. Calls the session's `closed` before it returns."""

    def at_flush(self, fn: Callable[[], None], more_bytes: int = 0) -> None:
        """Call `fn` before the output leaves: at the end of this turn, or at once. Each call must pass the same `fn`.

        `more_bytes`: by how many bytes the output that `fn` will send has grown; see `Stream.changed`.
        """

    def limit_unsent(self, bytes_max: int) -> None:
        """Do not read while the socket is full and more than `bytes_max` bytes of output wait in it."""

    def keeps(self, size: int) -> None:
        """Note that the session holds `size` bytes of complete messages that are only a part of something."""

    def hold(self) -> None:
        """Stop reading until `resume`, so that the peer can't send more."""

    def resume(self) -> None:
        """Continue reading."""


def reason_text(text: str) -> str:
    """Return as much of a text as fits into a close frame."""
    return text.encode()[:_REASON_BYTES_MAX].decode("utf-8", "ignore")
