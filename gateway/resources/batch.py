"""Many messages in one POST: all of them or none, one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Scope, Send

from curbstone.core.errors import BadRequest, CurbstoneError
from curbstone.core.message import Message
from curbstone.core.traffic import Traffic
from curbstone.gateway.formats import cloud_events
from curbstone.gateway.formats.idempotency import key_of
from curbstone.gateway.formats.json_message import check_message, event_message, message_of, put_body
from curbstone.gateway.http.body import read_body
from curbstone.gateway.http.json_body import parse_json
from curbstone.gateway.http.long_poll import answer
from curbstone.gateway.http.problem import Problem, status_of
from curbstone.gateway.http.reply import reply_json
from curbstone.gateway.resources.queues import name_in
from curbstone.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from curbstone.core.port import Broker, Queue

BATCH_MESSAGES_MAX = 10_000


class Batch:
    """The handler of `/v2/{project}/queues/{queue}/messages/batch`."""

    def __init__(self, broker: Broker, settings: GatewaySettings, traffic: Traffic) -> None:
        self._broker = broker
        self._settings = settings
        self._traffic = traffic

    async def post(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST: publish an array of messages; answered with their ids after the commit."""
        queue = self._broker.get(name_in(scope))
        text = await read_body(scope, receive, self._settings.json_bytes_max)
        of_events = cloud_events.mode_of(tuple(scope["headers"])) == cloud_events.BATCH
        items = cloud_events.parse(text) if of_events else parse_json(text)
        if not isinstance(items, list) or not items:
            raise BadRequest("the body must be a JSON array of messages, at least one")
        if len(items) > BATCH_MESSAGES_MAX:
            raise BadRequest(f"the batch has more than {BATCH_MESSAGES_MAX} messages")
        messages = [self._message(queue, place, item, of_events) for place, item in enumerate(items)]
        self._traffic.published += len(messages)
        key = key_of(scope["headers"], messages)
        _, first, count = await answer(lambda done: queue.publish(messages, done, atomic=True, key=key))
        self._traffic.confirmed += count
        await reply_json(send, {"ids": [queue.message_id(seq) for seq in range(first, first + count)]}, 201)

    def _message(self, queue: Queue, place: int, item: Any, is_event: bool) -> Message:
        bytes_max = min(self._settings.max_message_size, queue.options.max_message_size)
        if not isinstance(item, dict):
            raise BadRequest(f"message {place} of the batch is not a JSON object")
        try:
            if is_event:
                return event_message(item, bytes_max)
            check_message(item)
            message = message_of(item, self._settings.max_ttl_s)
            put_body(message, item, bytes_max)
        except CurbstoneError as error:
            raise Problem(status_of(error), f"message {place} of the batch: {error}") from None
        return message
