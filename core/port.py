"""What adapters may ask of an engine.

An adapter knows these Protocols, the values it hands over (`core.values`, `core.positions`, `core.frames`,
`core.message`, `core.names`, `core.options`, `core.headers`, `core.stats`, `core.traffic`, `core.errors`) and the
`Host` it runs on, and nothing else of `core`; tests/test_tidy.py makes sure of that. `core.broker` is the local engine
and `rabbit.engine` another; `tracing.engine` stands around either, behind the same Protocols.

Two rules hold for all calls. They are made on the host's thread and never block: what takes time ends in a callback,
`on_done`, which comes in a later turn and, unless its method says otherwise, once; an error means that nothing
happened. What is wrong with the call itself is raised at once.

An engine may lack parts of this: `Broker.capabilities` names those it has, and a call to another raises NotSupported
with a sentence for people.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Delivery, Message
from curbstone.core.names import DEFAULT_PROJECT, QueueName
from curbstone.core.options import QueueOptions
from curbstone.core.port_reading import Reading, Waiter
from curbstone.core.port_staging import Staging
from curbstone.core.stats import Commits, Stats
from curbstone.core.values import (
    NOBODY,
    UNNAMED,
    Answer,
    Capability,
    Counts,
    Done,
    EngineInfo,
    Health,
    Holder,
    IdempotencyKey,
    LastNumber,
    Lease,
    Leased,
    May,
    Moved,
    Numbered,
    Outcome,
    Peeked,
    Published,
    Stale,
    Undoing,
    UndoWish,
    WasThere,
)


class Consumer(Protocol):
    """Takes deliveries as they come, up to its window, and settles them.

    The settling calls raise StaleDelivery, and change nothing, if a seq is not among the unsettled.
    """

    @property
    def unsettled(self) -> Mapping[int, Delivery]:
        """What was delivered and is not settled, by seq, in the order of delivery."""

    def when_open(self, on_open: Callable[[], None]) -> None:
        """Call back when the consumer gets everything that is published from then on: at once, if it does already."""

    def ack(self, seqs: Sequence[int], on_done: Done | None = None) -> None:
        """Settle deliveries."""

    def nack(
        self, seqs: Sequence[int], delay_ms: int | None = None, error: str = "", on_done: Done | None = None
    ) -> None:
        """Give deliveries back to their place, after `delay_ms` or the queue's `nack_delay`."""

    def reject(self, seqs: Sequence[int], error: str = "", on_done: Done | None = None) -> None:
        """Send deliveries to the dead-letter queue, or drop them if there is none."""

    def resize(self, window: int) -> None:
        """Change how many deliveries may be unsettled. If more are, they stay, and no others come until fewer are."""

    def hold(self) -> None:
        """Stop deliveries for a while: the client's buffer is full."""

    def resume(self) -> None:
        """Go on after `hold`."""

    def pause(self) -> None:
        """End deliveries; what is unsettled stays and can still be settled."""

    def close(self) -> None:
        """End the consumer: what is unsettled goes back to its place, with one more try."""


class Queue(Protocol):
    """One queue."""

    @property
    def name(self) -> QueueName:
        """Its project and name."""

    @property
    def uid(self) -> str:
        """Of this life of the queue: one that is made again under the same name has another."""

    @property
    def options(self) -> QueueOptions:
        """The options in force: its own, with the server's defaults put in."""

    @property
    def damaged(self) -> Sequence[str]:
        """What can't be read any more, for people."""

    @property
    def is_closed(self) -> bool:
        """Whether it is gone."""

    @property
    def stats(self) -> Stats:
        """What has happened in it since the start."""

    @property
    def reading(self) -> Reading:
        """Reading it by position."""

    def message_id(self, seq: int) -> str:
        """Return the id of a message: the same on every delivery and every protocol."""

    def parse_id(self, text: str) -> int | None:
        """Return the seq of a message id of this queue, or None."""

    def publish(
        self,
        messages: list[Message],
        on_done: Published,
        *,
        atomic: bool = False,
        key: IdempotencyKey | None = None,
        numbered: Numbered | None = None,
    ) -> None:
        """Publish messages in order.

        `on_done` is called, in the order of the list, until it has covered all messages: (None, first_seq, count), the
        next `count` are on disk, with consecutive seqs; or (error, 0, count), the next `count` were refused.

        It is called once for all messages if they are `atomic`, or have a `key`: a list that is published again under
        the same key is not stored again. Of a `numbered` list, what its producer has stored already is answered first,
        with `on_done(None, 0, count)`. A number that comes too early is refused with NumberGap; if the producer is not
        known, that is any number that has another in front of it.
        """

    def last_number(self, producer: bytes) -> LastNumber | None:
        """Return what a producer (see `core.values.producer_key`) has stored last; None if it is not known."""

    def subscribe(
        self,
        deliver: Callable[[list[Delivery]], None],
        *,
        window: int,
        weight: int = 1,
        group: str = UNNAMED,
        auto: bool = False,
        on_closed: Callable[[CurbstoneError], None],
    ) -> Consumer:
        """Return a consumer; `deliver` gets its messages. With `auto` a message is settled by being delivered.

        If that would make one undeclared group too many, `on_closed` is called with a Conflict.
        """

    def pop(
        self,
        on_done: Callable[[Delivery | None | CurbstoneError], None],
        *,
        group: str = UNNAMED,
        wait_ms: int = 0,
        is_wanted: Callable[[], bool] | None = None,
    ) -> Waiter:
        """Take one message and settle it; the answer comes when the settle is on disk.

        `is_wanted` is asked just before the settle is written. If it says no the answer is None. After None, and after
        an error, the message is where it was.
        """

    def lease(
        self,
        count: int,
        duration_ms: int,
        on_done: Answer,
        *,
        group: str = UNNAMED,
        wait_ms: int = 0,
        owner: str = NOBODY,
    ) -> Waiter:
        """Take up to `count` messages, each for `duration_ms`; an empty list if there are none.

        Only calls with the same `owner` can settle or extend the leases.
        """

    def settle_leases(
        self,
        tokens: list[str],
        outcome: Outcome,
        on_done: Callable[[CurbstoneError | None, int, list[str]], None],
        *,
        delay_ms: int | None = None,
        error: str = "",
        owner: str = NOBODY,
    ) -> None:
        """Settle leases; `on_done(error, settled, stale tokens)`."""

    def extend(self, tokens: list[str], duration_ms: int, on_done: Stale, owner: str = NOBODY) -> None:
        """Let leases end `duration_ms` from now; `on_done(error, stale tokens)`."""

    def give_back(self, leases: list[Lease]) -> None:
        """End leases that nobody has seen: no try is counted."""

    def settle_by_id(self, seq: int, on_done: WasThere, owner: str = NOBODY) -> None:
        """Settle a message of the unnamed group in whatever state it is; tells whether it was there.

        A message that another `owner` has leased counts as not there.
        """

    def counts(self, group: str = UNNAMED) -> Counts:
        """Return the numbers of a group; `consumers` are those of all groups."""

    def holders(self) -> list[Holder]:
        """Return its consumers, and the leases of each group together."""

    def refresh(self, on_done: Done) -> None:
        """Bring `counts` up to date; without this they may be as old as the last look."""

    def watch(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call `fn` after each turn in which the counts changed; return a function that ends this."""

    def peek(
        self,
        limit: int,
        on_done: Callable[[list[Peeked] | CurbstoneError], None],
        *,
        after: int = 0,
        state: str = "",
        group: str | None = None,
    ) -> None:
        """Return up to `limit` messages behind seq `after` in order, of one group or all, without changing anything."""

    def purge(self, on_done: Callable[[CurbstoneError | None, int], None], *, keep: bool = False) -> None:
        """Remove what is rdy or delayed; `on_done(error, count)` comes when its bytes are gone from the disk.

        With `keep` they are not gone, and may be undone.
        """

    def undo(self, wish: UndoWish, on_done: Undoing) -> None:
        """Let come back what was acked, popped or purged and is in the log; an error's `members` say how many did."""

    def redrive(self, to: QueueName | None, limit: int, on_done: Moved, may: May | None = None, seq: int = 0) -> None:
        """Move up to `limit` dead letters to `to`, or where each came from; `on_done(error, what became of them)`.

        A letter stays if `may` says no to the queue it would go to. With a `seq` only that letter is moved, and only if
        it is ready; if it is not there, it counts neither as moved nor as stayed.
        """


class Transaction(Protocol):
    """Collects what is to be done. Nothing happens before `commit`; to abort, drop it."""

    def publish(self, queue: Queue, message: Message) -> None:
        """Add a publish to a queue of the same engine."""

    def publish_event(self, event: str, message: Message, project: str = DEFAULT_PROJECT) -> None:
        """Add a publish to every queue that is bound to `event` of a project when the transaction is committed."""

    def ack(self, consumer: Consumer, seqs: Sequence[int]) -> None:
        """Add an ack of what a consumer of the same engine holds; raise StaleDelivery."""

    def nack(self, consumer: Consumer, seqs: Sequence[int], delay_ms: int | None = None, error: str = "") -> None:
        """Add a nack; a message that was tried too often is dead with the commit."""

    def reject(self, consumer: Consumer, seqs: Sequence[int], error: str = "") -> None:
        """Add a reject; the dead letter is published with the commit."""

    def commit(self, on_done: Done) -> None:
        """Do it all, or nothing of it."""


class Broker(Protocol):
    """All queues of an engine."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it has of what an engine may lack."""

    @property
    def defaults(self) -> QueueOptions:
        """The options of a queue that sets none."""

    @property
    def engine(self) -> EngineInfo:
        """What it is."""

    @property
    def shares_queues(self) -> bool:
        """Whether other servers change the same queues: then `catch_up` before you say that one is missing."""

    def catch_up(self, on_done: Done) -> None:
        """Call back when all that other servers have changed by now is known here."""

    @property
    def leased(self) -> Leased:
        """Who has how many leases, and of which queue each is."""

    @property
    def staging(self) -> Staging:
        """Its staged transactions."""

    @property
    def commits(self) -> Commits:
        """Its commits since the start."""

    @property
    def past(self) -> Stats:
        """What had happened in queues that are gone."""

    # --- queues

    def queues(self) -> Sequence[Queue]:
        """Return all queues but private ones."""

    def private_queues(self) -> Sequence[Queue]:
        """Return those that belong to one connection."""

    def get(self, name: QueueName) -> Queue:
        """Return a queue; raise NoSuchQueue."""

    def ensure(self, name: QueueName) -> Queue:
        """Return a queue, creating it if need be; publishes wait until it is on disk."""

    def declare(self, name: QueueName, changes: Mapping[str, object], on_done: Done) -> None:
        """Create a queue, or merge options into one; raise BadRequest or Conflict."""

    def delete(
        self,
        name: QueueName,
        on_done: Callable[[bool | CurbstoneError], None],
        reason: CurbstoneError | None = None,
    ) -> None:
        """Delete a queue with all its messages; tells whether there was one.

        Consumers of a private queue are told the `reason`, if there is one.
        """

    # --- events

    @property
    def events_bound(self) -> int:
        """How many events have a queue that is bound to them."""

    # Events belong to projects. A queue is bound to events of its own project; a private queue, which is in none, to
    # those of the `project` that is named.

    def bind(self, event: str, name: QueueName, on_done: Done, project: str = DEFAULT_PROJECT) -> None:
        """Have messages published to `event` copied to a queue, which is made if need be."""

    def unbind(self, event: str, name: QueueName, on_done: Done, project: str = DEFAULT_PROJECT) -> None:
        """Undo `bind`."""

    def rebind(self, name: QueueName, events: frozenset[str], on_done: Done) -> None:
        """Replace all bindings of a queue at once."""

    def occupy(self, name: QueueName, events: frozenset[str], unused_s: float | None, on_done: Done) -> None:
        """Like `rebind`, and note after how many seconds without a consumer the queue is to go; None for never."""

    def bindings(self, name: QueueName) -> frozenset[str]:
        """Return the events bound to a queue; raise NoSuchQueue."""

    def unused_s(self, name: QueueName) -> float | None:
        """Return after how many seconds without a consumer a queue is to go, or None; raise NoSuchQueue."""

    def bound_count(self, event: str, project: str = DEFAULT_PROJECT) -> int:
        """Return how many queues get a copy of what is published to an event now, private ones counted."""

    def publish_event(
        self, event: str, messages: list[Message], on_done: Published, project: str = DEFAULT_PROJECT
    ) -> None:
        """Publish a copy to every queue bound to `event`, each by its own rules; answered as `Queue.publish` does.

        `on_done(EventRefused, 0, count)` says of the next `count` messages which queues refused them; all others have
        them.
        """

    def reply(self, name: QueueName, messages: list[Message], on_done: Published) -> bool:
        """Publish to another connection's private queue; False if that connection is gone.

        It fails only if the disk does. A requester that does not read its answers costs those answers, but must not end
        the connection of the service that answers everybody.
        """

    # --- the whole

    def transaction(self) -> Transaction:
        """Return a new transaction."""

    def health(self) -> Health:
        """Return whether all is well."""

    def shutdown(self, on_done: Callable[[], None]) -> None:
        """Refuse new publishes, finish what is under way, then end consumers."""
