"""pika on the server's event loop: the only implementation of `rabbit.amqp.port`.

Messages and their confirms bypass pika; see `rabbit.amqp.socket_filter`. The nodes are tried one after the other,
beginning with a random one.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import pika
from pika import exceptions, spec
from pika.adapters.asyncio_connection import AsyncioConnection

from curbstone.rabbit.amqp import frames
from curbstone.rabbit.amqp.address import Address
from curbstone.rabbit.amqp.io_services import IoServices
from curbstone.rabbit.amqp.port import (
    LOST,
    REFUSED,
    AmqpError,
    Arrived,
    Channel,
    Confirmed,
    Connection,
    Counted,
    Declared,
    Got,
    Properties,
    Returned,
    Settled,
)
from curbstone.rabbit.amqp.socket_filter import SocketFilter

HEARTBEAT_S = 10
CONNECT_S_MAX = 5
CHANNELS_MAX = 2047


class PikaConnector:
    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop) -> None:
        self._address = address
        self._loop = loop
        self._next = random.randrange(len(address.nodes))
        self._tls = ssl.create_default_context(cafile=address.ca) if address.is_tls else None

    def connect(
        self,
        name: str,
        on_open: Callable[[Connection], None],
        on_lost: Callable[[str], None],
        on_blocked: Callable[[str], None],
    ) -> None:
        host, port = self._address.nodes[self._next % len(self._address.nodes)]
        self._next += 1
        parameters = pika.ConnectionParameters(
            host=host,
            port=port,
            virtual_host=self._address.vhost,
            credentials=pika.PlainCredentials(self._address.user, self._address.password),
            heartbeat=HEARTBEAT_S,
            connection_attempts=1,
            socket_timeout=CONNECT_S_MAX,
            stack_timeout=CONNECT_S_MAX,
            channel_max=CHANNELS_MAX,
            ssl_options=pika.SSLOptions(self._tls, host) if self._tls else None,
            client_properties={"connection_name": name, "product": "curbstone"},
        )
        node = f"{host}:{port}"
        services = IoServices(self._loop)
        AsyncioConnection(
            parameters,
            on_open_callback=lambda raw: _opened(PikaConnection(raw, node, services), raw, on_open, on_blocked),
            on_open_error_callback=lambda _raw, error: on_lost(f"{node}: {_reason(error)}"),
            on_close_callback=lambda _raw, error: on_lost(f"{node}: {_reason(error)}"),
            custom_ioloop=services,
        )


def _opened(
    connection: PikaConnection, raw: Any, on_open: Callable[[Connection], None], on_blocked: Callable[[str], None]
) -> None:
    raw.add_on_connection_blocked_callback(lambda _raw, frame: on_blocked(str(frame.method.reason) or "blocked"))
    raw.add_on_connection_unblocked_callback(lambda _raw, _frame: on_blocked(""))
    on_open(connection)


def _reason(error: object) -> str:
    """Return pika's error as one line: the last of several, with its cause."""
    while (inner := _behind(error)) is not None:
        error = inner
    return " ".join(str(error).split()) or type(error).__name__


def _behind(error: object) -> BaseException | None:
    several = getattr(error, "exceptions", None) or ()
    causes = (*several[-1:], getattr(error, "exception", None), *getattr(error, "args", ())[:1])
    return next((each for each in causes if isinstance(each, BaseException)), None)


class PikaConnection:
    def __init__(self, raw: Any, node: str, services: IoServices) -> None:
        self._raw = raw
        self._loop = services.get_native_ioloop()
        self._socket_filter = services.socket_filter
        self._socket_filter.on_received = self._received
        self.node = node
        self.version = str((raw.server_properties or {}).get("version", ""))

    def channel(self, on_open: Callable[[Channel], None], on_closed: Callable[[AmqpError], None]) -> None:
        if not self._raw.is_open:
            return  # the end of the connection is reported separately
        channel = PikaChannel(on_closed, self._socket_filter)
        try:
            self._raw.channel(on_open_callback=lambda raw: on_open(channel.opened(raw)))
        except exceptions.NoFreeChannels:
            error = AmqpError(LOST, f"a connection has {CHANNELS_MAX} channels, and all are in use")
            self._loop.call_soon(lambda: on_closed(error))

    def _received(self, count: int) -> None:
        self._raw.bytes_received += count  # pika's liveness check needs this to grow

    def close(self) -> None:
        if not (self._raw.is_closed or self._raw.is_closing):
            self._raw.close()


class PikaChannel:
    def __init__(self, on_closed: Callable[[AmqpError], None], socket_filter: SocketFilter) -> None:
        self._on_closed = on_closed
        self._socket_filter = socket_filter
        self._raw: Any
        self._number = 0
        self._frame_max = 0
        self._tags: set[str] = set()
        """The tags of consumers whose deliveries bypass pika."""
        self._waiting: dict[int, Callable[[AmqpError], None]] = {}
        """For each call under way, the function to call if the channel ends."""
        self._calls = 0
        self._gets: deque[tuple[str, Got]] = deque()
        self._on_end: Callable[[], None] | None = None

    def opened(self, raw: Any) -> PikaChannel:
        """Take over pika's channel, which is open now; return self."""
        self._raw = raw
        self._number = raw.channel_number
        self._frame_max = raw.connection.params.frame_max
        raw.add_on_close_callback(lambda _raw, reason: self._ended(reason))
        raw.add_callback(self._got_empty, [spec.Basic.GetEmpty], one_shot=False)
        return self

    @property
    def is_open(self) -> bool:
        return bool(self._raw.is_open)

    def _ended(self, reason: Any) -> None:
        code = reason.reply_code if isinstance(reason, exceptions.ChannelClosedByBroker) else LOST
        text = getattr(reason, "reply_text", "") or _reason(reason)
        error = AmqpError(code, text)
        self._leave_wire()
        waiting, self._waiting = self._waiting, {}
        gets, self._gets = self._gets, deque()
        for fail in waiting.values():
            fail(error)
        for _queue, on_done in gets:
            on_done(error, None)
        if self._on_end is not None:
            self._on_end()
        else:
            self._on_closed(error)

    def _leave_wire(self) -> None:
        """Stop taking frames from the socket filter, because another channel may get this number soon."""
        self._socket_filter.confirmed.pop(self._number, None)
        for tag in list(self._tags):
            self._forget(tag)

    def _forget(self, tag: str) -> None:
        if tag in self._tags:
            self._tags.remove(tag)
            del self._socket_filter.consumers[self._number, tag.encode()]

    def _call(self, start: Callable[[Callable[..., None]], object], done: Callable[[Any], None], fail: Settled) -> None:
        """Make a call that gets an answer. `done(frame)` is called, or `fail(error)` if the channel ends first."""
        if not self.is_open:
            fail(AmqpError(LOST, "the channel is closed"))
            return
        self._calls += 1
        number = self._calls
        self._waiting[number] = fail

        def answered(frame: Any) -> None:
            if self._waiting.pop(number, None) is not None:
                done(frame)

        start(answered)

    def _simple(self, start: Callable[[Callable[..., None]], object], on_done: Settled) -> None:
        self._call(start, lambda _frame: on_done(None), on_done)

    def confirms(self, on_confirm: Confirmed, on_return: Returned, on_done: Settled) -> None:
        def confirmed(frame: Any) -> None:
            method = frame.method
            on_confirm(method.delivery_tag, method.multiple, isinstance(method, spec.Basic.Ack))

        if self.is_open:
            self._socket_filter.confirmed[self._number] = on_confirm
        self._raw.add_on_return_callback(lambda _raw, _method, properties, _body: on_return(_properties(properties)))
        self._simple(lambda done: self._raw.confirm_delivery(confirmed, done), on_done)

    def publish(self, exchange: str, key: str, properties: Properties, body: bytes, *, mandatory: bool) -> None:
        if not self.is_open:
            raise AmqpError(LOST, "the channel is closed")
        try:
            data = frames.publish(
                self._number, exchange, key, properties, body, mandatory=mandatory, frame_max=self._frame_max
            )
        except frames.NotEncodable as error:
            raise AmqpError(REFUSED, str(error)) from error
        self._socket_filter.write(data)

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
        self._call(
            lambda done: self._raw.queue_declare(
                name, passive=passive, durable=durable, exclusive=exclusive, arguments=arguments, callback=done
            ),
            lambda frame: on_done(None, frame.method.message_count, frame.method.consumer_count),
            lambda error: on_done(error, 0, 0),
        )

    def delete_queue(self, name: str, on_done: Settled) -> None:
        self._simple(lambda done: self._raw.queue_delete(name, callback=done), on_done)

    def purge_queue(self, name: str, on_done: Counted) -> None:
        self._call(
            lambda done: self._raw.queue_purge(name, callback=done),
            lambda frame: on_done(None, frame.method.message_count),
            lambda error: on_done(error, 0),
        )

    def bind_queue(self, name: str, exchange: str, key: str, on_done: Settled) -> None:
        self._simple(lambda done: self._raw.queue_bind(name, exchange, key, callback=done), on_done)

    def unbind_queue(self, name: str, exchange: str, key: str, on_done: Settled) -> None:
        self._simple(lambda done: self._raw.queue_unbind(name, exchange, key, callback=done), on_done)

    def declare_exchange(
        self, name: str, kind: str, on_done: Settled, *, arguments: Mapping[str, object] | None = None
    ) -> None:
        self._simple(
            lambda done: self._raw.exchange_declare(name, kind, durable=True, arguments=arguments, callback=done),
            on_done,
        )

    def bind_exchange(self, name: str, source: str, key: str, on_done: Settled) -> None:
        self._simple(lambda done: self._raw.exchange_bind(name, source, key, callback=done), on_done)

    def qos(self, count: int, on_done: Settled) -> None:
        self._simple(lambda done: self._raw.basic_qos(prefetch_count=count, callback=done), on_done)

    def consume(
        self,
        queue: str,
        tag: str,
        on_message: Callable[[Arrived], None],
        on_done: Settled,
        *,
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        def delivered(_raw: Any, method: Any, properties: Any, body: bytes) -> None:
            on_message(_arrived(method, properties, body))

        if self.is_open:
            self._tags.add(tag)
            self._socket_filter.consumers[self._number, tag.encode()] = on_message
        self._simple(
            lambda done: self._raw.basic_consume(
                queue, delivered, consumer_tag=tag, arguments=arguments, callback=done
            ),
            on_done,
        )

    def on_cancelled(self, call: Callable[[str], None]) -> None:
        def cancelled(frame: Any) -> None:
            self._forget(frame.method.consumer_tag)
            call(frame.method.consumer_tag)

        self._raw.add_on_cancel_callback(cancelled)

    def cancel(self, tag: str, on_done: Settled) -> None:
        """See `Channel.cancel`. pika requeues the deliveries under way."""
        self._forget(tag)
        if tag in self._raw.consumer_tags:
            self._simple(lambda done: self._raw.basic_cancel(tag, callback=done), on_done)
        else:  # the broker has ended the consumer already
            self.qos(1, on_done)

    def get(self, queue: str, on_done: Got) -> None:
        """See `Channel.get`. pika allows only one at a time."""
        if not self.is_open:
            on_done(AmqpError(LOST, "the channel is closed"), None)
            return
        self._gets.append((queue, on_done))
        if len(self._gets) == 1:
            self._get_next()

    def _get_next(self) -> None:
        self._raw.basic_get(self._gets[0][0], self._got)

    def _got(self, _raw: Any, method: Any, properties: Any, body: bytes) -> None:
        self._end_get(_arrived(method, properties, body))

    def _got_empty(self, _frame: Any) -> None:
        self._end_get(None)

    def _end_get(self, arrived: Arrived | None) -> None:
        _queue, on_done = self._gets.popleft()
        if self._gets and self.is_open:
            self._get_next()
        on_done(None, arrived)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        if self.is_open:
            self._raw.basic_ack(tag, multiple)

    def reject(self, tag: int, *, requeue: bool) -> None:
        if self.is_open:
            self._raw.basic_reject(tag, requeue)

    def close(self, on_done: Callable[[], None]) -> None:
        if not self.is_open:
            on_done()
            return
        self._on_end = on_done
        self._leave_wire()
        self._raw.close()


def _properties(raw: Any) -> Properties:
    return Properties(
        raw.headers or {},
        raw.message_id,
        raw.content_type,
        raw.expiration,
        raw.timestamp,
        raw.correlation_id,
        raw.reply_to,
        raw.type,
        raw.app_id,
        raw.priority,
    )


def _arrived(method: Any, properties: Any, body: bytes) -> Arrived:
    return Arrived(
        method.delivery_tag, method.redelivered, method.exchange, method.routing_key, _properties(properties), body
    )
