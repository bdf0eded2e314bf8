"""Holds back for a while what could go: the option `undo` has what was settled stay in the log for so long.

Segments in which nothing is live are dropped later, and an empty queue shrinks later. Room comes first: they are held
back only as long as half of the cap is free beside them, so nothing that is published waits for one to go.
"""

from __future__ import annotations

from curbstone.core.agenda import Agenda
from curbstone.core.log.log import Log
from curbstone.core.state import QueueState


class Holding:
    """What one queue holds back."""

    __slots__ = ("_agenda", "_log", "_settled_ms", "_state", "_through")

    def __init__(self, state: QueueState, agenda: Agenda, log: Log) -> None:
        self._state = state
        self._agenda = agenda
        self._log = log
        self._settled_ms = state.host.now_ms()
        """Engine time when something was settled last; after a start that is not known, and begins anew."""
        self._through = 0
        """The last segment that is not held back, for its room is needed."""

    @property
    def is_on(self) -> bool:
        """Whether anything is to be held back at all."""
        return self._state.options.undo > 0

    def settled(self) -> None:
        """A commit has settled something."""
        self._settled_ms = self._state.host.now_ms()

    def give_way(self) -> None:
        """Room is needed: hold back nothing of what there is."""
        self._through = self._log.active.number

    def idles(self) -> bool:
        """The queue is empty and idle: return whether it keeps what it has for now; it has a turn when that is over."""
        return self._is_early(self._settled_ms)

    def may_go(self, dead: int) -> int:
        """Return how many of the `dead` oldest segments, in which nothing is live, may go now."""
        room, now_ms = self._log.room, self._state.host.now_ms()
        free = room.publish_left - room.promised
        segments = self._log.segments[:dead]
        for segment in segments:
            segment.dead_ms = segment.dead_ms or now_ms
        for count, segment in enumerate(segments):
            is_wanted = segment.number <= self._through or free < room.cap // 2
            if not is_wanted and self._is_early(segment.dead_ms):
                return count
            free += segment.size
        return dead

    def _is_early(self, since_ms: int) -> bool:
        """Return whether what could go since then is held back still; if so the queue has a turn when it is not."""
        due_ms = since_ms + int(self._state.options.undo * 1000)
        if self._state.host.now_ms() >= due_ms:
            return False
        self._agenda.at(due_ms)
        return True
