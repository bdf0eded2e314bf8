"""Many messages in one POST: all of them are stored or none, in one commit."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from curbstone.access.rights import Right
from curbstone.core.traffic import Traffic
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.responses import reply_json
from curbstone.gateway.resources.messages.incoming import read_batch
from curbstone.gateway.resources.messages.publishing import publish
from curbstone.gateway.resources.queues.queues import name_in
from curbstone.gateway.settings import GatewaySettings


class Batch:
    """The handler of `/v2/{project}/queues/{queue}/messages/batch`."""

    def __init__(self, settings: GatewaySettings, traffic: Traffic) -> None:
        self._settings = settings
        self._traffic = traffic

    async def post(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST: publish an array of messages; answered with their ids after the commit."""
        queue = access_of(scope).queue(name_in(scope), Right.SEND)
        bytes_max = min(self._settings.max_message_size, queue.options.max_message_size)
        messages = await read_batch(scope, receive, self._settings, bytes_max)
        self._traffic.published += len(messages)
        stored = await publish(queue, scope, messages, atomic=True)
        self._traffic.confirmed += len(messages)
        await reply_json(send, {"ids": stored.ids}, 201, stored.headers)
