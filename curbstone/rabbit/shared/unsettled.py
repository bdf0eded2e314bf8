"""How many messages clients have unsettled. Each gateway tells the others every second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from curbstone.core.values import UNNAMED

if TYPE_CHECKING:
    from curbstone.rabbit.engine import Engine

TELL_MS = 1000


class Unsettled:
    """The counts of this gateway, which it tells the others, and those that it heard from them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._elsewhere: dict[str, tuple[int, dict[str, int]]] = {}
        """For each other gateway, when it told its counts, and the counts."""
        self._told: dict[str, int] = {}

    def start(self) -> None:
        """Begin to tell the counts every second, until the server stops."""
        self._engine.host.call_later(TELL_MS, self._tell)

    def _tell(self) -> None:
        if self._engine.is_stopping:
            return
        counts = {}
        for queue in self._engine.queues():
            for group in (UNNAMED, *queue.options.groups):
                count = queue.counting.unsettled(group)
                if count:
                    counts[f"{queue.uid}#{group}"] = count
        if counts or self._told:
            self._told = counts
            self._engine.inbox.tell_all({"do": "unsettled", "counts": counts})
        self._engine.host.call_later(TELL_MS, self._tell)

    def hear(self, gateway: str, counts: dict[str, int]) -> None:
        """Take the counts that another gateway tells of its clients."""
        self._elsewhere[gateway] = (self._engine.host.now_ms(), counts)

    def elsewhere(self, uid: str, group: str) -> int:
        """Return how many messages clients of other gateways have unsettled, as they told last."""
        since_ms = self._engine.host.now_ms() - 3 * TELL_MS
        key = f"{uid}#{group}"
        return sum(counts.get(key, 0) for when_ms, counts in self._elsewhere.values() if when_ms >= since_ms)
