"""The numbers of unsettled messages. Each gateway sends its counts to the others every second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from curbstone.core.values import UNNAMED

if TYPE_CHECKING:
    from curbstone.rabbit.engine import Engine

SEND_EVERY_MS = 1000


class Unsettled:
    """The counts of this gateway, and those received from the others."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._of_others: dict[str, tuple[int, dict[str, int]]] = {}
        """By gateway, the time when its counts were received, and the counts."""
        self._last_sent: dict[str, int] = {}

    def start(self) -> None:
        """Begin to send the counts every second, until the server stops."""
        self._engine.host.call_later(SEND_EVERY_MS, self._send)

    def _send(self) -> None:
        if self._engine.is_stopping:
            return
        counts = {}
        for queue in self._engine.queues():
            for group in (UNNAMED, *queue.options.groups):
                count = queue.counting.unsettled(group)
                if count:
                    counts[f"{queue.uid}#{group}"] = count
        if counts or self._last_sent:
            self._last_sent = counts
            self._engine.rpc.broadcast({"do": "unsettled", "counts": counts})
        self._engine.host.call_later(SEND_EVERY_MS, self._send)

    def receive(self, gateway: str, counts: dict[str, int]) -> None:
        """Take the counts of the clients of another gateway."""
        self._of_others[gateway] = (self._engine.host.now_ms(), counts)

    def of_other_gateways(self, uid: str, group: str) -> int:
        """Return the number of unsettled messages at other gateways, by their last reports."""
        since_ms = self._engine.host.now_ms() - 3 * SEND_EVERY_MS
        key = f"{uid}#{group}"
        return sum(counts.get(key, 0) for when_ms, counts in self._of_others.values() if when_ms >= since_ms)
