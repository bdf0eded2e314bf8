"""The interface of an engine: the calls that adapters may make, as Protocols.

An adapter uses these Protocols, the values that go through them (`core.values`, `core.positions`, `core.frames`,
`core.message`, `core.batches`, `core.names`, `core.options`, `core.headers`, `core.stats`, `core.traffic`,
`core.errors`) and the `Host` it runs on. It uses nothing else of `core`; tests/repo/test_tidy.py enforces that.
`core.engine` is the local engine and `rabbit.engine` another one; `tracing.engine` wraps either, behind the same
Protocols.

These rules hold for all calls. A call is made on the host's thread and never blocks. If it takes time, it ends with a
call of `on_done` in a later turn: once, unless the method says otherwise. An error there means that nothing happened.
If the call itself is wrong, it raises at once.

An engine may lack parts of this. `Broker.capabilities` names the parts that it has; a call to any other raises
NotSupported, with a text for users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from curbstone.core.batches import OpenBatch
from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Delivery, Message
from curbstone.core.names import DEFAULT_PROJECT, QueueName
from curbstone.core.options import QueueOptions
from curbstone.core.port_reading import Reading, Waiter
from curbstone.core.port_staging import Staging
from curbstone.core.stats import Commits, Stats
from curbstone.core.values import (
    NOBODY,
    UNKNOWN,
    UNNAMED,
    Answer,
    Capability,
    ClientInfo,
    Counted,
    Counts,
    Deleted,
    Done,
    EarlyAnswer,
    EngineInfo,
    FoundKeys,
    Health,
    Holder,
    IdempotencyKey,
    LastNumber,
    Lease,
    Leased,
    LeasesSettled,
    May,
    Moved,
    Numbered,
    Outcome,
    Peeks,
    Popped,
    Published,
    Space,
    Stale,
    Undoing,
    UndoRequest,
    WasThere,
)


class Consumer(Protocol):
    """Takes deliveries up to its window, and settles them.

    The calls that settle raise StaleDelivery, and change nothing, if a seq is not among the unsettled.
    """

    @property
    def unsettled(self) -> Mapping[int, Delivery]:
        """The deliveries that are not settled, by seq, in order of delivery."""

    def when_open(self, on_open: Callable[[], None]) -> None:
        """Call back when the consumer gets everything that is published from then on; at once if it does already."""

    def ack(self, seqs: Sequence[int], on_done: Done | None = None) -> None:
        """Settle deliveries."""

    def nack(
        self, seqs: Sequence[int], delay_ms: int | None = None, error: str = "", on_done: Done | None = None
    ) -> None:
        """Requeue deliveries. They are ready again after `delay_ms`, or if it is None after the option `nack_delay`."""

    def reject(self, seqs: Sequence[int], error: str = "", on_done: Done | None = None) -> None:
        """Send deliveries to the dead-letter queue, or drop them if there is none."""

    def resize(self, window: int) -> None:
        """Change how many deliveries may be unsettled. While more are, no others are delivered."""

    def hold(self) -> None:
        """Deliver nothing until `resume`, because the client's buffer is full."""

    def resume(self) -> None:
        """Resume deliveries after `hold`."""

    def pause(self) -> None:
        """Deliver nothing any more. Unsettled deliveries stay and can still be settled."""

    def close(self) -> None:
        """End the consumer, and requeue its unsettled deliveries with one more try."""


class Queue(Protocol):
    """One queue."""

    @property
    def name(self) -> QueueName:
        """Its project and name."""

    @property
    def uid(self) -> str:
        """The id of this queue. A queue that is created later under the same name has another."""

    @property
    def options(self) -> QueueOptions:
        """The options in force: those that were set, and the server's defaults for the rest."""

    @property
    def damaged(self) -> Sequence[str]:
        """What can't be read any more, as texts for operators."""

    @property
    def is_closed(self) -> bool:
        """Whether the queue was deleted, or its engine has stopped."""

    @property
    def stats(self) -> Stats:
        """Counts of what has happened in it since the start."""

    @property
    def reading(self) -> Reading:
        """The calls for reading it by position."""

    def message_id(self, seq: int) -> str:
        """Return the id of a message. It is the same on every delivery and in every protocol."""

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
        early: EarlyAnswer | None = None,
    ) -> None:
        """Publish messages in order.

        `on_done` is called, once or more, until all messages are answered, in the order of the list.
        `on_done(None, first_seq, count)` says that the next `count` messages are on disk, with consecutive seqs;
        `on_done(error, 0, count)` that the next `count` were refused.

        If the messages are `atomic` or have a `key`, it is called once for all of them. A list that is published again
        under the same key is not stored again. If they are `numbered`, those that the producer has stored already are
        answered first, with `on_done(None, 0, count)`. If the number in front of the first one (`Numbered.after`) is
        not stored, they are refused with NumberGap; of a producer that is not known, no number is stored.

        A message that is left out because another one has its unique name has the seq of that one
        (`Message.is_duplicate`). Then the seqs of one answer need not be consecutive: read them from the messages.

        If one commit writes all of the messages and no others, an engine may use `early` as well as `on_done`, so that
        the client has the answer while the engine takes the messages into memory.
        """

    def last_number(self, producer: bytes) -> LastNumber | None:
        """Return the last number that a producer (see `core.values.producer_key`) has stored; None if not known."""

    def subscribe(
        self,
        deliver: Callable[[list[Delivery]], None],
        *,
        window: int,
        weight: int = 1,
        group: str = UNNAMED,
        auto: bool = False,
        client_info: ClientInfo = UNKNOWN,
        on_closed: Callable[[CurbstoneError], None],
    ) -> Consumer:
        """Return a consumer. `deliver` gets its deliveries; with `auto` they are settled by being delivered.

        `holders` returns `client_info`.

        `on_closed` is called with the reason if the consumer is ended, and with a Conflict if its group is undeclared
        and would be one too many.
        """

    def pop(
        self, on_done: Popped, *, group: str = UNNAMED, wait_ms: int = 0, is_wanted: Callable[[], bool] | None = None
    ) -> Waiter:
        """Take one message and settle it. The answer follows when that is on disk, or after `wait_ms` without one.

        `is_wanted` is called just before the settle is written. If it returns False the answer is None. After None, and
        after an error, the message is still in its place.
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
        client_info: ClientInfo = UNKNOWN,
    ) -> Waiter:
        """Take up to `count` messages, each for `duration_ms`; the list is empty if none is ready within `wait_ms`.

        Only calls with the same `owner` can settle or extend the leases. `holders` returns `client_info`.
        """

    def settle_leases(
        self,
        tokens: list[str],
        outcome: Outcome,
        on_done: LeasesSettled,
        *,
        delay_ms: int | None = None,
        error: str = "",
        owner: str = NOBODY,
    ) -> None:
        """Settle leases; `on_done(error, settled, stale tokens)`."""

    def extend(self, tokens: list[str], duration_ms: int, on_done: Stale, owner: str = NOBODY) -> None:
        """Let leases end `duration_ms` from now; `on_done(error, stale tokens)`."""

    def give_back(self, leases: list[Lease]) -> None:
        """End leases that no client has received. No try is counted."""

    def settle_by_id(self, seq: int, on_done: WasThere, owner: str = NOBODY) -> None:
        """Settle a message of the unnamed group, in whatever state it is. `on_done` gets whether it was there.

        A message that another `owner` has leased counts as not there.
        """

    def counts(self, group: str = UNNAMED) -> Counts:
        """Return the numbers of a group, but `consumers` of all groups."""

    def by_priority(self, group: str = UNNAMED) -> dict[int, int]:
        """Return, by priority, how many messages of a group are ready, delivered or delayed; empty if all have 4.

        It is empty on a cluster, too.
        """

    def batches(self) -> list[OpenBatch]:
        """Return the batches of messages that have not ended; see `core.batches`. There are none on a cluster."""

    def drop_batch(self, batch: str, on_done: WasThere) -> None:
        """Forget a batch, but not its messages. `on_done` gets whether there was one that had not ended."""

    def space(self) -> Space:
        """Return how much the queue still takes."""

    def holders(self, seq: int = 0) -> list[Holder]:
        """Return the consumers of the queue, and for each group the leases of each client together.

        A call of `lease` or `pop` that waits for a message counts as a consumer that holds nothing.
        With a `seq`, return those who hold that message, each as if it held nothing else.
        """

    def refresh(self, on_done: Done) -> None:
        """Bring `counts` up to date. Without this they may be as old as the last call."""

    def watch(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call `fn` after each turn in which the counts changed; return a function that ends this."""

    def peek(self, limit: int, on_done: Peeks, *, after: int = 0, state: str = "", group: str | None = None) -> None:
        """Return up to `limit` messages behind seq `after`, in order, of one group or of all. Nothing changes."""

    def keys(self, limit: int, on_done: FoundKeys, *, by_in_flight: bool = False, group: str = UNNAMED) -> None:
        """Count by ordering key, and return the first `limit` keys: those with the most messages that wait.

        With `by_in_flight` they are those with the most in flight. Only messages that the group has read count. In a
        fair queue it meets them when they are published, otherwise when it delivers.
        """

    def purge(self, on_done: Counted, *, keep: bool = False) -> None:
        """Remove all ready and delayed messages. `on_done(error, count)` is called when their bytes are erased.

        With `keep` the bytes are not erased, and the purge can be undone. If it is known that they can't be erased,
        the purge is refused and nothing changes. If erasing fails later, the messages may be gone after the error.
        """

    def undo(self, request: UndoRequest, on_done: Undoing) -> None:
        """Restore messages that were acked, popped or purged, as far as they are still in the log.

        The `members` of an error have the number of messages that were restored.
        """

    def redrive(self, to: QueueName | None, limit: int, on_done: Moved, may: May | None = None, seq: int = 0) -> None:
        """Move up to `limit` dead letters to `to`, or each to its original queue.

        `on_done(error, redriven)` has the outcome. A message stays if `may` returns False for its target. With a `seq`
        only that message is moved, and only if it is ready; if it is not there, it counts neither as moved nor
        as stayed.
        """


class Transaction(Protocol):
    """Collects publishes and settles. Nothing happens before `commit`; to abort, drop the object."""

    def publish(self, queue: Queue, message: Message) -> None:
        """Add a publish to a queue of the same engine."""

    def publish_event(self, event: str, message: Message, project: str = DEFAULT_PROJECT) -> None:
        """Add a publish to every queue that is bound to the project's `event` when the transaction is committed."""

    @property
    def queues_reached(self) -> int:
        """How many queues get messages that were published to events. It is known when the transaction is committed."""

    def ack(self, consumer: Consumer, seqs: Sequence[int]) -> None:
        """Add an ack of deliveries that a consumer of the same engine holds; raise StaleDelivery."""

    def nack(self, consumer: Consumer, seqs: Sequence[int], delay_ms: int | None = None, error: str = "") -> None:
        """Add a nack. A message that was tried too often is dead-lettered with the commit. Raise StaleDelivery."""

    def reject(self, consumer: Consumer, seqs: Sequence[int], error: str = "") -> None:
        """Add a reject. The dead letter is published with the commit. Raise StaleDelivery."""

    def commit(self, on_done: Done) -> None:
        """Do everything, or nothing."""


class Broker(Protocol):
    """All queues of an engine."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The optional parts that this engine has."""

    @property
    def defaults(self) -> QueueOptions:
        """The options of a queue that sets none."""

    @property
    def engine(self) -> EngineInfo:
        """The engine's name, and what it runs on."""

    @property
    def shares_queues(self) -> bool:
        """Whether other servers change the same queues. Then call `catch_up` before saying that one is missing."""

    def catch_up(self, on_done: Done) -> None:
        """Call back when everything that other servers have changed by now is known here."""

    @property
    def leased(self) -> Leased:
        """How many leases each owner has, and of which queue each lease is."""

    @property
    def staging(self) -> Staging:
        """Its staged transactions."""

    @property
    def commits(self) -> Commits:
        """Its commits since the start."""

    @property
    def past(self) -> Stats:
        """Counts of what has happened, since the start, in queues that have been deleted."""

    # --- queues

    def queues(self) -> Sequence[Queue]:
        """Return all queues except private ones."""

    def private_queues(self) -> Sequence[Queue]:
        """Return the queues that belong to one connection each."""

    def get(self, name: QueueName) -> Queue:
        """Return a queue; raise NoSuchQueue."""

    def ensure(self, name: QueueName) -> Queue:
        """Return a queue, creating it if necessary. Publishes to a new one wait until it is on disk."""

    def declare(self, name: QueueName, changes: Mapping[str, object], on_done: Done) -> None:
        """Create a queue with these options, or merge them into those of an existing one; raise BadRequest or Conflict.

        `on_done` is called when that is on disk.
        """

    def delete(self, name: QueueName, on_done: Deleted, reason: CurbstoneError | None = None) -> None:
        """Delete a queue with all its messages. `on_done` gets whether there was one, or the error.

        Consumers of a private queue get the `reason`, if there is one.
        """

    # --- events

    @property
    def events_bound(self) -> int:
        """How many events have a queue bound to them."""

    # Events belong to projects. A queue is bound to events of its own project. A private queue has no project, so it is
    # bound to events of the `project` that the call names.

    def bind(
        self, event: str, name: QueueName, on_done: Done, project: str = DEFAULT_PROJECT, filter_text: str = ""
    ) -> None:
        """Have messages that are published to `event` copied to a queue, which is created if necessary.

        With a filter (see `core.filters`) only those that pass it. A binding that exists gets this filter, or none.
        """

    def unbind(self, event: str, name: QueueName, on_done: Done, project: str = DEFAULT_PROJECT) -> None:
        """Undo `bind`."""

    def rebind(self, name: QueueName, events: frozenset[str], on_done: Done) -> None:
        """Replace all bindings of a queue at once. Those to events that were bound before keep their filters."""

    def occupy(self, name: QueueName, events: frozenset[str], unused_s: float | None, on_done: Done) -> None:
        """Like `rebind`; also set after how many seconds without a consumer the queue is deleted, None for never."""

    def bindings(self, name: QueueName) -> Mapping[str, str]:
        """Return the events that a queue is bound to, each with its filter, which may be empty; raise NoSuchQueue."""

    def unused_s(self, name: QueueName) -> float | None:
        """Return after how many seconds without a consumer a queue is deleted, or None; raise NoSuchQueue."""

    def publish_event(
        self, event: str, messages: list[Message], on_done: Published, project: str = DEFAULT_PROJECT
    ) -> None:
        """Publish a copy to every queue bound to `event`, each by its own rules; answer like `Queue.publish`.

        Instead of a seq, an answer without an error says how many queues, including private ones, got each message.
        `on_done(EventRefused, 0, count)` says that some queues have refused the next `count` messages, and which; all
        other bound queues have them.
        """

    def reply(self, name: QueueName, messages: list[Message], on_done: Published) -> bool:
        """Publish to another connection's private queue; return False if that connection has ended.

        It fails only if the disk does. A requester that does not read its answers loses them, but must not end the
        connection of the service that answers all clients.
        """

    # --- the engine

    def transaction(self) -> Transaction:
        """Return a new transaction."""

    def health(self) -> Health:
        """Return whether the engine is healthy, and if not, why."""

    def shutdown(self, on_done: Callable[[], None]) -> None:
        """Refuse new publishes, finish what is under way, then end the consumers."""
