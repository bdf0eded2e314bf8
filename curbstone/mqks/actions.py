"""The actions of MQKS: publish, consume, settle, bind, delete, and ask for figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from curbstone.access.rights import Right
from curbstone.core.errors import CurbstoneError, NoSuchQueue
from curbstone.core.message import Message
from curbstone.core.names import QueueName
from curbstone.core.orders import orders_in
from curbstone.mqks import arguments, codec, stats_query
from curbstone.mqks.arguments import ALL, Consume
from curbstone.mqks.codec import Request
from curbstone.mqks.consumer import QueueConsumer
from curbstone.mqks.errors import RequestError
from curbstone.mqks.limits import WORK_US_MAX, Limits
from curbstone.mqks.login import Login
from curbstone.mqks.registry import Registry

if TYPE_CHECKING:
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.core.port import Consumer
    from curbstone.core.values import Done
    from curbstone.mqks.session import Session

PUBLISH = b"publish"


class Actions:
    """The actions of one connection, and its consumers."""

    def __init__(self, session: Session, registry: Registry, limits: Limits, login: Login) -> None:
        self._session = session
        self._registry = registry
        self._traffic = registry.traffic
        self._limits = limits
        self._login = login
        self.consumers: dict[bytes, QueueConsumer] = {}

    def named(self, name: bytes) -> Callable[[Request], None] | None:
        """Return the function for the requests of an action; None if there is no such action."""
        action = _ACTIONS.get(name)
        return partial(action, self) if action is not None else None

    @property
    def unacked(self) -> int:
        """How many deliveries are unsettled."""
        return sum([len(consumer.engine.unsettled) for consumer in self.consumers.values()])

    def _publish(self, request: Request) -> None:
        headers, rest = arguments.parse_publish(request.rest)
        word, _, data = rest.partition(b" ")
        if not word or not data:
            raise RequestError("the arguments of publish must be {event} {data}")
        if len(data) > self._limits.body_bytes_max:
            raise RequestError(f"the data is larger than {self._limits.body_bytes_max} bytes")
        event = arguments.event_of(arguments.text_of(word))
        block = codec.block_of(arguments.text_of(request.request_id), event, headers)
        message = Message(data, block, orders_in(block))
        self._traffic.published += 1
        if (meter := self._access.identity.meter) is not None:
            meter.count(1, len(data))

        def start(answered: Done) -> None:
            def done(error: CurbstoneError | None, _first: int, _count: int) -> None:
                self._traffic.confirmed += error is None
                answered(error)

            self._access.publish_event(event, [message], done)

        self._session.start(request, start, len(data))

    def check_rights(self) -> None:
        """End the consumers that have lost their right, each with an error."""
        for consumer in list(self.consumers.values()):
            if not self._access.may(Right.RECEIVE, consumer.queue_name):
                self.end_consumer(consumer)
                self._session.refuse(consumer.id, RequestError(f"no right to receive on queue {consumer.queue_name}"))

    @property
    def _access(self) -> AuthorizedBroker:
        return self._login.access

    def _in_home(self, name: QueueName) -> QueueName:
        """Return the queue with that name in the user's home project."""
        return QueueName(self._access.home, name.queue)

    def _ping(self, request: Request) -> None:
        self._session.write(codec.ok(request.request_id, request.rest))

    def _eval(self, request: Request) -> None:
        self._access.check_server(Right.METRICS)
        text = stats_query.answer(arguments.text_of(request.rest).strip(), self._registry)
        self._session.work_us += 50 + 2 * len(self._registry.engine.queues()) + self._access.events_bound // 4
        self._session.write(codec.ok(request.request_id, text.encode()))

    def _consume(self, request: Request) -> None:
        options = arguments.parse_consume(request.rest, self._limits.window_max)
        options = replace(options, queue=self._in_home(options.queue))
        self._access.check(Right.RECEIVE, options.queue)
        earlier = self.consumers.get(request.request_id)
        if earlier is None and len(self.consumers) >= self._limits.consumers_max:
            raise RequestError(f"a connection has at most {self._limits.consumers_max} consumers")
        self._login.holds(len(self.consumers) + (earlier is None))
        before = self._bindings(options)
        events = options.binding.apply(before)
        unused = self._registry.unused(options.queue)
        seconds = options.unused.seconds if options.unused else None
        if options.unused and not self._registry.may_delete(options.queue):
            raise RequestError(
                f"--delete-queue-when-unused is not allowed for queue {options.queue}, which was created without it"
            )
        # The queue is bound first, because that can be refused.
        self._session.start(request, lambda done: self._access.occupy(options.queue, events, seconds, done))
        self._work(options.queue, events)
        if options.unused or unused:
            self._registry.note_created(options.queue, has_option=True)
        else:
            self._registry.keep(options.queue)
        consumer = self._new_consumer(request.request_id, options)
        changed = unused != options.unused or events != before
        if earlier is not None:
            self.end_consumer(earlier)
        self._registry.add(consumer)
        self.consumers[consumer.id] = consumer
        if changed:
            # A client that replaced the events has the whole list; one that added some does not.
            self._registry.notify(options.queue, events, None if options.binding.add else consumer)

    def _new_consumer(self, consumer_id: bytes, options: Consume) -> QueueConsumer:
        shown = f" --window={options.window}" if options.window else ""
        shown += " --manual-ack" if options.manual_ack else ""
        consumer = QueueConsumer(consumer_id, options.queue, shown, options.manual_ack, self._session, self._traffic)
        queue = self._access.ensure(options.queue, Right.RECEIVE)
        window = options.window or self._limits.window
        engine = queue.subscribe(
            consumer.deliver,
            window=window,
            auto=not options.manual_ack,
            client_info=self._login.client_info(consumer_id),
            on_closed=lambda error: self._lost(consumer, error),
        )
        consumer.bind(queue, engine)
        if self._session.is_paused:
            engine.hold()
        return consumer

    def _has(self, name: QueueName) -> bool:
        try:
            self._access.find(name)
        except NoSuchQueue:
            return False
        return True

    def _work(self, name: QueueName, events: frozenset[str]) -> None:
        """Count the cost of changed bindings: the whole set is stored, and sent to all consumers."""
        self._session.work_us += 100 + len(events) * (1 + len(self._registry.consumers_of(name)) // 10)

    def _bindings(self, options: Consume | arguments.Rebind) -> frozenset[str]:
        try:
            return frozenset(self._access.bindings(options.queue))
        except NoSuchQueue:
            return frozenset()

    def _rebind(self, request: Request) -> None:
        options = arguments.parse_rebind(request.rest)
        options = replace(options, queue=self._in_home(options.queue))
        self._access.check(Right.MANAGE, options.queue)
        before = self._bindings(options)
        if options.binding.masks:
            self._session.work_us += WORK_US_MAX  # even if they are refused
        events = options.binding.apply(before)
        is_new = not self._has(options.queue)
        self._session.start(request, lambda done: self._access.rebind(options.queue, events, done))
        self._work(options.queue, before | events)
        if is_new:
            self._registry.note_created(options.queue, has_option=False)
        if events != before:
            self._registry.notify(options.queue, events)

    def _ack(self, request: Request) -> None:
        def ack(engine: Consumer, seqs: Sequence[int], done: Done) -> None:
            engine.ack(seqs, done)
            self._traffic.acked += len(seqs)

        self._settle(request, ack)

    def _reject(self, request: Request) -> None:
        def reject(engine: Consumer, seqs: Sequence[int], done: Done) -> None:
            engine.nack(seqs, on_done=done)
            self._traffic.returned += len(seqs)

        self._settle(request, reject)

    def _settle(self, request: Request, settle: Callable[[Consumer, Sequence[int], Done], None]) -> None:
        consumer_id, msg_id = arguments.parse_settle(request.rest)
        consumer = self._consumer(consumer_id)
        seqs = consumer.take_all() if msg_id == ALL else consumer.take(msg_id)
        if not seqs:  # settled before, perhaps by the same request before a reconnect
            self._session.confirm(request)
            return
        name = consumer.queue_name
        registry = self._registry

        def start(answered: Done) -> None:
            def done(error: CurbstoneError | None) -> None:
                answered(error)
                registry.settled(name)

            settle(consumer.engine, seqs, done)
            registry.settling(name)

        self._session.start(request, start)

    def _delete_consumer(self, request: Request) -> None:
        consumer = self._consumer(arguments.only_word(request.rest, "consumer_id"))
        consumer.owner.end_consumer(consumer)
        self._session.confirm(request)

    def _delete_queue(self, request: Request) -> None:
        name = arguments.queue_of(arguments.text_of(arguments.only_word(request.rest, "queue")))
        name = self._in_home(name)

        def start(done: Done) -> None:
            self._access.delete(name, lambda outcome: done(outcome if isinstance(outcome, CurbstoneError) else None))

        self._session.start(request, start)  # raises without the right
        self._registry.forget(name)

    def _consumer(self, consumer_id: bytes) -> QueueConsumer:
        """Return the consumer with that id on this connection; raise RequestError."""
        consumer = self.consumers.get(consumer_id)
        if consumer is None:
            raise RequestError("unknown consumer")
        return consumer

    def end_consumer(self, consumer: QueueConsumer) -> None:
        """End a consumer of this connection: its unsettled deliveries return to the queue."""
        if self.consumers.get(consumer.id) is consumer:
            del self.consumers[consumer.id]
            self._login.holds(len(self.consumers))
        self._session.updates.pop(consumer, None)
        consumer.engine.close()
        self._registry.remove(consumer)

    def _lost(self, consumer: QueueConsumer, error: CurbstoneError) -> None:
        """Note that a consumer's queue was deleted, or the engine stopped. The consumer stays, but gets nothing."""
        if isinstance(error, NoSuchQueue):
            self._registry.deleted(consumer)


_ACTIONS: dict[bytes, Callable[[Actions, Request], None]] = {
    PUBLISH: Actions._publish,
    b"consume": Actions._consume,
    b"rebind": Actions._rebind,
    b"ack": Actions._ack,
    b"reject": Actions._reject,
    b"delete_consumer": Actions._delete_consumer,
    b"delete_queue": Actions._delete_queue,
    b"ping": Actions._ping,
    b"_eval": Actions._eval,
}
