"""The engine on a RabbitMQ cluster, in one of any number of gateways. See `core.port.Broker`.

A gateway stores nothing on disk. Confirmed messages are on the disks of a majority of a queue's nodes. The definitions
of the queues are in the registry, which all gateways read.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from curbstone.core.errors import (
    CurbstoneError,
    NoSuchQueue,
    QueueFull,
    Unavailable,
    shutting_down,
)
from curbstone.core.filters import filter_of
from curbstone.core.host import Host
from curbstone.core.message import Message
from curbstone.core.names import DEFAULT_PROJECT, QueueName, event_name, parse_queue_name
from curbstone.core.options import CAP_BYTES_MAX, QueueOptions
from curbstone.core.schemas import NoSchemas, Schemas
from curbstone.core.stats import Commits, Stats
from curbstone.core.values import Capability, Done, EngineInfo, Health, Leased, Published
from curbstone.rabbit.amqp.link import Calls, Link
from curbstone.rabbit.amqp.port import Channel, Connector
from curbstone.rabbit.consuming import remote_leases
from curbstone.rabbit.publishing import fan_out, publish_checks
from curbstone.rabbit.publishing.journal import Journal
from curbstone.rabbit.publishing.publish_job import NextTurn
from curbstone.rabbit.publishing.publisher import Publisher
from curbstone.rabbit.queue import Queue, as_entry
from curbstone.rabbit.shared import infrastructure, queue_change, unsupported
from curbstone.rabbit.shared.gateway_rpc import GatewayRpc
from curbstone.rabbit.shared.idle_deletion import IdleDeletion
from curbstone.rabbit.shared.ids import MessageIds
from curbstone.rabbit.shared.mapping import priority_in
from curbstone.rabbit.shared.queue_change import replace_definition
from curbstone.rabbit.shared.registry import Change, Definition, Entry, RegistryLog
from curbstone.rabbit.shared.topology import Names, binding_of, event_key, takes
from curbstone.rabbit.shared.unsettled import Unsettled
from curbstone.rabbit.shared.warnings import Warnings
from curbstone.rabbit.transaction import Transaction

PUBLISHING_LINKS = 4
CONSUMING_LINKS = 4
STOP_POLL_MS = 5
SYNC = "quorum"

logger = logging.getLogger("curbstone.rabbit")


class Engine:
    """All methods are called on the host's thread."""

    def __init__(
        self,
        host: Host,
        connector: Connector,
        *,
        prefix: str = "cs/",
        defaults: QueueOptions | None = None,
        max_cap: int = CAP_BYTES_MAX,
        first_number: int | None = None,
        schemas: Schemas | None = None,
    ) -> None:
        self.host = host
        self.next_turn = NextTurn(host)
        self.names = Names(prefix)
        self.defaults = defaults or QueueOptions()
        self.max_cap = max(max_cap, self.defaults.cap)
        self.schemas = schemas or NoSchemas()
        self.alarms = Warnings()
        self.staging = unsupported.NoStaging()
        self.commits = Commits()
        self.leased = Leased()
        self.past = Stats()
        self.is_stopping = False
        self.ids = MessageIds(host)
        self._queues: dict[QueueName, Queue] = {}
        self._events: dict[str, int] = {}
        """For each event, how many queues known to this gateway are bound to it."""
        self._control = Link(host, connector, "curbstone control")
        self._calls = Calls(host, self._control)
        publishing = [Link(host, connector, f"curbstone publishing {n}") for n in range(PUBLISHING_LINKS)]
        self._consuming = [Link(host, connector, f"curbstone consuming {n}") for n in range(CONSUMING_LINKS)]
        self._links = [self._control, *publishing, *self._consuming]
        self._private_calls = Calls(host, self._consuming[0])
        self._consuming[0].when(lambda _connection: None, self._private_lost)
        self.publisher = Publisher(host, publishing)
        run_id = secrets.token_hex(6)
        number = secrets.randbelow(256) if first_number is None else first_number
        self._log = RegistryLog(host, self._control, self.names.registry, run_id, self._changed, self._read)
        self.rpc = GatewayRpc(
            host, self._control, self.names, number, self._numbered, partial(remote_leases.answer, self), self._dropped
        )
        self._starting: set[str] = {"registry", "number", "infrastructure"}
        self._on_ready: Callable[[], None] | None = None
        self._closing: set[Channel] = set()
        self.unsettled = Unsettled(self)
        self.idle_deletion = IdleDeletion(self)
        self.journal = Journal(self, self._consuming[-1])

    # --- the start

    def start(self, on_ready: Callable[[], None]) -> None:
        """Connect. `on_ready` is called once this gateway has all queues and can serve them."""
        self._on_ready = on_ready
        for link in self._links:
            link.start()
        infrastructure.make(self.names, self._calls, partial(self._infrastructure_made))
        self.unsettled.start()
        self.idle_deletion.start()

    @property
    def waits_for(self) -> str:
        """Return what the start waits for, as text for people."""
        return f"{', '.join(sorted(self._starting))}: {self._control.trouble or 'no answer yet'}"

    def _infrastructure_made(self, error: CurbstoneError | None) -> None:
        if error is not None:
            logger.error("%s", error)
            self.host.call_later(1000, lambda: infrastructure.make(self.names, self._calls, self._infrastructure_made))
        else:
            self._ready("infrastructure")

    def _numbered(self, number: int) -> None:
        self.ids.gateway = number
        self._ready("number")

    def _read(self) -> None:
        self._ready("registry")

    def _ready(self, what: str) -> None:
        self._starting.discard(what)
        if not self._starting and self._on_ready is not None:
            on_ready, self._on_ready = self._on_ready, None
            self.journal.start()
            on_ready()

    # --- for queues

    def link_for(self, name: QueueName) -> Link:
        """Return the connection for consuming from a queue. All private queues share one, and end with it."""
        if name.is_private:
            return self._consuming[0]
        return self._consuming[hash(name) % len(self._consuming)]

    def calls_for(self, name: QueueName) -> Calls:
        """Return the `Calls` that declare and delete a queue. An exclusive queue needs the connection it belongs to."""
        return self._private_calls if name.is_private else self._calls

    def registered(self, queue: Queue) -> Definition | None:
        """Return a queue's definition in the registry, or None."""
        return self._log.registry.by_uid.get(queue.uid)

    def propose(self, entry: Entry, on_done: Done) -> None:
        """Write an entry to the registry. `on_done` is called right after it was applied here."""
        self._log.propose(entry, on_done)

    def catch_up(self, on_done: Done) -> None:
        """Call back once this gateway has applied all earlier changes of other gateways."""
        self._log.catch_up(on_done)

    @staticmethod
    def lost(error: Exception | None) -> CurbstoneError | None:
        """Return the error to report if a channel has ended before it answered; None without an error."""
        return None if error is None else Unavailable(f"the outcome is unknown: {error}")

    @staticmethod
    def name_of(text: str) -> QueueName:
        """Return the queue name that an option's text stands for."""
        return parse_queue_name(text)

    def by_uid(self, uid: str) -> Queue | None:
        """Return the queue with this uid, or None if it no longer exists."""
        definition = self._log.registry.by_uid.get(uid)
        return self._queues.get(definition.name) if definition is not None else None

    def closing(self, channel: Channel) -> None:
        """Note that a channel is being closed; the server waits for it before it stops."""
        self._closing.add(channel)

    def closed(self, channel: Channel) -> None:
        """Note that the channel is closed."""
        self._closing.discard(channel)

    # --- the registry

    def _changed(self, entry: Entry, change: Change) -> None:
        """Act on an entry that was applied to the registry."""
        before, after = change.before, change.after
        if after is None:
            assert before is not None
            queue = self._queues.get(before.name)
            if queue is not None and queue.uid == before.uid:
                self._forget(queue, NoSuchQueue(f"no such queue: {before.name}"))
            return
        queue = self._queues.get(after.name)
        if queue is None:
            self._queues[after.name] = Queue(self, after)
            self._count_events(after.name, frozenset(), after.bindings)
        else:
            self.set_definition(queue, after)

    def set_definition(self, queue: Queue, definition: Definition) -> None:
        """Set this gateway's definition of a queue."""
        self._count_events(queue.name, queue.definition.bindings, definition.bindings)
        queue.set_definition(definition)

    def _count_events(self, name: QueueName, gone: frozenset[str], new: frozenset[str]) -> None:
        for binding in gone:
            key = event_key(name, binding)
            self._events[key] -= 1
            if not self._events[key]:
                del self._events[key]
        for binding in new:
            key = event_key(name, binding)
            self._events[key] = self._events.get(key, 0) + 1

    def _forget(self, queue: Queue, reason: CurbstoneError) -> None:
        del self._queues[queue.name]
        self._count_events(queue.name, queue.definition.bindings, frozenset())
        if not queue.name.is_private:
            self.past.add(queue.stats)
        queue.close(reason)

    def declare_failed(self, queue: Queue, error: CurbstoneError) -> None:
        """Note that the registry rejected a new queue."""
        if self._queues.get(queue.name) is queue:
            self._forget(queue, error)

    def _private_lost(self, reason: str) -> None:
        """End the private queues, because their connection is lost."""
        for queue in self.private_queues():
            self._forget(queue, Unavailable(f"the connection to RabbitMQ was lost: {reason}"))

    def _dropped(self, text: str) -> None:
        """End a private queue that had no room for a message, and notify its subscriber."""
        for queue in self.private_queues():
            if queue.declaration.text == text:
                self._end_private(queue, QueueFull(f"queue {queue.name} is at its cap"), lambda _error: None)

    # --- queues

    @property
    def engine(self) -> EngineInfo:
        """The version of RabbitMQ, and the nodes that this gateway is connected to."""
        connections = [link.connection for link in self._links if link.connection is not None]
        version = next((connection.version for connection in connections), "")
        nodes = tuple(sorted({connection.node for connection in connections}))
        return EngineInfo("rabbitmq", version, nodes, priority_in(version))

    @property
    def shares_queues(self) -> bool:
        """True: all gateways share all queues."""
        return True

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The optional capabilities of the engine; a cluster lacks most of them."""
        return frozenset({Capability.DELETING})

    def queues(self) -> Sequence[Queue]:
        """Return all queues except private ones."""
        return [queue for queue in self._queues.values() if not queue.name.is_private]

    def private_queues(self) -> Sequence[Queue]:
        """Return the private queues of this gateway's clients."""
        return [queue for queue in self._queues.values() if queue.name.is_private]

    def get(self, name: QueueName) -> Queue:
        """Return a queue; raise NoSuchQueue."""
        queue = self._queues.get(name)
        if queue is None:
            raise NoSuchQueue(f"no such queue: {name}")
        return queue

    def ensure(self, name: QueueName) -> Queue:
        """Return a queue, created if necessary. Publishes wait until it exists."""
        return self._queues.get(name) or self._create(name, self.defaults)

    def _create(self, name: QueueName, options: QueueOptions) -> Queue:
        self.names.queue(name)  # raises BadRequest for a name that is too long
        queue = Queue(self, Definition(name, secrets.token_hex(6), options, groups=frozenset(options.groups)))
        self._queues[name] = queue
        queue.declaration.make()
        return queue

    def declare(self, name: QueueName, changes: Mapping[str, object], on_done: Done) -> None:
        """Create a queue, or merge options into those of an existing one."""
        if self.is_stopping:
            raise shutting_down()
        queue = self._queues.get(name)
        options = (queue.options if queue is not None else self.defaults).merged(changes, name.project)
        publish_checks.check_options(
            name, options, queue.definition if queue is not None else None, self.max_cap, self.schemas
        )
        if queue is None:
            made = self._create(name, options)
            made.when_open(lambda error: self._made(made, changes, on_done, error))
            return
        if options == queue.options:
            plain = replace_definition(queue.definition, options=replace(options, groups=(), dead_letter=""))
            queue_change.reapply(queue, plain, on_done)
        else:
            after = replace_definition(queue.definition, options=options)
            queue_change.change(self, queue, after, "options", on_done, options=unsupported.registered(changes))

    def _made(self, queue: Queue, changes: Mapping[str, object], on_done: Done, error: CurbstoneError | None) -> None:
        """Finish a creation. If another gateway was faster, merge our options into its queue."""
        if error is None and queue.options.merged(changes, queue.name.project) != queue.options:
            try:
                self.declare(queue.name, changes, on_done)
                return
            except CurbstoneError as refused:
                error = refused
        on_done(error)

    def delete(
        self,
        name: QueueName,
        on_done: Callable[[bool | CurbstoneError], None],
        reason: CurbstoneError | None = None,
    ) -> None:
        """Delete a queue with all its messages; `on_done` gets whether it existed.

        The consumer of a private queue gets `reason`.
        """
        queue = self._queues.get(name)
        if queue is None or (name.is_private and self.is_stopping):  # private queues end with the connection
            self.host.call_soon(partial(on_done, False))
        elif name.is_private:
            gone = reason or NoSuchQueue(f"no such queue: {name}")
            self._end_private(queue, gone, lambda error: on_done(error or True))
        else:
            self._delete(queue, on_done)

    def _delete(self, queue: Queue, on_done: Callable[[bool | CurbstoneError], None]) -> None:
        def registered(error: CurbstoneError | None) -> None:
            if error is not None:
                on_done(error)
            else:
                queue.declaration.delete(lambda failed: on_done(failed or True))

        def opened(_error: CurbstoneError | None) -> None:
            self.propose(as_entry(queue, "gone"), registered)

        queue.when_open(opened)

    def _end_private(self, queue: Queue, reason: CurbstoneError, on_done: Done) -> None:
        self._forget(queue, reason)
        queue.declaration.delete(on_done)

    # --- events

    @property
    def events_bound(self) -> int:
        """The number of events with bound queues, as far as this gateway knows."""
        return len(self._events)

    def bind(
        self, event: str, name: QueueName, on_done: Done, project: str = DEFAULT_PROJECT, filter_text: str = ""
    ) -> None:
        """Bind a queue, created if necessary, to `event`.

        Only a private queue can have a filter.
        """
        unsupported.check_filter(filter_text, is_private=name.is_private)
        wanted = filter_of(filter_text) if filter_text else None
        queue = self.ensure(name)
        bindings = frozenset([binding_of(name, event, project)])
        queue.filters = {binding: each for binding, each in queue.filters.items() if binding not in bindings}
        if wanted is not None:
            queue.filters |= dict.fromkeys(bindings, wanted)
        after = replace_definition(queue.definition, bindings=queue.definition.bindings | bindings)
        self._rebind(queue, after, bindings, "bind", on_done, add=sorted(bindings), remove=[])

    def unbind(self, event: str, name: QueueName, on_done: Done, project: str = DEFAULT_PROJECT) -> None:
        """Undo `bind`."""
        queue = self.get(name)
        bindings = frozenset([binding_of(name, event, project)])
        after = replace_definition(queue.definition, bindings=queue.definition.bindings - bindings)
        self._rebind(queue, after, bindings, "bind", on_done, add=[], remove=sorted(bindings))

    def rebind(self, name: QueueName, events: frozenset[str], on_done: Done) -> None:
        """Replace all bindings of a queue."""
        queue = self.ensure(name)
        bindings = frozenset(map(event_name, events))
        self._rebind(
            queue,
            replace_definition(queue.definition, bindings=bindings),
            bindings,
            "bindings",
            on_done,
            events=sorted(events),
        )

    def occupy(self, name: QueueName, events: frozenset[str], unused_s: float | None, on_done: Done) -> None:
        """Like `rebind`, and set the seconds without a consumer after which the queue is deleted."""
        queue = self.ensure(name)
        bindings = frozenset(map(event_name, events))
        after = replace_definition(queue.definition, bindings=bindings, unused_s=unused_s)
        self._rebind(queue, after, bindings, "occupy", on_done, events=sorted(events), unused_s=unused_s)

    def _rebind(
        self, queue: Queue, after: Definition, bindings: frozenset[str], do: str, on_done: Done, **members: Any
    ) -> None:
        publish_checks.check_bindings(queue.name, queue.options, after.bindings)
        for binding in after.bindings:
            event_key(queue.name, binding)
        if after == queue.definition:
            queue_change.reapply(queue, replace_definition(after, bindings=after.bindings ^ bindings), on_done)
        else:
            queue_change.change(self, queue, after, do, on_done, **members)

    def bindings(self, name: QueueName) -> Mapping[str, str]:
        """Return the events bound to a queue, each with its filter. Raise NoSuchQueue."""
        queue = self.get(name)
        filters = {binding: each.text for binding, each in queue.filters.items()}
        return dict.fromkeys(sorted(queue.definition.bindings), "") | filters

    def unused_s(self, name: QueueName) -> float | None:
        """Return the seconds without a consumer after which a queue is deleted, or None. Raise NoSuchQueue."""
        return self.get(name).definition.unused_s

    def bound_count(self, event: str, project: str = DEFAULT_PROJECT) -> int:
        """Return the number of queues bound to an event, as far as this gateway knows."""
        bound = [(queue.name, queue.definition.bindings) for queue in self._queues.values()]
        return sum(takes(name, bindings, event, project) for name, bindings in bound)

    def bound_by_key(self, key: str) -> list[Queue]:
        """Return the queues bound to a routing key, without private ones, which refuse nothing."""
        project, _, event = key.partition(".")
        return [queue for queue in self.queues() if takes(queue.name, queue.definition.bindings, event, project)]

    def publish_event(
        self, event: str, messages: list[Message], on_done: Published, project: str = DEFAULT_PROJECT
    ) -> None:
        """Publish to all queues bound to `event`, on any gateway. Confirmed when all of them have the messages.

        The answer counts all bound queues known to this gateway, regardless of subscribers' filters.
        """
        fan_out.publish_event(self, project, event, messages, on_done)

    def reply(self, name: QueueName, messages: list[Message], on_done: Published) -> bool:
        """Publish to the private queue of another connection, on any gateway. Do nothing if the queue is gone."""
        fan_out.reply(self, self._queues.get(name), name, messages, on_done)
        return True

    # --- the engine

    def transaction(self) -> Transaction:
        """Return a new transaction."""
        return Transaction(self)

    def health(self) -> Health:
        """Return whether messages are accepted, and the reasons if not."""
        reasons = ["shutting down"] if self.is_stopping else []
        reasons += sorted({f"RabbitMQ: {link.trouble or link.blocked}" for link in self._links if link.trouble})
        delivers = not reasons
        reasons += sorted({f"RabbitMQ accepts no messages: {link.blocked}" for link in self._links if link.blocked})
        return Health(not reasons, [*reasons, *self.alarms.reasons], SYNC, delivers)

    def shutdown(self, on_done: Callable[[], None]) -> None:
        """Refuse new publishes, wait for pending confirms, then end consumers and connections."""
        self.is_stopping = True
        self.journal.stop()
        self._wait_for_confirms(on_done)

    def _wait_for_confirms(self, on_done: Callable[[], None]) -> None:
        if self.publisher.under_way and not self.publisher.alarms:
            self.host.call_later(STOP_POLL_MS, lambda: self._wait_for_confirms(on_done))
            return
        for queue in list(self._queues.values()):
            for consumer in list(queue.consumers):
                consumer.close()
            queue.close(shutting_down())
        self.journal.close()
        self._wait_for_channels(on_done, self.host.now_ms() + 2000)

    def _wait_for_channels(self, on_done: Callable[[], None], deadline_ms: int) -> None:
        if self._closing and self.host.now_ms() < deadline_ms:
            self.host.call_later(STOP_POLL_MS, lambda: self._wait_for_channels(on_done, deadline_ms))
            return
        for link in self._links:
            link.close()
        self.host.call_later(STOP_POLL_MS, on_done)
