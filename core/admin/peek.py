"""Looking at what a queue holds, message by message, without changing anything."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from curbstone.core.engine.index.group import Group
from curbstone.core.engine.index.runs import Run, seqs_of
from curbstone.core.engine.parts import Parts
from curbstone.core.headers import key_of
from curbstone.core.message import Message
from curbstone.core.values import Peeked, Peeks

STATES = ("rdy", "wip", "delayed")
LOOKED_AT_ONCE = 8192
"""After about so many messages the loop looks at its sockets."""


class Peek:
    """One look: walks the runs, has those read that are not in memory, and answers once."""

    def __init__(self, parts: Parts, limit: int, after: int, wanted: str, group: str | None, on_done: Peeks) -> None:
        self._state = parts.state
        self._index = parts.index
        self._limit = limit
        self._next = after + 1
        self._wanted = wanted
        self._group = group
        self._on_done = on_done
        self._found: list[Peeked] = []

    def proceed(self) -> None:
        """Walk on until there are enough messages, a run has to be read first, or the turn has lasted long enough."""
        left = LOOKED_AT_ONCE
        while len(self._found) < self._limit:
            run = self._index.runs.at_or_after(self._next)
            if run is None:
                break
            if left <= 0:
                self._state.host.call_soon(self.proceed)
                return
            left -= run.last - run.first
            if run.messages is None:
                refusal = self._state.ended()
                if refusal is not None:  # the messages of a closed queue are not read any more
                    self._state.host.call_soon(partial(self._on_done, refusal))
                    return
                self._index.reader.load(run, self.proceed, keeps=False)
                return
            self._look_at(run)
        found = self._found
        self._state.host.call_soon(lambda: self._on_done(found))

    def _look_at(self, run: Run) -> None:
        assert run.messages is not None
        skip = max(self._next - run.first, 0)
        for seq in seqs_of(run.first + skip, run.live() >> skip):
            if len(self._found) >= self._limit:
                return
            self._next = seq + 1
            message = run.messages[seq - run.first]
            if message is not None:
                self._add(run, message)
        self._next = run.last + 1

    def _add(self, run: Run, message: Message) -> None:
        for group in self._groups():
            if run.is_pending(group.name, message.seq):
                state = _state(group, message.seq)
                if self._wanted in ("", state):
                    known = group.tracked.get(message.seq)
                    due_ms = known.due_ms if known else 0
                    behind = 0
                    if group.keys is not None and state == "rdy":
                        behind = group.keys.first_before(message.seq, key_of(message.headers))
                    self._found.append(Peeked(message, state, group.tries_of(message.seq), due_ms, behind))
                return

    def _groups(self) -> Iterable[Group]:
        """Return the groups to look in; a message is listed once, for the first in which it is pending."""
        groups = self._index.groups
        if self._group is None:
            return groups.values()
        return [groups[self._group]] if self._group in groups else []


def _state(group: Group, seq: int) -> str:
    if seq in group.in_flight:
        return "wip"
    return "delayed" if group.is_delayed(seq) else "rdy"
