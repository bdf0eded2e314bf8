"""Celery on Curbstone, as a transport of kombu: `import curbstone_client.celery`, then `broker="curbstone://host:8080/project"`
(`curbstones://` with TLS).

Celery's queues are queues of the server. The server delays a task with `eta` or `countdown`, so none waits in a
worker's memory. `delay()` returns when the task is on disk. There is no visibility timeout: a task belongs to its
worker's connection, and is redelivered when that connection is lost. Broadcasts (control, events) and the replies of
`inspect` are sent by events. The base is kombu's virtual transport, but without polling: the server pushes deliveries,
and a socket wakes the worker's loop.

Options (`broker_transport_options`): `confirm_timeout` (seconds, by default 30; with 0 a publish does not wait),
`priority` ("rabbitmq", the default: tasks of priority 9 go first; "redis": those of priority 0), and settings of
`sync.Client`: connect_timeout, on_full, window, window_bytes, tls and ca_file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import select
import socket
import time
from datetime import UTC, datetime
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.transport.virtual.exchange import DirectExchange, FanoutExchange, TopicExchange

from curbstone_client import __version__, sync
from curbstone_client.base import KEEP
from curbstone_client.errors import CantConnect, Closed, NoSuchQueue, Refused, Stale, Unknown

log = logging.getLogger("curbstone_client")

CONFIRM_S = 30.0
_SETTINGS = ("connect_timeout", "on_full", "window", "window_bytes", "tls", "ca_file")
_ORDERS = ("rabbitmq", "redis")
_WINDOW = 100
"""The window of a subscription if the worker sets no prefetch."""

UNUSED_S = 60.0
"""After so long without a consumer the server deletes a queue that is declared as transient."""

TRANSPORT_ALIASES["curbstone"] = TRANSPORT_ALIASES["curbstones"] = "curbstone_client.celery:Transport"


class ConnectionLost(ConnectionError):
    """The connection was lost. All its unsettled messages are redelivered."""


class _Direct(DirectExchange):
    """Delivers to the bound queues. If this process knows none, the message is a reply, which is sent by an event."""

    def deliver(self, message: Any, exchange: str, routing_key: str, **kwargs: Any) -> None:
        event_queues = self.channel.connection.event_queues
        queues = [queue for queue in self.channel._lookup(exchange, routing_key) if queue not in event_queues]
        for queue in queues:
            self.channel._put(queue, message, **kwargs)
        if not queues:
            self.channel.put_event(event_of(exchange, routing_key), message)


class _Fanout(FanoutExchange):
    def deliver(self, message: Any, exchange: str, routing_key: str, **kwargs: Any) -> None:
        self.channel.put_event(event_of(exchange), message)


class _Topic(TopicExchange):
    """Sends to all listeners, each of which matches the routing key itself (`wants`)."""

    def deliver(self, message: Any, exchange: str, routing_key: str, **kwargs: Any) -> None:
        self.channel.put_event(event_of(exchange), message)
        for queue in self.channel._lookup(exchange, routing_key):
            if queue not in self.channel.connection.event_queues:
                self.channel._put(queue, message, **kwargs)


def event_of(*names: str) -> str:
    """Return the event of an exchange, or of one of its routing keys."""
    return "celery." + _plain(".".join(names))


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)


class QoS(virtual.QoS):
    """The unsettled deliveries of a channel, by their tags. The server keeps the window."""

    def __init__(self, channel: CurbstoneChannel, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self._on_collect.cancel()
        self.deliveries: dict[str, sync.Message] = {}

    def can_consume(self) -> bool:
        """Whether the worker takes another message."""
        return not self.prefetch_count or len(self._delivered) < self.prefetch_count

    def append(self, message: Any, delivery_tag: str) -> None:
        self._delivered[delivery_tag] = message

    def ack(self, delivery_tag: str) -> None:
        self._end(delivery_tag, lambda delivery: delivery.ack())

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self._end(delivery_tag, lambda delivery: delivery.nack(0) if requeue else delivery.reject("rejected"))

    def restore_unacked(self) -> None:
        """Requeue all unsettled deliveries."""
        for delivery_tag in list(self._delivered):
            self.reject(delivery_tag, requeue=True)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        self.restore_unacked()

    def _end(self, delivery_tag: str, how: Any) -> None:
        self._delivered.pop(delivery_tag, None)
        delivery = self.deliveries.pop(delivery_tag, None)
        if delivery is not None and delivery.subscription.is_acked:
            try:
                how(delivery)
            except Stale:
                log.info("the connection was lost while %r was processed; it is redelivered", delivery)
        # The worker takes another message now, and one may have arrived already. A closed channel has no connection.
        if self.channel.connection is not None:
            self.channel.connection.wake()


class EventQueue:
    """A queue that ends with the connection. It is not a queue of the server, but subscribes to its bound events.

    It subscribes at its first binding, not at its first consumer, because a result may arrive early.
    """

    def __init__(self, is_auto_delete: bool) -> None:
        self.is_auto_delete = is_auto_delete
        """Whether it ends with its last consumer."""
        self.bindings: list[tuple[str, str, Any]] = []
        """Exchange, routing key and pattern of each."""
        self.messages: dict[str, sync.Messages] = {}
        """The subscriptions, by event."""

    def wants(self, payload: Any) -> bool:
        """Whether a binding matches the message's routing key."""
        info = payload["properties"]["delivery_info"]
        patterns = [pattern for exchange, _, pattern in self.bindings if exchange == info["exchange"]]
        return any(pattern is None or _matches(pattern, info["routing_key"]) for pattern in patterns)


class CurbstoneChannel(virtual.Channel):
    """A channel of kombu. All channels of a connection share one client."""

    QoS = QoS
    exchange_types = {"direct": _Direct, "fanout": _Fanout, "topic": _Topic}
    supports_fanout = True
    do_restore = False

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._transient: dict[str, bool] = {}
        """The queues that end with the connection, and whether each ends with its last consumer."""
        self._seen_until: dict[str, float] = {}  # by reply queue: until when its existence is not checked again
        self._subscribed: dict[str, sync.Messages] = {}
        """The subscriptions to queues of the server."""

    # ------------------------------------------------------------ publishing

    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        delay = 0.0
        eta = message["headers"].get("eta")
        if eta:
            when = datetime.fromisoformat(eta)
            delay = max(0.0, (when - datetime.now(when.tzinfo or UTC)).total_seconds())
            message["headers"]["eta"] = None  # otherwise the worker would delay it once more, in its memory
        properties = message["properties"]
        if "correlation_id" in properties and not properties["delivery_info"]["exchange"]:
            self._keep_for_a_while(queue)
        # kombu gives each task a priority: 0 if it has none.
        priority = self._get_message_priority(message, reverse=self.connection.is_lowest_first)
        self.connection.publish(self._client.queue(_plain(queue)), message, delay, priority)

    def _keep_for_a_while(self, queue: str) -> None:
        now = time.monotonic()
        if queue in self.connection.declared or self._seen_until.get(queue, 0.0) > now:
            return
        if not self._has_queue(queue):
            self._client.declare(_plain(queue), unused=UNUSED_S)
        self._seen_until = {name: until for name, until in self._seen_until.items() if until > now}
        self._seen_until[queue] = now + UNUSED_S / 2

    def put_event(self, event: str, message: Any) -> None:
        """Publish a message to an event."""
        self.connection.publish(self._client.event(event), message, 0, None)

    # ------------------------------------------------------------ queues

    @property
    def _client(self) -> sync.Client:
        client: sync.Client = self.connection.curbstone
        return client

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        return to_rabbitmq_queue_arguments(arguments, **kwargs)

    def _new_queue(
        self, queue: str, auto_delete: bool = False, exclusive: bool = False, arguments: Any = None, **kwargs: Any
    ) -> None:
        self.connection.declared.add(queue)
        if auto_delete or exclusive:
            self._transient[queue] = auto_delete
        else:
            expires_ms = (arguments or {}).get("x-expires")
            self._client.declare(_plain(queue), unused=KEEP if expires_ms is None else expires_ms / 1000)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> None:
        if queue not in self._transient:
            return
        event_queue = self.connection.event_queues.setdefault(queue, EventQueue(self._transient[queue]))
        event_queue.bindings.append((exchange, routing_key, pattern))
        event = self._event_of(exchange, routing_key)
        if event not in event_queue.messages:
            event_queue.messages[event] = self._client.event(event).subscribe()
            # No message to the event after the return of this call may be missed.
            self._established(event_queue.messages[event])
            if queue in self._tag_to_queue.values():
                self.connection.listen(self, queue, event_queue.messages[event])

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        try:
            self._client.queue(_plain(queue)).info()
        except NoSuchQueue:
            return False
        return True

    def _size(self, queue: str) -> int:
        # Called at each declaration. The number is not used for a queue that ends with its connection.
        return 0 if queue in self._transient else self._ready(queue)

    def _ready(self, queue: str) -> int:
        with contextlib.suppress(NoSuchQueue):
            return int(self._client.queue(_plain(queue)).info()["rdy"])
        return 0

    def _purge(self, queue: str) -> int:
        if queue in self.connection.event_queues:
            return 0
        with contextlib.suppress(NoSuchQueue):
            return int(self._client.queue(_plain(queue)).purge()["purged"])
        return 0

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        with contextlib.suppress(NoSuchQueue):
            self._client.queue(_plain(queue)).delete()

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        if queue in self.connection.event_queues:
            self.connection.end_event_queue(queue)
        else:
            super().queue_delete(queue, if_unused, if_empty, **kwargs)

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        # For basic_get: take one message with a short subscription. It would wait for a message, and so is not made
        # for an empty queue, because this call blocks the worker's loop.
        if event_queue := self.connection.event_queues.get(queue):
            for messages in event_queue.messages.values():
                if delivery := messages.get(0):
                    return self.connection.payload(self, delivery)
            raise virtual.Empty
        if not self._ready(queue):
            raise virtual.Empty
        with self._client.queue(_plain(queue)).consume(1) as messages:
            delivery = messages.get(timeout or 1)
            if delivery is None:
                raise virtual.Empty
            return self.connection.payload(self, delivery)

    # ------------------------------------------------------------ consuming

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> None:
        """See virtual.Channel. The server delivers from here on, without polling."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        if event_queue := self.connection.event_queues.get(queue):
            for messages in event_queue.messages.values():
                self.connection.listen(self, queue, messages)
        elif queue not in self._subscribed:
            if queue in self._transient:
                self._client.declare(_plain(queue), unused=UNUSED_S)
            window = self.qos.prefetch_count or _WINDOW
            messages = self._client.subscribe(self._client.destination(_plain(queue)), window, acked=not no_ack)
            self._subscribed[queue] = messages
            self._established(messages)
            self.connection.listen(self, queue, messages)

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is None or queue in self._tag_to_queue.values():
            return
        if event_queue := self.connection.event_queues.get(queue):
            self.connection.leave(*event_queue.messages.values())
            if event_queue.is_auto_delete:
                self.connection.end_event_queue(queue)
        elif messages := self._subscribed.pop(queue, None):
            self.connection.leave(messages)
            messages.close()

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """See virtual.Channel. The windows of the subscriptions change, too."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        for messages in self._subscribed.values():
            if messages.subscription.is_acked:
                messages.prefetch = prefetch_count or _WINDOW
        self.connection.wake()

    def _established(self, messages: sync.Messages) -> None:
        messages.established(self.connection.confirm_s or CONFIRM_S)

    def _event_of(self, exchange: str, routing_key: str) -> str:
        kind = self.state.exchanges[exchange]["type"]
        return event_of(exchange, routing_key) if kind == "direct" else event_of(exchange)

    def _reset_cycle(self) -> None:
        """Do nothing: kombu's cycle of queues to poll is not used."""


def _matches(pattern: Any, routing_key: str) -> bool:
    return bool(re.match(pattern, routing_key)) if isinstance(pattern, str) else bool(pattern.match(routing_key))


class Transport(virtual.Transport):
    """A connection of kombu: one client, and the subscriptions of all its channels."""

    Channel = CurbstoneChannel
    default_port = 8080
    driver_type = driver_name = "curbstone"
    connection_errors = (OSError, CantConnect, Unknown, Closed)
    channel_errors = (Refused,)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "fanout", "topic"]), heartbeats=False
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        # Only known options are passed on, because Celery adds some of its own, such as max_retries.
        options = client.transport_options
        self.confirm_s = float(options.get("confirm_timeout", CONFIRM_S))
        order = options.get("priority", "rabbitmq")
        if order not in _ORDERS:
            raise ValueError(f"bad priority {order!r} in broker_transport_options: {' or '.join(_ORDERS)}")
        self.is_lowest_first = order == "redis"
        scheme = "https" if client.transport_cls == "curbstones" else "http"
        host = client.hostname or "localhost"
        self.curbstone = sync.Client(
            f"{scheme}://{f'[{host}]' if ':' in host else host}:{client.port or self.default_port}",
            project=(client.virtual_host or "").strip("/") or "default",
            token=client.password or None,
            **{name: options[name] for name in _SETTINGS if name in options},
        )
        self.event_queues: dict[str, EventQueue] = {}
        self.declared: set[str] = set()
        self._inboxes: list[tuple[CurbstoneChannel, str, sync.Messages]] = []
        self._turn = 0
        self._is_lost = False
        self._readable, self._writable = socket.socketpair()
        self._readable.setblocking(False)
        self._writable.setblocking(False)

    # ------------------------------------------------------------ what kombu calls

    def driver_version(self) -> str:
        return __version__

    def establish_connection(self) -> Transport:
        """Connect. Raise one of `connection_errors`."""
        self.curbstone.connect()
        connection: Transport = super().establish_connection()
        return connection

    def close_connection(self, connection: Any) -> None:
        """Wait for outstanding confirms and acks, and disconnect."""
        super().close_connection(connection)
        self.curbstone.close()
        self._readable.close()
        self._writable.close()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Pass one message to its consumer. Raise socket.timeout if none arrived in time, or ConnectionLost."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._deliver_one():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError  # which is what socket.timeout is
            if select.select([self._readable], [], [], left)[0]:
                self._forget_wakes()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Register the socket that `wake` writes to in the worker's loop."""
        loop.add_reader(self._readable.fileno(), self.on_readable, connection, loop)
        self.wake()

    def on_readable(self, connection: Any, loop: Any) -> None:
        """Pass all possible messages to their consumers, after one has arrived or the worker takes another."""
        self._forget_wakes()
        while self._deliver_one():
            pass

    @property
    def connected(self) -> bool:
        """Whether the connection of the deliveries is not lost."""
        return not self._is_lost

    # ------------------------------------------------------------ what channels call

    def publish(self, target: Any, message: Any, delay: float, priority: int | None) -> None:
        """Send a message, and wait until it is on disk unless `confirm_timeout` is 0."""
        confirm = target.send(json.dumps(message), type="application/json", delay=delay, priority=priority)
        if self.confirm_s:
            confirm.result(self.confirm_s)

    def listen(self, channel: CurbstoneChannel, queue: str, messages: sync.Messages) -> None:
        """Start passing on the messages of a subscription."""
        self.leave(messages)
        self._inboxes.append((channel, queue, messages))
        client = self.curbstone
        with client.lock:
            client._consumer.on_lost = self._lost
            messages.subscription.on_arrival = self.wake
        self.wake()

    def leave(self, *gone: sync.Messages) -> None:
        """Stop passing on the messages of these subscriptions."""
        self._inboxes = [each for each in self._inboxes if each[2] not in gone]

    def end_event_queue(self, queue: str) -> None:
        """End a transient queue, with its bindings."""
        event_queue = self.event_queues.pop(queue)
        self.state.queue_bindings_delete(queue)
        for exchange, *binding in event_queue.bindings:
            table = self.state.exchanges.get(exchange, {}).get("table", [])
            with contextlib.suppress(ValueError):
                table.remove((*binding, queue))  # kombu leaves it there
        self.leave(*event_queue.messages.values())
        for messages in event_queue.messages.values():
            messages.close()

    def wake(self) -> None:
        """Make the worker's loop look for messages. Any thread may call this."""
        with contextlib.suppress(OSError):
            self._writable.send(b"x")

    def payload(self, channel: CurbstoneChannel, delivery: sync.Message) -> Any:
        """Return a message in the form of kombu, and register it with the channel under a new tag."""
        payload = delivery.json()
        tag = channel._next_delivery_tag()
        payload["properties"]["delivery_tag"] = tag
        payload["properties"]["delivery_info"]["redelivered"] = delivery.tries > 0
        channel.qos.deliveries[tag] = delivery
        return payload

    # ------------------------------------------------------------ inside

    def _deliver_one(self) -> bool:
        """Pass on one message, round-robin over the queues. Return False if there is none for any channel."""
        if self._is_lost:
            raise ConnectionLost("the connection to Curbstone was lost; unsettled messages are redelivered")
        inboxes = self._inboxes
        for step in range(len(inboxes)):
            channel, queue, messages = inboxes[(self._turn + step) % len(inboxes)]
            if not channel.qos.can_consume():
                continue
            messages.subscription.on_arrival = self.wake
            try:
                delivery = messages.get(0)
            except StopIteration:
                continue
            if delivery is None:
                messages.subscription.on_arrival = self.wake
                if messages.subscription.inbox:
                    self.wake()
                continue
            self._turn += step + 1
            payload = self.payload(channel, delivery)
            event_queue = self.event_queues.get(queue)
            if event_queue is None or event_queue.wants(payload):
                self._deliver(payload, queue)
            return True
        return False

    def _lost(self) -> None:
        self._is_lost = True
        self.wake()

    def _forget_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._readable.recv(4096):
                pass
