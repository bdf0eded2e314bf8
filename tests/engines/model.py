"""A model of a RabbitMQ cluster in memory, behind the same Protocols as the real one; each of its traps is a switch.

Every call takes a turn of the host to arrive, and its answer another, as over a network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from curbstone.core.host import Host
from curbstone.rabbit.amqp.port import (
    LOCKED,
    LOST,
    NOT_FOUND,
    REFUSED,
    AmqpError,
    Arrived,
    Confirmed,
    Connection,
    Counted,
    Declared,
    Got,
    Properties,
    Returned,
    Settled,
)
from curbstone.rabbit.shared.topology import NAME_BYTES_MAX
from tests.engines.model_queue import ModelConsumer, ModelQueue, Stored, topic_matches

NODE = "model:5672"


class ModelBroker:
    """What all connections share."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.queues: dict[str, ModelQueue] = {}
        self.exchanges: dict[str, str] = {}
        self.aside: dict[str, str] = {}
        self.bindings: dict[str, list[tuple[str, str, bool]]] = {}
        """(key, destination, whether that is a queue), by exchange."""
        self.connections: list[ModelConnection] = []
        # --- the traps
        self.refuses = 0
        """So many publishes are refused, as while a leader changes."""
        self.loses_confirms = False
        """What is published is stored, and its confirm never comes."""
        self.is_down = False
        """No connection can be made."""
        self.counts_acquired = False
        """Returns are counted under the name that RabbitMQ 4.3 gives it."""

    def connect(
        self,
        name: str,
        on_open: Callable[[Connection], None],
        on_lost: Callable[[str], None],
        on_blocked: Callable[[str], None],
    ) -> None:
        if self.is_down:
            self.host.call_soon(lambda: on_lost(f"{NODE}: refused"))
            return
        connection = ModelConnection(self, name, on_lost, on_blocked)
        self.connections.append(connection)
        self.host.call_soon(lambda: on_open(connection))

    def lose(self, word: str = "") -> None:
        """End the connections whose name holds a word, as the death of their node does."""
        for connection in [each for each in self.connections if word in each.name]:
            connection.end("the connection was reset")

    def block(self, reason: str) -> None:
        """Take no messages, as while memory is short."""
        for connection in self.connections:
            connection.on_blocked(reason)

    # --- routing

    def route(self, exchange: str, key: str, headers: Mapping[str, object]) -> list[ModelQueue]:
        """Return the queues that get a message."""
        copies = headers.get("BCC", [])
        keys = [key, *copies] if isinstance(copies, list) else [key]
        found: dict[str, ModelQueue] = {}
        for each in keys:
            if exchange == "":
                if each in self.queues:
                    found[each] = self.queues[each]
            else:
                self._follow(exchange, each, found)
        return list(found.values())

    def _follow(self, exchange: str, key: str, found: dict[str, ModelQueue]) -> None:
        hits = 0
        for pattern, destination, is_queue in self.bindings.get(exchange, []):
            if not self._matches(self.exchanges[exchange], pattern, key):
                continue
            hits += 1
            if not is_queue:
                self._follow(destination, key, found)
            elif destination in self.queues:
                found[destination] = self.queues[destination]
        if not hits and exchange in self.aside:
            self._follow(self.aside[exchange], key, found)

    @staticmethod
    def _matches(kind: str, pattern: str, key: str) -> bool:
        if kind == "fanout":
            return True
        return pattern == key if kind == "direct" else topic_matches(pattern.split("."), key.split("."))

    def publish(self, exchange: str, key: str, properties: Properties, body: bytes) -> tuple[bool, bool]:
        """Store a message wherever it belongs; (whether it is stored in all, whether anybody got it)."""
        queues = self.route(exchange, key, properties.headers)
        kept = {name: value for name, value in properties.headers.items() if name != "BCC"}
        stored = [
            queue.store_message(Stored(exchange, key, properties._replace(headers=kept), body)) for queue in queues
        ]
        return all(stored), bool(queues)

    def bury(self, queue: ModelQueue, stored: Stored, reason: str) -> None:
        """Pass a dead message on, with a note of its death."""
        exchange = queue.arguments.get("x-dead-letter-exchange")
        if exchange is None:
            return
        death = {"queue": queue.name, "reason": reason, "count": 1, "time": self.host.now_ms() // 1000}
        before = stored.properties.headers.get("x-death", [])
        headers = {**stored.properties.headers, "x-death": [death, *(before if isinstance(before, list) else [])]}
        key = queue.arguments.get("x-dead-letter-routing-key", stored.key)
        self.publish(exchange, key, stored.properties._replace(headers=headers, expiration=None), stored.body)


class ModelConnection:
    """See `rabbit.amqp.port.Connection`."""

    node = NODE
    version = "3.10.8"

    def __init__(
        self, broker: ModelBroker, name: str, on_lost: Callable[[str], None], on_blocked: Callable[[str], None]
    ) -> None:
        self.broker = broker
        self.name = name
        self.on_blocked = on_blocked
        self._on_lost = on_lost
        self.channels: list[ModelChannel] = []
        self.is_open = True

    def channel(self, on_open: Callable[[Any], None], on_closed: Callable[[AmqpError], None]) -> None:
        channel = ModelChannel(self, on_closed)
        self.channels.append(channel)
        self.broker.host.call_soon(lambda: on_open(channel) if self.is_open else None)

    def close(self) -> None:
        self.end("closed")

    def end(self, reason: str) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self.broker.connections.remove(self)
        for channel in list(self.channels):
            channel.end(AmqpError(LOST, reason))
        for queue in [each for each in self.broker.queues.values() if each.owner is self]:
            self.broker.queues.pop(queue.name, None)
        self.broker.host.call_soon(lambda: self._on_lost(reason))


class ModelChannel:
    """See `rabbit.amqp.port.Channel`."""

    def __init__(self, connection: ModelConnection, on_closed: Callable[[AmqpError], None]) -> None:
        self._connection = connection
        self._broker = connection.broker
        self._on_closed = on_closed
        self.is_open = True
        self._prefetch = 0
        self._next_tag = 0
        self._unsettled: dict[int, tuple[ModelQueue, Stored, ModelConsumer | None]] = {}
        self._consumers: dict[str, ModelConsumer] = {}
        self._waiting: deque[Callable[[AmqpError], None]] = deque()
        """Calls that are not answered yet."""
        self._on_confirm: Confirmed | None = None
        self._on_return: Returned
        self._on_cancel: Callable[[str], None] = lambda _tag: None
        self._published = 0

    # --- how calls travel

    def _call(self, work: Callable[[], Callable[[], None]], fail: Callable[[AmqpError], None]) -> None:
        """Carry out a call in a later turn and answer it in one after that, or fail with the channel."""
        if not self.is_open:
            fail(AmqpError(LOST, "the channel is closed"))
            return
        self._waiting.append(fail)

        def arrive() -> None:
            if not self.is_open:
                return
            try:
                say = work()
            except AmqpError as error:
                self.end(error)
                return
            self._broker.host.call_soon(lambda: answer(say))

        def answer(say: Callable[[], None]) -> None:
            if self.is_open:
                self._waiting.remove(fail)
                say()

        self._broker.host.call_soon(arrive)

    def _send(self, work: Callable[[], None]) -> None:
        """Carry out what has no answer."""
        if self.is_open:
            self._broker.host.call_soon(lambda: work() if self.is_open else None)

    def end(self, error: AmqpError, *, tells: bool = True) -> None:
        """It ends: what is unsettled goes back, calls under way fail."""
        if not self.is_open:
            return
        self.is_open = False
        if self in self._connection.channels:
            self._connection.channels.remove(self)
        for consumer in self._consumers.values():
            for queue in self._broker.queues.values():
                if consumer in queue.consumers:
                    queue.consumers.remove(consumer)
        by_queue: dict[ModelQueue, list[Stored]] = {}
        for queue, stored, _consumer in self._unsettled.values():
            by_queue.setdefault(queue, []).append(stored)
        for queue, returned in by_queue.items():
            if not queue.is_stream:
                queue.requeue(returned)
        self._unsettled.clear()
        waiting, self._waiting = self._waiting, deque()
        for fail in waiting:
            fail(error)
        if tells:
            self._on_closed(error)

    def close(self, on_done: Callable[[], None]) -> None:
        def work() -> None:
            self.end(AmqpError(LOST, "closed"), tells=False)
            on_done()

        if not self.is_open:
            on_done()
        else:
            self._broker.host.call_soon(work)

    # --- publishing

    def confirms(self, on_confirm: Confirmed, on_return: Returned, on_done: Settled) -> None:
        self._on_confirm, self._on_return = on_confirm, on_return
        self._call(lambda: lambda: on_done(None), on_done)

    def publish(self, exchange: str, key: str, properties: Properties, body: bytes, *, mandatory: bool) -> None:
        if len(key.encode()) > NAME_BYTES_MAX:
            raise AmqpError(REFUSED, "the routing key is too long")
        self._published += 1
        tag = self._published

        def work() -> None:
            broker = self._broker
            if exchange and exchange not in broker.exchanges:
                self.end(AmqpError(NOT_FOUND, f"no exchange {exchange}"))
                return
            if broker.refuses:
                broker.refuses -= 1
                self._confirm(tag, False)
                return
            is_stored, is_routed = broker.publish(exchange, key, properties, body)
            if mandatory and not is_routed:
                broker.host.call_soon(lambda: self._on_return(properties) if self.is_open else None)
            if not broker.loses_confirms:
                self._confirm(tag, is_stored)

        self._send(work)

    def _confirm(self, tag: int, is_stored: bool) -> None:
        on_confirm = self._on_confirm
        if on_confirm is not None:
            self._broker.host.call_soon(lambda: on_confirm(tag, False, is_stored) if self.is_open else None)

    # --- queues and exchanges

    def declare_queue(
        self,
        name: str,
        on_done: Declared,
        *,
        passive: bool = False,
        exclusive: bool = False,
        durable: bool = True,
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        def work() -> Callable[[], None]:
            queue = self._broker.queues.get(name)
            if queue is None:
                if passive:
                    raise AmqpError(NOT_FOUND, f"no queue {name}")
                owner = self._connection if exclusive else None
                queue = self._broker.queues[name] = ModelQueue(self._broker, name, arguments or {}, owner)
            elif queue.owner not in (None, self._connection):
                raise AmqpError(LOCKED, f"{name} is another's")
            queue.expire()
            count, consumers = len(queue.ready), len(queue.consumers)
            return lambda: on_done(None, count, consumers)

        self._call(work, lambda error: on_done(error, 0, 0))

    def delete_queue(self, name: str, on_done: Settled) -> None:
        def work() -> Callable[[], None]:
            queue = self._broker.queues.pop(name, None)
            for consumer in queue.consumers if queue is not None else []:
                self._broker.host.call_soon(lambda consumer=consumer: consumer.channel.cancelled(consumer.tag))  # type: ignore[misc]
            return lambda: on_done(None)

        self._call(work, on_done)

    def cancelled(self, tag: str) -> None:
        """The broker has ended a consumer."""
        if self.is_open and self._consumers.pop(tag, None) is not None:
            self._on_cancel(tag)

    def purge_queue(self, name: str, on_done: Counted) -> None:
        def work() -> Callable[[], None]:
            queue = self._found(name)
            count = len(queue.ready)
            queue.ready.clear()
            return lambda: on_done(None, count)

        self._call(work, lambda error: on_done(error, 0))

    def _found(self, name: str) -> ModelQueue:
        queue = self._broker.queues.get(name)
        if queue is None:
            raise AmqpError(NOT_FOUND, f"no queue {name}")
        return queue

    def _bind(self, source: str, key: str, destination: str, is_queue: bool, on_done: Settled) -> None:
        def work() -> Callable[[], None]:
            if source not in self._broker.exchanges or (is_queue and destination not in self._broker.queues):
                raise AmqpError(NOT_FOUND, f"no exchange {source}, or no queue {destination}")
            bindings = self._broker.bindings.setdefault(source, [])
            if (key, destination, is_queue) not in bindings:
                bindings.append((key, destination, is_queue))
            return lambda: on_done(None)

        self._call(work, on_done)

    def bind_queue(self, name: str, exchange: str, key: str, on_done: Settled) -> None:
        self._bind(exchange, key, name, True, on_done)

    def unbind_queue(self, name: str, exchange: str, key: str, on_done: Settled) -> None:
        def work() -> Callable[[], None]:
            bindings = self._broker.bindings.get(exchange, [])
            if (key, name, True) in bindings:
                bindings.remove((key, name, True))
            return lambda: on_done(None)

        self._call(work, on_done)

    def declare_exchange(
        self, name: str, kind: str, on_done: Settled, *, arguments: Mapping[str, object] | None = None
    ) -> None:
        def work() -> Callable[[], None]:
            self._broker.exchanges[name] = kind
            if arguments and "alternate-exchange" in arguments:
                self._broker.aside[name] = str(arguments["alternate-exchange"])
            return lambda: on_done(None)

        self._call(work, on_done)

    def bind_exchange(self, name: str, source: str, key: str, on_done: Settled) -> None:
        self._bind(source, key, name, False, on_done)

    # --- consuming

    def qos(self, count: int, on_done: Settled) -> None:
        def work() -> Callable[[], None]:
            self._prefetch = count
            return lambda: on_done(None)

        self._call(work, on_done)

    def consume(
        self,
        queue: str,
        tag: str,
        on_message: Callable[[Arrived], None],
        on_done: Settled,
        *,
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        def work() -> Callable[[], None]:
            found = self._found(queue)
            offset = (arguments or {}).get("x-stream-offset", 0)
            place = offset if isinstance(offset, int) else 0
            consumer = ModelConsumer(self, tag, self._prefetch, on_message, offset=place)
            self._consumers[tag] = consumer
            found.consumers.append(consumer)
            self._broker.host.call_soon(found.deliver)
            return lambda: on_done(None)

        self._call(work, on_done)

    def on_cancelled(self, call: Callable[[str], None]) -> None:
        self._on_cancel = call

    def cancel(self, tag: str, on_done: Settled) -> None:
        def work() -> Callable[[], None]:
            consumer = self._consumers.pop(tag, None)
            for queue in self._broker.queues.values():
                if consumer in queue.consumers:
                    queue.consumers.remove(consumer)
            return lambda: on_done(None)

        self._call(work, on_done)

    def deliver(self, consumer: ModelConsumer, queue: ModelQueue, stored: Stored, properties: Properties) -> None:
        """Deliver to a consumer of this channel."""
        self._next_tag += 1
        tag = self._next_tag
        self._unsettled[tag] = (queue, stored, consumer)
        arrived = queue.arrived(tag, stored, properties)
        self._broker.host.call_soon(lambda: consumer.on_message(arrived) if self.is_open else None)

    def get(self, queue: str, on_done: Got) -> None:
        def work() -> Callable[[], None]:
            found = self._found(queue)
            found.expire()
            if not found.ready:
                return lambda: on_done(None, None)
            stored = found.ready.popleft()
            self._next_tag += 1
            tag = self._next_tag
            self._unsettled[tag] = (found, stored, None)
            return lambda: on_done(None, found.arrived(tag, stored, found.shown(stored)))

        self._call(work, lambda error: on_done(error, None))

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        def work() -> None:
            for each in [each for each in self._unsettled if each <= tag] if multiple else [tag]:
                self._end(each)

        self._send(work)

    def _end(self, tag: int) -> tuple[ModelQueue, Stored]:
        queue, stored, consumer = self._unsettled.pop(tag)
        if consumer is not None:
            consumer.unsettled -= 1
            self._broker.host.call_soon(queue.deliver)
        return queue, stored

    def reject(self, tag: int, *, requeue: bool) -> None:
        def work() -> None:
            queue, stored = self._end(tag)
            if requeue:
                queue.requeue([stored])
            else:
                self._broker.bury(queue, stored, "rejected")

        self._send(work)
