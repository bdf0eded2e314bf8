"""The limits of one STOMP connection. Every buffer and table of a session has one here."""

from __future__ import annotations

from dataclasses import dataclass

PRIVATE_BODIES = 8
"""So many of the largest bodies have a place in a private queue, less what the log itself takes."""

COMMAND_BYTES_MAX = 32
"""Longest first line of a frame; a longer one is refused before anything is buffered."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may ask for; each is checked where the name is used."""

    header_bytes_max: int = 16 * 1024
    """Command and headers of one frame together."""
    headers_max: int = 100
    """Headers of different names in one frame."""
    body_bytes_max: int = 1024 * 1024
    """Body of one frame: the server's --max-message-size."""

    connect_body_bytes_max: int = 1024
    """Body of a frame before CONNECT is answered: none makes sense there, so nobody may fill the memory with one."""

    connect_ms: int = 10_000
    """From the connection to the complete CONNECT frame."""
    frame_ms: int = 30_000
    """From the first byte of a frame to its last, unless each such time brings bytes at `frame_bytes_per_s`."""
    frame_bytes_per_s: int = 1024
    heart_beat_ms_min: int = 100
    """Most often the server sends a heart-beat, whatever the client asks for."""
    closing_ms: int = 5_000
    """Longest wait for commits under way before the connection ends."""

    subscriptions_max: int = 1_000
    window: int = 1_000
    """Window of a subscription that names none."""
    window_max: int = 1_000_000
    parallel_max: int = 1_000

    private_cap_min: int = 64 * 1024 * 1024
    """The least cap of the queue of a topic's subscriber, or a temporary one: once it is full, it is too slow."""

    private_max: int = 1_000
    """Temporary queues, and those of topics' subscribers, whether they are subscribed to or sent to."""

    producers_max: int = 1_000
    """Numbered producers that publish over a connection, each counted once for each of its queues."""

    transactions_max: int = 100
    transaction_frames_max: int = 10_000
    """Frames of all open transactions of a connection."""
    transaction_bytes_max: int = 16 * 1024 * 1024
    """Bodies and headers of what they send."""

    unconfirmed_max: int = 20_000
    """Frames handed to the engine and not yet on disk, before reading stops."""
    unconfirmed_bytes_max: int = 8 * 1024 * 1024
    """Their bodies, headers and receipts."""
    output_bytes_max: int = 4 * 1024 * 1024
    """Unsent output before reading stops: a client that never reads its receipts must not fill the memory."""

    @property
    def private_cap(self) -> int:
        """The cap of a private queue."""
        return max(self.private_cap_min, PRIVATE_BODIES * self.body_bytes_max)
