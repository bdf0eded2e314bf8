"""The counters of the gateway's own protocols."""

from __future__ import annotations

from curbstone.core.traffic import Traffic


class GatewayTraffic:
    """One counter set for each protocol. Settles of leases from HTTP or SSE count as HTTP."""

    def __init__(self) -> None:
        self.http = Traffic()
        self.websocket = Traffic()
        self.sse = Traffic()
