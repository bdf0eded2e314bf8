"""The settings of the gateway."""

from __future__ import annotations

from dataclasses import dataclass

from curbstone.gateway.limits import METADATA_BYTES_MAX, MIB

OF_HEALTH = ("/healthz", "/readyz")
"""The only paths that are served on a connection beyond the limit."""

JSON_GROWTH_MAX = 6
"""The most bytes of JSON for one byte of a body: a control character is written as six."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The gateway's settings; durations in seconds, sizes in bytes."""

    max_message_size: int = MIB
    max_ttl_s: float = 3600
    """The largest `ttl` a producer may ask for; 0 for no limit."""
    default_limit: int = 10
    cors_origins: tuple[str, ...] = ()
    """The origins whose pages may call, such as `https://app.example`; `*` for all."""
    documents_are_open: bool = True
    """Whether the contracts can be read without a login, which is so if all listeners are on loopback addresses."""
    hosts: tuple[str, ...] = ()
    """The names that are allowed in Host besides addresses and localhost; `*` for all."""

    metrics_queues: tuple[str, ...] = ("*/*",)
    """The queues that /metrics may name, as patterns of `project/queue`."""

    @property
    def frame_bytes_max(self) -> int:
        """The largest WebSocket message: one JSON object with the largest body and its metadata."""
        return JSON_GROWTH_MAX * self.max_message_size + 2 * METADATA_BYTES_MAX

    @property
    def json_bytes_max(self) -> int:
        """The largest body of a request with JSON, such as a batch."""
        return max(8 * MIB, self.frame_bytes_max)
