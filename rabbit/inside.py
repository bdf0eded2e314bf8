"""What the parts of the engine on a cluster ask of each other, in Protocols: of all queues, of one, and of its parts.

`rabbit.engine` and `rabbit.queue` put the parts together and are known by none of them, as adapters know an engine by
`core.port` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from curbstone.core.errors import CurbstoneError
from curbstone.core.host import Host
from curbstone.core.message import Delivery, Message
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions
from curbstone.core.schemas import Schemas
from curbstone.core.stats import Commits, Stats
from curbstone.core.values import Counts, Done, Leased, Outcome, Published
from curbstone.rabbit.door import AmqpError, Channel
from curbstone.rabbit.guard import Guard
from curbstone.rabbit.inbox import Inbox
from curbstone.rabbit.job import Soon
from curbstone.rabbit.link import Errands, Link
from curbstone.rabbit.numbers import Numbers
from curbstone.rabbit.publisher import Publisher
from curbstone.rabbit.registry import Entry, Known
from curbstone.rabbit.settling import Settling
from curbstone.rabbit.topology import Names
from curbstone.rabbit.unit import Addressed

# --- the parts of one queue


class Opening(Protocol):
    """The objects of one queue in RabbitMQ; see `rabbit.opening`."""

    text: str
    is_open: bool
    groups: set[str]

    def when_open(self, on_open: Done) -> None:
        """Call at once if the queue is known to be there, else when it is, or with what went wrong."""

    def with_groups(self, groups: set[str], on_open: Done) -> None:
        """Like `when_open`, and for the queues of these groups, too."""

    def with_ladder(self, group: str, on_done: Done) -> None:
        """Have the end of the ladder lead to a group's queue."""

    def again(self, on_open: Done) -> None:
        """Make the queue again: the broker does not know what was known to be there."""

    def changed(self, before: Known, after: Known, on_done: Done) -> None:
        """Do in RabbitMQ what a change of the registry means."""

    def count(self, group: str, on_done: Callable[[AmqpError | None, int, int], None]) -> None:
        """Tell how many messages are ready, and how many consumers there are."""


class Storing(Protocol):
    """How messages get into one queue; see `rabbit.storing`."""

    def store(self, message: Message, delay_ms: int, on_done: Done) -> None:
        """Publish a message that has its number and its times."""


class Leasing(Protocol):
    """What clients have of a queue without a consumer; see `rabbit.leasing`."""

    @property
    def waiting(self) -> int:
        """How many calls wait as consumers of the broker."""

    @property
    def is_used(self) -> bool:
        """Whether clients have leases, or wait for messages."""

    def unsettled(self, group: str) -> int:
        """How many leases of a group there are."""

    def settle(
        self,
        tokens: list[str],
        outcome: Outcome,
        on_done: Callable[[CurbstoneError | None, int, list[str]], None],
        delay_ms: int | None,
        error: str,
        owner: str,
    ) -> None:
        """Settle leases of this gateway; all other tokens are stale."""

    def settle_seq(self, seq: int, owner: str) -> bool | None:
        """Settle the lease of a message; False if it is another's, None if there is none."""

    def extend(self, tokens: list[str], duration_ms: int, owner: str) -> list[str]:
        """Let leases of this gateway end later; return the stale tokens."""


class Counting(Protocol):
    """The numbers of one queue; see `rabbit.counting`."""

    is_sure: bool

    def unsettled(self, group: str) -> int:
        """How many messages of a group are with clients of this gateway."""


class Taker(Protocol):
    """A consumer, as the counting sees it."""

    group: str
    unsettled: dict[int, Delivery]

    @property
    def surplus(self) -> int:
        """How many more than one it is for the broker."""


# --- one queue


class Queue(Protocol):
    """One queue, as one gateway sees it; see `rabbit.queue`."""

    known: Known
    stats: Stats
    is_closed: bool
    link: Link
    changes_under_way: int

    @property
    def engine(self) -> Engine:
        """All queues."""

    @property
    def name(self) -> QueueName:
        """Its project and name."""

    @property
    def uid(self) -> str:
        """Of this life of the queue."""

    @property
    def options(self) -> QueueOptions:
        """The options in force."""

    @property
    def purged(self) -> int:
        """Delayed messages with a smaller number are no more."""

    @property
    def opening(self) -> Opening:
        """What it is in RabbitMQ."""

    @property
    def storing(self) -> Storing:
        """How messages get in."""

    @property
    def leasing(self) -> Leasing:
        """Pops and leases."""

    @property
    def counting(self) -> Counting:
        """Its numbers."""

    @property
    def takers(self) -> Sequence[Taker]:
        """The consumers of this gateway."""

    def know(self, known: Known) -> None:
        """This is what it is from now on."""

    def message_id(self, seq: int) -> str:
        """Return the id of a message."""

    @property
    def guard(self) -> Guard:
        """What it takes in."""

    def refusal(self) -> CurbstoneError | None:
        """Return why nothing can be published now, or None."""

    def publish(self, messages: list[Message], on_done: Published) -> None:
        """Store messages; see `core.port.Queue.publish`."""

    def counts(self, group: str) -> Counts:
        """Return the numbers of a group as they were seen last."""

    def refresh(self, on_done: Done) -> None:
        """Look at the numbers now."""

    def changed(self) -> None:
        """Something happened to its messages here: watchers look soon."""

    def when_open(self, on_open: Done) -> None:
        """Call when the queue is there, or can't be had."""

    def when_changed(self, on_done: Callable[[], None]) -> None:
        """Call when all changes of it that were asked for here are done."""

    def change_ended(self) -> None:
        """One of them is done, or failed."""

    def end_delivery(
        self,
        settling: Settling,
        tag: int,
        group: str,
        delivery: Delivery,
        reason: str,
        delay_ms: int | None,
        error: str,
        on_done: Done,
    ) -> None:
        """Give a delivery back, one try older, or bury it."""

    def left(self, consumer: Taker) -> None:
        """A consumer has ended."""

    def channel_lost(self, error: AmqpError, fail: Callable[[CurbstoneError], None]) -> None:
        """A channel of a consumer or taker has ended by itself: tell it why."""

    def look_after_loss(self, fail: Callable[[CurbstoneError], None]) -> None:
        """The broker has ended a consumer: find out why."""


# --- all queues


class Journal(Protocol):
    """Publishes that happen together; see `rabbit.journal`."""

    def begin(self, messages: list[Addressed], on_committed: Done, on_done: Callable[[], None]) -> None:
        """Publish these as a whole: `on_committed` says whether they will be; if so, `on_done` when they are."""

    def carried_out(self, number: int) -> None:
        """A unit has been, or it is no longer waited for."""

    def mark_full(self, uid: str) -> None:
        """A queue has no room for what is committed."""


class Unsettled(Protocol):
    """How many messages clients hold; see `rabbit.unsettled`."""

    def hear(self, gateway: str, counts: dict[str, int]) -> None:
        """Another gateway says what its clients hold."""

    def elsewhere(self, uid: str, group: str) -> int:
        """How many messages are with clients of other gateways."""


class Disuse(Protocol):
    """Queues that go when nobody takes from them; see `rabbit.disuse`."""

    def hear(self, uids: list[str]) -> None:
        """Another gateway's clients use these."""


class Engine(Protocol):
    """All queues, as one gateway sees them; see `rabbit.engine`."""

    host: Host
    soon: Soon
    names: Names
    numbers: Numbers
    publisher: Publisher
    schemas: Schemas
    inbox: Inbox
    leased: Leased
    commits: Commits
    is_stopping: bool

    @property
    def journal(self) -> Journal:
        """What is published as a whole."""

    @property
    def unsettled(self) -> Unsettled:
        """What the clients of all gateways hold."""

    @property
    def disuse(self) -> Disuse:
        """Queues that go."""

    def queues(self) -> Sequence[Queue]:
        """Return all queues but private ones."""

    def get(self, name: QueueName) -> Queue:
        """Return a queue; raise NoSuchQueue."""

    def ensure(self, name: QueueName) -> Queue:
        """Return a queue, creating it if need be."""

    def by_uid(self, uid: str) -> Queue | None:
        """Return a queue of this life."""

    def bound_by_key(self, key: str) -> Sequence[Queue]:
        """Return the queues that get what has a routing key; not private ones."""

    def delete(self, name: QueueName, on_done: Callable[[bool | CurbstoneError], None]) -> None:
        """Delete a queue with all its messages; tells whether there was one."""

    def link_for(self, name: QueueName) -> Link:
        """Return the connection a queue is consumed over."""

    def errands_for(self, name: QueueName) -> Errands:
        """Return what declares and deletes it."""

    def name_of(self, text: str) -> QueueName:
        """Return the name in an option."""

    def registered(self, queue: Queue) -> Known | None:
        """Return what the registry says of a queue; None if it does not know it."""

    def know(self, queue: Queue, known: Known) -> None:
        """This is what is known of a queue from now on."""

    def could_not_make(self, queue: Queue, error: CurbstoneError) -> None:
        """The registry did not take a queue in."""

    def propose(self, entry: Entry, on_done: Done) -> None:
        """Have the registry take an entry in; `on_done` right after that."""

    def catch_up(self, on_done: Done) -> None:
        """Call back once everything that other gateways have changed by now is known here."""

    def publish_event(self, event: str, messages: list[Message], on_done: Published, project: str) -> None:
        """Publish to all queues bound to `event`."""

    def lost(self, error: Exception | None) -> CurbstoneError | None:
        """Return what to say if a channel has ended before it answered."""

    def closing(self, channel: Channel) -> None:
        """A channel is being closed; a stop waits for it."""

    def closed(self, channel: Channel) -> None:
        """It is."""
