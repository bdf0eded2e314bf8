"""What MQKS has carried since the start; plain numbers, read when somebody asks."""

from __future__ import annotations


class Traffic:
    """The counters of one server."""

    __slots__ = ("acked", "confirmed", "delivered", "published")

    def __init__(self) -> None:
        self.published = 0
        """Messages published, whether or not a queue was bound to their event."""
        self.confirmed = 0
        """Those of them whose commits succeeded."""
        self.delivered = 0
        """Messages handed to consumers."""
        self.acked = 0
        """Deliveries acknowledged, those that are settled when they are sent among them."""
