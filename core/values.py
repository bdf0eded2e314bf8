"""Plain values that adapters and engines hand to each other, apart from messages, names, options and errors.

All engines use the same. The values of reading by position are in `core.positions`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple, Protocol

from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Delivery, Message
from curbstone.core.names import QueueName

UNNAMED = ""
"""The group of those who name no group."""

NOBODY = ""
"""The owner of things that belong to no user, as on a server without logins."""

Done = Callable[[CurbstoneError | None], None]
"""Called with None when something is on disk, or with the reason why it is not."""


class AllDone:
    """A callback for several operations: its last call, of `count`, calls `on_done` with the first error."""

    __slots__ = ("_first", "_left", "_on_done")

    def __init__(self, on_done: Done | None, count: int = 1) -> None:
        self._on_done = on_done
        self._left = count
        self._first: CurbstoneError | None = None

    def add(self, count: int = 1) -> None:
        """Expect so many more calls; before the last one."""
        self._left += count

    def __call__(self, error: CurbstoneError | None) -> None:
        self._left -= 1
        self._first = self._first or error
        if not self._left and self._on_done is not None:
            self._on_done(self._first)


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
    """Ordering keys: `core.engine.index.keys`."""
    NUMBERS = "numbers"
    """Numbered producers: `core.engine.commit.producer_sequences`."""
    LOOKING = "looking"
    """Peek: looking at messages without taking them."""
    FILTERS = "filters"
    """Filters on the bindings of queues to events. A subscriber's own can have one everywhere."""
    READING = "reading"
    """Reading by position, declared groups, and the journal."""
    STAGING = "staging"
    """Staged transactions."""
    UNDOING = "undoing"
    """Bringing back what was settled, and a purge that can be undone."""
    DELETING = "deleting"
    """Settling a message by its id although it is not in flight."""
    FIGURES = "figures"
    """`Counts` says how many messages are delayed, and how many bytes a queue takes."""
    BATCHES = "batches"
    """Batches of messages: `core.batches`."""
    CAP = "cap"
    """No queue ever takes more than its cap, and the cap can be changed."""


class Counts(NamedTuple):
    """The state of a queue in numbers; `bytes` are those that it takes on disk."""

    rdy: int
    wip: int
    delayed: int
    bytes: int
    consumers: int
    oldest_ms: int = 0
    """Wall-clock time when the oldest unsettled message, or one of the few thousand before it, was published."""
    first_due_ms: int = 0
    """Engine time when the first delayed message is due; 0 if none is delayed."""
    held_back: int = 0
    """How many of the ready messages the options `in_flight` and `rate`, or their keys, hold back now."""
    limited_by: str = ""
    """Which of these holds them back: `in_flight`, `rate` or `keys`. Keys count if they hold back all."""
    next_ms: int = 0
    """Engine time when `rate` or `key_rate` lets the next one go, if it holds all back, else 0."""


class Space(NamedTuple):
    """How much a queue still takes."""

    reserved: int
    """Bytes of the cap that no message may take: room to clean, and for what will be written of pending messages."""
    available: int
    """Bytes of the largest message without headers that is accepted now; at most the option `max_message_size`."""
    refused_last_minute: int
    """Messages that found no room in the last minute."""


class Health(NamedTuple):
    """Whether all is well, and if not, why."""

    ok: bool
    reasons: list[str]
    sync: str
    delivers: bool = True
    """Whether consumers are served, although messages may not be taken."""


class EngineInfo(NamedTuple):
    """What an engine is: its name, the version of what it runs on, and where that is."""

    name: str
    version: str = ""
    nodes: tuple[str, ...] = ()
    priority: str = "strict"
    """What the priorities of messages do: `strict`, `two-levels` (above 4 is high), or `none` (they have no effect)."""


class Peeked(NamedTuple):
    """A message as it stands in the queue."""

    message: Message
    state: str
    tries: int
    due_ms: int
    """Engine time when a delayed message is due, else 0."""
    behind: int = 0
    """For a ready message that waits for another of its ordering key: the seq of that one, if it is known; else 0."""


class KeyCounts(NamedTuple):
    """How many messages of one key wait, and are in flight, in a group."""

    key: str
    """Empty for all messages without a key, which are one key in a fair queue."""
    waiting: int
    in_flight: int
    """How many count for `key_limit`. In order, that includes one that is delayed, or whose settle is not on disk."""
    next_ms: int = 0
    """Engine time when `key_rate` allows its next delivery, if it waits for that; else 0."""


class KeyList(NamedTuple):
    """The keys of a group of which a message waits or is in flight."""

    total: int
    first: list[KeyCounts]


class ClientInfo(NamedTuple):
    """The client of a queue as its adapter describes it; for operators only, an engine does not read it."""

    protocol: str = ""
    address: str = ""
    port: int = 0
    user: str = ""
    """The user who has logged in; empty without a login."""
    client: str = ""
    """The name that the client gave itself; empty if there is none."""
    subscription: str = ""
    """The id that the client gave its subscription or consumer; empty if there is none."""

    @property
    def peer(self) -> str:
        """The address with its port; empty if it is not known."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}" if host else ""


UNKNOWN = ClientInfo()
"""Somebody of whom nothing is known."""


LEAVING = "leaving"
"""The state of a consumer that takes nothing more, but may still settle what it has."""


class Holder(NamedTuple):
    """Somebody who takes from a queue: a consumer, or all leases of one client in a group together."""

    kind: str
    """`consumer` or `leases`."""
    group: str
    window: int
    """How many deliveries a consumer may hold; 0 for leases, and if deliveries are settled when they are sent."""
    unsettled: int
    state: str
    """`ready`, `full` (it holds all it may), `held` (its client reads nothing) or `leaving` (it takes nothing more, but
    has not settled all it has); for leases `leased`."""
    until_ms: int
    """Engine time when the first of the leases ends; 0 for a consumer."""
    oldest_ms: int = 0
    """Engine time when the oldest of its unsettled deliveries was handed over; 0 if it has none."""
    client_info: ClientInfo = UNKNOWN


class Redriven(NamedTuple):
    """What became of dead letters."""

    moved: int
    stayed: dict[str, int]
    """By reason, how many were tried and stay."""
    more: bool
    """Whether there may be more that were not tried."""


class UndoRequest(NamedTuple):
    """Which messages shall return that were acked, popped or purged in a group."""

    limit: int
    """At most this many, those that were settled last."""
    within_ms: int = 0
    """Only messages that were settled in the last `within_ms`; 0 for any time."""
    seq: int = 0
    """Only the message with this seq; 0 for all."""
    group: str = UNNAMED


class Undone(NamedTuple):
    """Which messages returned, and which did not."""

    restored: int
    gone: int
    """How many of the requested messages are not in the log any more."""
    expired: int
    more: bool
    """Whether there are others beyond the limits of the request."""
    damaged: bool = False
    """Whether a part of the log can't be read. Messages that were settled before that part did not return."""


Popped = Callable[[Delivery | None | CurbstoneError], None]
Peeks = Callable[[list[Peeked] | CurbstoneError], None]
FoundKeys = Callable[[KeyList | CurbstoneError], None]
Deleted = Callable[[bool | CurbstoneError], None]
"""(whether there was a queue, or the error)"""
Counted = Callable[[CurbstoneError | None, int], None]
"""(error, how many messages)"""
LeasesSettled = Callable[[CurbstoneError | None, int, list[str]], None]
"""(error, how many, tokens that are no longer those of a lease)"""
Undoing = Callable[[CurbstoneError | None, Undone], None]
Moved = Callable[[CurbstoneError | None, Redriven], None]
May = Callable[[QueueName], bool]
"""Whether the caller may use a queue."""
Stale = Callable[[CurbstoneError | None, list[str]], None]
"""(error, tokens that are no longer those of a lease)"""
WasThere = Callable[[CurbstoneError | None, bool], None]
"""(error, whether the message was there)"""


class Lease:
    """A delivery that returns by itself when its time runs out."""

    __slots__ = ("client_info", "delivery", "expires_ms", "group", "owner", "token")

    def __init__(
        self, delivery: Delivery, group: str, expires_ms: int, owner: str, client_info: ClientInfo = UNKNOWN
    ) -> None:
        self.delivery = delivery
        self.group = group
        self.owner = owner
        """The only one who may settle or extend it."""
        self.client_info = client_info
        self.expires_ms = expires_ms
        """Engine time when it returns."""
        self.token = f"{delivery.message.seq}.{secrets.token_urlsafe(16)}"
        """Opaque and unguessable; settling the lease requires it."""


class Leased:
    """The leases of all queues of an engine: how many each owner has, and which queue each belongs to."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._queues: dict[str, QueueName] = {}

    def of(self, owner: str) -> int:
        return self._counts.get(owner, 0)

    def queue_of(self, token: str) -> QueueName | None:
        """Return the queue that a lease belongs to, or None if it has ended."""
        return self._queues.get(token)

    def add(self, lease: Lease, queue: QueueName) -> None:
        self._counts[lease.owner] = self._counts.get(lease.owner, 0) + 1
        self._queues[lease.token] = queue

    def drop(self, lease: Lease) -> None:
        del self._queues[lease.token]
        left = self._counts.pop(lease.owner) - 1
        if left:
            self._counts[lease.owner] = left


Answer = Callable[[list[Lease] | CurbstoneError], None]


class State(Enum):
    """The state of a staged transaction."""

    STAGED = "staged"
    COMMITTING = "committing"
    COMMITTED = "committed"
    DROPPING = "dropping"


class StagedStatus(NamedTuple):
    """A staged transaction as it stands: its state, (name, messages, bytes) of each part, messages in all."""

    state: State
    parts: list[tuple[str, int, int]]
    messages: int


class Numbered(NamedTuple):
    """The producer of a list of messages, and their numbers, which rise by one from message to message."""

    producer: bytes
    """See `producer_key`."""
    first: int
    """The number of the first message, from 1 on."""
    after: int
    """The number that must be stored already: that of the message in front of the first, or 0 for none.

    Nothing is stored of a producer that is not known, so it has to begin with 0 here.
    """

    def behind(self, count: int) -> Numbered:
        """Return the numbers of the messages behind the first `count`."""
        return Numbered(self.producer, self.first + count, self.first + count - 1) if count else self


class LastNumber(NamedTuple):
    """The last number that a producer has stored in a queue."""

    number: int
    seq: int
    """The seq of the message with that number."""
    time_ms: int
    """Engine time when it was stored."""


class EarlyAnswer(Protocol):
    """The answer to a publish that is sent as soon as the messages are on disk, before anything else is done."""

    def prepare(self, first_seq: int) -> None:
        """The messages are being written, with consecutive seqs: encode the answer."""

    def send(self) -> None:
        """They are on disk: send what was encoded, and do nothing else. `Published` is called next."""


def ignore(*_outcome: object) -> None:
    """Do nothing: the callback for an outcome that does not matter."""


def producer_key(owner: str, name: str) -> bytes:
    """Return the key by which a producer is known. The same name of another owner is another producer."""
    return blake2b(f"{owner}\n{name}".encode(), digest_size=DIGEST_BYTES).digest()


class IdempotencyKey(NamedTuple):
    """A key as a client gave it, and bytes that stand for everything that the client publishes under it."""

    key: str
    content: bytes

    @property
    def hashed(self) -> bytes:
        """The key as it is kept in memory and in the log."""
        return blake2b(self.key.encode(), digest_size=DIGEST_BYTES).digest()

    @property
    def digest(self) -> bytes:
        """The digest of the content, which is kept with the key."""
        return blake2b(self.content, digest_size=DIGEST_BYTES).digest()
