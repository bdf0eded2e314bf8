"""A WebSocket that publishes to a queue or an event (subprotocol `publish`).

A message comes as a metadata frame (a JSON object, or an empty text frame for none) and a payload frame, or as one JSON
object with `message`, or as a single binary frame. All other JSON is refused, except `{"token"}`, which logs in again.

Each message is confirmed after its commit, in the order the messages came, with an empty text frame or `{"id":…}`. A
message to an event is confirmed when all queues that are bound to the event have it. An error closes the connection
after everything before it is answered. Only two errors leave it open: "the queue is full", and for a numbered producer
(`socket_numbers.py`) that a message comes too early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from curbstone.core.errors import BadRequest, CurbstoneError, NumberGap
from curbstone.core.message import Message
from curbstone.core.traffic import Traffic
from curbstone.gateway.formats.idempotency import MEMBER
from curbstone.gateway.formats.json_message import check_frame, check_size, message_of, put_body
from curbstone.gateway.http.json_body import parse_json
from curbstone.gateway.http.problem import status_of
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.websocket.codec import Inbound
from curbstone.gateway.websocket.login import token_in
from curbstone.gateway.websocket.session import close_for, error_frame
from curbstone.gateway.websocket.socket_numbers import MEMBERS, REPEATED, SocketNumbers, gap_frame
from curbstone.gateway.websocket.targets import Target
from curbstone.gateway.websocket.unanswered import Batch, Unanswered
from curbstone.net.wire import GOING_AWAY, Wire

if TYPE_CHECKING:
    from curbstone.gateway.websocket.login import SocketLogin

FULL = 507
"""The status of "the queue is full", after which the connection goes on."""


class PublishSession:
    """Publishes what the client sends; see the module's docstring. Implements `session.Session`."""

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
        """`numbers` is given if the client is a numbered producer."""
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
        self._unanswered = Unanswered(self._traffic, self._answer)
        self._bytes_max = 0

    @property
    def expires_ms(self) -> int:
        """See `Session.expires_ms`."""
        return self._login.access.identity.expires_ms

    def start(self, wire: Wire) -> None:
        """See `Session.start`."""
        self._wire = wire
        self._unanswered.begin(wire, self.receive)
        self._login.begin(self._end)
        if self._numbers is not None:
            wire.send(self._numbers.begin(self._end))
        # The watch also tells when the queue is deleted, which a silent producer would not notice otherwise.
        self._unwatch = self._target.watch(self._look)

    def receive(self, messages: list[Inbound]) -> None:
        """Publish the messages of one read with one call, if possible."""
        if not self._unanswered.takes_more:
            return
        meter = self._login.meter
        if meter is not None and self._unanswered.keep(messages, meter):
            return
        self._bytes_max = min(self._settings.max_message_size, self._target.bytes_max)
        batch: list[Message] = []
        size = 0
        failure: CurbstoneError | None = None
        for is_text, data in messages:
            try:
                message = self._take(is_text, data)
            except CurbstoneError as error:
                failure = error
                break
            if message is not None:
                batch.append(message)
                size += len(message.body)
        if meter is not None:
            meter.count(len(batch), size + sum([len(message.headers) for message in batch]))
        if batch and self._numbers is not None:
            failure = self._publish_numbered(batch, self._numbers) or failure
        elif batch and self._keys:
            failure = self._publish_in_parts(batch) or failure
        elif batch:
            self._unanswered.publish(self._target, batch, size)
        if failure is not None:
            self._end(failure)

    def _take(self, is_text: bool, data: bytes) -> Message | None:
        """Return the message that a frame completes; None if its payload is still to come."""
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

    def _publish_in_parts(self, messages: list[Message]) -> CurbstoneError | None:
        """Publish messages in order: each one with a key by itself, and the others between them together.

        Return the error of a bad key; nothing after it is published.
        """
        plain: list[Message] = []
        failure: CurbstoneError | None = None
        for message in messages:
            key = self._keys.pop(id(message), None)
            if key is None:
                plain.append(message)
                continue
            try:
                once = self._target.once(key, message)
            except CurbstoneError as error:
                failure = error
                break
            if plain:
                self._unanswered.publish(self._target, plain, _size(plain))
                plain = []
            self._unanswered.publish(self._target, [message], len(message.body), key=once)
        if plain:
            self._unanswered.publish(self._target, plain, _size(plain))
        return failure

    def _publish_numbered(self, messages: list[Message], numbers: SocketNumbers) -> CurbstoneError | None:
        """Publish messages in order, those with consecutive numbers together; return the error of a bad number."""
        try:
            for run, numbered in numbers.runs(messages):
                self._unanswered.publish(self._target, run, _size(run), numbered=numbered)
        except CurbstoneError as error:
            return error
        return None

    def _answer(self, _batch: Batch, error: CurbstoneError | None, first_seq: int, count: int) -> bool:
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

    def _end(self, error: CurbstoneError) -> None:
        self._unanswered.end(status_of(error), str(error))

    def too_big(self) -> None:
        """See `Session.too_big`."""
        self._unanswered.end(413, f"the message is larger than {self._settings.max_message_size} bytes")

    def refuse(self, status: int, reason: str) -> None:
        """See `Session.refuse`."""
        self._unanswered.end(status, reason)

    def _look(self) -> None:
        if ended := self._target.ended:
            self._unanswered.end(404, ended)

    def reading(self, on: bool) -> None:
        """See `Session.reading`: nothing here has a deadline."""

    def stop(self) -> None:
        """Take no more messages, answer those that were taken, and close."""
        self._unanswered.end(GOING_AWAY, "the server is stopping")

    def hold(self) -> None:
        """Stop reading messages: the peer does not read its confirms."""
        self._unanswered.hold()

    def resume(self) -> None:
        """See `Session.resume`."""
        self._unanswered.resume()

    def closed(self) -> None:
        """See `Session.closed`. Messages that were taken are still published, but not confirmed."""
        self._unanswered.close()
        self._login.leave()
        if self._numbers is not None:
            self._numbers.leave()
        self._unwatch()


def _size(messages: list[Message]) -> int:
    return sum([len(message.body) for message in messages])
