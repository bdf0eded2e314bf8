"""Everything that waits to be written to one queue's log: publishes, settles, records of tries and pops.

The parts put here what they have to write, and the queue gets a turn. `commit.batch` takes as much as fits into
the next commit, and `commit.writer` puts back what must still be written after a commit has failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from curbstone.core.engine.log.format import Reason, TriesRecord
from curbstone.core.engine.turns import Wakeups
from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Delivery, Message, flags_of
from curbstone.core.orders import Name
from curbstone.core.values import Done, EarlyAnswer, IdempotencyKey, Numbered, Popped, Published

SETTLE_BYTES = 96
"""The most bytes that the log needs for one delivery that a transaction ends."""
EXPIRY_BYTES = 8
"""Room for an expiry, which an entry may get from the queue's default only when it is put into a batch."""


class Settle(NamedTuple):
    """Deliveries that a transaction settles. If it fails they are passed to `undo`."""

    group: str
    deliveries: list[Delivery]
    reason: Reason
    undo: Callable[[list[Delivery]], None]


class Release(NamedTuple):
    """Deliveries that a transaction requeues, to be ready from `due_ms` on. If it fails they are passed to `undo`."""

    group: str
    deliveries: list[Delivery]
    due_ms: int
    """Engine time; 0 for at once."""
    undo: Callable[[list[Delivery]], None]

    @property
    def records(self) -> list[TriesRecord]:
        """The records of tries that are written for it."""
        return [TriesRecord(self.group, d.message.seq, 1, d.tries + 1, self.due_ms) for d in self.deliveries]


class StagedMark(NamedTuple):
    """How many messages of a staged transaction are in a queue's log."""

    number: int
    """The transaction's number."""
    messages: int


class SchemaCheck:
    """How far the messages of a publish were checked against the queue's schema."""

    __slots__ = ("fit", "is_apart", "refusal")

    def __init__(self) -> None:
        self.fit = 0
        """The index of the first message that is not known to satisfy it."""
        self.refusal: CurbstoneError | None = None
        """Why the message at that index is refused, if that is known."""
        self.is_apart = False
        """Whether that message is being checked outside of the loop."""


class Latch:
    """Publishes of several queues wait until it is opened, each in its place in its queue. It is opened once."""

    __slots__ = ("_wake", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._wake: list[Callable[[], None]] = []

    def when_open(self, wake: Callable[[], None]) -> None:
        """Call `wake` when it is opened; not if it is open already."""
        if not self.is_open:
            self._wake.append(wake)

    def open(self) -> None:
        self.is_open = True
        for wake in self._wake:
            wake()


class Publish:
    """Messages that wait to be written, independently of each other: a batch takes all or some of them."""

    __slots__ = (
        "bytes", "early", "flags", "latch", "messages", "names", "next", "numbered", "on_done", "refusal",
        "schema_check",
    )  # fmt: skip

    def __init__(
        self,
        messages: list[Message],
        on_done: Published,
        numbered: Numbered | None = None,
        latch: Latch | None = None,
        early: EarlyAnswer | None = None,
        size: int = 0,
        flags: int = 0,
    ) -> None:
        self.messages = messages
        self.early = early
        self.bytes = size
        """Bytes of the entries of plain messages: they have no expiry, and of orders at most a level and a name. 0 if
        they were not looked at, or if some are not plain."""
        self.flags = flags
        """Those of its messages together; see `flags_of`."""
        self.latch = latch
        """If set, this publish and all behind it wait until the latch is open."""
        self.on_done = on_done
        self.next = 0
        """The index of the first message that is not done with."""
        self.numbered = numbered
        """The producer and its numbers of these messages. Those that it has stored already are not stored again."""
        self.refusal: CurbstoneError | None = None
        """If set, nothing is written, and this is the answer when its turn comes."""
        self.names: list[Name | None] | None = None
        """The names that the messages ask for; None before they are read."""
        self.schema_check: SchemaCheck | None = None
        """How far its messages were checked; None if the queue has no schema, or nothing was checked."""

    @property
    def must_not_fail(self) -> bool:
        """Whether another file on disk says that it has happened. Then it has to be written, and is never refused."""
        return False

    def abort(self) -> None:
        """Undo the settles and releases, if it has any, because none of this will be written."""


class AtomicWrite(Publish):
    """Messages, settles and releases that go into one batch, all or nothing, such as a part of a transaction."""

    __slots__ = (
        "atomic_bytes", "ended_batch", "has_room", "key", "mark", "on_room", "records", "released", "releases",
        "reserved", "settles", "tx",
    )  # fmt: skip

    def __init__(self, messages: list[Message], on_done: Published, atomic_bytes: int) -> None:
        super().__init__(messages, on_done, flags=flags_of(messages))
        self.atomic_bytes = atomic_bytes
        """The most bytes that the batch takes, with records of the messages' tries that may be written later."""
        self.settles: list[Settle] = []
        self.records: list[tuple[str, Reason, list[int]]] = []
        """Settles by group that have already taken effect in memory. They must go into the same batch."""
        self.releases: list[Release] = []
        self.released: list[TriesRecord] = []
        """Releases that have already taken effect in memory. They must go into the same batch, too."""
        self.ended_batch = b""
        """The key of a batch of messages (see `core.batches`) that ends with this write; empty if there is none."""
        self.tx = 0
        """Its number in the broker's journal, or 0. With a number it is promised, or may be, and is never refused."""
        self.reserved = 0
        """Bytes that are kept for it under the cap."""
        self.on_room: Callable[[], None] | None = None
        """For a transaction over several queues: called once, when room is kept for this part of it.

        The part then keeps its place until the transaction is decided, and later publishes wait behind it.
        """
        self.has_room = False
        """Whether `on_room` was called, or is about to be."""
        self.mark: StagedMark | None = None
        """For messages of a staged transaction: the note to write in the same batch. They are promised, too."""
        self.key: IdempotencyKey | None = None
        """The idempotency key to note in the same batch. If the log has it already, nothing is stored again."""

    @property
    def ends(self) -> list[Settle | Release]:
        return [*self.settles, *self.releases]

    @property
    def ended(self) -> int:
        return sum([len(end.deliveries) for end in self.ends])

    @property
    def must_not_fail(self) -> bool:
        return bool(self.tx) or self.mark is not None

    def abort(self) -> None:
        ends, self.settles, self.releases = self.ends, [], []
        for end in ends:
            end.undo(end.deliveries)


class Reservation(AtomicWrite):
    """Room for messages of later publishes, granted or refused in its turn; nothing is written.

    Its owner counts it in those publishes (`reserved`), and returns what is left.
    """

    __slots__ = ("largest", "tried_in")

    def __init__(self, size: int, largest: int, on_done: Published) -> None:
        super().__init__([], on_done, size)
        self.largest = largest
        """The most bytes of one of these messages."""
        self.tried_in: object = None
        """The batch in which it was tried last, and there was no room for it."""


class Pop:
    """A message that is delivered and settled in one call; it is sent when its settle is on disk."""

    __slots__ = ("delivery", "group", "is_in_doubt", "is_wanted", "on_done")

    def __init__(self, group: str, delivery: Delivery, on_done: Popped, is_wanted: Callable[[], bool] | None) -> None:
        self.group = group
        self.delivery = delivery
        self.on_done = on_done
        self.is_wanted = is_wanted
        """Whether the client is still there to take the message; called just before the settle is written."""
        self.is_in_doubt = False
        """Whether a commit with its settle has failed and none has succeeded since, so that it may be on disk."""


_NOTHING: deque[Publish] = deque(maxlen=0)
"""All write queues share it until something is published: an empty deque takes more memory than all else there."""


class WriteQueue:
    __slots__ = (
        "_refusal", "_wakeups", "after_settles", "callbacks", "lazy_acks", "must_write", "pops", "publishes", "ranges",
        "redelivery_records", "releases", "settles", "waiting_for_room",
    )  # fmt: skip

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups
        self._refusal: CurbstoneError | None = None
        """The error for callers that want a commit after the queue has ended; None before."""
        self.publishes = _NOTHING
        self.settles: dict[tuple[str, Reason], list[int]] = {}
        """The seqs of settled messages, by group and reason."""
        self.ranges: dict[tuple[str, Reason], list[tuple[int, int]]] = {}
        """Settles of consecutive messages, as (first, count): those of a purge, or that found no room in a batch."""
        self.lazy_acks: dict[str, list[int]] = {}
        """The seqs of what was acked and needs no commit of its own, by group: they go into the next one there is."""
        self.releases: list[TriesRecord] = []
        """Records of messages that were requeued, in order."""
        self.redelivery_records: dict[tuple[str, int], TriesRecord] = {}
        """By group and seq, records of messages that were delivered again: their tries as a crash has to find them."""
        self.pops: dict[Pop, None] = {}
        """The pops whose settles are not in a commit yet, in order."""
        self.callbacks: list[Done] = []
        """Callbacks that wait until all earlier settles and releases are on disk."""
        self.waiting_for_room: tuple[Done, ...] = ()
        """Callbacks that wait for the cleaner."""
        self.after_settles: list[Done] = []
        """Callbacks that wait for the earlier settles only."""
        self.must_write = False
        """Whether to make a commit though nothing waits, to find out whether the log can be written again."""

    # --- requests

    def publish(self, publish: Publish) -> None:
        """Write messages, in the order of these calls."""
        if self.publishes is _NOTHING:
            self.publishes = deque()
        self.publishes.append(publish)
        self._wakeups.schedule()

    def settled(self, group: str, reason: Reason, seqs: list[int]) -> None:
        """Write that messages are settled. The write queue keeps `seqs`, and changes it."""
        if not seqs:
            return
        if self.redelivery_records:
            for seq in seqs:
                self.redelivery_records.pop((group, seq), None)
        key = (group, reason)
        waiting = self.settles.get(key)
        if waiting is None:
            self.settles[key] = seqs
        else:
            waiting += seqs
        self._wakeups.schedule()

    def acked_lazily(self, group: str, seqs: list[int]) -> None:
        """Write with the next commit, at whatever time, that messages were acked: a restart does not need it."""
        self.lazy_acks.setdefault(group, []).extend(seqs)

    def take_lazy_acks(self) -> None:
        """There is a commit now: let what waits for one be settled with it."""
        lazy_acks, self.lazy_acks = self.lazy_acks, {}
        for group, seqs in lazy_acks.items():
            self.settles.setdefault((group, Reason.ACK), []).extend(seqs)

    def settled_ranges(self, group: str, reason: Reason, ranges: list[tuple[int, int]]) -> None:
        """Write that whole ranges of messages are settled, each as (first, count)."""
        self.ranges.setdefault((group, reason), []).extend(ranges)
        self._wakeups.schedule()

    def released(self, released: TriesRecord) -> None:
        """Write that messages were requeued; records of their delivery that were not written yet are no longer true."""
        if self.redelivery_records:
            for seq in range(released.first, released.first + released.span):
                self.redelivery_records.pop((released.group, seq), None)
        if self.releases:
            last = self.releases[-1]
            if last.first + last.span == released.first and last._replace(first=0, span=0) == released._replace(
                first=0, span=0
            ):
                self.releases[-1] = last._replace(span=last.span + released.span)
                return
        self.releases.append(released)
        self._wakeups.schedule()

    def record_redeliveries(self, states: list[TriesRecord]) -> None:
        """Write the tries of messages that were delivered, and not for the first time, as a crash has to find them."""
        for state in states:
            self.redelivery_records[state.group, state.first] = state
        self._wakeups.schedule()

    def when_committed(self, on_done: Done) -> None:
        """Call `on_done(error)` when all settles and releases so far are on disk.

        If the queue has ended, that is in a later turn, and the error says so.
        """
        if self._refusal is not None:
            self._wakeups.host.call_soon(partial(on_done, self._refusal))
            return
        self.callbacks.append(on_done)
        if not self.settles:  # else the queue has a turn already, or a commit is under way, or no room is left for them
            self._wakeups.schedule()

    def when_settled(self, on_done: Done) -> None:
        """Call `on_done(error)` when all settles so far are on disk; see `when_committed`.

        It does not wait for releases, which may find no room in a full queue until something more is settled.
        """
        if self._refusal is not None:
            self._wakeups.host.call_soon(partial(on_done, self._refusal))
            return
        self.after_settles.append(on_done)
        self._wakeups.schedule()

    def pop(self, pop: Pop) -> None:
        self.pops[pop] = None
        self._wakeups.schedule()

    def pop_first(self, pops: list[Pop]) -> None:
        """Write the settles of these pops before those of all others."""
        self.pops = dict.fromkeys(pops) | self.pops

    def take_callbacks(self) -> tuple[list[Done], list[Done]]:
        """Take out and return the `callbacks`, and the `after_settles`, if nothing that they wait for is left here."""
        callbacks: list[Done] = []
        after_settles: list[Done] = []
        if not self.settles and not self.ranges:
            after_settles, self.after_settles = self.after_settles, []
            if not self.releases:
                callbacks, self.callbacks = self.callbacks, []
        return callbacks, after_settles

    def end(self, error: CurbstoneError) -> list[Done]:
        """The queue ends: return all callbacks that wait; later ones get `error`."""
        self._refusal = error
        waiting = [*self.callbacks, *self.after_settles, *self.take_waiting_for_room()]
        self.callbacks, self.after_settles = [], []
        return waiting

    def wait_for_room(self, on_done: Done) -> None:
        """Call `on_done(None)` after the next commit of the cleaner's pass, `on_done(error)` if nothing can be written.

        This is for what is no publish and has begun the pass itself, which continues meanwhile.
        """
        if self._refusal is not None:
            self._wakeups.host.call_soon(partial(on_done, self._refusal))
            return
        self.waiting_for_room += (on_done,)
        self._wakeups.schedule()

    def take_waiting_for_room(self) -> Sequence[Done]:
        """Take out and return the callbacks of those who wait for room."""
        waiting, self.waiting_for_room = self.waiting_for_room, ()
        return waiting

    # --- what there is

    @property
    def has_settles(self) -> bool:
        """Whether settles wait, other than those of pops."""
        return bool(self.settles or self.ranges)

    @property
    def has_records(self) -> bool:
        return bool(self.settles or self.ranges or self.releases or self.redelivery_records or self.pops)

    @property
    def owes_records(self) -> bool:
        """Whether settles wait, or callers wait for releases."""
        return bool(self.settles or self.ranges or self.pops or self.callbacks)

    @property
    def is_empty(self) -> bool:
        asked = self.publishes or self.callbacks or self.after_settles
        return not (asked or self.settles or self.ranges or self.releases or self.redelivery_records or self.pops)

    @property
    def is_owed(self) -> bool:
        """Whether anything waits that a caller was promised.

        Records of tries are not: in a full queue they may wait for room for ever.
        """
        return bool(self.publishes) or self.owes_records
