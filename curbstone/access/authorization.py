"""`AuthorizedBroker`: the engine, restricted to the rights of one identity. Adapters reach the engine only through it.

Every method that returns a queue takes the required right, so code that omits the check does not type-check. Later
operations on the queue (settling, holding, reading on) need no further check, because the consumer or lease was
obtained under that right. The right is checked before the queue is looked up, so a refusal does not reveal what exists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from curbstone.access.caller import Caller, client_info_of
from curbstone.access.errors import LOGIN_REQUIRED, NotAllowed, NotLoggedIn, TooMany
from curbstone.access.idempotency_keys import key_of
from curbstone.access.identity import Identity
from curbstone.access.producer_claims import ProducerClaims
from curbstone.access.quotas import check_quota
from curbstone.access.registries import Registries
from curbstone.access.rights import Right, names_to_cover
from curbstone.access.staging import AccessStaging
from curbstone.access.transactions import AccessTransaction
from curbstone.access.users import Quota
from curbstone.core.batches import reports_of
from curbstone.core.errors import BadRequest, CurbstoneError, NoSuchQueue
from curbstone.core.message import Message
from curbstone.core.names import QueueName, parse_queue_name, queue_name
from curbstone.core.options import QueueOptions
from curbstone.core.port import Broker, Queue
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
    Undoing,
    UndoRequest,
    WasThere,
    producer_key,
)

T = TypeVar("T")

LEASES_MAX = 100_000
"""The most leases of one user at a time, over all queues."""
LEASES_MAX_REACHED = f"this user holds {LEASES_MAX} leases, the limit; settle some, or let them expire"
PRODUCER_NAME = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)


class AuthorizedBroker:
    """The engine, restricted to the rights of one identity. Called on the host's thread."""

    def __init__(
        self, registries: Registries, broker: Broker, identity: Identity, quota: Callable[[str], Quota | None]
    ) -> None:
        self.identity = identity
        self.ack_ids = registries.ack_ids
        self._registries = registries
        self._broker = broker
        self._quota = quota

    # --- rights

    @property
    def home(self) -> str:
        """The default project of names."""
        return self.identity.home

    def may(self, right: Right, name: QueueName) -> bool:
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
        for name in names_to_cover(event) if right is Right.RECEIVE else (event,):
            if not self.identity.on_topic(project, name) & right:
                raise self.refusal(right, f"topic {project}/{event}")

    def check_server(self, right: Right) -> None:
        """Like `check`, for the server."""
        if not self.identity.on_server() & right:
            raise self.refusal(right, "the server")

    def refusal(self, right: Right, target: str) -> CurbstoneError:
        """Return the error for a missing right, and record the refusal in the audit log."""
        if self.identity.end_reason:
            return NotLoggedIn(self.identity.end_reason)
        if not self.identity.user:
            return NotLoggedIn(LOGIN_REQUIRED)
        self._registries.refused(self.identity, right.word, target)
        return NotAllowed(f"no right to {right.word} on {target}")

    def administer(self, action: str, target: str = "") -> None:
        """Check the right to administer the server, and record the action in the audit log."""
        self.check_server(Right.ADMIN)
        self._registries.changed(self.identity, action, target)

    def replicate(self, target: str) -> None:
        """Check the right to receive all data of the server, and record the action in the audit log."""
        self.check_server(Right.REPLICATE)
        self._registries.changed(self.identity, "replicate", target)

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
        """Like `queue`, but create the queue if it does not exist and the identity may also manage it."""
        rights = self.identity.on_queue(name)
        if not rights & right:
            raise self.refusal(right, f"queue {name}")
        if not self.identity.owner:
            return self._broker.ensure(name)
        try:
            return self._broker.get(name)
        except NoSuchQueue:
            if not rights & Right.MANAGE:
                raise
        self._check_quota(name, {})
        queue = self._broker.ensure(name)
        self._registries.changed(self.identity, "make queue", str(name))
        return queue

    def queues(self) -> list[Queue]:
        """Return the queues on which the identity has any right."""
        return [queue for queue in self._broker.queues() if self.identity.on_queue(queue.name)]

    def queues_with(self, right: Right) -> list[Queue]:
        """Return the queues on which the identity has this right."""
        return [queue for queue in self._broker.queues() if self.identity.on_queue(queue.name) & right]

    def declare(self, name: QueueName, changes: Mapping[str, object], on_done: Done) -> None:
        self.check(Right.MANAGE, name)
        dead_letter = changes.get("dead_letter")
        if isinstance(dead_letter, str) and dead_letter:
            self.check(Right.SEND, parse_queue_name(dead_letter, name.project))
        self._check_quota(name, changes)
        self._broker.declare(name, changes, self._noted("change queue", name, self._options, on_done))

    def delete(self, name: QueueName, on_done: Callable[[bool | CurbstoneError], None]) -> None:
        self.check(Right.MANAGE, name)
        note = self._audit_later("delete queue", name)

        def deleted(outcome: bool | CurbstoneError) -> None:
            if outcome is True:
                note()
            on_done(outcome)

        self._broker.delete(name, deleted)

    def purge(
        self, name: QueueName, on_done: Callable[[CurbstoneError | None, int], None], *, keep: bool = False
    ) -> None:
        self.queue(name, Right.MANAGE).purge(self._audited("purge queue", name, on_done), keep=keep)

    def undo(self, name: QueueName, request: UndoRequest, on_done: Undoing) -> None:
        queue = self.queue(name, Right.MANAGE)
        queue.undo(request, self._audited("undo", name, on_done, lambda found: found.restored))

    def redrive(
        self,
        name: QueueName,
        to: QueueName | None,
        limit: int,
        on_done: Callable[[CurbstoneError | None, Redriven], None],
        seq: int = 0,
    ) -> None:
        """Move dead letters, but only to queues to which the identity may send."""
        if to is not None:
            self.check(Right.SEND, to)
        queue = self.queue(name, Right.MANAGE)
        done = self._audited("redrive", name, on_done, lambda found: found.moved)
        queue.redrive(to, limit, done, lambda home: self.may(Right.SEND, home), seq)

    # --- private queues

    def private(self, name: QueueName, changes: Mapping[str, object], on_done: Done) -> Queue:
        """Return a private queue of the connection, created if needed; raise TooMany."""
        assert name.is_private
        private = self._registries.private
        private.check(self.identity, name)
        self._broker.declare(name, changes, on_done)
        queue = self._broker.get(name)
        private.keep(self.identity, queue, self._end_private)
        return queue

    def _end_private(self, name: QueueName, reason: CurbstoneError) -> None:
        self._broker.delete(name, lambda _outcome: None, reason)

    def drop_private(self, names: Sequence[QueueName]) -> None:
        """Delete private queues; a large number is deleted over several turns of the event loop."""
        assert all(name.is_private for name in names)
        self._registries.private.drop(
            self.identity, names, lambda name: self._broker.delete(name, lambda _outcome: None)
        )

    def reply(self, name: QueueName, messages: list[Message], on_done: Published) -> bool:
        """Send to a private queue. Its name is a secret, so no right is checked. See `Broker.reply`."""
        assert name.is_private
        return self._broker.reply(name, messages, on_done)

    # --- events, which belong to the home

    @property
    def events_bound(self) -> int:
        return self._broker.events_bound

    def publish_event(self, event: str, messages: list[Message], on_done: Published, project: str = "") -> None:
        self.check_topic(Right.SEND, event, project)
        self._broker.publish_event(event, messages, on_done, project or self.home)

    def bind(self, event: str, name: QueueName, on_done: Done, filter_text: str = "") -> None:
        """Bind a queue to an event of its project.

        Requires the right to manage the queue, unless the same binding exists already.
        """
        self.check_topic(Right.RECEIVE, event, name.project)
        if self._bindings(name).get(event) != filter_text:
            self.check(Right.MANAGE, name)
            on_done = self._noted("bind queue", name, self._bindings, on_done)
        self._broker.bind(event, name, on_done, name.project, filter_text)

    def unbind(self, event: str, name: QueueName, on_done: Done) -> None:
        self.check(Right.MANAGE, name)
        on_done = self._noted("unbind queue", name, self._bindings, on_done)
        self._broker.unbind(event, name, on_done, name.project)

    def _bindings(self, name: QueueName) -> Mapping[str, str]:
        occupied = self._occupied(name)
        return occupied[0] if occupied is not None else {}

    def _occupied(self, name: QueueName) -> tuple[Mapping[str, str], float | None] | None:
        """Return the bindings of a queue, and after how long it is deleted if unused; None if it does not exist."""
        try:
            return self._broker.bindings(name), self._broker.unused_s(name)
        except NoSuchQueue:
            return None

    def listen(self, event: str, name: QueueName, on_done: Done, project: str, filter_text: str = "") -> None:
        """Copy messages to an event of a project, if they pass the filter, to a private queue."""
        assert name.is_private
        self.check_topic(Right.RECEIVE, event, project)
        self._broker.bind(event, name, on_done, project, filter_text)

    def unlisten(self, event: str, name: QueueName, project: str) -> None:
        self._broker.unbind(event, name, lambda _error: None, project)

    def bindings(self, name: QueueName) -> Mapping[str, str]:
        """Return the bindings of a queue on which the identity has any right."""
        self.find(name)
        return self._broker.bindings(name)

    def unused_s(self, name: QueueName) -> float | None:
        self.find(name)
        return self._broker.unused_s(name)

    def occupy(self, name: QueueName, events: frozenset[str], unused_s: float | None, on_done: Done) -> None:
        """See `Broker.occupy`. Requires `receive`, and also `manage` if it changes anything."""
        self.check(Right.RECEIVE, name)
        if self._check_change(name, events, unused_s):
            on_done = self._noted("bind queue", name, self._occupied, on_done)
        self._broker.occupy(name, events, unused_s, on_done)

    def rebind(self, name: QueueName, events: frozenset[str], on_done: Done) -> None:
        self.check(Right.MANAGE, name)
        self._check_change(name, events, None)
        self._broker.rebind(name, events, self._noted("bind queue", name, self._occupied, on_done))

    def _check_change(self, name: QueueName, events: frozenset[str], unused_s: float | None) -> bool:
        """Check the rights that a change of bindings needs; return whether it changes anything."""
        before = self._occupied(name)
        if before is None:
            self.check(Right.MANAGE, name)
            self._check_quota(name, {})
            before = {}, None
        for event in sorted(events.difference(before[0])):
            self.check_topic(Right.RECEIVE, event, name.project)
        is_change = (events, unused_s) != (frozenset(before[0]), before[1])
        if is_change:
            self.check(Right.MANAGE, name)
        return is_change

    # --- batches

    def check_batches(self, name: QueueName, messages: Sequence[Message]) -> None:
        """Raise NotAllowed without the right to send to the report queues of these messages' batches."""
        for to in reports_of(messages):
            self.check(Right.SEND, queue_name(to, name.project))

    def drop_batch(self, name: QueueName, batch: str, on_done: WasThere) -> None:
        self.queue(name, Right.MANAGE).drop_batch(batch, self._audited("drop batch", name, on_done))

    # --- leases, keys, producers, transactions

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
        """Lease messages for this identity, which may hold at most LEASES_MAX leases; raise TooMany."""
        owner, leased = self.identity.owner, self._broker.leased
        client_info = client_info_of(caller, self.identity)
        if not owner:
            return queue.lease(count, duration_ms, on_done, group=group, wait_ms=wait_ms, client_info=client_info)
        most = min(count, LEASES_MAX - leased.of(owner))
        if most <= 0:
            raise TooMany(LEASES_MAX_REACHED)

        def granted(leases: list[Lease] | CurbstoneError) -> None:
            if not isinstance(leases, CurbstoneError) and leased.of(owner) > LEASES_MAX:
                queue.give_back(leases)  # concurrent calls of this user have obtained leases meanwhile
                leases = TooMany(LEASES_MAX_REACHED)
            on_done(leases)

        return queue.lease(
            most, duration_ms, granted, group=group, wait_ms=wait_ms, owner=owner, client_info=client_info
        )

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
        """Settle leases and connections' deliveries by their ackIds. Those of other identities count as stale."""
        owner = self.identity.owner
        self.ack_ids.settle(queue, tokens, outcome, on_done, delay_ms=delay_ms, error=error, owner=owner)

    def holding(self, ack_id: str) -> Queue | None:
        """Return the queue of an ackId's delivery; None if it has ended or is another identity's. Raise NotAllowed."""
        held = self.ack_ids.find(ack_id, self.identity.owner)
        name = held.queue.name if held is not None else self._broker.leased.queue_of(ack_id)
        return self.queue(name, Right.RECEIVE) if name is not None else None

    def extend(self, queue: Queue, tokens: list[str], duration_ms: int, on_done: Stale) -> None:
        queue.extend(tokens, duration_ms, on_done, self.identity.owner)

    def settle_by_id(self, queue: Queue, seq: int, on_done: Callable[[CurbstoneError | None, bool], None]) -> None:
        """See `Queue.settle_by_id`. Messages that another identity has leased are not settled."""
        queue.settle_by_id(seq, on_done, self.identity.owner)

    def key(self, text: str, messages: Sequence[Message]) -> IdempotencyKey:
        """Return an idempotency key of this identity with the content it identifies; raise BadRequest.

        Two publishes have the same content if bodies, headers, delays, ttls and groups are equal.
        """
        return key_of(self.identity.owner, text, messages)

    def producer(self, name: str) -> bytes:
        """Return the key of a numbered producer of this identity; raise BadRequest."""
        if not PRODUCER_NAME.fullmatch(name):
            raise BadRequest(f"bad producer name {name[:80]!r}: 1 to 64 characters of A-Z a-z 0-9 . _ : -")
        return producer_key(self.identity.owner, name)

    def producing(self, end: Callable[[CurbstoneError], None]) -> ProducerClaims:
        """Return the object with which a connection claims numbered producers."""
        return ProducerClaims(self._registries.producing, end)

    @property
    def staging(self) -> AccessStaging:
        """The staged transactions of this identity; raise NotLoggedIn without a login."""
        if not self.identity.user:
            raise NotLoggedIn(LOGIN_REQUIRED)
        return AccessStaging(self, self._broker.staging)

    def transaction(self) -> AccessTransaction:
        return AccessTransaction(self, self._broker.transaction())

    # --- the server

    @property
    def engine(self) -> EngineInfo:
        return self._broker.engine

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._broker.capabilities

    @property
    def shares_queues(self) -> bool:
        return self._broker.shares_queues

    def catch_up(self, on_done: Done) -> None:
        self._broker.catch_up(on_done)

    def may_be_new(self, name: QueueName) -> bool:
        """Return whether the queue is unknown here, but another server may have just created it; see `catch_up`."""
        if not self._broker.shares_queues or not self.identity.on_queue(name):
            return False
        try:
            self._broker.get(name)
        except NoSuchQueue:
            return True
        return False

    @property
    def broker(self) -> Broker:
        """The engine, for reading its statistics; raise NotAllowed without the right `metrics`."""
        self.check_server(Right.METRICS)
        return self._broker

    def health(self) -> Health:
        """Return the server's health; its reasons are included only with the right `metrics`."""
        health = self._broker.health()
        return health if self.identity.on_server() & Right.METRICS else health._replace(reasons=[])

    def _options(self, name: QueueName) -> QueueOptions | None:
        try:
            return self._broker.get(name).options
        except NoSuchQueue:
            return None

    def _audit_later(self, action: str, name: QueueName) -> Callable[[], None]:
        """Return a function that records in the audit log that the caller has changed a queue."""
        return self._registries.audit_later(self.identity, action, str(name))

    def _audited(
        self,
        action: str,
        name: QueueName,
        on_done: Callable[[CurbstoneError | None, T], None],
        has_changed: Callable[[T], object] = bool,
    ) -> Callable[[CurbstoneError | None, T], None]:
        """Return an `on_done` that records the action in the audit log if it has changed anything."""
        note = self._audit_later(action, name)

        def done(error: CurbstoneError | None, found: T) -> None:
            if has_changed(found):
                note()
            on_done(error, found)

        return done

    def _noted(self, action: str, name: QueueName, state: Callable[[QueueName], object], on_done: Done) -> Done:
        """Return an `on_done` that records the action in the audit log if it has changed this state of the queue."""
        if not self.identity.owner:
            return on_done
        note, before = self._audit_later(action, name), state(name)

        def done(error: CurbstoneError | None) -> None:
            if error is None and state(name) != before:
                note()
            on_done(error)

        return done

    def _check_quota(self, name: QueueName, changes: Mapping[str, object]) -> None:
        quota = self._quota(name.project)
        if quota is not None:
            check_quota(quota, self._broker, name, changes)
