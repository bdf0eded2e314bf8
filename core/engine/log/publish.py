"""Messages on their way into the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from curbstone.core.engine.log.format import Reason, Released
from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Delivery, Message
from curbstone.core.values import IdempotencyKey, Numbered, Published

SETTLE_BYTES = 96
"""The most bytes that the log needs for one delivery that a transaction ends."""
EXPIRY_BYTES = 8
"""Room for an expiry, which an entry may get from the queue's default only when it is put into a batch."""


class Settle(NamedTuple):
    """Deliveries that a transaction settles. If it fails they are handed to `undo`."""

    group: str
    deliveries: list[Delivery]
    reason: Reason
    undo: Callable[[list[Delivery]], None]


class Release(NamedTuple):
    """Deliveries that a transaction gives back, to be ready from `due_ms` on. If it fails they are handed to `undo`."""

    group: str
    deliveries: list[Delivery]
    due_ms: int
    """Engine time; 0 for at once."""
    undo: Callable[[list[Delivery]], None]

    @property
    def records(self) -> list[Released]:
        """The records of tries that are written for it."""
        return [Released(self.group, d.message.seq, 1, d.tries + 1, self.due_ms) for d in self.deliveries]


class StagedMark(NamedTuple):
    """How many messages of a staged transaction are in a queue's log."""

    number: int
    """The transaction's number."""
    messages: int


class Inspection:
    """How far the messages of a publish were checked against the queue's schema."""

    __slots__ = ("fit", "is_apart", "refusal")

    def __init__(self) -> None:
        self.fit = 0
        """The index of the first message that is not known to satisfy it."""
        self.refusal: CurbstoneError | None = None
        """Why the message at that index may not come in, if that is known."""
        self.is_apart = False
        """Whether that message is being checked outside of the loop."""


class Hold:
    """Keeps publishes in their places, each in its queue, until something else has happened."""

    __slots__ = ("_wake", "is_over")

    def __init__(self) -> None:
        self.is_over = False
        self._wake: list[Callable[[], None]] = []

    def when_over(self, wake: Callable[[], None]) -> None:
        """Call `wake` when the publishes may be written, unless they may already."""
        if not self.is_over:
            self._wake.append(wake)

    def end(self) -> None:
        """It has happened: let the publishes be written."""
        self.is_over = True
        for wake in self._wake:
            wake()


class Publish:
    """Messages that wait to be written, independently of each other: a batch takes all or some of them."""

    __slots__ = ("hold", "inspection", "messages", "next", "numbered", "on_done", "refusal")

    def __init__(
        self,
        messages: list[Message],
        on_done: Published,
        numbered: Numbered | None = None,
        hold: Hold | None = None,
    ) -> None:
        self.messages = messages
        self.hold = hold
        """If set, it is not written, and all behind it wait, before this is over."""
        self.on_done = on_done
        self.next = 0
        """The index of the first message that is not done with."""
        self.numbered = numbered
        """The producer and its numbers of these messages. Those that it has stored already are not stored again."""
        self.refusal: CurbstoneError | None = None
        """If set, nothing is written, and this is the answer when its turn comes."""
        self.inspection: Inspection | None = None
        """How far its messages were checked; None if the queue has no schema, or nothing was checked."""

    @property
    def must_not_fail(self) -> bool:
        """Whether another file on disk says that it has happened. Then it has to be written, and is never refused."""
        return False

    def abort(self) -> None:
        """Undo the settles and releases, if it has any, because nothing of this will be written."""


class AtomicWrite(Publish):
    """Messages, settles and releases that go into one batch, all or nothing, such as a part of a transaction."""

    __slots__ = (
        "atomic_bytes", "has_room", "key", "mark", "on_room", "records", "released", "releases", "reserved", "settles",
        "tx",
    )  # fmt: skip

    def __init__(self, messages: list[Message], on_done: Published, atomic_bytes: int) -> None:
        super().__init__(messages, on_done)
        self.atomic_bytes = atomic_bytes
        """The most bytes that the batch takes, with records of the messages' tries that may come later."""
        self.settles: list[Settle] = []
        self.records: list[tuple[str, Reason, list[int]]] = []
        """Settles by group that have already taken effect in memory. They must go into the same batch."""
        self.releases: list[Release] = []
        self.released: list[Released] = []
        """Releases that have already taken effect in memory. They must go into the same batch, too."""
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
        """The idempotency key to note in the same batch. If the log knows it already, nothing is stored again."""

    @property
    def ends(self) -> list[Settle | Release]:
        """The settles and releases of deliveries that it ends."""
        return [*self.settles, *self.releases]

    @property
    def must_not_fail(self) -> bool:
        """See `Publish.must_not_fail`."""
        return bool(self.tx) or self.mark is not None

    def abort(self) -> None:
        """See `Publish.abort`."""
        for end in self.ends:
            end.undo(end.deliveries)


class Reservation(AtomicWrite):
    """Room for messages that will come in publishes of their own, granted or refused in its turn; nothing is written.

    Whoever gets it counts it in those publishes (`reserved`), and gives back what is left.
    """

    __slots__ = ("largest",)

    def __init__(self, size: int, largest: int, on_done: Published) -> None:
        super().__init__([], on_done, size)
        self.largest = largest
        """The most bytes of one of these messages."""
