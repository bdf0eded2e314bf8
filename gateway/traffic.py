"""The numbers of the gateway's own protocols."""

from __future__ import annotations

from curbstone.core.traffic import Traffic


class GatewayTraffic:
    """What is leased over HTTP or SSE is settled over HTTP."""

    def __init__(self) -> None:
        self.http = Traffic()
        self.websocket = Traffic()
        self.sse = Traffic()
