"""What adapters and engines hand to each other, beside messages, names, options and errors: plain values.

Nothing here does anything; each engine makes and takes the same. Those of reading by position are in
`core.positions`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple

from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Delivery, Message
from curbstone.core.names import QueueName

UNNAMED = ""
"""The group of whoever names none."""

NOBODY = ""
"""The owner of what belongs to nobody in particular, as on a server without logins."""

Done = Callable[[CurbstoneError | None], None]
"""It is on disk, or why not."""

Published = Callable[[CurbstoneError | None, int, int], None]
"""(error, first seq, count); see `core.port.Queue.publish`."""

DIGEST_BYTES = 16

PART_BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of a part of a staged transaction."""

TTL_MS_MAX = 10 * 365 * 86_400_000
"""The longest time to live of a message: ten years."""


class Outcome(Enum):
    """How a lease is settled."""

    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"


class Capability(Enum):
    """A part that an engine may lack."""

    ATOMIC = "atomic"
    """Batches and transactions are all or nothing, also across a crash."""
    KEYS = "keys"
    """Idempotency keys."""
    ORDERING = "ordering"
    """Ordering keys: `core.pending.ordering`."""
    NUMBERS = "numbers"
    """Numbered producers: `core.notes.producers`."""
    LOOKING = "looking"
    """Peek: messages as they stand, without taking them."""
    READING = "reading"
    """Reading by position, declared groups, and the journal."""
    STAGING = "staging"
    """Staged transactions."""
    UNDOING = "undoing"
    """Bringing back what was settled, and a purge that can be undone."""
    DELETING = "deleting"
    """Settling a message by its id that nobody has taken."""
    FIGURES = "figures"
    """`Counts` knows how many messages are delayed, and how many bytes a queue takes."""
    CAP = "cap"
    """No queue ever takes more than its cap, and a cap can be changed."""


class Counts(NamedTuple):
    """The state of a queue in numbers; `bytes` is what it takes on disk."""

    rdy: int
    wip: int
    delayed: int
    bytes: int
    consumers: int
    oldest_ms: int = 0
    """Wall clock when the oldest unsettled message of any group was published, or up to a few thousand before it."""
    first_due_ms: int = 0
    """When the first that is delayed is due; 0 where none is."""


class Health(NamedTuple):
    """Whether all is well, and if not why."""

    ok: bool
    reasons: list[str]
    sync: str


class EngineInfo(NamedTuple):
    """What an engine is: its name, the version of what it runs on, and where that is."""

    name: str
    version: str = ""
    nodes: tuple[str, ...] = ()


class Peeked(NamedTuple):
    """A message as it stands in the queue."""

    message: Message
    state: str
    tries: int
    due_ms: int
    """Engine time when a delayed one is due, else 0."""
    behind: int = 0
    """The seq of the message of the same ordering key for which one waits that is ready, as far as is known; else 0."""


class Holder(NamedTuple):
    """Somebody who takes from a queue: a consumer, or all leases of a group together."""

    kind: str
    """`consumer` or `leases`."""
    group: str
    window: int
    """How many deliveries a consumer may hold; 0 if they are settled when they are sent, and of leases."""
    unsettled: int
    state: str
    """Of a consumer: `ready`, `full` (it holds all it may) or `held` (its client reads nothing); of leases `leased`."""
    until_ms: int
    """Engine time when the first of the leases ends; else 0."""


class Redriven(NamedTuple):
    """What became of dead letters."""

    moved: int
    stayed: dict[str, int]
    """How many were looked at and stay, by the reason."""
    more: bool
    """Whether there may be letters that were not looked at."""


class UndoWish(NamedTuple):
    """What is to come back of what was acked, popped or purged in a group."""

    limit: int
    """So many at most, those that were settled last."""
    within_ms: int = 0
    """Only what was settled so long ago or later; 0 for whenever."""
    seq: int = 0
    """Only that message; 0 for all."""
    group: str = UNNAMED


class Undone(NamedTuple):
    """What came back."""

    restored: int
    gone: int
    """Of those that were asked for, how many are not in the log any more."""
    expired: int
    more: bool
    """Whether there are others that the limits kept back."""
    damaged: bool = False
    """Whether a part of the log can't be read: what was settled before it is not known, and did not come back."""


Undoing = Callable[[CurbstoneError | None, Undone], None]
Moved = Callable[[CurbstoneError | None, Redriven], None]
May = Callable[[QueueName], bool]
"""Whether one may."""
Stale = Callable[[CurbstoneError | None, list[str]], None]
"""Which tokens settle nothing any more."""
WasThere = Callable[[CurbstoneError | None, bool], None]


class Lease:
    """A delivery that returns by itself when its time runs out."""

    __slots__ = ("delivery", "expires_ms", "group", "owner", "token")

    def __init__(self, delivery: Delivery, group: str, expires_ms: int, owner: str) -> None:
        self.delivery = delivery
        self.group = group
        self.owner = owner
        """Who alone may settle it."""
        self.expires_ms = expires_ms
        """Engine time when it returns."""
        self.token = f"{delivery.message.seq}.{secrets.token_urlsafe(16)}"
        """Opaque and unguessable; what settles it."""


class Leased:
    """The leases of all queues of an engine: how many each owner has, and of which queue each is."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._queues: dict[str, QueueName] = {}

    def of(self, owner: str) -> int:
        """Return how many one has."""
        return self._counts.get(owner, 0)

    def queue_of(self, token: str) -> QueueName | None:
        """Return the queue that a lease is of; None if it has ended."""
        return self._queues.get(token)

    def add(self, lease: Lease, queue: QueueName) -> None:
        """There is one more."""
        self._counts[lease.owner] = self._counts.get(lease.owner, 0) + 1
        self._queues[lease.token] = queue

    def drop(self, lease: Lease) -> None:
        """One has ended."""
        del self._queues[lease.token]
        left = self._counts.pop(lease.owner) - 1
        if left:
            self._counts[lease.owner] = left


Answer = Callable[[list[Lease] | CurbstoneError], None]


class State(Enum):
    """What can be done with a staged transaction."""

    STAGED = "staged"
    COMMITTING = "committing"
    COMMITTED = "committed"
    DROPPING = "dropping"


class Look(NamedTuple):
    """What there is of a staged transaction: its state, (name, messages, bytes) of its parts, messages in all."""

    state: State
    parts: list[tuple[str, int, int]]
    messages: int


class Numbered(NamedTuple):
    """Who publishes, and the numbers of what is published: of each message one above that of the one before."""

    producer: bytes
    """See `producer_key`."""
    first: int
    """The number of the first message, from 1 on."""
    after: int
    """The number that must be stored for it to be stored: that of the message before it, or 0 for none.

    A producer that is not known has stored nothing, so it begins with 0 here.
    """

    def behind(self, count: int) -> Numbered:
        """Return the numbers of what comes behind so many of the messages."""
        return Numbered(self.producer, self.first + count, self.first + count - 1) if count else self


class LastNumber(NamedTuple):
    """What a producer has stored last in a queue."""

    number: int
    seq: int
    """Of the message."""
    time_ms: int
    """Engine time."""


def producer_key(owner: str, name: str) -> bytes:
    """Return how a producer is known: its name is its owner's alone."""
    return blake2b(f"{owner}\n{name}".encode(), digest_size=DIGEST_BYTES).digest()


class IdempotencyKey(NamedTuple):
    """A key as a client gave it, and a digest of everything it published under it."""

    key: str
    content: bytes

    @property
    def hashed(self) -> bytes:
        """The key as it is kept."""
        return blake2b(self.key.encode(), digest_size=DIGEST_BYTES).digest()

    @property
    def digest(self) -> bytes:
        """The digest as it is kept."""
        return blake2b(self.content, digest_size=DIGEST_BYTES).digest()
