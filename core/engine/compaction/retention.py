"""Keeps dead segments for a while: with the option `undo`, settled messages stay in the log that long.

Segments in which nothing is live are dropped later, and an empty queue shrinks later. Room takes precedence: segments
are kept only while half of the cap is free beside them, so no publish waits until one of them is dropped.
"""

from __future__ import annotations

from curbstone.core.engine.parts import Parts


class Retention:
    """Decides what one queue holds back."""

    __slots__ = ("_parts", "_settled_ms", "_through")

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._settled_ms = parts.state.host.now_ms()
        """Engine time when something was settled last. After a start it is not known, so the start counts."""
        self._through = 0
        """The number of the last segment that is not held back, because room was needed when it was there."""

    def settled(self) -> None:
        self._settled_ms = self._parts.state.host.now_ms()

    def give_way(self) -> None:
        """Room is needed: hold back none of the segments that there are now."""
        self._through = self._parts.log.active.number

    def review(self, dead: int) -> None:
        """Note since when the `dead` oldest segments have nothing live; the queue has a turn when the next may go."""
        now_ms = self._parts.state.host.now_ms()
        segments = self._parts.log.segments
        for segment in segments[:dead]:
            segment.dead_ms = segment.dead_ms or now_ms
        kept = self.droppable_now(dead)
        if kept < dead:
            self._parts.wakeups.at(self._due_ms(segments[kept].dead_ms))

    def droppable_now(self, dead: int) -> int:
        """Return how many of the `dead` oldest segments, in which nothing is live, may go now."""
        room, now_ms = self._parts.log.room, self._parts.state.host.now_ms()
        free = room.publish_left - room.promised
        for count, segment in enumerate(self._parts.log.segments[:dead]):
            is_wanted = segment.number <= self._through or free < room.cap // 2
            if not is_wanted and now_ms < self._due_ms(segment.dead_ms or now_ms):
                return count
            free += segment.size
        return dead

    @property
    def idle_until_ms(self) -> int:
        """Engine time until which an empty queue that is idle keeps its log."""
        return self._due_ms(self._settled_ms)

    def _due_ms(self, since_ms: int) -> int:
        return since_ms + int(self._parts.state.options.undo * 1000)
