"""The limits of one MQKS connection. Every buffer and table of a session has one here."""

from __future__ import annotations

from dataclasses import dataclass

REQUEST_BYTES_MAX = 64 * 1024
"""The most a request may have beside the data of a publish or ping: ids, action, events, options."""

WORK_US_MAX = 5_000
"""About how long the requests of one connection are carried out before all others have their turn, as long again."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may ask for; each is checked where the name is used."""

    body_bytes_max: int = 1024 * 1024
    """Data of one publish: the server's --max-message-size."""
    first_line_ms: int = 30_000
    """From the connection to its first complete line."""
    id_bytes_max: int = 1000
    """A request id, which is also the id of a message or a consumer."""
    junk_bytes_max: int = 64 * 1024 * 1024
    """How much of a line that is too long is skipped in search of its end, before the connection is ended."""
    line_ms: int = 30_000
    """From the first byte of a line to its last, unless each such time brings bytes at `line_bytes_per_s`."""
    line_bytes_per_s: int = 1024
    errors_max: int = 1_000
    """Bad requests without a good one between them, before the connection is ended."""

    consumers_max: int = 1_000
    window: int = 1_000
    """Unsettled deliveries of a consumer with --manual-ack that names no --window."""
    window_max: int = 1_000_000

    unconfirmed_max: int = 20_000
    """Requests handed to the engine and not yet on disk, before reading stops."""
    unconfirmed_bytes_max: int = 8 * 1024 * 1024
    output_bytes_max: int = 4 * 1024 * 1024
    """Unsent output before reading stops: a client that never reads its answers must not fill the memory."""

    @property
    def line_bytes_max(self) -> int:
        """The longest line that is read."""
        return self.body_bytes_max + REQUEST_BYTES_MAX
