"""The messages of one priority, as one group delivers them: first those that were requeued, then from a cursor on.

All levels of a group use the same runs; each run has a mask of the messages of each level. If a run that has to be read
from the disk also has pending messages of other levels, only the messages of this level are read, as a page. So a
backlog of mixed priorities is read once for each level, and no level displaces others from memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from heapq import heappop
from itertools import islice
from typing import TYPE_CHECKING

from curbstone.core.engine.index.keys import NO_ROOM, WAITS
from curbstone.core.engine.index.runs import FEW, Page, Run, seqs_of
from curbstone.core.engine.log.format import TriesRecord
from curbstone.core.headers import key_of
from curbstone.core.message import Delivery, Message

if TYPE_CHECKING:
    from curbstone.core.engine.index.group import Group

STEPS_AT_ONCE = 2048
"""How many messages a call of `Group.take` may add to backlogs of keys or remove from them."""

IsDead = Callable[[str, Message, int], bool]
"""is_dead(group, message, tries): whether the message must not be delivered any more."""


class Taken:
    """The messages that `Group.take` has taken. All of them count as delivered."""

    __slots__ = ("dead", "deliveries", "handed", "is_reading", "steps")

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.is_reading = False
        """Whether the next message is being read from the disk. Messages of lower priorities also wait for it."""
        self.dead: list[Delivery] = []
        """Dead messages, which are to be ended instead of delivered."""
        self.handed: list[TriesRecord] = []
        """Records of deliveries that were not the first, with the tries as they are to be after a crash."""
        self.steps = STEPS_AT_ONCE
        """How many more messages may be added to backlogs or removed from them; at 0, another call continues."""


class Level:
    __slots__ = (
        "_is_loading", "_page", "_waited", "cursor", "delivered", "delivered_logged", "number", "pending", "recovered",
        "returned", "rewound", "run", "stuck_at",
    )  # fmt: skip

    def __init__(self, number: int, first: int) -> None:
        """Nothing below `first` is pending in it, or will be."""
        self.number = number
        """0 for the default priority, else the priority plus 1."""
        self.pending = 0
        """The number of its pending messages; not counted for the default priority."""
        self.cursor = first
        """The first seq that has not been looked at."""
        self.rewound = 0
        """Where the cursor was before it was rewound, or 0. Messages below this seq may be in flight already."""
        self.run: Run | None = None
        """The run that the cursor is in."""
        self.returned: list[int] = []
        """A heap of seqs that the cursor has passed and that are ready again. Some may have been settled meanwhile."""
        self.delivered = 0
        """The highest seq that was ever delivered."""
        self.delivered_logged = 0
        """The mark in the log: messages up to this seq may have been delivered."""
        self.recovered = 0
        """Messages up to this seq may have been delivered before the restart."""
        self._page: Page | None = None
        """Its messages in `run`, if only these were read."""
        self._is_loading = False
        self.stuck_at = -1
        """`Keys.freed` when the cursor stopped because no more messages could wait for their keys; else -1."""
        self._waited = False
        """Whether messages of `run` wait for others of their keys."""

    def rewind(self, group: Group) -> None:
        self._move(group, None)
        self.rewound = max(self.rewound, self.cursor)
        self.cursor = 0
        self.returned.clear()

    def lose_run(self, group: Group, run: Run) -> None:
        """Leave a run that other runs have replaced."""
        if self.run is run:
            self._drop_page(group)
            self.run = None

    # --- delivery

    def advance(self, group: Group, taken: Taken) -> int:
        """Move the cursor to the next message that may be ready; return its seq, or 0 if there is none."""
        if self.returned:
            return self.returned[0]
        if group.keys is not None and group.keys.is_fair:
            self.enter(group, taken)
            return group.keys.head(self)
        runs = group.reader.runs
        seq = runs.next_pending(group.name, self.number, self.cursor)
        self.cursor = seq or max(self.cursor, runs.end)
        return seq

    def take_returned(self, group: Group, taken: Taken, is_dead: IsDead) -> bool:
        """Take the first returned message, if it is still ready; return False if it must be loaded first."""
        returned = self.returned
        seq = returned[0]
        known = group.tracked.get(seq)
        run = group.reader.runs.find(seq)
        bit = 1 << (seq - run.first) if run else 0
        keys = group.keys
        backlog = keys.check_first(seq) if keys is not None else None
        if run is None or not run.pending(group.name) & bit:
            heappop(returned)  # it was settled meanwhile
            if keys is not None and backlog is not None:
                keys.drop_first(backlog)
            return True
        if (known is not None and known.due_ms) or (backlog is not None and seq in group.in_flight):
            heappop(returned)  # it was delayed meanwhile, or taken out of turn
            if keys is not None and backlog is not None:
                keys.pass_over(backlog)
            return True
        if keys is not None and backlog is None and keys.has(seq):
            heappop(returned)
            return True
        message = known.message if known is not None else None
        if message is None:
            if run.messages is None:
                taken.is_reading = True
                group.reader.load(run)
                return False
            message = run.messages[seq - run.first]
            if message is None:
                heappop(returned)
                return True
        while returned and returned[0] == seq:  # twice, if it was taken out of turn and returned
            heappop(returned)
        if keys is not None:
            if backlog is not None:
                keys.take_place(backlog)
                if seq <= self.recovered and not keys.passes_over:
                    group.mark_untried(seq)
            elif keys.requeue(self, message):
                return True
        group.deliver_one(message, taken, is_dead)
        return True

    def take_fresh(self, group: Group, taken: Taken, limit: int, is_dead: IsDead, before: int = 0) -> bool:
        """Take messages from the cursor on, within one run, and if `before` is not 0, only below that seq.

        Return False at the end, or if the run must be loaded first.
        """
        if self.stuck_at >= 0 and group.keys is not None and self.stuck_at == group.keys.freed:
            return False  # before a run is read for it
        self.stuck_at = -1
        runs = group.reader.runs
        run = self.run
        if run is None or self.cursor > run.last or self.cursor < run.first:
            run = runs.at_or_after(self.cursor)
            if run is None:
                return False
            if run is not self.run:
                self._move(group, run)
        skip = max(self.cursor - run.first, 0)
        end = run.last + 1
        bits = run.pending(group.name)
        if runs.levels or self.number:
            bits = run.of_level(self.number, bits)
            if 0 < before < end:
                end = before
                bits &= (1 << (end - run.first)) - 1
        bits >>= skip
        if not bits:
            if self._page is not None and end > run.last:
                self._drop_page(group)
            if (runs.levels or self.number) and end > run.last:  # there may be many runs without messages of this level
                end = runs.next_pending(group.name, self.number, end) or max(end, runs.end)
            self.cursor = end
            return runs.at_or_after(end) is not None
        messages = run.messages
        if messages is None:
            messages = self._get_or_load(group, run, bits << skip, taken)
            if messages is None:
                return False
        room = limit - len(taken.deliveries)
        is_fair = group.keys is not None and group.keys.is_fair
        is_keyed = is_fair or (run.is_keyed and group.reader.state.uses_keys)
        old = max(self.recovered, self.rewound - 1)
        is_new = not (group.tracked or runs.any_expires or run.first + skip <= old)
        if is_new and not is_keyed:
            if bits & (bits + 1):
                places = _places(bits, room)
                found = [messages[skip + place] for place in places]
                after = places[-1] + 1
            else:
                after = min(room, bits.bit_length())
                found = messages[skip : skip + after]
            taken.deliveries.extend([Delivery(message, 0, message.timestamp_ms) for message in found if message])
            self.cursor = run.first + skip + after
            if self._page is not None and not bits >> after:
                self._drop_page(group)
            return True
        self.cursor = run.first + skip
        if self._take_each(group, messages, skip, bits, taken, limit, is_dead, is_keyed=is_keyed, is_new=is_new):
            self.cursor = end
        return self.stuck_at < 0

    def _take_each(
        self,
        group: Group,
        messages: list[Message | None],
        skip: int,
        bits: int,
        taken: Taken,
        limit: int,
        is_dead: IsDead,
        *,
        is_keyed: bool,
        is_new: bool,
    ) -> bool:
        """Take messages from the cursor on, one by one; return whether all were taken.

        `is_new`: none of them was delivered before.
        """
        keys = group.keys or group.make_keys() if is_keyed else None
        is_fair = keys is not None and keys.is_fair
        deliveries, start = taken.deliveries, self.cursor
        for place in seqs_of(0, bits) if bits & (bits + 1) else range(bits.bit_length()):
            if len(deliveries) >= limit or taken.steps <= 0:
                return False
            message, seq = messages[skip + place], start + place
            if message is None:
                self.cursor = seq + 1
                continue
            if keys is not None and ((key := key_of(message.headers)) or is_fair):
                state = keys.admit(self, key, seq)
                if state == NO_ROOM:
                    self.stuck_at = keys.freed
                    return False
                if state == WAITS:
                    self.cursor = seq + 1
                    self._waited = True
                    taken.steps -= 1
                    continue
            self.cursor = seq + 1
            if is_new:
                deliveries.append(Delivery(message, 0, message.timestamp_ms))
            elif not group.is_delayed(seq) and not (seq < self.rewound and seq in group.in_flight):
                group.deliver_one(message, taken, is_dead)
        return True

    def enter(self, group: Group, taken: Taken) -> None:
        """Add messages from the cursor on to the backlogs of their keys, as far as they are in memory."""
        while taken.steps > 0 and self.take_fresh(group, taken, sys.maxsize, _never):
            pass

    def enter_new(self, group: Group, run: Run, messages: list[Message]) -> None:
        """Add messages that were just added to a run to the backlogs of their keys, if all before them are there."""
        first = messages[0].seq
        if 0 < group.reader.runs.next_pending(group.name, self.number, self.cursor) < first:
            return
        self.cursor = max(self.cursor, first)
        self.stuck_at = -1
        self._drop_page(group)
        if self.run is not run:
            self._move(group, run)
        if run.messages is None:
            skip = first - run.first
            self._page = Page([*[None] * skip, *messages], ((1 << len(messages)) - 1) << skip)
        taken = Taken()
        taken.steps = sys.maxsize
        self.take_fresh(group, taken, sys.maxsize, _never)
        self._drop_page(group)

    # --- what is in memory

    def _move(self, group: Group, run: Run | None) -> None:
        """Move the cursor to a run. Remove the messages of the run that it leaves from memory.

        They stay if some wait for others of their keys, or if other levels have yet to deliver some. Otherwise they are
        read again if the cursor returns.
        """
        left, waited = self.run, self._waited
        self._waited = False
        if self._page is not None:
            self._drop_page(group)
        self.run = run
        if left is None or not left.live() or waited or (group.keys is not None and group.keys.is_fair):
            return
        pending = left.pending(group.name) if left.ranked else 0
        for other in group.levels if pending else ():
            skip = max(other.cursor - left.first, 0)
            if other is not self and left.of_level(other.number, pending) >> skip:
                return
        group.reader.forget(left)

    def _get_or_load(self, group: Group, run: Run, bits: int, taken: Taken) -> list[Message | None] | None:
        """Return the messages of a run that is not in memory, or read them and return None; `bits` are needed.

        A run may have grown, or may have messages that an undo has brought back, since its page was read.
        """
        if self._page is not None and not bits & ~self._page.bits:
            return self._page.messages
        taken.is_reading = True
        pending = run.pending(group.name)
        mine = run.of_level(self.number, pending)
        if mine == pending or (group.keys is not None and group.keys.is_fair):
            group.reader.load(run)
        elif not self._is_loading:
            self._is_loading = True
            skip = max(self.cursor - run.first, 0)
            group.reader.load_page(run, mine >> skip << skip, partial(self._loaded, group, run))
        return None

    def _loaded(self, group: Group, run: Run, page: Page | None) -> None:
        self._is_loading = False
        if page is None and run.live():
            group.reader.load(run)
            return
        if page is not None and self.run is run:
            self._drop_page(group)
            self._page = page
        elif page is not None:
            group.reader.forget(page)
        group.reader.wakeups.wake_all()

    def _drop_page(self, group: Group) -> None:
        if self._page is not None:
            group.reader.forget(self._page)
            self._page = None


def _never(_group: str, _message: Message, _tries: int) -> bool:
    return False


def _places(bits: int, most: int) -> list[int]:
    """Return the places of the first bits of a mask, at most `most` of them."""
    if most > FEW:
        return list(islice(seqs_of(0, bits), most))
    places: list[int] = []
    while bits and len(places) < most:
        low = bits & -bits
        places.append(low.bit_length() - 1)
        bits ^= low
    return places
