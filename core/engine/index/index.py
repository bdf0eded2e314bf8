"""Which messages are pending in which groups, and where they are in the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial
from itertools import pairwise
from operator import attrgetter

from curbstone.core.engine.index.backlogs import Key
from curbstone.core.engine.index.copies import CopyBatch, insert_copies
from curbstone.core.engine.index.due import Expiries
from curbstone.core.engine.index.dynamic_groups import DynamicGroups
from curbstone.core.engine.index.group import Group
from curbstone.core.engine.index.keys import Keys
from curbstone.core.engine.index.reader import Reader
from curbstone.core.engine.index.runs import Run, mask_of, ranges_of, seqs_of
from curbstone.core.engine.log.commit import Segment
from curbstone.core.engine.log.format import ENTRY_BYTES, Reason, Settled, TriesRecord
from curbstone.core.engine.log.log import Log
from curbstone.core.engine.state import QueueState
from curbstone.core.engine.turns import Wakeups
from curbstone.core.errors import CurbstoneError
from curbstone.core.headers import KEY_MARK
from curbstone.core.message import Message
from curbstone.core.orders import PRIORITY_DEFAULT, priority_of
from curbstone.core.values import UNNAMED, Done

DELAYS, EXPIRIES, GROUPS, LEVELS = 1, 2, 4, 8
"""Traits of messages, as bits: a delay, an expiry, named groups, a level other than the default."""

_DIGITS = [bytes([ord("1") if byte == level else ord("0") for byte in range(256)]) for level in range(16)]
"""By level, a table that translates the levels of messages to the digits of a mask."""


_seq = attrgetter("seq")
_headers = attrgetter("headers")


class Index:
    """The runs, the groups and the reader of one queue."""

    __slots__ = (
        "_state", "_wakeups", "_when_settled", "dynamic_groups", "expiries", "groups", "reader", "runs", "unnamed",
    )  # fmt: skip

    def __init__(
        self,
        state: QueueState,
        wakeups: Wakeups,
        log: Log,
        groups_in_use: Callable[[], Set[str]] = frozenset,
        when_settled: Callable[[Done], None] = lambda on_done: on_done(None),
    ) -> None:
        """`groups_in_use` returns the names of the groups that are needed elsewhere, for example by consumers.

        `when_settled(on_done)` calls back when everything that was settled so far is on disk; the default is for code
        that writes nothing.
        """
        self._state = state
        self._wakeups = wakeups
        self._when_settled = when_settled
        self.reader = Reader(state, wakeups, log, self._damaged)
        self.runs = self.reader.runs
        self.expiries = Expiries(self.runs, wakeups)
        self.unnamed = Group(self.reader, UNNAMED)
        self.groups: dict[str, Group] = {UNNAMED: self.unnamed}
        self.dynamic_groups = DynamicGroups(state, self.reader, self.groups, groups_in_use)
        for name in state.meta.groups:
            self.groups[name] = Group(self.reader, name)

    def group(self, name: str, first: int = 0) -> Group:
        """Return a group, and make it if it does not exist. In a new one nothing is pending below `first`."""
        return self.groups.get(name) or self.dynamic_groups.make(name, first)

    def replayed(self, name: str) -> Group:
        """Return a group while the log is replayed, like `group`. No group is swept, because nothing is counted yet."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(self.reader, name)
        return group

    def entitled(self, message: Message) -> Iterable[str]:
        """Return the names of the groups that are entitled to a message."""
        if message.groups:
            return message.groups
        if not self._state.meta.groups:
            return (UNNAMED,)
        return [UNNAMED, *(name for name, start in self._state.meta.groups.items() if message.seq >= start)]

    def entitled_count(self, message: Message) -> int:
        return len(message.groups) or 1 + len(self._state.meta.groups)

    def insert_copies(self, copies: list[Message], names: Mapping[int, Iterable[str]], where: CopyBatch) -> None:
        """Put copies into the index, pending in the groups in `names`, by seq; the counts of groups do not change."""
        for run in insert_copies(self.reader, self.expiries, copies, names, where):
            for group in self.groups.values():
                group.lose_run(run)
        if self.runs.levels:
            self._enter_levels(self.runs.levels)

    def revive(self, name: str, copies: list[Message], where: CopyBatch) -> None:
        """Make messages ready again, with no tries, in a group that has settled them."""
        group = self.group(name)
        names = {message.seq: [name, *self.pending_in(message.seq)] for message in copies}
        self.insert_copies(copies, names, where)
        group.pends(len(copies))
        for message in copies:
            if message.level and (run := self.runs.find(message.seq)) is not None:
                group.count_levels(run, 1 << (message.seq - run.first), 1)
        group.rewind()
        for message in copies:
            group.recover(message.seq, 0, 0)

    def split(self, copies: list[Message], where: CopyBatch) -> None:
        """Split runs of which some messages were copied; the others stay in their places."""
        names = {message.seq: self.pending_in(message.seq) for message in copies}
        self.insert_copies([message for message in copies if names[message.seq]], names, where)

    def pending_in(self, seq: int) -> list[str]:
        run = self.runs.find(seq)
        if run is None:
            return []
        return [name for name in [UNNAMED, *(run.named or ())] if run.is_pending(name, seq)]

    def pending_unnamed(self, first: int, last: int) -> int:
        """Return a mask of the seqs from `first` to `last` that are pending in the unnamed group."""
        mask = 0
        for run in self.runs.between(first, last + 1):
            shift = run.first - first
            mask |= run.bits << shift if shift >= 0 else run.bits >> -shift
        return mask & (1 << last - first + 1) - 1

    def is_pending(self, name: str, seq: int) -> bool:
        return self.runs.find_pending(name, seq) is not None

    def is_live(self, seq: int) -> bool:
        """Return whether a message is pending in some group."""
        run = self.runs.find(seq)
        return run is not None and bool(run.live() >> (seq - run.first) & 1)

    def is_untried(self, seq: int) -> bool:
        """Return whether a message waits for its first delivery in some group."""
        groups = [self.groups[name] for name in self.pending_in(seq)]
        return any([seq not in group.in_flight and not group.tries_of(seq) for group in groups])

    def clear(self, name: str, messages: list[Message]) -> None:
        """Forget that messages are pending in a group. The caller wakes it, because others may follow now."""
        group = self.groups.get(name) or self.group(name)
        for message in messages:
            group.in_flight.pop(message.seq, None)
        if group.tracked:
            for message in messages:
                group.forget(message.seq)
        if group.keys is not None and len(messages) > 1:  # they may alternate between runs, as some waited for others
            messages = sorted(messages, key=_seq)
        run: Run | None = None
        mask = size = first = last = start = end = 0
        for message in messages:
            seq = message.seq
            if seq != end or seq > last:  # a stretch ends, and perhaps the run
                mask |= (1 << end - start) - 1 << start - first
                start = end = seq
                if run is None or not first <= seq <= last:
                    if run is not None:
                        self.clear_run(group, run, mask, size)
                    run = self.runs.find(seq)
                    mask = size = first = last = 0
                    if run is None:
                        continue
                    first, last = run.first, run.last
            end += 1
            size += ENTRY_BYTES + len(message.headers) + len(message.body)
        if run is not None:
            self.clear_run(group, run, mask | (1 << end - start) - 1 << start - first, size)
        self._wakeups.changed()

    def clear_seq(self, name: str, seq: int) -> None:
        """Forget that a message, which need not be in memory, is pending in a group."""
        group, run = self.groups.get(name), self.runs.find_pending(name, seq)
        if group is None or run is None:
            return
        group.end_delivery(seq)
        group.forget(seq)
        bit = 1 << (seq - run.first)
        self.clear_run(group, run, bit, run.bytes_of(bit))
        self._wakeups.wake(name)

    def clear_run(self, group: Group, run: Run, mask: int, size: int) -> None:
        """Forget that the messages of `mask`, a mask of one run, with `size` bytes, are pending in a group."""
        before = run.pending(group.name)
        cleared = (before & mask).bit_count()
        group.pends(-cleared)
        run.set_pending(group.name, before & ~mask)
        if run.ranked:
            group.count_levels(run, before & mask, -1)
        if group.keys is not None:
            self.end_keys(group, group.keys, seqs_of(run.first, before & mask))
        if cleared and (group.name or run.named):  # messages that are pending in another group, too, are still live
            size = size * (before & mask & ~run.live()).bit_count() // cleared
        self.runs.shrink(run, size)
        self.drop_if_dead(run)

    def end_keys(self, group: Group, keys: Keys, seqs: Iterable[int]) -> None:
        """End messages that are no longer pending. Once that is on disk, the next ones of their keys may follow."""
        ended = keys.end(seqs)
        if ended:
            self._when_settled(partial(self._settled, group, keys, ended))

    def _settled(self, group: Group, keys: Keys, ended: list[Key], error: CurbstoneError | None) -> None:
        """Free the places of keys whose settles are on disk. If writing them has failed, they are written again."""
        if error is None:
            keys.free_places(ended)
            self._wakeups.wake(group.name)
        elif not self._state.is_closed:
            self._when_settled(partial(self._settled, group, keys, ended))

    def clear_below(self, group: Group, seq: int) -> int:
        """Forget what is pending in a group below `seq`, even in flight; return how many messages that were."""
        before = group.pending
        self._end_deliveries(group, seq)
        for run in self.runs.between(group.first_pending(seq), seq):
            mask = run.pending(group.name) & run.part(0, seq)
            if mask:
                self.clear_run(group, run, mask, run.bytes_of(mask))
        return before - group.pending

    def clear_not_in_flight(self, group: Group, seq: int) -> tuple[int, list[tuple[int, int]]]:
        """Forget what is pending in a group below `seq`, except for messages in flight.

        Return how many messages were cleared, and the ranges to settle in the log, as (first, count): everything
        between the messages in flight.
        """
        before = group.pending
        kept = sorted([each for each in group.in_flight if each < seq])
        start = group.first_pending(seq)
        for run in self.runs.between(start, seq):
            mask = run.pending(group.name) & run.part(0, seq) & ~mask_of(run.first, run.last, kept)
            for retried in seqs_of(run.first, mask) if group.tracked and mask else ():
                group.forget(retried)
            if mask:
                self.clear_run(group, run, mask, run.bytes_of(mask))
        ranges = [(low + 1, high - low - 1) for low, high in pairwise([start - 1, *kept, seq]) if high > low + 1]
        return before - group.pending, ranges if before > group.pending else []

    @staticmethod
    def _end_deliveries(group: Group, seq: int) -> None:
        """Forget tries and delays of a group below `seq`, and what is in flight there."""
        ended = [each for each in group.in_flight if each < seq]
        for each in ended:
            group.end_delivery(each)
        if ended:  # others may follow now
            group.reader.wakeups.wake(group.name)
        for retried in [retried for retried in group.tracked if retried < seq]:
            group.forget(retried)

    def drop_if_dead(self, run: Run) -> None:
        if not run.live() and run.is_indexed:
            self.reader.forget(run)
            self.runs.drop(run)

    def add(
        self, messages: list[Message], segment: Segment, start: int, end: int, size: int, traits: int, levels: bytes
    ) -> None:
        """Add published messages that are on disk now, in one batch; their entries have `size` bytes.

        `traits` has the traits that at least one of the messages has; 0 if all are plain. `levels` has the level of
        each message; it is empty if all have the default level.
        """
        self._state.stats.published += len(messages)
        first = messages[0].seq
        bits = (1 << len(messages)) - 1
        run, is_new = self.runs.append(first, bits, segment, start, end, size)
        if is_new:
            run.time_ms = messages[0].timestamp_ms
        if not run.is_keyed:  # one search of all takes a third of the time of many
            run.is_keyed = b"".join(map(_headers, messages)).find(KEY_MARK) >= 0
        shift = first - run.first
        if traits & GROUPS:
            for message in messages:
                bit = 1 << (message.seq - run.first)
                run.naming |= bit if message.groups else 0
                self._entitle(run, self.entitled(message), bit)
        elif self._state.meta.groups:
            self._entitle(run, self.entitled(messages[0]), bits << shift)
        else:
            run.bits |= bits << shift
            self.unnamed.pends(len(messages))
        self.reader.keep(run, is_new, messages, size)
        if levels:
            self.rank(run, first, levels, are_new=True)
            for message in messages if traits & GROUPS else messages[:1]:
                of_these = 1 << (message.seq - run.first) if traits & GROUPS else bits << shift
                for name in self.entitled(message):
                    self.groups[name].count_levels(run, of_these, 1)
        if self._state.options.fair:
            some = messages if traits & GROUPS else messages[:1]
            for name in {name: None for message in some for name in self.entitled(message)}:
                self.groups[name].enter_new(run, messages)
        if traits & EXPIRIES:
            self.expiries.note(run, min([message.expires_ms for message in messages if message.expires_ms]))
        if traits & DELAYS:
            self._delay([message for message in messages if message.delay_ms])

    def rank(self, run: Run, first: int, levels: bytes, *, are_new: bool = False) -> None:
        """Note the levels of consecutive messages of a run, from `first` on. With `are_new` no message is newer."""
        for level in {*levels} - {0}:
            bits = int(levels.translate(_DIGITS[level])[::-1], 2)
            if self.runs.rank(run, level, bits << (first - run.first)):
                self._enter_levels([level], first if are_new else 0)

    def _enter_levels(self, levels: Iterable[int], first: int = 0) -> None:
        """Give all groups these levels, whose messages begin at `first` or later."""
        for group in self.groups.values():
            for number in levels:
                level = group.level_numbered(number)
                level.cursor = max(level.cursor, first)

    def _delay(self, messages: list[Message]) -> None:
        """Delay messages that were published with a delay, in all their groups."""
        now_ms, wall_ms = self._state.host.now_ms(), self._state.host.wall_ms()
        for message in messages:
            for name in self.entitled(message):
                due_ms = now_ms + message.delay_ms
                self.group(name).delay(message.seq, 0, due_ms, wall_ms + message.delay_ms)

    def _entitle(self, run: Run, names: Iterable[str], bits: int) -> None:
        for name in names:
            group = self.groups.get(name) or self.dynamic_groups.make(name, run.first)
            run.set_pending(name, run.pending(name) | bits)
            group.pends(bits.bit_count())

    def settled_of(self, copies: list[Message]) -> dict[str, list[int]]:
        """Return, by group, which of the messages that are copied to the end of the log it has settled."""
        settled: dict[str, list[int]] = {}
        if not self._state.meta.groups and not any([message.groups for message in copies]):
            return settled  # there is only one group, and a message that it has settled is not copied
        for message in copies:
            seq = message.seq
            run = self.runs.find(seq)
            for name in self.entitled(message):
                if run is None or not run.is_pending(name, seq):
                    settled.setdefault(name, []).append(seq)
        return settled

    def stored(self, released: list[TriesRecord], segment: Segment) -> None:
        """Note that records of tries are on disk, in `segment`."""
        for item in released:
            group = self.groups.get(item.group)
            if group is not None:  # else all of it is settled
                group.stored(item, segment)

    def settle_replayed(self, settled: Settled) -> tuple[str, Reason, list[int]]:
        """Settle in memory what the broker's journal settles and the log does not; return what to write to the log."""
        span = range(settled.first, settled.first + settled.span)
        seqs = [seq for seq in span if self.is_pending(settled.group, seq)]
        for seq in seqs:
            self.clear_seq(settled.group, seq)
        return settled.group, Reason(settled.reason), seqs

    def release_replayed(self, released: TriesRecord) -> list[TriesRecord]:
        """Requeue in memory what the broker's journal requeues and the log does not; return what to log."""
        written = []
        group = self.group(released.group)
        for seq in range(released.first, released.first + released.span):
            if self.is_pending(released.group, seq):
                group.recover(seq, released.tries, released.due_ms)
                written.append(released._replace(first=seq, span=1))
        return written

    def drop_group(self, name: str) -> list[tuple[int, int]]:
        """Forget what is pending in a group that is no longer declared; return the (first, count) to settle."""
        group = self.groups[name]
        ranges: list[tuple[int, int]] = []
        for run in list(self.runs):
            bits = run.pending(name)
            if bits:
                ranges += ranges_of(run.first, bits)
                self.clear_run(group, run, bits, run.bytes_of(bits))
        self._end_deliveries(group, self._state.next_seq)
        return ranges

    def _damaged(self, run: Run, text: str) -> None:
        run.segment.damaged = True
        self._state.damaged.append(text)
        self._state.report(text)
        for group in self.groups.values():
            group.recount()
            if group.keys is not None:
                gone = ~run.pending(group.name) & (1 << run.last - run.first + 1) - 1
                self.end_keys(group, group.keys, seqs_of(run.first, gone))
            for seq in [seq for seq in group.tracked if run.first <= seq <= run.last]:
                if not run.is_pending(group.name, seq):
                    group.forget(seq)
        self.drop_if_dead(run)

    def by_priority(self, name: str) -> dict[int, int]:
        """Return, by priority, how many messages are pending in a group; empty if all have the default one."""
        group = self.groups.get(name)
        counts = {priority_of(each.number): each.pending for each in group.levels if each.pending} if group else {}
        if group is None or not counts:
            return {}
        rest = group.pending - sum(counts.values())
        return counts | {PRIORITY_DEFAULT: rest} if rest else counts

    @property
    def has_unlogged_marks(self) -> bool:
        """Whether any delivery is not yet covered by a mark in the log."""
        for group in self.groups.values():
            for level in group.levels:
                if level.delivered > level.delivered_logged:
                    return True
        return False
