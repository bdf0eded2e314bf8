"""The interface of a WebSocket for the sessions of protocols over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

NORMAL, GOING_AWAY, PROTOCOL_ERROR, POLICY_VIOLATION, TOO_BIG, TRY_AGAIN = 1000, 1001, 1002, 1008, 1009, 1013
"""Codes of close frames (RFC 6455 section 7.4.1)."""

_REASON_BYTES_MAX = 120


class WebSocketPort(Protocol):
    """The output side of a WebSocket. The output of a turn is sent in one write, unless it is very large."""

    def send(self, frames: bytes) -> None:
        """Send encoded frames. After `close`, do nothing."""

    def close(self, code: int, reason: str = "") -> None:
        """Close after everything that was sent. Calls the session's `closed` before it returns."""

    def at_flush(self, fn: Callable[[], None], more_bytes: int = 0) -> None:
        """Call `fn` before the output is sent: at the end of this turn, or at once. Each call must pass the same `fn`.

        `more_bytes`: by how many bytes the output that `fn` will send has grown; see `Stream.changed`.
        """

    def limit_unsent(self, bytes_max: int) -> None:
        """Do not read while the socket is full and more than `bytes_max` bytes of output are unsent."""

    def keeps(self, size: int) -> None:
        """Set the size of the complete messages that the session holds because they are parts of a larger unit."""

    def pause(self) -> None:
        """Stop reading."""

    def resume(self) -> None:
        """Resume reading."""


def reason_text(text: str) -> str:
    """Return as much of a text as fits into a close frame."""
    return text.encode()[:_REASON_BYTES_MAX].decode("utf-8", "ignore")
