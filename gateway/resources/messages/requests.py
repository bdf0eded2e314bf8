"""Request and reply in one call: publishes a message with a reply address, and waits for the reply.

The address is that of a private queue, which is created for the call and deleted after it. It has the form of STOMP's
`reply-to`, because most workers speak STOMP. A worker that has only HTTP replies at `/v2/replies/{id}`.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from curbstone.access.rights import Right
from curbstone.core import headers
from curbstone.core.errors import BadRequest
from curbstone.core.message import Delivery, Message
from curbstone.core.names import QueueName, reply_address, reply_queue
from curbstone.core.orders import changed
from curbstone.core.traffic import Traffic
from curbstone.gateway.formats.metadata import http_headers
from curbstone.gateway.formats.parameters import query_of, wait_ms
from curbstone.gateway.http.callbacks import answers_for
from curbstone.gateway.http.client_disconnect import is_wanted
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.long_poll import Polls, held_by
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.http.responses import MessageResponse
from curbstone.gateway.limits import WAIT_S_MAX
from curbstone.gateway.resources.messages.publishing import read_message
from curbstone.gateway.resources.queues.queues import name_in
from curbstone.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.core.values import Published

ANSWERS_MAX = 4
ANSWERS_BYTES_MIN = 1024 * 1024
"""A queue for replies has room for a few of the largest replies, and for at least this many bytes. Only the first reply
is read."""


class Requests:
    """The handlers of `/v2/{project}/queues/{queue}/request` and of `/v2/replies/{id}`."""

    def __init__(self, settings: GatewaySettings, polls: Polls, traffic: Traffic) -> None:
        self._settings = settings
        self._polls = polls
        self._traffic = traffic

    async def post(self, request: Request) -> Response:
        """POST: publish the body and wait for the reply; 204 if none arrives in time."""
        access = access_of(request)
        queue = access.queue(name_in(request), Right.SEND)
        longest_ms = wait_ms(query_of(request).get("wait", WAIT_S_MAX))
        bytes_max = min(self._settings.max_message_size, queue.options.max_message_size)
        message = await read_message(request, request.receive, self._settings, bytes_max)
        box = reply_queue(secrets.token_urlsafe(16))
        if message.orders is not None and message.orders.named:
            raise BadRequest("a request can't have a unique name, or replace another one: its answer is for one client")
        access.check_batches(queue.name, [message])
        message.headers += headers.encode([("reply-to", reply_address(box))])
        if not message.ttl_ms:  # so that the request expires when its client stops waiting
            message.orders = changed(message.orders, ttl_ms=max(longest_ms, 1))
        answers = access.private(
            box, {"cap": max(ANSWERS_BYTES_MIN, ANSWERS_MAX * self._settings.max_message_size)}, lambda _error: None
        )
        try:
            self._traffic.published += 1
            ((seq, _),) = await answers_for(1, lambda done: queue.publish([message], done))
            self._traffic.confirmed += 1
            delivery: Delivery | None = await self._polls.poll(
                lambda done: answers.pop(done, wait_ms=longest_ms, is_wanted=is_wanted(request)),
                request.receive,
                held_by(access, queue.name, Right.SEND),
            )
        finally:
            access.drop_private([box])
        if delivery is None:
            return Response(status_code=204)
        self._traffic.deliver([delivery])
        fields = [*http_headers(delivery.message.headers), (b"x-msg-id", queue.message_id(seq).encode())]
        return MessageResponse(fields, delivery.message.body)

    async def answer(self, request: Request) -> Response:
        """POST: reply to a request. Every user who has its address may."""
        message = await read_message(request, request.receive, self._settings, self._settings.max_message_size)
        box = reply_queue(request.path_params["id"])
        if not await _deliver_answer(access_of(request), box, message):
            raise Problem(404, "no request waits for this answer")
        return Response(status_code=204)


async def _deliver_answer(access: AuthorizedBroker, box: QueueName, message: Message) -> bool:
    """Send a reply to the waiting client; return False if none waits."""
    waits = True

    def start(done: Published) -> None:
        nonlocal waits
        waits = access.reply(box, [message], done)
        if not waits:
            done(None, 0, 1)

    await answers_for(1, start)
    return waits
