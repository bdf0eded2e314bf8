"""A WebSocket that publishes to a queue or an event (subprotocol `publish`).

A message is a metadata frame (a JSON object, or an empty text frame for none) and a payload frame, or one JSON object
with `message`, or a single binary frame. `{"token"}` logs in again.

Messages are answered in their order: after the commit by an empty text frame or `{"id":…}`, or by an error instead. A
message to an event is confirmed when all bound queues have it. Messages after a refused one are stored and confirmed as
usual, but see `producer_sequence.py` for a numbered producer.

After all earlier messages are answered, the connection is closed if a frame is not part of a message, because the start
of the next message is then unknown, or if the destination or the right to it is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from curbstone.access.errors import NotAllowed, NotLoggedIn
from curbstone.core.errors import BadRequest, CurbstoneError, NoSuchQueue, NumberGap
from curbstone.core.message import Message
from curbstone.core.orders import orders_of
from curbstone.core.traffic import Traffic
from curbstone.gateway.formats.idempotency import MEMBER
from curbstone.gateway.formats.json_message import check_message, check_metadata, check_size, message_of, put_body
from curbstone.gateway.http.json_body import parse_json
from curbstone.gateway.http.problem import status_of
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.websocket.codec import Inbound
from curbstone.gateway.websocket.login import token_in
from curbstone.gateway.websocket.ordered_confirms import Batch, OrderedConfirms
from curbstone.gateway.websocket.producer_sequence import MEMBERS, REPEATED, ProducerSequence, gap_frame
from curbstone.gateway.websocket.publish_targets import Target
from curbstone.gateway.websocket.session import close_for, error_frame
from curbstone.net.websocket_port import GOING_AWAY, WebSocketPort

if TYPE_CHECKING:
    from curbstone.gateway.websocket.login import SocketLogin

_FINAL = (NoSuchQueue, NotAllowed, NotLoggedIn)
"""Refusals after which no message of this connection can be stored."""


class _NotAMessage(Exception):
    """A frame is not part of a message, so the frames after it can't be read."""


class PublishSession:
    """Publishes what the client sends; see the module's docstring. Implements `session.Session`."""

    subprotocol = "publish"
    delivers = False

    def __init__(
        self,
        target: Target,
        login: SocketLogin,
        settings: GatewaySettings,
        *,
        groups: tuple[str, ...] = (),
        traffic: Traffic | None = None,
        numbers: ProducerSequence | None = None,
    ) -> None:
        """`numbers` is given if the client is a numbered producer."""
        self._target = target
        self._numbers = numbers
        self._members = (MEMBER,) if numbers is None else MEMBERS
        self._login = login
        self._traffic = traffic or Traffic()
        self._settings = settings
        self._groups = groups
        self._metadata: dict[str, Any] | None = None
        """The metadata frame of a message whose payload frame has not arrived yet."""
        self._keys: dict[int, str] = {}
        """Idempotency keys, by the `id` of messages that are not published yet."""
        self._confirms = OrderedConfirms(self._traffic, self._answer)
        self._bytes_max = 0

    @property
    def expires_ms(self) -> int:
        return self._login.access.identity.expires_ms

    def start(self, wire: WebSocketPort) -> None:
        self._wire = wire
        self._confirms.begin(wire, self.receive)
        self._login.begin(self._end)
        if self._numbers is not None:
            wire.send(self._numbers.begin(self._end))
        # The watch also notifies when the queue is deleted, which a silent producer would not notice otherwise.
        self._unwatch = self._target.watch(self._check)

    def receive(self, messages: list[Inbound]) -> None:
        """Publish the messages of one read with one call, if possible."""
        if not self._confirms.takes_more:
            return
        meter = self._login.meter
        if meter is not None and self._confirms.keep(messages, meter):
            return
        self._bytes_max = min(self._settings.max_message_size, self._target.bytes_max)
        batch: list[Message] = []
        for is_text, data in messages:
            fields = self._metadata
            try:
                if fields is None and is_text:
                    fields = self._fields(data)
                    if fields is None:
                        continue
                message = self._message(fields or {}, data)
            except _NotAMessage as error:
                self._publish(batch)
                self._confirms.end(400, str(error))
                return
            except CurbstoneError as error:
                self._publish(batch)
                batch = []
                self._refuse(fields or {}, len(data), error)
            else:
                batch.append(message)
            self._metadata = None
        self._publish(batch)

    def _fields(self, text: bytes) -> dict[str, Any] | None:
        """Return the JSON object of a complete message in a text frame; None for a metadata frame or another frame."""
        if not text:
            self._metadata = {}
            return None
        try:
            fields: Any = parse_json(text)
        except BadRequest:
            fields = None
        if not isinstance(fields, dict):
            raise _NotAMessage("Payload must be binary or a JSON object.")
        if token := token_in(fields):
            self._login.renew(token, self._wire)
            return None
        if "message" in fields:
            return fields
        try:
            check_metadata(fields, self._members)
        except BadRequest as error:
            raise _NotAMessage(str(error)) from None
        self._metadata = fields
        return None

    def _message(self, fields: dict[str, Any], data: bytes) -> Message:
        """Return the message with these metadata; its body is in them or in `data`. Raise an error that refuses it."""
        if not fields:
            check_size(data, self._bytes_max)
            return Message(data, orders=orders_of(groups=self._groups))
        message = message_of(fields, self._settings.max_ttl_s, self._groups)
        if self._metadata is None:
            check_message(fields, self._members)
            put_body(message, fields, self._bytes_max)
        else:
            check_size(data, self._bytes_max)
            message.body = data
        if self._numbers is not None:
            self._numbers.note(message, fields)
        elif MEMBER in fields:
            key = fields[MEMBER]
            if not isinstance(key, str):
                raise BadRequest(f"bad {MEMBER}: it must be a string")
            self._keys[id(message)] = key
        return message

    def _refuse(self, fields: dict[str, Any], size: int, error: CurbstoneError) -> None:
        """Refuse a message, which is not published, in its turn."""
        if self._numbers is not None:
            self._numbers.skip(fields)
        self._confirms.refuse("", size, error)

    def _publish(self, batch: list[Message]) -> None:
        if not batch:
            return
        size = _size(batch)
        meter = self._login.meter
        if meter is not None:
            meter.count(len(batch), size + sum([len(message.headers) for message in batch]))
        if self._numbers is not None:
            self._publish_numbered(batch, self._numbers)
        elif self._keys:
            self._publish_in_parts(batch)
        else:
            self._confirms.publish(self._target, batch, size)

    def _publish_in_parts(self, messages: list[Message]) -> None:
        """Publish messages in order: each one with a key by itself, and the others between them together."""
        plain: list[Message] = []
        for message in messages:
            key = self._keys.pop(id(message), None)
            if key is None:
                plain.append(message)
                continue
            if plain:
                self._confirms.publish(self._target, plain, _size(plain))
                plain = []
            try:
                once = self._target.once(key, message)
            except CurbstoneError as error:
                self._confirms.refuse("", len(message.body), error)
            else:
                self._confirms.publish(self._target, [message], len(message.body), key=once)
        if plain:
            self._confirms.publish(self._target, plain, _size(plain))

    def _publish_numbered(self, messages: list[Message], numbers: ProducerSequence) -> None:
        """Publish messages in order, those with consecutive numbers together."""
        for run, numbered in numbers.runs(messages):
            if isinstance(numbered, CurbstoneError):
                self._confirms.refuse("", _size(run), numbered)
            else:
                self._confirms.publish(self._target, run, _size(run), numbered=numbered)

    def _answer(self, _batch: Batch, error: CurbstoneError | None, first_seq: int, count: int) -> bool:
        """Confirm or refuse `count` messages; return whether the connection continues."""
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
        is_final = isinstance(error, _FINAL)
        self._wire.send(error_frame(status, str(error)) * (1 if is_final else count))
        if is_final:
            close_for(self._wire, status, str(error))
        return not is_final

    def _end(self, error: CurbstoneError) -> None:
        self._confirms.end(status_of(error), str(error))

    def too_big(self) -> None:
        self._confirms.end(413, f"the message is larger than {self._settings.max_message_size} bytes")

    def refuse(self, status: int, reason: str) -> None:
        self._confirms.end(status, reason)

    def _check(self) -> None:
        if ended := self._target.ended:
            self._confirms.end(404, ended)

    def reading(self, on: bool) -> None:
        """See `Session.reading`: nothing here has a deadline."""

    def stop(self) -> None:
        """Take no more messages, answer those that were taken, and close."""
        self._confirms.end(GOING_AWAY, "the server is stopping")

    def pause(self) -> None:
        """Stop reading messages: the peer does not read its confirms."""
        self._confirms.pause()

    def resume(self) -> None:
        self._confirms.resume()

    def closed(self) -> None:
        """See `Session.closed`. Messages that were taken are still published, but not confirmed."""
        self._confirms.close()
        self._login.leave()
        if self._numbers is not None:
            self._numbers.leave()
        self._unwatch()


def _size(messages: list[Message]) -> int:
    return sum([len(message.body) for message in messages])
