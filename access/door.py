"""`Access`: an engine as one identity sees it. Adapters reach the engine only through it.

No method returns a queue without being given a right, so code that forgets the check does not type-check. What is done
with the queue afterwards (settle, hold, read on) needs no further check, because the consumer or lease was obtained
under that right. The right is checked before the queue is looked up, so a refusal does not tell what exists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from curbstone.access.callers import Caller
from curbstone.access.errors import WANTED, NotAllowed, NotLoggedIn, QuotaReached, TooMany
from curbstone.access.identity import Identity
from curbstone.access.producing import Producing
from curbstone.access.rights import Right, names_taken
from curbstone.access.staged import AccessStaging
from curbstone.access.users import Quota
from curbstone.access.watch import Watch
from curbstone.access.who import who_of
from curbstone.core.errors import BadRequest, CurbstoneError, NoSuchQueue
from curbstone.core.message import Message
from curbstone.core.names import QueueName, parse_queue_name
from curbstone.core.options import parse_size
from curbstone.core.port import Broker, Queue, Transaction
from curbstone.core.port_reading import Waiter
from curbstone.core.values import (
    UNNAMED,
    Answer,
    Capability,
    Done,
    EngineInfo,
    Health,
    IdempotencyKey,
    Lease,
    Outcome,
    Published,
    Redriven,
    Stale,
    producer_key,
)

LEASES_MAX = 100_000
"""The most leases of one user at a time, over all queues."""
LEASES_ENOUGH = f"this user holds {LEASES_MAX} leases, the most it may: settle some, or let them end"
_KEY = re.compile(r"[!-~]{1,255}")
PRODUCER_NAME = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)


class Access:
    """The engine as one identity sees it; see the module's docstring. Called on the host's thread."""

    def __init__(self, watch: Watch, broker: Broker, identity: Identity, quota: Callable[[str], Quota | None]) -> None:
        self.identity = identity
        self.ack_ids = watch.ack_ids
        """The registry of deliveries that connections hold."""
        self._watch = watch
        self._broker = broker
        self._quota = quota

    # --- rights

    @property
    def home(self) -> str:
        """The project of names without one."""
        return self.identity.home

    def may(self, right: Right, name: QueueName) -> bool:
        """Return whether the identity has a right on a queue."""
        return bool(self.identity.on_queue(name) & right)

    def check(self, right: Right, name: QueueName) -> None:
        """Raise NotAllowed or NotLoggedIn if the identity lacks a right on a queue."""
        if not self.identity.on_queue(name) & right:
            raise self.refusal(right, f"queue {name}")

    def check_topic(self, right: Right, event: str, project: str = "") -> None:
        """Like `check`, for an event of a project, which by default is the home.

        For a mask, the right on all events that match it is needed.
        """
        project = project or self.home
        for name in names_taken(event) if right is Right.RECEIVE else (event,):
            if not self.identity.on_topic(project, name) & right:
                raise self.refusal(right, f"topic {project}/{event}")

    def check_server(self, right: Right) -> None:
        """Like `check`, for the server."""
        if not self.identity.on_server() & right:
            raise self.refusal(right, "the server")

    def refusal(self, right: Right, target: str) -> CurbstoneError:
        """Return the error for a missing right, and note the refusal in the audit."""
        if self.identity.end_reason:
            return NotLoggedIn(self.identity.end_reason)
        if not self.identity.user:
            return NotLoggedIn(WANTED)
        self._watch.refused(self.identity, right.word, target)
        return NotAllowed(f"no right to {right.word} on {target}")

    def administer(self, action: str, target: str = "") -> None:
        """Check the right to administer the server, and note the action in the audit."""
        self.check_server(Right.ADMIN)
        if self.identity.owner:
            self._watch.did(self.identity, action, target)

    # --- queues

    def queue(self, name: QueueName, right: Right) -> Queue:
        """Return a queue; raise NotAllowed without the right on it, or NoSuchQueue."""
        if not self.identity.on_queue(name) & right:
            raise self.refusal(right, f"queue {name}")
        return self._broker.get(name)

    def find(self, name: QueueName) -> Queue:
        """Return a queue; raise NotAllowed without any right on it, or NoSuchQueue."""
        if not self.identity.on_queue(name):
            raise self.refusal(Right.PEEK, f"queue {name}")
        return self._broker.get(name)

    def ensure(self, name: QueueName, right: Right) -> Queue:
        """Like `queue`, but create the queue if there is none and the identity may also manage it."""
        rights = self.identity.on_queue(name)
        if not rights & right:
            raise self.refusal(right, f"queue {name}")
        if self.identity.owner:
            try:
                return self._broker.get(name)
            except NoSuchQueue:
                if not rights & Right.MANAGE:
                    raise
                self._check_quota(name, {})
                self._audit("make queue", name)
        return self._broker.ensure(name)

    def queues(self) -> list[Queue]:
        """Return the queues on which the identity has any right."""
        return [queue for queue in self._broker.queues() if self.identity.on_queue(queue.name)]

    def queues_with(self, right: Right) -> list[Queue]:
        """Return the queues on which the identity has this right."""
        return [queue for queue in self._broker.queues() if self.identity.on_queue(queue.name) & right]

    def declare(self, name: QueueName, changes: Mapping[str, object], on_done: Done) -> None:
        """See `Broker.declare`."""
        self.check(Right.MANAGE, name)
        letters = changes.get("dead_letter")
        if isinstance(letters, str) and letters:
            self.check(Right.SEND, parse_queue_name(letters, name.project))
        self._check_quota(name, changes)
        self._audit("change queue", name)
        self._broker.declare(name, changes, on_done)

    def delete(self, name: QueueName, on_done: Callable[[bool | CurbstoneError], None]) -> None:
        """See `Broker.delete`."""
        self.check(Right.MANAGE, name)
        self._audit("delete queue", name)
        self._broker.delete(name, on_done)

    def managed(self, name: QueueName, action: str) -> Queue:
        """Return a queue to a caller with the right to manage it, and note `action` in the audit."""
        queue = self.queue(name, Right.MANAGE)
        self._audit(action, name)
        return queue

    def redrive(
        self,
        name: QueueName,
        to: QueueName | None,
        limit: int,
        on_done: Callable[[CurbstoneError | None, Redriven], None],
        seq: int = 0,
    ) -> None:
        """See `Queue.redrive`. Letters are moved only to queues to which the identity may send."""
        if to is not None:
            self.check(Right.SEND, to)
        queue = self.managed(name, "redrive")
        queue.redrive(to, limit, on_done, lambda home: self.may(Right.SEND, home), seq)

    # --- a queue of one's own

    def private(self, name: QueueName, changes: Mapping[str, object], on_done: Done) -> Queue:
        """Return a private queue of the connection, created if needed; raise TooMany. Nobody can guess its name."""
        assert name.is_private
        private = self._watch.private
        private.check(self.identity, name)
        self._broker.declare(name, changes, on_done)
        queue = self._broker.get(name)
        private.keep(self.identity, queue, self._end_private)
        return queue

    def _end_private(self, name: QueueName, reason: CurbstoneError) -> None:
        self._broker.delete(name, lambda _outcome: None, reason)

    def drop_private(self, name: QueueName) -> None:
        """Delete a private queue."""
        assert name.is_private
        self._watch.private.drop(self.identity, name)
        self._broker.delete(name, lambda _outcome: None)

    def reply(self, name: QueueName, messages: list[Message], on_done: Published) -> bool:
        """See `Broker.reply`. Needs no right: everybody who knows the name may send."""
        assert name.is_private
        return self._broker.reply(name, messages, on_done)

    # --- events, which belong to the home

    @property
    def events_bound(self) -> int:
        """See `Broker.events_bound`."""
        return self._broker.events_bound

    def bound_count(self, event: str, project: str) -> int:
        """See `Broker.bound_count`."""
        self.check_topic(Right.SEND, event, project)
        return self._broker.bound_count(event, project)

    def publish_event(self, event: str, messages: list[Message], on_done: Published, project: str = "") -> None:
        """See `Broker.publish_event`."""
        self.check_topic(Right.SEND, event, project)
        self._broker.publish_event(event, messages, on_done, project or self.home)

    def bind(self, event: str, name: QueueName, on_done: Done) -> None:
        """Bind a queue to an event of its project. Needs the right to manage the queue, unless it is bound already."""
        self.check_topic(Right.RECEIVE, event, name.project)
        if event not in self._bindings(name):
            self.check(Right.MANAGE, name)
            self._audit("bind queue", name)
        self._broker.bind(event, name, on_done, name.project)

    def unbind(self, event: str, name: QueueName, on_done: Done) -> None:
        """Undo `bind`."""
        self.check(Right.MANAGE, name)
        self._audit("unbind queue", name)
        self._broker.unbind(event, name, on_done, name.project)

    def _bindings(self, name: QueueName) -> frozenset[str]:
        try:
            return self._broker.bindings(name)
        except NoSuchQueue:
            return frozenset()

    def listen(self, event: str, name: QueueName, on_done: Done, project: str) -> None:
        """Have messages to an event of a project copied to a private queue."""
        assert name.is_private
        self.check_topic(Right.RECEIVE, event, project)
        self._broker.bind(event, name, on_done, project)

    def unlisten(self, event: str, name: QueueName, project: str) -> None:
        """Undo `listen`."""
        self._broker.unbind(event, name, lambda _error: None, project)

    def bindings(self, name: QueueName) -> frozenset[str]:
        """Return the events bound to a queue on which the identity has any right; raise NoSuchQueue."""
        self.find(name)
        return self._broker.bindings(name)

    def unused_s(self, name: QueueName) -> float | None:
        """See `Broker.unused_s`."""
        self.find(name)
        return self._broker.unused_s(name)

    def occupy(self, name: QueueName, events: frozenset[str], unused_s: float | None, on_done: Done) -> None:
        """See `Broker.occupy`. Needs `receive`, and also `manage` if it changes anything."""
        self.check(Right.RECEIVE, name)
        if self._check_change(name, events, unused_s):
            self._audit("bind queue", name)
        self._broker.occupy(name, events, unused_s, on_done)

    def rebind(self, name: QueueName, events: frozenset[str], on_done: Done) -> None:
        """See `Broker.rebind`."""
        self.check(Right.MANAGE, name)
        self._check_change(name, events, None)
        self._audit("bind queue", name)
        self._broker.rebind(name, events, on_done)

    def _check_change(self, name: QueueName, events: frozenset[str], unused_s: float | None) -> bool:
        """Check the rights that a change of bindings needs; return whether it changes anything."""
        try:
            before, unused_before = self._broker.bindings(name), self._broker.unused_s(name)
        except NoSuchQueue:
            before, unused_before = frozenset[str](), None
            self.check(Right.MANAGE, name)
            self._check_quota(name, {})
        for event in sorted(events - before):
            self.check_topic(Right.RECEIVE, event, name.project)
        is_change = events != before or unused_s != unused_before
        if is_change:
            self.check(Right.MANAGE, name)
        return is_change

    # --- what is one's own: leases, keys, transactions

    def lease(
        self,
        queue: Queue,
        count: int,
        duration_ms: int,
        on_done: Answer,
        caller: Caller,
        *,
        group: str = UNNAMED,
        wait_ms: int = 0,
    ) -> Waiter:
        """See `Queue.lease`. The leases belong to this identity, which has at most LEASES_MAX; raise TooMany."""
        owner, leased = self.identity.owner, self._broker.leased
        who = who_of(caller, self.identity)
        if not owner:
            return queue.lease(count, duration_ms, on_done, group=group, wait_ms=wait_ms, who=who)
        most = min(count, LEASES_MAX - leased.of(owner))
        if most <= 0:
            raise TooMany(LEASES_ENOUGH)

        def given(leases: list[Lease] | CurbstoneError) -> None:
            if not isinstance(leases, CurbstoneError) and leased.of(owner) > LEASES_MAX:
                queue.give_back(leases)  # other calls of this user have got leases meanwhile
                leases = TooMany(LEASES_ENOUGH)
            on_done(leases)

        return queue.lease(most, duration_ms, given, group=group, wait_ms=wait_ms, owner=owner, who=who)

    def settle_leases(
        self,
        queue: Queue,
        tokens: list[str],
        outcome: Outcome,
        on_done: Callable[[CurbstoneError | None, int, list[str]], None],
        *,
        delay_ms: int | None = None,
        error: str = "",
    ) -> None:
        """Settle leases and connections' deliveries by their ackIds. Those of other identities are stale.

        See `Queue.settle_leases` and `access.ack_ids`.
        """
        owner = self.identity.owner
        self.ack_ids.settle(queue, tokens, outcome, on_done, delay_ms=delay_ms, error=error, owner=owner)

    def holding(self, ack_id: str) -> Queue | None:
        """Return the queue of an ackId's delivery; None if it has ended or is another identity's. Raise NotAllowed."""
        held = self.ack_ids.find(ack_id, self.identity.owner)
        name = held.queue.name if held is not None else self._broker.leased.queue_of(ack_id)
        return self.queue(name, Right.RECEIVE) if name is not None else None

    def extend(self, queue: Queue, tokens: list[str], duration_ms: int, on_done: Stale) -> None:
        """See `Queue.extend`."""
        queue.extend(tokens, duration_ms, on_done, self.identity.owner)

    def settle_by_id(self, queue: Queue, seq: int, on_done: Callable[[CurbstoneError | None, bool], None]) -> None:
        """See `Queue.settle_by_id`. Messages that another identity has leased stay."""
        queue.settle_by_id(seq, on_done, self.identity.owner)

    def key(self, text: str, messages: Sequence[Message]) -> IdempotencyKey:
        """Return an idempotency key of this identity, with the content it stands for; raise BadRequest.

        Two publishes have the same content if everything that is stored is equal: bodies, headers, delays, ttls and
        groups.
        """
        if not _KEY.fullmatch(text):
            raise BadRequest("bad idempotency key: 1 to 255 visible ASCII characters, no spaces")
        owner = self.identity.owner
        return IdempotencyKey(f"{owner}\n{text}" if owner else text, b"".join(map(_content, messages)))

    def producer(self, name: str) -> bytes:
        """Return the key of a numbered producer of this identity; raise BadRequest."""
        if not PRODUCER_NAME.fullmatch(name):
            raise BadRequest(f"bad name of a producer: {name[:80]!r} is not 1 to 64 of A-Z a-z 0-9 . _ : -")
        return producer_key(self.identity.owner, name)

    def producing(self, end: Callable[[CurbstoneError], None]) -> Producing:
        """Return the object through which a connection claims numbered producers; see `access.producing`."""
        return Producing(self._watch.producing, end)

    @property
    def staging(self) -> AccessStaging:
        """The staged transactions of this identity; raise NotLoggedIn if it is nobody."""
        if not self.identity.user:
            raise NotLoggedIn(WANTED)
        return AccessStaging(self, self._broker.staging)

    def transaction(self) -> AccessTransaction:
        """Return a new transaction."""
        return AccessTransaction(self, self._broker.transaction())

    # --- the whole

    @property
    def engine(self) -> EngineInfo:
        """See `Broker.engine`."""
        return self._broker.engine

    @property
    def capabilities(self) -> frozenset[Capability]:
        """See `Broker.capabilities`."""
        return self._broker.capabilities

    @property
    def shares_queues(self) -> bool:
        """See `Broker.shares_queues`."""
        return self._broker.shares_queues

    def catch_up(self, on_done: Done) -> None:
        """See `Broker.catch_up`."""
        self._broker.catch_up(on_done)

    def may_be_new(self, name: QueueName) -> bool:
        """Return whether a queue is unknown here, but another server may have made it just now: `catch_up` tells."""
        if not self._broker.shares_queues or not self.identity.on_queue(name):
            return False
        try:
            self._broker.get(name)
        except NoSuchQueue:
            return True
        return False

    @property
    def broker(self) -> Broker:
        """The engine, only to read its figures; raise NotAllowed without the right to them."""
        self.check_server(Right.METRICS)
        return self._broker

    def health(self) -> Health:
        """Return the server's health. The reasons are only for those who may see the server's figures."""
        health = self._broker.health()
        return health if self.identity.on_server() & Right.METRICS else health._replace(reasons=[])

    def _audit(self, action: str, name: QueueName) -> None:
        if self.identity.owner:
            self._watch.did(self.identity, action, str(name))

    def _check_quota(self, name: QueueName, changes: Mapping[str, object]) -> None:
        """Raise QuotaReached if the project would have too many queues, or their caps would be too large together."""
        quota = self._quota(name.project)
        if quota is None:
            return
        caps = {queue.name: queue.options.cap for queue in self._broker.queues() if queue.name.project == name.project}
        before = caps.get(name)
        cap = changes.get("cap", self._broker.defaults.cap if before is None else before)
        if isinstance(cap, str):
            cap = parse_size(cap)
        if not isinstance(cap, int):
            raise BadRequest("bad option cap: a size")
        if before is None and len(caps) >= quota.queues:
            raise QuotaReached(f"project {name.project} has {quota.queues} queues, all that its quota allows")
        total = sum(caps.values()) - (before or 0) + cap
        if cap > (before or 0) and total > quota.bytes:
            raise QuotaReached(
                f"the caps of project {name.project} would be {total} bytes together; its quota allows {quota.bytes}"
            )


class AccessTransaction:
    """A transaction of the engine. It checks the right to send once more when it is committed."""

    def __init__(self, access: Access, transaction: Transaction) -> None:
        self._access = access
        self._transaction = transaction
        self._queues: set[QueueName] = set()
        self._events: set[tuple[str, str]] = set()
        self.ack = transaction.ack
        self.nack = transaction.nack
        self.reject = transaction.reject

    def publish(self, name: QueueName, message: Message) -> None:
        """Add a publish to a queue."""
        self._transaction.publish(self._access.ensure(name, Right.SEND), message)
        self._queues.add(name)

    def publish_private(self, queue: Queue, message: Message) -> None:
        """Add a publish to a private queue of the connection."""
        assert queue.name.is_private
        self._transaction.publish(queue, message)

    def publish_event(self, event: str, message: Message, project: str = "") -> None:
        """Add a publish to an event."""
        project = project or self._access.home
        self._access.check_topic(Right.SEND, event, project)
        self._events.add((event, project))
        self._transaction.publish_event(event, message, project)

    def commit(self, on_done: Done) -> None:
        """Commit all of it or nothing; raise NotAllowed if a right was lost meanwhile."""
        for name in self._queues:
            self._access.check(Right.SEND, name)
        for event, project in self._events:
            self._access.check_topic(Right.SEND, event, project)
        self._transaction.commit(on_done)


def _content(message: Message) -> bytes:
    numbers = f"{len(message.headers)} {len(message.body)} {message.delay_ms} {message.ttl_ms} {message.groups}\n"
    return numbers.encode() + message.headers + message.body
