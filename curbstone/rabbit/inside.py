"""The Protocols by which the parts of the engine on a cluster call each other: all queues, one queue, and its parts.

`rabbit.engine` and `rabbit.queue` put the parts together. No part imports them, just as adapters know an engine only by
`core.port`.
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
        """Call at once if the queue is known to exist, otherwise when it does, or with the error."""

    def with_groups(self, groups: set[str], on_open: Done) -> None:
        """Like `when_open`, and for the queues of these groups, too."""

    def with_ladder(self, group: str, on_done: Done) -> None:
        """Bind a group's queue to the end of the ladder."""

    def again(self, on_open: Done) -> None:
        """Make the queue again, because the broker does not know it although it was known to exist."""

    def changed(self, before: Known, after: Known, on_done: Done) -> None:
        """Carry out a change of the registry in RabbitMQ."""

    def count(self, group: str, on_done: Callable[[AmqpError | None, int, int], None]) -> None:
        """Tell how many messages are ready, and how many consumers there are."""


class Storing(Protocol):
    """Publishing into one queue; see `rabbit.storing`."""

    def store(self, message: Message, delay_ms: int, on_done: Done) -> None:
        """Publish a message that has its number and its times already."""


class Leasing(Protocol):
    """Pops and leases of one queue; see `rabbit.leasing`."""

    attempts: int
    """How many pops and leases there have been so far, those that found nothing included."""

    @property
    def waiting(self) -> int:
        """How many calls wait for a message; each is a consumer for the broker."""

    @property
    def is_used(self) -> bool:
        """Whether clients have leases or wait for messages."""

    def unsettled(self, group: str) -> int:
        """Return how many leases of a group there are."""

    def settle(
        self,
        tokens: list[str],
        outcome: Outcome,
        on_done: Callable[[CurbstoneError | None, int, list[str]], None],
        delay_ms: int | None,
        error: str,
        owner: str,
    ) -> None:
        """Settle leases of this gateway. All other tokens are stale."""

    def settle_seq(self, seq: int, owner: str) -> bool | None:
        """Settle the lease of a message. Return False if it belongs to another owner, None if there is no lease."""

    def extend(self, tokens: list[str], duration_ms: int, owner: str) -> list[str]:
        """Extend leases of this gateway; return the stale tokens."""


class Counting(Protocol):
    """The counts of one queue; see `rabbit.counting`."""

    is_sure: bool

    def unsettled(self, group: str) -> int:
        """Return how many messages of a group the clients of this gateway have unsettled."""


class Taker(Protocol):
    """A consumer, as the counting sees it."""

    group: str
    unsettled: dict[int, Delivery]

    @property
    def surplus(self) -> int:
        """How many consumers it is for the broker, beyond one."""


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
        """The project and name of the queue."""

    @property
    def uid(self) -> str:
        """The uid of the queue. A queue that is deleted and created again has another one."""

    @property
    def options(self) -> QueueOptions:
        """The options in force."""

    @property
    def purged(self) -> int:
        """Delayed messages with a smaller number have been purged."""

    @property
    def opening(self) -> Opening:
        """The objects of the queue in RabbitMQ."""

    @property
    def storing(self) -> Storing:
        """Publishing into the queue."""

    @property
    def leasing(self) -> Leasing:
        """Pops and leases."""

    @property
    def counting(self) -> Counting:
        """The counts of the queue."""

    @property
    def takers(self) -> Sequence[Taker]:
        """The consumers of this gateway."""

    def know(self, known: Known) -> None:
        """Set the queue's definition, as this gateway knows it."""

    def message_id(self, seq: int) -> str:
        """Return the id of a message."""

    @property
    def guard(self) -> Guard:
        """The rules for messages that enter the queue."""

    def refusal(self) -> CurbstoneError | None:
        """Return why nothing can be published to the queue now, or None if it can."""

    def publish(self, messages: list[Message], on_done: Published) -> None:
        """Publish messages; see `core.port.Queue.publish`."""

    def counts(self, group: str) -> Counts:
        """Return the counts of a group as of the last look."""

    def refresh(self, on_done: Done) -> None:
        """Look at the counts now."""

    def changed(self) -> None:
        """Note that messages of the queue changed here, so that watchers look soon."""

    def when_open(self, on_open: Done) -> None:
        """Call when the queue exists, or with an error if it can't be made."""

    def when_changed(self, on_done: Callable[[], None]) -> None:
        """Call when all changes of the queue that were asked for here are done."""

    def change_ended(self) -> None:
        """Note that one of the changes is done or failed."""

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
        """Give a delivery back with one more try counted, or bury it."""

    def left(self, consumer: Taker) -> None:
        """Note that a consumer has ended."""

    def channel_lost(self, error: AmqpError, fail: Callable[[CurbstoneError], None]) -> None:
        """Find out why a channel of a consumer or taker has ended by itself, and call `fail` with it."""

    def look_after_loss(self, fail: Callable[[CurbstoneError], None]) -> None:
        """Find out why the broker has ended a consumer."""


# --- all queues


class Journal(Protocol):
    """Messages that are published as a whole; see `rabbit.journal`."""

    def begin(self, messages: list[Addressed], on_committed: Done, on_done: Callable[[], None]) -> None:
        """Publish messages as a whole. `on_committed` tells whether they will be published; if so, `on_done` when."""

    def carried_out(self, number: int) -> None:
        """Note that a unit was carried out, or that nobody waits for it any longer."""

    def mark_full(self, uid: str) -> None:
        """Note that a queue has no room for committed messages."""


class Unsettled(Protocol):
    """How many messages clients have unsettled; see `rabbit.unsettled`."""

    def hear(self, gateway: str, counts: dict[str, int]) -> None:
        """Take the counts that another gateway tells of its clients."""

    def elsewhere(self, uid: str, group: str) -> int:
        """Return how many messages clients of other gateways have unsettled."""


class Disuse(Protocol):
    """Deletes queues that nobody takes from; see `rabbit.disuse`."""

    def hear(self, uids: list[str]) -> None:
        """Note that clients of another gateway use these queues."""


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
        """Publishes messages as a whole."""

    @property
    def unsettled(self) -> Unsettled:
        """How many messages the clients of all gateways have unsettled."""

    @property
    def disuse(self) -> Disuse:
        """Deletes queues that nobody takes from."""

    def queues(self) -> Sequence[Queue]:
        """Return all queues but private ones."""

    def get(self, name: QueueName) -> Queue:
        """Return a queue; raise NoSuchQueue."""

    def ensure(self, name: QueueName) -> Queue:
        """Return a queue, creating it if need be."""

    def by_uid(self, uid: str) -> Queue | None:
        """Return the queue with this uid, or None if it does not exist any more."""

    def bound_by_key(self, key: str) -> Sequence[Queue]:
        """Return the queues, without private ones, that get messages with a routing key."""

    def delete(self, name: QueueName, on_done: Callable[[bool | CurbstoneError], None]) -> None:
        """Delete a queue with all its messages; `on_done` gets whether there was one."""

    def link_for(self, name: QueueName) -> Link:
        """Return the connection that a queue is consumed over."""

    def errands_for(self, name: QueueName) -> Errands:
        """Return the errands that declare and delete a queue."""

    def name_of(self, text: str) -> QueueName:
        """Return the queue name that an option's text stands for."""

    def registered(self, queue: Queue) -> Known | None:
        """Return a queue's definition in the registry, or None if it is not there."""

    def know(self, queue: Queue, known: Known) -> None:
        """Set a queue's definition, as this gateway knows it."""

    def could_not_make(self, queue: Queue, error: CurbstoneError) -> None:
        """Note that the registry did not accept a new queue."""

    def propose(self, entry: Entry, on_done: Done) -> None:
        """Put an entry into the registry. `on_done` is called right after it was applied here."""

    def catch_up(self, on_done: Done) -> None:
        """Call back once this gateway knows all changes that other gateways have made so far."""

    def publish_event(self, event: str, messages: list[Message], on_done: Published, project: str) -> None:
        """Publish to all queues bound to `event`."""

    def lost(self, error: Exception | None) -> CurbstoneError | None:
        """Return the error to report if a channel has ended before it answered; None if there was no error."""

    def closing(self, channel: Channel) -> None:
        """Note that a channel is being closed. A stop of the server waits for it."""

    def closed(self, channel: Channel) -> None:
        """Note that the channel is closed."""
