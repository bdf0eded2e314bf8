"""What a protocol has carried since the start; plain numbers, so that counting costs next to nothing."""

from __future__ import annotations

from typing import Protocol


class Counted(Protocol):
    """The numbers of one protocol, wherever they are kept."""

    published: int
    """Messages taken from producers."""
    confirmed: int
    """Those of them whose commit was confirmed."""
    delivered: int
    """Messages handed to consumers."""
    acked: int
    """Deliveries that consumers have acknowledged, those that are settled when they are sent among them."""


class Traffic:
    """One protocol's numbers. Implements `Counted`."""

    __slots__ = ("acked", "confirmed", "delivered", "published")

    def __init__(self) -> None:
        self.published = 0
        self.confirmed = 0
        self.delivered = 0
        self.acked = 0


class GatewayTraffic:
    """The numbers of the gateway's own protocols. What is leased over HTTP or SSE is acknowledged over HTTP."""

    def __init__(self) -> None:
        self.http = Traffic()
        self.websocket = Traffic()
        self.sse = Traffic()
