"""Publishing. The broker confirms every message before it is reported as stored.

The queues are distributed over a few connections. A queue always has the same one, which preserves the order of its
messages. When a connection is lost, its unconfirmed messages are sent again on the next one, in order; a message may be
stored twice, but none is lost. A refused message is retried for a second, because refusals also happen while a queue
changes its leader; after that the queue counts as full. After `UNCONFIRMED_MS_MAX` without a confirm, the outcome is
reported as unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import takewhile
from typing import NamedTuple
from zlib import crc32

from curbstone.core.errors import CurbstoneError, NoSuchQueue, QueueFull, Unavailable
from curbstone.core.host import Host
from curbstone.rabbit.amqp.link import AGAIN_MS, Link
from curbstone.rabbit.amqp.port import REFUSED, AmqpError, Channel, Connection, Properties

REFUSED_MS_MAX = 1000
REFUSED_AGAIN_MS = 50
UNCONFIRMED_MS_MAX = 30_000
UNCONFIRMED_BYTES_MAX = 256 * 1024 * 1024
CHECK_MS = 1000
PLACES_KEPT = 4096

Outcome = Callable[[CurbstoneError | None], None]


class Outgoing(NamedTuple):
    """A message with its address."""

    exchange: str
    key: str
    properties: Properties
    body: bytes
    mandatory: bool
    several: bool = False
    """Whether it is published to several queues.

    Then it is not retried after a refusal, because the queues that accepted it would store it once more.
    """


class _Sent:
    """A message until it is confirmed."""

    __slots__ = ("began_ms", "is_done", "is_returned", "on_done", "outgoing", "refused_ms")

    def __init__(self, outgoing: Outgoing, on_done: Outcome, began_ms: int) -> None:
        self.outgoing = outgoing
        self.on_done = on_done
        self.began_ms = began_ms
        self.refused_ms = 0
        self.is_returned = False
        self.is_done = False


class Shard:
    """One connection for publishing."""

    def __init__(self, host: Host, link: Link, publisher: Publisher) -> None:
        self._host = host
        self._link = link
        self._publisher = publisher
        self._channel: Channel | None = None
        self._next_tag = 1
        self._unconfirmed: dict[int, _Sent] = {}
        """The messages that were sent, by tag, in the order they were sent."""
        self._waiting: deque[_Sent] = deque()
        """Messages to send, including those sent over a lost connection."""
        self._by_id: dict[str, int] = {}
        """The last tag of each message, by its id. A message may be in flight twice."""
        link.when(self._up, self._down)

    def __len__(self) -> int:
        return len(self._unconfirmed) + len(self._waiting)

    @property
    def trouble(self) -> str:
        """Why nothing can be published now; empty if it can."""
        return self._link.trouble or self._link.blocked

    @property
    def blocked(self) -> str:
        """Why the broker accepts no messages; empty if it does."""
        return self._link.blocked

    def send(self, sent: _Sent) -> None:
        """Publish, now or as soon as there is a connection."""
        channel = self._channel
        if channel is None or not channel.is_open:
            self._waiting.append(sent)
            return
        exchange, key, properties, body, mandatory, _several = sent.outgoing
        sent.is_returned = False
        try:
            channel.publish(exchange, key, properties, body, mandatory=mandatory)
        except AmqpError as error:  # it was not sent, so the broker does not count it
            self._host.call_soon(partial(self._end, sent, Unavailable(f"the message can't be sent: {error}")))
            return
        self._unconfirmed[self._next_tag] = sent
        if mandatory and properties.message_id:
            self._by_id[properties.message_id] = self._next_tag
        self._next_tag += 1

    def _up(self, connection: Connection) -> None:
        def opened(channel: Channel) -> None:
            def ready(error: AmqpError | None) -> None:
                if error is None and self._link.connection is connection:
                    self._channel = channel
                    self._next_tag = 1
                    waiting, self._waiting = self._waiting, deque()
                    for sent in waiting:
                        if not sent.is_done:
                            self.send(sent)

            channel.confirms(self._confirmed, self._returned, ready)

        connection.channel(opened, lambda error: self._closed(connection, error))

    def _closed(self, connection: Connection, error: AmqpError) -> None:
        """Act on the end of a channel whose connection continues; a message that is too large causes this."""
        if self._link.connection is connection:
            self._down(str(error))
            if error.code == REFUSED and self._waiting:  # the error names no message, so the oldest one fails
                text = f"it is unknown whether the message was stored: RabbitMQ closed the channel: {error}"
                self._end(self._waiting.popleft(), Unavailable(text))
            self._host.call_later(AGAIN_MS, lambda: self._reopen(connection))

    def _reopen(self, connection: Connection) -> None:
        if self._link.connection is connection:
            self._up(connection)

    def _down(self, _reason: str) -> None:
        self._channel = None
        self._waiting.extendleft(reversed(self._unconfirmed.values()))
        self._unconfirmed.clear()
        self._by_id.clear()

    def _confirmed(self, tag: int, multiple: bool, is_stored: bool) -> None:
        unconfirmed = self._unconfirmed
        tags = [tag] if tag in unconfirmed else []
        if multiple:
            tags = list(takewhile(lambda each: each <= tag, unconfirmed))
        for each, sent in [(each, unconfirmed.pop(each)) for each in tags]:
            name = sent.outgoing.properties.message_id
            if sent.outgoing.mandatory and name and self._by_id.get(name) == each:
                del self._by_id[name]
            if not is_stored:
                self._refused(sent)
            elif sent.is_returned:
                self._end(sent, NoSuchQueue(f"no such queue: {sent.outgoing.key}"))
            else:
                self._end(sent, None)

    def _returned(self, properties: Properties) -> None:
        """Note that no queue got a message. Its confirm follows."""
        sent = self._unconfirmed.get(self._by_id.get(properties.message_id or "", 0))
        if sent is not None:
            sent.is_returned = True

    def _refused(self, sent: _Sent) -> None:
        now_ms = self._host.now_ms()
        sent.refused_ms = sent.refused_ms or now_ms
        if sent.outgoing.several or now_ms - sent.refused_ms >= REFUSED_MS_MAX:
            self._end(sent, QueueFull("the queue is at its cap"))
            return

        def again() -> None:
            if not sent.is_done:
                self.send(sent)

        self._host.call_later(REFUSED_AGAIN_MS, again)

    def _end(self, sent: _Sent, error: CurbstoneError | None) -> None:
        if not sent.is_done:
            sent.is_done = True
            self._publisher.ended(sent, error)

    def check_deadlines(self, now_ms: int) -> None:
        """Fail the messages that were not confirmed in time."""
        late = [
            sent
            for sent in [*self._unconfirmed.values(), *self._waiting]
            if now_ms - sent.began_ms > UNCONFIRMED_MS_MAX
        ]
        if not late:
            return
        why = self.trouble or "RabbitMQ did not confirm it"
        for sent in late:
            self._end(sent, Unavailable(f"it is unknown whether the message was stored: {why}"))
        self._waiting = deque(sent for sent in self._waiting if not sent.is_done)


class Publisher:
    """All shards."""

    def __init__(self, host: Host, links: list[Link]) -> None:
        self._host = host
        self._shards = [Shard(host, link, self) for link in links]
        self._shard_of = lru_cache(maxsize=PLACES_KEPT)(self._choose)
        self._bytes = 0
        self._checks = False
        self.is_stopping = False
        self.under_way = 0
        """How many messages have no outcome yet, including those that wait for a retry."""

    @property
    def alarms(self) -> list[str]:
        """Return why messages are refused now."""
        return [shard.trouble for shard in self._shards if shard.trouble]

    def _choose(self, place: str) -> Shard:
        return self._shards[crc32(place.encode()) % len(self._shards)]

    def send(self, place: str, outgoing: Outgoing, on_done: Outcome) -> None:
        """Publish. Messages with the same `place` keep their order. `on_done` is called in a later turn of the loop."""
        shard = self._shard_of(place)
        refusal = ""
        if self._bytes > UNCONFIRMED_BYTES_MAX:
            refusal = "too many messages to RabbitMQ are unconfirmed; retry later"
        elif shard.blocked:
            refusal = f"RabbitMQ accepts no messages: {shard.blocked}"
        if refusal:
            self._host.call_soon(partial(on_done, Unavailable(refusal)))
            return
        self._bytes += len(outgoing.body)
        self.under_way += 1
        shard.send(_Sent(outgoing, on_done, self._host.now_ms()))
        if not self._checks:
            self._checks = True
            self._host.call_later(CHECK_MS, self._check)

    def ended(self, sent: _Sent, error: CurbstoneError | None) -> None:
        """Report the outcome of a message."""
        self._bytes -= len(sent.outgoing.body)
        self.under_way -= 1
        sent.on_done(error)

    def _check(self) -> None:
        self._checks = False
        now_ms = self._host.now_ms()
        for shard in self._shards:
            shard.check_deadlines(now_ms)
        if self.under_way:
            self._checks = True
            self._host.call_later(CHECK_MS, self._check)
