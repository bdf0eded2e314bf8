"""The limits of a STOMP connection. Every buffer and table of a session has its limit here."""

from __future__ import annotations

from dataclasses import dataclass

PRIVATE_BODIES = 8
"""A private queue's cap is at least this many times the largest body. The log itself takes part of it."""

COMMAND_BYTES_MAX = 32
"""The longest first line of a frame; a longer one is refused before anything is buffered."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one connection. Each is checked where its name is used."""

    header_bytes_max: int = 16 * 1024
    """The command and headers of one frame together."""
    headers_max: int = 100
    """Headers with different names in one frame."""
    body_bytes_max: int = 1024 * 1024
    """The body of one frame: the server's --max-message-size."""

    connect_body_bytes_max: int = 1024
    """The body of a frame before CONNECT is answered. Such frames need no body, so none may fill the memory."""

    connect_ms: int = 10_000
    """The time from connecting to the complete CONNECT frame."""
    frame_ms: int = 30_000
    """The time from the first byte of a frame to its last. A large frame may take longer while it arrives at
    `frame_bytes_per_s`."""
    frame_bytes_per_s: int = 1024
    heart_beat_ms_min: int = 100
    """The shortest interval of the server's heart-beats, whatever the client asks for."""
    closing_ms: int = 5_000
    """The longest wait for commits under way before the connection ends."""

    subscriptions_max: int = 1_000
    window: int = 1_000
    """The window of a subscription that sets none."""
    window_max: int = 1_000_000
    parallel_max: int = 1_000

    private_cap_min: int = 64 * 1024 * 1024
    """The least cap of a private queue, that is, of a topic subscriber's or a temporary one. A subscriber with a full
    private queue counts as too slow."""

    private_max: int = 1_000
    """Private queues: temporary ones and topic subscribers', whether they are subscribed to or sent to."""

    producers_max: int = 1_000
    """Numbered producers that publish over one connection; a producer counts once for each of its queues."""

    transactions_max: int = 100
    transaction_frames_max: int = 10_000
    """Frames in all open transactions of a connection."""
    transaction_bytes_max: int = 16 * 1024 * 1024
    """Bodies and headers of the messages in all open transactions of a connection."""

    unconfirmed_max: int = 20_000
    """Frames handed to the engine and not yet on disk. Beyond this, reading stops."""
    unconfirmed_bytes_max: int = 8 * 1024 * 1024
    """The bodies, headers and receipts of those frames."""
    output_bytes_max: int = 4 * 1024 * 1024
    """Unsent output. Beyond this, reading stops: a client that never reads its receipts must not fill the memory."""

    @property
    def private_cap(self) -> int:
        """The cap of a private queue, in bytes."""
        return max(self.private_cap_min, PRIVATE_BODIES * self.body_bytes_max)
