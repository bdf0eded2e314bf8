"""One MQKS connection, without its socket: bytes in, bytes out.

The owner of the socket calls `receive` with what it read, sends what `take_output` returns whenever
`changed` was called, and closes the socket once `closing` is true and everything is sent. It calls `tick`
when that is due, as long as a line is unfinished.

Requests are carried out in their order; those that cost more than their bytes let others have their turn
between them. Those that change something on disk are answered after the commit, the others at once. Only a
request with `--confirm` gets its `ok`; an `error` is always told.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError, NoSuchQueue
from curbstone.core.message import Message
from curbstone.mqks import arguments, codec, eval
from curbstone.mqks.arguments import ALL, Consume
from curbstone.mqks.codec import Line, LineReader, Request
from curbstone.mqks.consumer import QueueConsumer
from curbstone.mqks.errors import RequestError
from curbstone.mqks.limits import REQUEST_BYTES_MAX, WORK_US_MAX, Limits
from curbstone.mqks.registry import Registry
from curbstone.net.receive_deadline import ReceiveDeadline

if TYPE_CHECKING:
    from curbstone.core.names import QueueName
    from curbstone.core.port import Broker, Consumer
    from curbstone.core.values import Done

_TLS = b"\x16\x03"
_HTTP = re.compile(rb"[A-Z]{3,20} (/|\*|https?://)\S* HTTP/1\.[01]\r?")
_WITH_DATA = (b"publish", b"ping")
_WITH_NAMES = (b"consume", b"rebind")
Report = Callable[[str, bool], bytes]
Later = Callable[[int, Callable[[], None]], object]
HTTP_ANSWER = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Session:
    """The state machine of one connection.

    open ──end_input, shut_down, a fatal error──▶ ending ──commits under way are done──▶ closing

    `report(text, is_mistake)` puts the detail of an error into the log and returns the id it has there; see
    `Reports.report`. `later(delay_ms, fn)` is the host's.
    """

    def __init__(
        self, registry: Registry, limits: Limits, changed: Callable[[], None], report: Report, later: Later, now_ms: int
    ) -> None:
        self._registry = registry
        self._broker: Broker = registry.broker
        self._traffic = registry.traffic
        self._limits = limits
        self._changed = changed
        self._report = report
        self._later = later
        self._started_ms = now_ms
        self._reader = LineReader(limits.line_bytes_max)
        self._line = ReceiveDeadline(limits.line_ms, limits.line_bytes_per_s)
        self._output: list[bytes] = []
        self._consumers: dict[bytes, QueueConsumer] = {}
        self._held = False
        self._updates: dict[QueueConsumer, bytes] = {}
        self._is_first = True
        self._waiting: deque[Line] = deque()
        """Lines that came, and whose turn is to come."""
        self._is_due = False
        self._is_input_over = False
        self._work_us = 0
        self._errors = 0
        self._unconfirmed = 0
        self._unconfirmed_bytes = 0
        self.ending = False
        """Whether nothing more is read; the last answers may still wait for the disk."""
        self.closing = False
        """Whether the output is complete: send it, then close."""
        self.congested = False
        """Whether reading should stop until `changed` is called and this is false again."""
        self.lost = False
        registry.sessions.add(self)
        self._actions: dict[bytes, Callable[[Request], None]] = {
            b"publish": self._publish,
            b"consume": self._consume,
            b"rebind": self._rebind,
            b"ack": self._ack,
            b"reject": self._reject,
            b"delete_consumer": self._delete_consumer,
            b"delete_queue": self._delete_queue,
            b"ping": self._ping,
            b"_eval": self._eval,
        }

    # --- the socket's side

    def take_output(self) -> list[bytes]:
        """Return the bytes to send, in order, and forget them."""
        output, self._output = self._output, []
        return output

    def receive(self, data: bytes, now_ms: int) -> None:
        """Carry out the requests that `data` completes. `now_ms` never jumps."""
        if self._is_first and data.startswith(_TLS):
            self._finish()
        lines = self._reader.feed(data) if not self.ending else []
        if self._waiting:
            self._waiting.extend(lines)
        else:
            self._carry_out_all(lines)
        if self.ending:
            return
        self._line.unfinished(self._reader.unfinished_bytes, bool(lines), now_ms)
        if self._reader.overlong_bytes > self._limits.junk_bytes_max:
            self._refuse(codec.NO_ID, RequestError("a line without an end", fatal=True))

    @property
    def tick_ms(self) -> int:
        """In how many ms to call `tick`; 0 while no line is expected."""
        if self.ending:
            return 0
        return self._line.tick_ms if self._line.is_begun or self._is_first else 0

    def tick(self, now_ms: int) -> None:
        """End the connection if its line should be whole by now."""
        if self.ending:
            return
        if self._line.is_late(now_ms):
            rule = f"no complete line within {self._limits.line_ms} ms"
            self._refuse(codec.NO_ID, RequestError(rule, fatal=True))
        elif self._is_first and now_ms - self._started_ms >= self._limits.first_line_ms:
            rule = f"no first line within {self._limits.first_line_ms} ms"
            self._refuse(codec.NO_ID, RequestError(rule, fatal=True))

    def reading(self, on: bool, now_ms: int) -> None:
        """Say that reading stopped or went on; a client that is not read can't be late."""
        self._line.reading(on, now_ms)

    def hold(self) -> None:
        """Deliver nothing more: the socket is full."""
        self._held = True
        for consumer in self._consumers.values():
            consumer.engine.hold()

    def resume(self) -> None:
        """Go on after `hold`."""
        self._held = False
        if self._updates:
            self.write(b"".join(self._updates.values()))
            self._updates.clear()
        for consumer in self._consumers.values():
            consumer.engine.resume()
        self._go_on_later()

    def end_input(self) -> None:
        """The client sends no more: end once its answers are sent."""
        self._is_input_over = True
        if not self._waiting:
            self._finish()

    def shut_down(self) -> None:
        """The server stops; commits under way are waited for."""
        self._finish()

    def lose(self) -> None:
        """The socket is gone: deliveries return, what was published is kept."""
        self.lost = self.closing = True
        self._finish()
        self._reader.drop()
        self._output = []
        self._registry.sessions.discard(self)

    # --- lines

    def _carry_out_all(self, lines: Sequence[Line]) -> None:
        """Carry out lines in order, and leave what follows costly ones for the next turn."""
        self._work_us = 0
        for done, line in enumerate(lines, 1):
            self._carry_out(line)
            if self.ending:
                return
            if self._work_us >= WORK_US_MAX and done < len(lines):
                self._waiting.extend(lines[done:])
                self.congested = True
                self._go_on_later()
                return

    def _go_on_later(self) -> None:
        if self._waiting and not self._is_due and not self._held:
            self._is_due = True
            self._later(max(1, self._work_us // 1000), self._go_on)

    def _go_on(self) -> None:
        self._is_due = False
        if self.ending or self._held:
            return
        lines = list(self._waiting)
        self._waiting.clear()
        self._carry_out_all(lines)
        if self._waiting or self.ending:
            return
        if self._is_input_over:
            self._finish()
        else:
            self._look_at_room()

    def _carry_out(self, line: Line) -> None:
        text = line.text
        if self._is_first:
            self._is_first = False
            # A page in a browser can make it send what it likes to any port, but not without this first line.
            if _HTTP.fullmatch(text):
                self.write(HTTP_ANSWER)
                self._finish()
                return
        try:
            if not line.is_whole:
                raise RequestError("the line is too long")
            if b"\t" in text:
                raise RequestError("a request holds no tab", fatal=True)
            request = codec.parse_request(text)
            if len(request.request_id) > self._limits.id_bytes_max:
                raise RequestError(f"an id has at most {self._limits.id_bytes_max} bytes")
            action = self._actions.get(request.action)
            if action is None:
                raise RequestError("unknown action")
            if len(text) > REQUEST_BYTES_MAX and request.action not in _WITH_DATA:
                raise RequestError(f"a request but publish and ping has at most {REQUEST_BYTES_MAX} bytes")
            if request.action in _WITH_NAMES:
                self._work_us += len(text) // 4
            action(request)
        except (RequestError, CurbstoneError) as error:
            self._refuse(codec.request_id_of(text, self._limits.id_bytes_max), error)
        else:
            self._errors = 0

    def _refuse(self, request_id: bytes, error: RequestError | CurbstoneError) -> None:
        """Answer with an error, whose detail is in the log."""
        mistake = error if isinstance(error, RequestError) else None
        self._traffic.refuse(error)
        self._errors += 1
        self.write(codec.error(request_id, self._report(str(error) or type(error).__name__, mistake is not None)))
        if self._errors >= self._limits.errors_max or (mistake is not None and mistake.fatal):
            self._finish()

    def write(self, data: bytes) -> None:
        """Send these bytes; in one piece with everything else of this turn."""
        if self.closing:
            return
        self._output.append(data)
        if len(self._output) == 1:
            self._changed()

    def update(self, consumer: QueueConsumer, line: bytes) -> None:
        """Send a consumer's --update; while the socket is full only the latest is kept, which says all."""
        if self._held:
            self._updates[consumer] = line
        else:
            self.write(line)

    # --- actions

    def _publish(self, request: Request) -> None:
        word, _, data = request.rest.partition(b" ")
        if not word or not data:
            raise RequestError("publish takes {event} {data}")
        if len(data) > self._limits.body_bytes_max:
            raise RequestError(f"the data is larger than {self._limits.body_bytes_max} bytes")
        event = arguments.event_of(arguments.text_of(word))
        message = Message(data, codec.block_of(arguments.text_of(request.request_id), event))
        self._traffic.published += 1

        def start(answered: Done) -> None:
            def done(error: CurbstoneError | None, _first: int, _count: int) -> None:
                self._traffic.confirmed += error is None
                answered(error)

            self._broker.publish_event(event, [message], done)

        self._start(request, start, len(data))

    def _ping(self, request: Request) -> None:
        self.write(codec.ok(request.request_id, request.rest))

    def _eval(self, request: Request) -> None:
        text = eval.answer(arguments.text_of(request.rest).strip(), self._registry)
        self._work_us += 50 + 2 * len(self._broker.queues()) + self._broker.events_bound // 4
        self.write(codec.ok(request.request_id, text.encode()))

    def _consume(self, request: Request) -> None:
        wish = arguments.parse_consume(request.rest, self._limits.window_max)
        earlier = self._consumers.get(request.request_id)
        if earlier is None and len(self._consumers) >= self._limits.consumers_max:
            raise RequestError(f"a connection has at most {self._limits.consumers_max} consumers")
        before = self._bindings(wish)
        events = wish.binding.apply(before)
        unused = self._registry.unused(wish.queue)
        seconds = wish.unused.seconds if wish.unused else None
        if wish.unused and not self._registry.may_go(wish.queue):
            raise RequestError(f"queue {wish.queue} was made to stay; it can't be consumed with the wish that it goes")
        # Bound before anything else changes: that can be refused.
        self._start(request, lambda done: self._broker.occupy(wish.queue, events, seconds, done))
        self._work(wish.queue, events)
        if wish.unused or unused:
            self._registry.made(wish.queue, was_to_go=True)
        else:
            self._registry.stays(wish.queue)
        consumer = self._new_consumer(request.request_id, wish)
        changed = unused != wish.unused or events != before
        if earlier is not None:
            self.end_consumer(earlier)
        self._registry.add(consumer)
        self._consumers[consumer.id] = consumer
        if changed:
            # Who replaced the events knows them; who added some learns what they are now.
            self._registry.notify(wish.queue, events, None if wish.binding.add else consumer)

    def _new_consumer(self, consumer_id: bytes, wish: Consume) -> QueueConsumer:
        options = f" --window={wish.window}" if wish.window else ""
        options += " --manual-ack" if wish.manual_ack else ""
        consumer = QueueConsumer(consumer_id, wish.queue, options, wish.manual_ack, self, self._traffic)
        queue = self._broker.ensure(wish.queue)
        window = wish.window or self._limits.window
        engine = queue.subscribe(
            consumer.deliver,
            window=window,
            auto=not wish.manual_ack,
            on_closed=lambda error: self._lost(consumer, error),
        )
        consumer.bind(queue, engine)
        if self._held:
            engine.hold()
        return consumer

    def _has(self, name: QueueName) -> bool:
        try:
            self._broker.get(name)
        except NoSuchQueue:
            return False
        return True

    def _work(self, name: QueueName, events: frozenset[str]) -> None:
        """Count what a change of bindings costs: they are written whole, and told to all consumers."""
        self._work_us += 100 + len(events) * (1 + len(self._registry.consumers_of(name)) // 10)

    def _bindings(self, wish: Consume | arguments.Rebind) -> frozenset[str]:
        try:
            return self._broker.bindings(wish.queue)
        except NoSuchQueue:
            return frozenset()

    def _rebind(self, request: Request) -> None:
        wish = arguments.parse_rebind(request.rest)
        before = self._bindings(wish)
        if wish.binding.masks:
            self._work_us += WORK_US_MAX  # also if they are refused
        events = wish.binding.apply(before)
        is_new = not self._has(wish.queue)
        self._start(request, lambda done: self._broker.rebind(wish.queue, events, done))
        self._work(wish.queue, before | events)
        if is_new:
            self._registry.made(wish.queue, was_to_go=False)
        if events != before:
            self._registry.notify(wish.queue, events)

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
        if not seqs:  # settled before, maybe by a request that was sent again after a reconnect
            self._confirm(request)
            return
        name = consumer.queue_name
        registry = self._registry

        def start(answered: Done) -> None:
            def done(error: CurbstoneError | None) -> None:
                answered(error)
                registry.settled(name)

            settle(consumer.engine, seqs, done)
            registry.settling(name)

        self._start(request, start)

    def _delete_consumer(self, request: Request) -> None:
        consumer = self._consumer(arguments.only_word(request.rest, "consumer_id"))
        consumer.owner.end_consumer(consumer)
        self._confirm(request)

    def _delete_queue(self, request: Request) -> None:
        name = arguments.queue_of(arguments.text_of(arguments.only_word(request.rest, "queue")))
        self._registry.forget(name)

        def start(done: Done) -> None:
            self._broker.delete(name, lambda outcome: done(outcome if isinstance(outcome, CurbstoneError) else None))

        self._start(request, start)

    # --- consumers

    def _consumer(self, consumer_id: bytes) -> QueueConsumer:
        """Return the consumer of that id on this connection; raise RequestError."""
        consumer = self._consumers.get(consumer_id)
        if consumer is None:
            raise RequestError("unknown consumer")
        return consumer

    def end_consumer(self, consumer: QueueConsumer) -> None:
        """End a consumer of this connection: what is unsettled goes back to its queue."""
        if self._consumers.get(consumer.id) is consumer:
            del self._consumers[consumer.id]
        self._updates.pop(consumer, None)
        consumer.engine.close()
        self._registry.remove(consumer)

    def _lost(self, consumer: QueueConsumer, error: CurbstoneError) -> None:
        """The queue of a consumer was deleted, or the engine stopped. It can be deleted still, and gets nothing."""
        if isinstance(error, NoSuchQueue):
            self._registry.deleted(consumer)

    # --- answers that wait for the disk

    def _confirm(self, request: Request) -> None:
        if request.confirm:
            self.write(codec.ok(request.request_id))

    def _start(self, request: Request, call: Callable[[Done], object], size: int = 0) -> None:
        """Hand a request to the engine, and answer it when that calls back."""

        def answered(error: CurbstoneError | None) -> None:
            if error is not None:
                self._refuse(request.request_id, error)
            else:
                self._confirm(request)
            self._finished(size)

        call(answered)
        self._unconfirmed += 1
        self._unconfirmed_bytes += size
        limits = self._limits
        if self._unconfirmed > limits.unconfirmed_max or self._unconfirmed_bytes > limits.unconfirmed_bytes_max:
            self.congested = True

    def _finished(self, size: int) -> None:
        self._unconfirmed -= 1
        self._unconfirmed_bytes -= size
        self._look_at_room()
        if self.ending and not self._unconfirmed:
            self._close()

    def _look_at_room(self) -> None:
        """Read on where enough of what came is done."""
        limits = self._limits
        if (
            self.congested
            and not self._waiting
            and self._unconfirmed * 2 <= limits.unconfirmed_max
            and self._unconfirmed_bytes * 2 <= limits.unconfirmed_bytes_max
        ):
            self.congested = False
            self._changed()

    def _finish(self) -> None:
        """Read and deliver nothing more; end as soon as nothing is unconfirmed."""
        if self.ending:
            return
        self.ending = True
        self._waiting.clear()
        for consumer in list(self._consumers.values()):
            self.end_consumer(consumer)
        if not self._unconfirmed:
            self._close()

    def _close(self) -> None:
        self.closing = True
        self._changed()
