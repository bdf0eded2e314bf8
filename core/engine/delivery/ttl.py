"""Time to live: finds the messages that have expired, and ends them."""

from __future__ import annotations

from functools import partial

from curbstone.core.engine.delivery.dead_letters import DeadLetters
from curbstone.core.engine.parts import Parts


class Ttl:
    """Ends the expired messages of one queue, which `core.engine.index.due` finds."""

    __slots__ = ("_dead_letters", "_index", "_state")

    def __init__(self, parts: Parts, dead_letters: DeadLetters) -> None:
        self._state = parts.state
        self._index = parts.index
        self._dead_letters = dead_letters

    def expire_due(self, now_ms: int) -> None:
        """End messages that have expired by now; if there are many, some of them."""
        for seq in self._index.expiries.take_due(now_ms):
            self._expire_at(seq)

    def _expire_at(self, seq: int) -> None:
        run = self._index.runs.at_or_after(seq)
        if run is None or not run.expires_ms:
            return
        if run.messages is None:
            if not self._state.is_closed:  # else its messages are not read any more
                self._index.reader.load(run, partial(self._expire_at, run.first))
            return
        now_ms = self._state.host.now_ms()
        next_ms = 0
        for message in [m for m in run.messages if m is not None and m.expires_ms]:
            if message.expires_ms > now_ms:
                next_ms = min(next_ms or message.expires_ms, message.expires_ms)
                continue
            for group in self._index.groups.values():
                if run.pending(group.name) >> (message.seq - run.first) & 1 and message.seq not in group.in_flight:
                    self._dead_letters.expire(group, message)
        run.expires_ms = 0
        if next_ms and run.live():
            self._index.expiries.note(run, next_ms)
