"""Many messages in one POST: all of them or none, one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Scope, Send

from curbstone.core.errors import BadRequest, CurbstoneError
from curbstone.core.message import Message
from curbstone.gateway.body import parse_json, read_body
from curbstone.gateway.problem import Problem
from curbstone.gateway.publication import message_of, put_body
from curbstone.gateway.queues import name_in
from curbstone.gateway.reply import reply_json
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.waiting import answer

if TYPE_CHECKING:
    from curbstone.core.broker import Broker
    from curbstone.core.queue import Queue

BATCH_MESSAGES_MAX = 10_000


class Batch:
    """The handler of `/v2/{project}/queues/{queue}/messages/batch`."""

    def __init__(self, broker: Broker, settings: GatewaySettings) -> None:
        self._broker = broker
        self._settings = settings

    async def post(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST: publish an array of messages; answered with their ids after the commit."""
        queue = self._broker.get(name_in(scope))
        items = parse_json(await read_body(scope, receive, self._settings.json_bytes_max))
        if not isinstance(items, list) or not items:
            raise BadRequest("the body must be a JSON array of messages, at least one")
        if len(items) > BATCH_MESSAGES_MAX:
            raise BadRequest(f"the batch has more than {BATCH_MESSAGES_MAX} messages")
        messages = [self._message(queue, place, item) for place, item in enumerate(items)]
        _, first, count = await answer(lambda done: queue.publish(messages, done, atomic=True))
        await reply_json(send, {"ids": [queue.message_id(seq) for seq in range(first, first + count)]}, 201)

    def _message(self, queue: Queue, place: int, item: Any) -> Message:
        if not isinstance(item, dict):
            raise BadRequest(f"message {place} of the batch is not a JSON object")
        try:
            message = message_of(item, self._settings.max_ttl_s)
            put_body(message, item, min(self._settings.max_message_size, queue.options.max_message_size))
        except CurbstoneError as error:
            raise Problem(error.status, f"message {place} of the batch: {error}") from None
        return message
