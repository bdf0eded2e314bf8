"""A WebSocket that publishes (subprotocol `publish`).

A message comes as a metadata frame (a JSON object, or an empty text frame for none) and a payload frame;
or as one JSON object with `message`; or as a lone binary frame. JSON that is none of these is refused, but for
`{"token"}`, which logs in anew. Each
message is confirmed after its commit, in the order they came, with an empty text frame or `{"id":…}`. It goes to a
queue, or to all queues that are bound to an event; then it is confirmed when all have it. Errors
close the connection once everything before them is answered; only "the queue is full" leaves it open, and of a
producer with numbers (`socket_numbers.py`) what comes too early.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from curbstone.access.rates import Brake
from curbstone.core.errors import BadRequest, CurbstoneError, NumberGap
from curbstone.core.message import Message
from curbstone.core.traffic import Traffic
from curbstone.core.values import IdempotencyKey, Numbered
from curbstone.gateway.formats.idempotency import MEMBER
from curbstone.gateway.formats.json_message import check_frame, check_size, message_of, put_body
from curbstone.gateway.http.json_body import parse_json
from curbstone.gateway.http.problem import status_of
from curbstone.gateway.limits import UNCONFIRMED_BYTES_MAX, UNCONFIRMED_MAX
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.websocket.codec import Inbound
from curbstone.gateway.websocket.login import token_in
from curbstone.gateway.websocket.session import close_for, error_frame
from curbstone.gateway.websocket.socket_numbers import MEMBERS, REPEATED, SocketNumbers, gap_frame
from curbstone.gateway.websocket.targets import Target
from curbstone.net.unconfirmed import Unconfirmed
from curbstone.net.wire import GOING_AWAY, Wire

if TYPE_CHECKING:
    from curbstone.gateway.websocket.login import SocketLogin

FULL = 507
"""The status of what a queue has no room for; the connection goes on."""


class _Batch:
    """The messages of one read, and what became of them so far."""

    __slots__ = ("left", "outcomes", "size")

    def __init__(self, count: int, size: int) -> None:
        self.left = count
        self.size = size
        self.outcomes: list[tuple[CurbstoneError | None, int, int]] = []


class PublishSession:
    """See the module's text. Implements `session.Session`."""

    subprotocol = "publish"

    def __init__(
        self,
        target: Target,
        login: SocketLogin,
        settings: GatewaySettings,
        *,
        groups: tuple[str, ...] = (),
        traffic: Traffic | None = None,
        numbers: SocketNumbers | None = None,
    ) -> None:
        """`numbers`: those of a producer."""
        self._target = target
        self._numbers = numbers
        self._members = (MEMBER,) if numbers is None else MEMBERS
        self._login = login
        self._traffic = traffic or Traffic()
        self._settings = settings
        self._groups = groups
        self._pending: Message | None = None
        self._keys: dict[int, str] = {}
        """Idempotency keys, by the `id` of messages that are not published yet."""
        self._batches: deque[_Batch] = deque()
        self._unconfirmed = Unconfirmed(UNCONFIRMED_MAX, UNCONFIRMED_BYTES_MAX)
        self._brake = Brake("websocket", self._released)
        self._kept: list[Inbound] = []
        """Frames that wait until the user has paid for what it sent before."""
        self._failure: tuple[int, str] | None = None
        self._is_held = False
        self._is_closed = False
        self._bytes_max = 0

    @property
    def expires_ms(self) -> int:
        """See `Session.expires_ms`."""
        return self._login.access.identity.expires_ms

    def start(self, wire: Wire) -> None:
        """See `Session.start`."""
        self._wire = wire
        self._login.begin(self._end)
        if self._numbers is not None:
            wire.send(self._numbers.begin(self._end))
        # Tells also of the queue's end, which a producer that is silent would not hear of otherwise.
        self._unwatch = self._target.watch(self._look)

    def receive(self, messages: list[Inbound]) -> None:
        """Publish the messages of one read in one call."""
        if self._failure or self._is_closed:
            return
        meter = self._login.meter
        if meter is not None and self._brake.stops(meter):
            self._kept += messages
            self._wire.hold()
            return
        self._bytes_max = min(self._settings.max_message_size, self._target.bytes_max)
        batch: list[Message] = []
        size = 0
        for is_text, data in messages:
            try:
                message = self._take(is_text, data)
            except CurbstoneError as error:
                self._failure = (status_of(error), str(error))
                break
            if message is not None:
                batch.append(message)
                size += len(message.body)
        if meter is not None:
            meter.count(len(batch), size + sum([len(message.headers) for message in batch]))
        if batch and self._numbers is not None:
            self._publish_numbered(batch, self._numbers)
        elif batch and self._keys:
            self._publish_in_parts(batch)
        elif batch:
            self._publish(batch, size)
        if self._failure:
            self._finish()

    def _released(self) -> None:
        """The user has paid for what it sent before."""
        kept, self._kept = self._kept, []
        self.receive(kept)
        self._read_on()

    def _read_on(self) -> None:
        """Read on, unless something is against it."""
        if not (self._is_held or self._unconfirmed.is_too_much or self._brake.is_on):
            self._wire.resume()

    def _take(self, is_text: bool, data: bytes) -> Message | None:
        """Return the message a frame completes, None if its payload is still to come."""
        message = self._pending
        if message is None:
            if not is_text:
                message = Message(b"", groups=self._groups)
            elif not data:
                self._pending = Message(b"", groups=self._groups)
                return None
            else:
                return self._take_object(data)
        self._pending = None
        check_size(data, self._bytes_max)
        message.body = data
        return message

    def _take_object(self, text: bytes) -> Message | None:
        try:
            fields: Any = parse_json(text)
        except BadRequest:
            fields = None
        if not isinstance(fields, dict):
            raise BadRequest("Payload must be binary or a JSON object.")
        if token := token_in(fields):
            self._login.renew(token, self._wire)
            return None
        check_frame(fields, self._members)
        message = message_of(fields, self._settings.max_ttl_s, self._groups)
        if self._numbers is not None:
            self._numbers.note(message, fields)
        elif MEMBER in fields:
            key = fields[MEMBER]
            if not isinstance(key, str):
                raise BadRequest(f"bad {MEMBER}: it must be a string")
            self._keys[id(message)] = key
        if "message" not in fields:
            self._pending = message
            return None
        put_body(message, fields, self._bytes_max)
        return message

    def _publish_in_parts(self, messages: list[Message]) -> None:
        """Publish messages in order: each that has a key by itself, the others with their neighbours."""
        plain: list[Message] = []
        for message in messages:
            key = self._keys.pop(id(message), None)
            if key is None:
                plain.append(message)
                continue
            try:
                once = self._target.once(key, message)
            except CurbstoneError as error:
                self._failure = (status_of(error), str(error))
                break
            if plain:
                self._publish(plain, sum([len(each.body) for each in plain]))
                plain = []
            self._publish([message], len(message.body), once)
        if plain:
            self._publish(plain, sum([len(each.body) for each in plain]))

    def _publish_numbered(self, messages: list[Message], numbers: SocketNumbers) -> None:
        """Publish messages in order, those with numbers in a row together."""
        try:
            for run, numbered in numbers.runs(messages):
                self._publish(run, sum([len(each.body) for each in run]), numbered=numbered)
        except CurbstoneError as error:
            self._failure = (status_of(error), str(error))

    def _publish(
        self,
        messages: list[Message],
        size: int,
        key: IdempotencyKey | None = None,
        numbered: Numbered | None = None,
    ) -> None:
        batch = _Batch(len(messages), size)
        self._batches.append(batch)
        self._unconfirmed.add(len(messages), size)
        self._traffic.published += len(messages)
        if self._unconfirmed.is_too_much:
            self._wire.hold()

        def on_done(error: CurbstoneError | None, first_seq: int, count: int) -> None:
            batch.outcomes.append((error, first_seq, count))
            batch.left -= count
            self._settle()

        self._target.publish(messages, on_done, key=key, numbered=numbered)

    def _settle(self) -> None:
        """Answer what is known, from the first message on: a refusal must not overtake a confirm."""
        if self._is_closed:
            return
        may_go_on = False
        while self._batches:
            batch = self._batches[0]
            for error, first_seq, count in batch.outcomes:
                may_go_on |= self._unconfirmed.remove(count, 0)
                if not self._answer(error, first_seq, count):
                    return
            batch.outcomes.clear()
            if batch.left:
                break
            may_go_on |= self._unconfirmed.remove(0, batch.size)
            self._batches.popleft()
        if may_go_on:
            self._read_on()
        if self._failure:
            self._finish()

    def _answer(self, error: CurbstoneError | None, first_seq: int, count: int) -> bool:
        """Confirm or refuse `count` messages; return whether the connection goes on."""
        if error is None:
            self._traffic.confirmed += count
            is_repeat = self._numbers is not None and not first_seq
            self._wire.send(REPEATED * count if is_repeat else self._target.confirms(first_seq, count))
            return True
        self._traffic.refuse(error)
        if self._numbers is not None and isinstance(error, NumberGap):
            self._wire.send(gap_frame(error) * count)
            return True
        status = status_of(error)
        is_full = status == FULL
        self._wire.send(error_frame(status, str(error)) * (count if is_full else 1))
        if not is_full:
            close_for(self._wire, status, str(error))
        return is_full

    def _finish(self) -> None:
        """Close for the failure, once everything before it is answered."""
        assert self._failure
        if self._batches or self._is_closed:
            return
        status, text = self._failure
        if status == GOING_AWAY:
            self._wire.close(GOING_AWAY, text)
            return
        self._wire.send(error_frame(status, text))
        close_for(self._wire, status, text)

    def _end(self, error: CurbstoneError) -> None:
        self._fail(status_of(error), str(error))

    def _fail(self, status: int, text: str) -> None:
        if not self._failure:
            self._failure = (status, text)
            self._finish()

    def too_big(self) -> None:
        """See `Session.too_big`."""
        self._fail(413, f"the message is larger than {self._settings.max_message_size} bytes")

    def refuse(self, status: int, reason: str) -> None:
        """See `Session.refuse`."""
        self._fail(status, reason)

    def _look(self) -> None:
        if ended := self._target.ended:
            self._fail(404, ended)

    def reading(self, on: bool) -> None:
        """See `Session.reading`: nothing here has a deadline."""

    def stop(self) -> None:
        """Take no more, answer what was taken, close."""
        self._fail(GOING_AWAY, "the server is stopping")

    def hold(self) -> None:
        """The peer does not read its confirms: read no more messages."""
        self._is_held = True
        self._wire.hold()

    def resume(self) -> None:
        """See `Session.resume`."""
        self._is_held = False
        self._read_on()

    def closed(self) -> None:
        """See `Session.closed`; what was taken is still published, nobody hears of it."""
        self._is_closed = True
        self._brake.close()
        self._login.leave()
        if self._numbers is not None:
            self._numbers.leave()
        self._batches.clear()
        self._unwatch()
