"""The facts in one queue's log: what has to be remembered beside the messages, by kind and key.

A fact is a note in the batch that makes it true, so both are on disk or neither. When the segment with the note is
dropped and the fact still counts, the note is written again. `kinds` has the kinds and how long they are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from heapq import heappop, heappush
from itertools import repeat, takewhile
from typing import NamedTuple

from curbstone.core.engine.facts.kinds import (
    KINDS,
    Loss,
    decode_dedup,
    decode_loss,
    decode_producer,
    decode_seq,
    decode_staged,
    encode_loss,
    encode_seq,
    staged_key,
)
from curbstone.core.engine.log.format import Note, encode_notes
from curbstone.core.engine.log.room import Room
from curbstone.core.engine.state import QueueState
from curbstone.core.errors import CurbstoneError, KeyReused, QueueFull
from curbstone.core.values import IdempotencyKey, LastNumber

ENDED_AT_ONCE = 1024
"""At most so many facts that have ended are forgotten in one turn."""

OF_GROUPS = (Note.LOSS, Note.ACKED)
"""The kinds of facts about declared groups; their keys are the groups' names."""

Changes = dict[Note, dict[bytes, bytes]]
"""Facts by kind and key, each with all its bytes. No kind is there without facts."""


def put(changes: Changes, note: Note, value: bytes) -> None:
    changes.setdefault(note, {})[KINDS[note].key_of(value)] = value


def _remove(changes: Changes, note: Note, key: bytes) -> None:
    """Remove a fact, if it is there."""
    facts = changes.get(note)
    if facts is not None and facts.pop(key, None) is not None and not facts:
        del changes[note]


Fact = tuple[bytes, int]
"""A fact that is in the log, and the number of the segment with the last note of it. There may be very many, and the
garbage collector soon leaves plain tuples like these alone."""


class BatchFacts(NamedTuple):
    """The facts of one batch."""

    encoded: bytes
    """The notes of them."""
    new: Changes
    """Those that hold once the batch is on disk."""
    changed: Changes
    """Those that hold already."""
    repeated: Changes
    """Those of segments that are dropped with the batch."""


EMPTY = BatchFacts(b"", {}, {}, {})


class Facts:
    """The facts of one queue."""

    __slots__ = ("_ends", "_known", "_room", "_state", "_unlooked", "changed")

    def __init__(self, state: QueueState, room: Room) -> None:
        self._state = state
        self._room = room
        self._known: dict[int, dict[bytes, Fact]] = {}
        """By kind and key, the facts that are in the log, in the order of their segments."""
        self._ends: dict[int, list[tuple[int, bytes]]] | None = None
        """By kind, a heap with the end of each fact that has one; None if there never was any. If a fact was set again
        since, its end is a later one."""
        self._unlooked: dict[int, list[bytes]] | None = None
        """By kind, the keys that `weed` has yet to look at; None if it was never called."""
        self.changed: Changes = {}
        """Facts that hold now, and that the next batch has to note."""

    # --- what is known

    def get(self, note: Note, key: bytes) -> bytes | None:
        """Return the bytes of a fact, or None if there is none."""
        changed = self.changed.get(note)
        value = changed.get(key) if changed is not None else None
        if value is None:
            known = self._known.get(note)
            fact = known.get(key) if known is not None else None
            if fact is None:
                return None
            value = fact[0]
        end_ms = KINDS[note].end_ms
        return None if end_ms is not None and end_ms(value) <= self._state.host.now_ms() else value

    def has_any(self, note: Note, keys: set[bytes]) -> bool:
        """Return whether there is a fact of a kind with one of these keys; it may have ended."""
        return any(
            [not facts.keys().isdisjoint(keys) for facts in (self._known.get(note), self.changed.get(note)) if facts]
        )

    def count(self, note: Note) -> int:
        """Return how many facts of a kind are in the log, with those that have ended and are not forgotten yet."""
        known = self._known.get(note)
        return len(known) if known is not None else 0

    def most(self, note: Note) -> int:
        """Return how many facts of a kind there may be."""
        return min(KINDS[note].most, self._state.options.cap // KINDS[note].cap_bytes)

    # --- what changes

    def set(self, note: Note, value: bytes) -> None:
        """Let a fact hold from now on. The next batch notes it; until then a crash forgets it."""
        put(self.changed, note, value)

    def forget(self, note: Note, key: bytes) -> None:
        """Forget a fact. If its kind is withdrawn in the log, the next batch does so; of others, notes may remain."""
        known = self._known.get(note)
        if KINDS[note].is_withdrawn:
            if key in self.changed.get(note, ()) or (known is not None and key in known):
                put(self.changed, note, KINDS[note].nothing(key))
            return
        _remove(self.changed, note, key)
        if known is not None and known.pop(key, None) is not None:
            self._room.notes(-KINDS[note].room)

    def keep_only(self, note: Note, keys: Collection[bytes]) -> None:
        """Forget all facts of a kind but these."""
        for key in [key for key in self._known.get(note, ()) if key not in keys]:
            self.forget(note, key)

    def weed(self, note: Note, is_over: Callable[[bytes], bool], most: int) -> int:
        """Look at some facts of a kind, each in its turn, and forget those that are over; return how many were.

        If it looks at two for each that is added, never more than half of them are over for long.
        """
        known = self._known.get(note)
        if not known:
            return 0
        if self._unlooked is None:
            self._unlooked = {}
        unlooked = self._unlooked.setdefault(note, [])
        if not unlooked:
            unlooked.extend(known)
        before = len(known)
        for _ in range(min(most, len(unlooked))):
            key = unlooked.pop()
            fact = known.get(key)
            if fact is not None and is_over(fact[0]):
                self.forget(note, key)
        return before - len(known)

    def weed_below(self, note: Note, is_over: Callable[[bytes], bool], log_start: int) -> None:
        """Forget the facts of a kind that are over and whose note is in a segment below `log_start`."""
        known = self._known.get(note)
        if known:
            old = takewhile(lambda item: item[1][1] < log_start, known.items())
            for key in [key for key, (value, _) in old if is_over(value)]:
                self.forget(note, key)

    def noted_below(self, note: Note, log_start: int) -> list[bytes]:
        """Return the keys of the facts of a kind whose note is in a segment below `log_start`."""
        known = self._known.get(note, {})
        return [key for key, _ in takewhile(lambda item: item[1][1] < log_start, known.items())]

    def _remember(self, note: Note, facts: dict[bytes, bytes], segment: int) -> None:
        """Take in that the log has facts of a kind."""
        kind = KINDS[note]
        known = self._known.get(note)
        if known is None:
            known = self._known[note] = {}
        before = len(known)
        new = facts if known.keys().isdisjoint(facts) else [key for key in facts if known.pop(key, None) is None]
        known.update(zip(facts, zip(facts.values(), repeat(segment)), strict=True))
        if kind.end_ms is not None:
            if self._ends is None:
                self._ends = {}
            ends = self._ends.setdefault(note, [])
            for key in new:
                heappush(ends, (kind.end_ms(facts[key]), key))
        self._room.notes(kind.room * (len(known) - before))

    def forget_ended(self, note: Note) -> None:
        """Forget facts of a kind that have ended and, if they make way for new ones, the first of too many."""
        kind, known = KINDS[note], self._known.get(note)
        ends = self._ends.get(note) if self._ends is not None else None
        if not ends or known is None or kind.end_ms is None:
            return
        now_ms = self._state.host.now_ms()
        most = self.most(note) if kind.makes_way else len(known)
        for _ in range(ENDED_AT_ONCE):
            if not ends or (ends[0][0] > now_ms and len(known) <= most):
                break
            noted_ms, key = heappop(ends)
            fact = known.get(key)
            if fact is None:
                continue
            end_ms = kind.end_ms(self.changed.get(note, {}).get(key, fact[0]))
            if end_ms == noted_ms:
                self.forget(note, key)
            else:  # it was set again since: so each fact has one entry, however often it changes
                heappush(ends, (end_ms, key))

    # --- the log

    def pending(self, new: Changes, log_start: int) -> BatchFacts:
        """Return the facts to note in a batch with which the segments below `log_start` are dropped; with 0 none is.

        `new` are those that hold once the batch is on disk.
        """
        repeated: Changes = {}
        if log_start:
            now_ms = self._state.host.now_ms()
            for number, known in self._known.items():
                end_ms = KINDS[number].end_ms
                for key, (value, segment) in known.items():
                    if segment >= log_start:
                        break
                    if end_ms is None or end_ms(value) > now_ms:
                        repeated.setdefault(Note(number), {})[key] = value
        changed = {note: facts.copy() for note, facts in self.changed.items()}
        noted = new
        if repeated or changed:
            none: dict[bytes, bytes] = {}
            noted = {
                note: {**repeated.get(note, none), **changed.get(note, none), **new.get(note, none)}
                for note in [*repeated, *changed, *new]
            }
        notes = [encode_notes(note, facts.values()) for note, facts in noted.items()]
        return BatchFacts(b"".join(notes), new, changed, repeated) if notes else EMPTY

    def logged(self, facts: BatchFacts, segment: int) -> None:
        """Take in that the facts of a batch are on disk, in that segment.

        While it was being written, some that held already may have been forgotten, or have changed again.
        """
        for note, repeated in facts.repeated.items():
            known = self._known[note]
            for key, value in repeated.items():
                if known.pop(key, None) is not None:
                    known[key] = (value, segment)
        for note, changed in facts.changed.items():
            for key, value in changed.items():
                now = self.changed.get(note, {}).get(key)
                if now is not None:
                    self._take_in(note, {key: value}, segment)
                if now == value:
                    _remove(self.changed, note, key)
        for note, new in facts.new.items():
            self._take_in(note, new, segment)
            if KINDS[note].makes_way:
                self.forget_ended(note)

    def _take_in(self, note: Note, facts: dict[bytes, bytes], segment: int) -> None:
        """Take in facts that are in the log, and that others are withdrawn."""
        kind = KINDS[note]
        if kind.is_withdrawn:
            gone = [key for key, value in facts.items() if value == kind.nothing(key)]
            for key in gone:
                if self._known.get(note, {}).pop(key, None) is not None:
                    self._room.notes(-kind.room)
            facts = {key: value for key, value in facts.items() if key not in gone}
        self._remember(note, facts, segment)

    def recover(self, number: int, value: bytes, segment: int, earlier: Collection[str]) -> None:
        """Take in a note that recovery has read.

        `earlier` are the groups of which the log still speaks of an earlier group of the same name. A fact of that
        does not count for the group that is declared now, and is withdrawn.
        """
        if number not in KINDS:
            return
        note = Note(number)
        key = KINDS[note].key_of(value)
        self._take_in(note, {key: value}, segment)
        if note in OF_GROUPS:
            _remove(self.changed, note, key)
            name = key.decode()
            if name in earlier or name not in self._state.meta.groups:
                self.forget(note, key)

    # --- publishes that are repeated

    def published_under(self, key: IdempotencyKey) -> int | CurbstoneError | None:
        """Return the first seq that was published under a key; an error if nothing may be published under it; or None.

        To be called when it is the publish's turn to be written: all earlier ones are on disk then, or refused.
        """
        window_s = self._state.options.idempotency_window
        value = self.get(Note.KEY, key.hashed)
        if value is not None:
            dedup = decode_dedup(value)
            if dedup.digest == key.digest:
                return dedup.first_seq
            return KeyReused(f"the idempotency key was used for other content in the last {window_s:g} s")
        self.forget_ended(Note.KEY)
        most = self.most(Note.KEY)
        if self.count(Note.KEY) >= most:
            return QueueFull(f"more than {most} idempotency keys in {window_s:g} s, its idempotency_window")
        return None

    def last_number(self, producer: bytes) -> LastNumber | None:
        """Return the last number of a producer that is on disk, or None if the producer is not known."""
        return decode_producer(self.get(Note.PRODUCER, producer))

    def staged(self, number: int) -> int:
        return decode_staged(self.get(Note.STAGED, staged_key(number)))

    # --- declared groups

    def loss(self, group: str) -> Loss:
        return decode_loss(self.get(Note.LOSS, group.encode()))

    def lose(self, group: str, count: int, floor: int) -> None:
        """Count `count` messages below `floor` that a declared group has lost: given up at the cap, or purged."""
        if count and group in self._state.meta.groups:
            before = self.loss(group)
            self.set(Note.LOSS, encode_loss(group, Loss(max(before.floor, floor), before.lost + count)))
            self._state.stats.lost += count

    def acked(self, group: str) -> int:
        """Return the last seq that a cumulative ack of a declared group has named.

        The position of the group does not show it, because it also moves on when messages expire or name other groups.
        """
        return decode_seq(self.get(Note.ACKED, group.encode()))

    def ack(self, group: str, seq: int) -> None:
        """Note that a group was acked up to `seq`, inclusive. The ack has settled something, so a note has room."""
        if seq > self.acked(group):
            self.set(Note.ACKED, encode_seq(group, seq))

    def forget_group(self, group: str) -> None:
        """Forget a group that is no longer declared. The log says so before another of that name can be declared."""
        for note in OF_GROUPS:
            self.forget(note, group.encode())
