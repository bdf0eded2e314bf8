"""What can be set for the gateway."""

from __future__ import annotations

from dataclasses import dataclass

from curbstone.gateway.limits import METADATA_BYTES_MAX, MIB

OF_HEALTH = ("/healthz", "/readyz")
"""All that is answered on a connection beyond the most there may be."""

JSON_GROWTH_MAX = 6
"""One byte of a body is at most this many in JSON: a control character is written as six."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The gateway's settings; durations in seconds, sizes in bytes."""

    max_message_size: int = MIB
    max_ttl_s: float = 3600
    """The largest `ttl` a producer may ask for; 0 for any."""
    default_limit: int = 10
    cors_origins: tuple[str, ...] = ()
    """The origins of pages that may call, as in `https://app.example`; `*` for all."""
    documents_are_open: bool = True
    """Whether the contracts need no login, as where all listeners are this machine's own."""
    hosts: tuple[str, ...] = ()
    """Names a request may carry in Host, beside addresses and localhost; `*` for all."""

    @property
    def frame_bytes_max(self) -> int:
        """The largest WebSocket message: one JSON object that holds the largest body and its metadata."""
        return JSON_GROWTH_MAX * self.max_message_size + 2 * METADATA_BYTES_MAX

    @property
    def json_bytes_max(self) -> int:
        """The largest body of a call that takes JSON, a batch included."""
        return max(8 * MIB, self.frame_bytes_max)
