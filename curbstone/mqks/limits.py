"""The limits of an MQKS connection. Every buffer and table of a session has its limit here."""

from __future__ import annotations

from dataclasses import dataclass

REQUEST_BYTES_MAX = 64 * 1024
"""The most bytes of a request besides the data of a publish or ping: ids, action, events, options."""

WORK_US_MAX = 5_000
"""About how long the requests of one connection may run before the other connections get a turn."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one connection. Each is checked where its name is used."""

    body_bytes_max: int = 1024 * 1024
    """The data of one publish: the server's --max-message-size."""
    first_line_ms: int = 30_000
    """The time from connecting to the first complete line."""
    id_bytes_max: int = 1000
    """The length of a request id, which is also the id of a message or a consumer."""
    junk_bytes_max: int = 64 * 1024 * 1024
    """How many bytes of an overlong line are skipped before the connection is closed."""
    line_ms: int = 30_000
    """The time from the first byte of a line to its last. A large line may take longer while it arrives at
    `line_bytes_per_s`."""
    line_bytes_per_s: int = 1024
    errors_max: int = 1_000
    """How many consecutive bad requests end the connection."""

    consumers_max: int = 1_000
    window: int = 1_000
    """The window of a consumer with --manual-ack and without --window."""
    window_max: int = 1_000_000

    unconfirmed_max: int = 20_000
    """Requests handed to the engine and not yet on disk. Beyond this, reading stops."""
    unconfirmed_bytes_max: int = 8 * 1024 * 1024
    output_bytes_max: int = 4 * 1024 * 1024
    """Unsent output. Beyond this, reading stops: a client that never reads its answers must not fill the memory."""

    @property
    def line_bytes_max(self) -> int:
        """The longest line that is read."""
        return self.body_bytes_max + REQUEST_BYTES_MAX
