"""One queue of the model of RabbitMQ: what a quorum queue, a classic one and a stream do that the engine relies on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from curbstone.rabbit.amqp.port import Arrived, Properties

if TYPE_CHECKING:
    from tests.engines.model import ModelBroker, ModelChannel


@dataclass(eq=False)
class Stored:
    """A message in a queue."""

    exchange: str
    key: str
    properties: Properties
    body: bytes
    returned: int = 0
    expires_ms: int | None = None


@dataclass(eq=False)
class ModelConsumer:
    """A consumer of a queue, with its prefetch."""

    channel: ModelChannel
    tag: str
    prefetch: int
    on_message: Any
    unsettled: int = 0
    offset: int = 0

    @property
    def has_room(self) -> bool:
        return not self.prefetch or self.unsettled < self.prefetch


@dataclass(eq=False)
class ModelQueue:
    """See the module's docstring."""

    broker: ModelBroker
    name: str
    arguments: Mapping[str, Any]
    owner: object = None
    """The connection that alone may use it."""
    ready: deque[Stored] = field(default_factory=deque)
    log: list[Stored] = field(default_factory=list)
    consumers: list[ModelConsumer] = field(default_factory=list)

    @property
    def is_stream(self) -> bool:
        return self.arguments.get("x-queue-type") == "stream"

    @property
    def is_quorum(self) -> bool:
        return self.arguments.get("x-queue-type") == "quorum"

    def store_message(self, stored: Stored) -> bool:
        """Store a message; False where it is refused."""
        if self.is_stream:
            self.log.append(stored)
            self.deliver()
            return True
        most = self.arguments.get("x-max-length-bytes")
        if most is not None and sum(len(each.body) for each in self.ready) + len(stored.body) > most:
            if self.arguments.get("x-overflow") == "reject-publish":
                return False
            while self.ready and sum(len(each.body) for each in self.ready) + len(stored.body) > most:
                self.broker.bury(self, self.ready.popleft(), "maxlen")
        lives = [int(each) for each in (stored.properties.expiration, self.arguments.get("x-message-ttl")) if each]
        if lives:
            stored.expires_ms = self.broker.host.now_ms() + min(lives)
            self.broker.host.call_later(min(lives), self.deliver)
        self.ready.append(stored)
        self.broker.host.call_soon(self.deliver)
        return True

    def expire(self) -> None:
        """What has expired leaves at the head only."""
        now_ms = self.broker.host.now_ms()
        while self.ready and self.ready[0].expires_ms is not None and self.ready[0].expires_ms <= now_ms:
            self.broker.bury(self, self.ready.popleft(), "expired")

    def deliver(self) -> None:
        """Hand out what is ready, to one consumer after the other."""
        if self.is_stream:
            for consumer in self.consumers:
                while consumer.offset < len(self.log) and consumer.channel.is_open:
                    stored = self.log[consumer.offset]
                    headers = {**stored.properties.headers, "x-stream-offset": consumer.offset}
                    consumer.offset += 1
                    consumer.channel.deliver(consumer, self, stored, stored.properties._replace(headers=headers))
            return
        self.expire()
        while self.ready:
            taker = next((each for each in self.consumers if each.has_room), None)
            if taker is None:
                return
            self.consumers.remove(taker)
            self.consumers.append(taker)
            stored = self.ready.popleft()
            taker.unsettled += 1
            taker.channel.deliver(taker, self, stored, self.shown(stored))
            self.expire()

    def shown(self, stored: Stored) -> Properties:
        """Return the properties as a consumer sees them: with the count of returns, and sorted, once there is one."""
        if not stored.returned or not self.is_quorum:
            return stored.properties
        name = "x-acquired-count" if self.broker.counts_acquired else "x-delivery-count"
        headers = dict(sorted({**stored.properties.headers, name: stored.returned}.items()))
        return stored.properties._replace(headers=headers)

    def requeue(self, returned: list[Stored]) -> None:
        """Messages return: with a delivery limit they are served first, in the order of their return."""
        limit = self.arguments.get("x-delivery-limit")
        for stored in returned:
            stored.returned += 1
        if limit is None:
            self.ready.extend(returned)
        else:
            first = [each for each in self.ready if each.returned]
            rest = [each for each in self.ready if not each.returned]
            self.ready = deque([*first, *returned, *rest])
        self.broker.host.call_soon(self.deliver)

    def arrived(self, tag: int, stored: Stored, properties: Properties) -> Arrived:
        return Arrived(tag, stored.returned > 0, stored.exchange, stored.key, properties, stored.body)


def topic_matches(pattern: list[str], words: list[str]) -> bool:
    """Return whether the words of a routing key are those of a pattern."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(topic_matches(pattern[1:], words[place:]) for place in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and topic_matches(pattern[1:], words[1:])
