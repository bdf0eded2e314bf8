"""The batches of messages of one queue that have not ended, each with its tally.

A tally is a fact. A commit that stores messages of a batch writes the tally, with what the same commit settles. A
commit that only settles some writes a note of a few bytes instead: by how much a count has risen. The note of the tally
is in the same segment or an older one, which is dropped first; the present tally is then written again.

The entry of a message has a flag if it is of a batch. A copy of a settled one lacks the flag, so an undo that restores
it does not count it again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from curbstone.core.batches import NOT_PRIVATE, NOT_WITH_GROUPS, End, Membership, Tally, batch_of
from curbstone.core.engine.facts.facts import Changes, Facts, put
from curbstone.core.engine.facts.kinds import KINDS, decode_ended, decode_tally, encode_ended, encode_tally
from curbstone.core.engine.log.format import Note, Reason, encode_note
from curbstone.core.engine.state import QueueState
from curbstone.core.errors import BadRequest, CurbstoneError, QueueFull
from curbstone.core.message import Message
from curbstone.core.orders import changed

TALLY_BYTES = KINDS[Note.BATCH].room
"""The most bytes of the note of a tally."""
SETTLED_NOTE_BYTES = 40
"""The most bytes of a note about messages of a batch that are settled."""
ABANDONED_MS = 7 * 24 * 3600 * 1000
"""A batch that lacks messages is dropped if none of its messages is pending, and nothing has changed for so long."""
REVIEW_MS = 3600 * 1000
"""How often to look for such batches, when others begin."""
ABANDONED_AT_ONCE = 100
STRETCH_MAX = 4096
"""The most messages of a stretch."""
FEW = 16

_ENDS: dict[int, End] = {
    Reason.ACK: End.ACKED,
    Reason.MOVED: End.ACKED,
    Reason.REJECT: End.DEAD,
    Reason.MAX_TRIES: End.DEAD,
    Reason.EXPIRE: End.EXPIRED,
    Reason.PURGE: End.PURGED,
    Reason.SKIPPED: End.PURGED,
    Reason.REPLACED: End.REPLACED,
}


class Stretch:
    """Consecutive messages of one batch, with a bit for each that is not settled."""

    __slots__ = ("batch", "bits", "first")

    def __init__(self, batch: bytes, first: int) -> None:
        self.batch = batch
        self.first = first
        self.bits = 0


class Members:
    """Which messages are of which batch and not settled."""

    __slots__ = ("_empty", "_firsts", "stretches")

    def __init__(self) -> None:
        self._empty = 0
        self._firsts: list[int] = []
        self.stretches: list[Stretch] = []
        """In the order of their seqs."""

    def add(self, seq: int, batch: bytes) -> None:
        at = bisect_right(self._firsts, seq)
        stretch = self.stretches[at - 1] if at else None
        place = seq - stretch.first if stretch is not None else 0
        if stretch is None or stretch.batch != batch or place > min(stretch.bits.bit_length(), STRETCH_MAX - 1):
            stretch = Stretch(batch, seq)
            place = 0
            self._firsts.insert(at, seq)
            self.stretches.insert(at, stretch)
        stretch.bits |= 1 << place

    def overlaps(self, first: int, count: int) -> list[tuple[Stretch, int]]:
        """Return the stretches with members among `count` messages from `first` on, with the bits of those."""
        found: list[tuple[Stretch, int]] = []
        at = max(bisect_right(self._firsts, first) - 1, 0)
        while at < len(self.stretches) and self._firsts[at] < first + count:
            stretch = self.stretches[at]
            low, high = max(first, stretch.first), min(first + count, stretch.first + STRETCH_MAX)
            bits = stretch.bits & ((1 << high - low) - 1) << low - stretch.first if low < high else 0
            if bits:
                found.append((stretch, bits))
            at += 1
        return found

    def clear(self, stretch: Stretch, bits: int) -> None:
        """Forget members of a stretch."""
        stretch.bits &= ~bits
        self._empty += not stretch.bits

    def restore(self, stretch: Stretch, bits: int) -> None:
        """Take back a `clear`, after which nothing was swept."""
        self._empty -= not stretch.bits
        stretch.bits |= bits

    def sweep(self) -> None:
        """Forget stretches without members, if they are many."""
        if 2 * self._empty > len(self.stretches) + FEW:
            self.stretches = [stretch for stretch in self.stretches if stretch.bits]
            self._firsts = [stretch.first for stretch in self.stretches]
            self._empty = 0


class Tallies:
    """See the module's docstring.

    While a commit is made and written, the state is already as it will be after it. If the commit fails, `failed`
    restores the state before. There is one commit at a time.
    """

    __slots__ = (
        "_before", "_cleared", "_facts", "_members", "_noted", "_review_ms", "_settled", "_state", "_stored", "open",
        "reporting",
    )  # fmt: skip

    def __init__(self, state: QueueState, facts: Facts) -> None:
        self._state = state
        self._facts = facts
        self.open: dict[bytes, Tally] = {}
        """The batches that have not ended, by key (see `core.batches.batch_key`)."""
        self.reporting: set[bytes] = set()
        """Those whose report is on its way to its queue."""
        self._members = Members()
        self._review_ms = 0
        """When to look for abandoned batches again."""
        self._before: dict[bytes, Tally | None] = {}
        """The tallies that the commit changes, as they were before; None for a new one."""
        self._noted: dict[bytes, None] = {}
        """The batches whose tallies it writes, because it stores messages of them."""
        self._stored: list[int] = []
        """The seqs of these messages."""
        self._cleared: list[tuple[Stretch, int]] = []
        """The members that it settles."""
        self._settled: dict[tuple[bytes, End], int] = {}
        """How many these are, by their batches and how they ended."""

    def is_member(self, seq: int) -> bool:
        """Return whether a message is of a batch and, with the commit, not settled in the log."""
        return bool(self._members.overlaps(seq, 1))

    # --- the commit

    def refusal(self, messages: Sequence[Message]) -> CurbstoneError | None:
        """Return an error if one of these messages, which name batches, can't be of its batch, else None."""
        coming: dict[bytes, Tally] = {}
        new = 0
        if self._state.is_private:
            return BadRequest(NOT_PRIVATE)
        if any([message.groups for message in messages]):
            return BadRequest(NOT_WITH_GROUPS)
        for wanted, count in Counter([batch_of(message.headers) for message in messages]).items():
            tally = coming.get(wanted.key) or self.open.get(wanted.key)
            if tally is None:
                self._drop_abandoned()
                most = self._facts.most(Note.BATCH)
                if len(self.open) + new >= most:
                    return QueueFull(f"queue {self._state.name} has {most} open batches, which is the most")
                tally = Tally(wanted.id)
                new += 1
            if text := tally.conflict(wanted, count):
                return BadRequest(text)
            coming[wanted.key] = tally.with_stored(wanted, count)
        return None

    def note_bytes(self, wanted: Membership) -> int:
        """Return the most bytes of the cap that it takes to note the batch of a message, now and once more."""
        return 0 if wanted.key in self._noted else 2 * TALLY_BYTES

    def store(self, wanted: Membership, seqs: Sequence[int]) -> None:
        """Count messages of a batch. Those without a seq are left out as duplicates, and count as acked."""
        key, tally = wanted.key, self.open.get(wanted.key)
        host = self._state.host
        self._before.setdefault(key, tally)
        self._noted[key] = None
        if tally is None:
            tally = Tally(wanted.id, first=self._state.next_seq, begun_ms=host.wall_ms())
        stored = [seq for seq in seqs if seq]
        left_out = len(seqs) - len(stored)
        self.open[key] = tally.with_stored(wanted, len(seqs)).with_ended(End.ACKED, left_out, host.now_ms())
        for seq in stored:
            self._members.add(seq, key)
        self._stored += stored

    def affordable(self, reason: int, runs: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
        """Return as many of these messages, from the first on, as can be settled if notes may take `size` bytes."""
        end = _ENDS.get(reason, End.ACKED)
        touched = {key for key, other in self._settled if other is end}
        found: list[tuple[int, int]] = []
        for first, count in runs:
            for stretch, _bits in self._members.overlaps(first, count):
                if stretch.batch not in touched:
                    size -= SETTLED_NOTE_BYTES
                    touched.add(stretch.batch)
                if size < 0:
                    before = stretch.first - first
                    return [*found, (first, before)] if before > 0 else found
            found.append((first, count))
        return found

    def settle(self, reason: int, runs: Iterable[tuple[int, int]]) -> int:
        """Count messages that are settled in the unnamed group; return the most bytes of the notes about that."""
        end, before = _ENDS.get(reason), len(self._settled)
        if end is None:  # this repeats settles that were counted
            return 0
        for first, count in runs:
            for stretch, bits in self._members.overlaps(first, count):
                self._members.clear(stretch, bits)
                self._cleared.append((stretch, bits))
                tally = self.open.get(stretch.batch)
                if tally is not None and (own := _own(tally, stretch, bits)):
                    self._before.setdefault(stretch.batch, tally)
                    self.open[stretch.batch] = tally.with_ended(end, own, self._state.host.now_ms())
                    key = stretch.batch, end
                    self._settled[key] = self._settled.get(key, 0) + own
        return SETTLED_NOTE_BYTES * (len(self._settled) - before)

    def copies_of(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages as the commit copies them: what has a settle in the log is not of a batch any more."""
        kept = [each.orders is None or not each.orders.batched or self.is_member(each.seq) for each in messages]
        return [each if keep else _unbatched(each) for each, keep in zip(messages, kept, strict=True)]

    def end(self, key: bytes) -> None:
        """End a batch, whose report is stored in the same transaction."""
        self._before.setdefault(key, self.open.pop(key, None))

    @property
    def _ended(self) -> list[bytes]:
        return [key for key in self._before if key not in self.open]

    @property
    def has_facts(self) -> bool:
        """Whether the commit notes batches, even if no segment is dropped with it."""
        return bool(self._noted or self._ended)

    def notes(self, facts: Changes, log_start: int) -> bytes:
        """Return the notes about messages that are settled, and add those tallies to the facts that are noted anew.

        The segments below `log_start` are dropped with the commit; with 0 none is.
        """
        noted = dict.fromkeys([*self._noted, *self._ended, *self._facts.noted_below(Note.BATCH, log_start)])
        for key in noted:
            tally = self.open.get(key)
            put(facts, Note.BATCH, encode_tally(key, tally) if tally is not None else key)
        return b"".join(
            [
                encode_note(Note.BATCH_SETTLED, encode_ended(key, end, count, self.open[key].changed_ms))
                for (key, end), count in self._settled.items()
                if key not in noted and key in self.open
            ]
        )

    def committed(self) -> list[bytes]:
        """The commit is on disk. Return the batches that are complete because of it."""
        if not (self._before or self._cleared):
            return []
        ended, keys = self._ended, [*self._before]
        self._begin()
        self._members.sweep()
        self.reporting.difference_update(ended)
        return [key for key in keys if key in self.open and self.open[key].is_complete]

    def failed(self) -> None:
        """The commit has failed: nothing of it counts."""
        for stretch, bits in self._cleared:
            self._members.restore(stretch, bits)
        for seq in self._stored:
            self._forget(seq)
        for key, tally in self._before.items():
            if tally is None:
                self.open.pop(key, None)
            else:
                self.open[key] = tally
        self._begin()

    def _begin(self) -> None:
        self._before = {}
        self._noted = {}
        self._stored = []
        self._cleared = []
        self._settled = {}

    def _forget(self, seq: int) -> None:
        for stretch, bits in self._members.overlaps(seq, 1):
            self._members.clear(stretch, bits)

    # --- batches that do not end by themselves

    def drop(self, key: bytes) -> None:
        """Forget a batch, in the log with the next commit."""
        self.open.pop(key, None)
        self._before.pop(key, None)
        self._facts.set(Note.BATCH, key)

    def _drop_abandoned(self) -> None:
        now_ms = self._state.host.now_ms()
        if now_ms < self._review_ms:
            return
        self._review_ms = now_ms + REVIEW_MS
        limit_ms = now_ms - ABANDONED_MS
        old = [key for key, each in self.open.items() if each.changed_ms < limit_ms and not each.pending]
        for key in [key for key in old if not self.open[key].is_complete][:ABANDONED_AT_ONCE]:
            self.drop(key)
            self._state.stats.batches_abandoned += 1

    # --- a start

    def recover_messages(self, messages: Iterable[Message]) -> None:
        """Add messages, or copies of some, that recovery has read."""
        for message in messages:
            if message.orders is not None and message.orders.batched:
                self._members.add(message.seq, batch_of(message.headers).key)
            else:
                self._forget(message.seq)

    def recover(self, note: int, value: bytes) -> None:
        """Apply a note that recovery has read."""
        if note == Note.BATCH_SETTLED:
            key, end, count, now_ms = decode_ended(value)
            if (tally := self.open.get(key)) is not None:
                self.open[key] = tally.with_ended(end, count, now_ms)
            return
        key = KINDS[Note.BATCH].key_of(value)
        self.open.pop(key, None)
        if value != key:
            self.open[key] = decode_tally(value)

    def recovered(self, pending_in: Callable[[int, int], int], log_start: int) -> None:
        """The log is read. `pending_in(first, last)` returns a mask of what is pending in the unnamed group.

        A tally whose last note is below the start of the log belongs to a batch that has ended: a crash has restored
        the file of a segment that was dropped. Messages that are neither pending nor counted as settled have ended in
        an unknown way.
        """
        for key in self._facts.noted_below(Note.BATCH, log_start):
            self.drop(key)
        alive = dict.fromkeys(self.open, 0)
        for stretch in self._members.stretches:
            bits = stretch.bits & pending_in(stretch.first, stretch.first + STRETCH_MAX - 1)
            if stretch.bits != bits:
                self._members.clear(stretch, stretch.bits & ~bits)
            if (tally := self.open.get(stretch.batch)) is not None:
                alive[stretch.batch] += _own(tally, stretch, bits)
        self._members.sweep()
        for key, tally in self.open.items():
            self.open[key] = tally.with_ended(End.UNKNOWN, max(tally.pending - alive[key], 0), tally.changed_ms)

    @property
    def complete(self) -> list[bytes]:
        """The batches whose reports are to be sent."""
        return [key for key, tally in self.open.items() if tally.is_complete]


def _own(tally: Tally, stretch: Stretch, bits: int) -> int:
    """Return how many of these messages are of this batch, and not of one before it with the same id."""
    return (bits >> max(tally.first - stretch.first, 0)).bit_count()


def _unbatched(message: Message) -> Message:
    copy = Message(message.body, message.headers, changed(message.orders, batched=False))
    copy.seq, copy.timestamp_ms, copy.expires_ms = message.seq, message.timestamp_ms, message.expires_ms
    return copy
