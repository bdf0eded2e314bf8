"""What waits to be written to one queue's log: publishes in a queue, settles and releases in lists, pops.

Whoever has something to write puts it here and has the queue's turn called; `core.writing.batch` takes what fits into
the next commit, and `core.writing.writer` puts back what a failed one has not written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from curbstone.core.agenda import Agenda
from curbstone.core.errors import CurbstoneError
from curbstone.core.log.format import Reason, Released
from curbstone.core.log.publish import Publish
from curbstone.core.message import Delivery
from curbstone.core.values import Done
from curbstone.core.writing.revival import Revival


class Pop(Protocol):
    """A message that somebody takes for good, and hears of when its settle is on disk."""

    group: str
    delivery: Delivery
    on_done: Callable[[Delivery | None | CurbstoneError], None]
    is_wanted: Callable[[], bool] | None
    """Whether anybody is left to take it, asked just before its settle is written."""
    is_in_doubt: bool
    """Whether a commit with it has failed, and no other has succeeded since: its settle may be on disk."""


_NOTHING: deque[Publish] = deque(maxlen=0)
"""What all outboxes have until something is published: an empty deque takes more memory than the rest of one."""


class Outbox:
    """See the module's docstring."""

    __slots__ = (
        "_agenda", "after_settles", "callbacks", "hand_outs", "must_write", "pops", "publishes", "ranges", "releases",
        "revival", "settles",
    )  # fmt: skip

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self.publishes = _NOTHING
        self.settles: dict[tuple[str, Reason], list[int]] = {}
        """The seqs of what is done with, by group and why."""
        self.ranges: dict[tuple[str, Reason], list[tuple[int, int]]] = {}
        """Likewise of many at once, such as a purge, as (first, count)."""
        self.releases: list[Released] = []
        """What was given back, in order."""
        self.hand_outs: dict[tuple[str, int], Released] = {}
        """Of messages that were handed out, and not for the first time: their tries, as a crash shall find them."""
        self.pops: dict[Pop, None] = {}
        """Those whose settles go into the next commits."""
        self.callbacks: list[Done] = []
        """Who waits until the settles and releases of before are on disk."""
        self.after_settles: list[Done] = []
        """Who waits until the settles of before are on disk, whatever becomes of releases."""
        self.revival: Revival | None = None
        """What comes back of what was settled; one at a time."""
        self.must_write = False
        """Whether something is to be written though nobody asked: to find out whether that works again."""

    # --- what is asked for

    def publish(self, publish: Publish) -> None:
        """Write messages when their turn comes."""
        if self.publishes is _NOTHING:
            self.publishes = deque()
        self.publishes.append(publish)
        self._agenda.dirty()

    def settled(self, group: str, reason: Reason, seqs: list[int]) -> None:
        """Write that messages are settled; `seqs` is the outbox's from now on."""
        if not seqs:
            return
        key = (group, reason)
        waiting = self.settles.get(key)
        if waiting is None:
            self.settles[key] = seqs
        else:
            waiting += seqs
        self._agenda.dirty()

    def settled_ranges(self, group: str, reason: Reason, ranges: list[tuple[int, int]]) -> None:
        """Write that many messages are settled, as (first, count)."""
        self.ranges.setdefault((group, reason), []).extend(ranges)
        self._agenda.dirty()

    def released(self, released: Released) -> None:
        """Write that messages are ready again; nobody has them any more."""
        if self.hand_outs:
            for seq in range(released.first, released.first + released.span):
                self.hand_outs.pop((released.group, seq), None)
        if self.releases:
            last = self.releases[-1]
            if last.first + last.span == released.first and last._replace(first=0, span=0) == released._replace(
                first=0, span=0
            ):
                self.releases[-1] = last._replace(span=last.span + released.span)
                return
        self.releases.append(released)
        self._agenda.dirty()

    def handed(self, states: list[Released]) -> None:
        """Write the tries of messages that were handed out, and not for the first time, as a crash shall find them."""
        for state in states:
            self.hand_outs[state.group, state.first] = state
        self._agenda.dirty()

    def when_committed(self, on_done: Done) -> None:
        """Call back when all that was asked for so far in settles and releases is on disk."""
        self.callbacks.append(on_done)
        self._agenda.dirty()

    def when_settled(self, on_done: Done) -> None:
        """Call back when all settles that were asked for so far are on disk.

        In a full queue releases may wait for room until something more is settled.
        """
        self.after_settles.append(on_done)
        self._agenda.dirty()

    def pop(self, pop: Pop) -> None:
        """Write that a message is settled that somebody takes for good."""
        self.pops[pop] = None
        self._agenda.dirty()

    def pop_first(self, pops: list[Pop]) -> None:
        """Write these in the next commit, before those of others."""
        self.pops = dict.fromkeys(pops) | self.pops

    def take_callbacks(self) -> tuple[list[Done], list[Done]]:
        """Return who waits for no more than was taken, as `callbacks` and as `after_settles`."""
        callbacks: list[Done] = []
        after_settles: list[Done] = []
        if not self.settles and not self.ranges:
            after_settles, self.after_settles = self.after_settles, []
            if not self.releases:
                callbacks, self.callbacks = self.callbacks, []
        return callbacks, after_settles

    def revive(self, revival: Revival) -> None:
        """Write messages again that were settled."""
        self.revival = revival
        self._agenda.dirty()

    def stop_revival(self, error: CurbstoneError, then: Callable[[], None]) -> None:
        """Let no more come back, and call `then` when what is on its way to the disk is there, or at once."""
        if self.revival is None:
            then()
        else:
            self.revival.stop(error, then)
            self._agenda.dirty()

    def end_revival(self) -> Revival | None:
        """No more come back; return of what, for that is still to be told."""
        revival, self.revival = self.revival, None
        return revival

    # --- what there is

    @property
    def has_records(self) -> bool:
        """Whether settles or releases wait."""
        return bool(self.settles or self.ranges or self.releases or self.hand_outs or self.pops)

    @property
    def owes_records(self) -> bool:
        """Whether settles wait, whoever asked for them, or somebody for what else was taken down."""
        return bool(self.settles or self.ranges or self.pops or self.callbacks)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        asked = self.publishes or self.callbacks or self.after_settles or self.revival
        return not (asked or self.settles or self.ranges or self.releases or self.hand_outs or self.pops)

    @property
    def is_owed(self) -> bool:
        """Whether somebody waits for it. What is to be said of tries may wait for room in a full queue for ever."""
        return bool(self.publishes or self.settles or self.ranges or self.callbacks or self.pops or self.revival)
