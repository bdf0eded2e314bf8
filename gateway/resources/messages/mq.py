"""The façade of SoftLayer's MQ, under `/mq`: six endpoints for the queues of the client's home project.

Fetching a message leases it for `--mq-delay`; unless it is deleted in that time, it returns to its place. A message is
deleted by its id, whatever its state. The ids are the engine's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from curbstone.access.rights import Right
from curbstone.core.errors import NoSuchQueue, QueueFull
from curbstone.core.message import Message
from curbstone.core.names import QueueName, queue_name
from curbstone.core.orders import orders_in
from curbstone.core.traffic import Traffic
from curbstone.gateway.formats.metadata import block_of_http, http_headers
from curbstone.gateway.formats.producer_headers import DUPLICATE
from curbstone.gateway.http.body import read_body
from curbstone.gateway.http.callbacks import answer
from curbstone.gateway.http.client_disconnect import is_gone
from curbstone.gateway.http.login import access_of, caller_of
from curbstone.gateway.http.origin_policy import OriginPolicy
from curbstone.gateway.http.problem import ClientGone, Problem
from curbstone.gateway.http.resource import Resource
from curbstone.gateway.http.responses import MessageResponse
from curbstone.gateway.resources.messages.publishing import metered
from curbstone.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from curbstone.core.values import Lease

_FETCH_ALLOW = (b"allow", b"GET, POST, OPTIONS")


def mq_routes(settings: GatewaySettings, origins: OriginPolicy, delay_s: float, traffic: Traffic) -> list[Route]:
    """Return the routes of the façade; `delay_s` is the duration of the leases."""
    mq = _Mq(settings, origins, max(round(delay_s * 1000), 1), traffic)
    return [
        Route("/mq/{queue}/messages", Resource(GET=mq.fetch, POST=mq.add)),
        Route("/mq/{queue}/messages/{message_id}", Resource(DELETE=mq.remove)),
        Route("/mq/{queue}", Resource(GET=mq.find, PUT=mq.create, DELETE=mq.delete)),
    ]


class _Mq:
    """The handlers."""

    def __init__(self, settings: GatewaySettings, origins: OriginPolicy, delay_ms: int, traffic: Traffic) -> None:
        self._settings = settings
        self._delay_ms = delay_ms
        self._origins = origins
        self._traffic = traffic

    async def find(self, request: Request) -> Response:
        """GET a queue: whether it exists."""
        access_of(request).find(_name_in(request))
        return Response(status_code=200)

    async def create(self, request: Request) -> Response:
        """PUT a queue; its body is ignored."""
        name = _name_in(request)
        await answer(lambda done: access_of(request).declare(name, {}, done))
        return Response(status_code=201)

    async def delete(self, request: Request) -> Response:
        """DELETE a queue with all its messages, including fetched ones; the same reply if there is none."""
        name = _name_in(request)
        await answer(lambda done: access_of(request).delete(name, done))
        return Response(status_code=200)

    async def add(self, request: Request) -> Response:
        """POST a message; answered after the commit."""
        queue = access_of(request).queue(_name_in(request), Right.SEND)
        meter = metered(request)
        block = block_of_http(tuple(request["fields"].of_message))
        bytes_max = min(self._settings.max_message_size, queue.options.max_message_size)
        message = Message(await read_body(request, request.receive, bytes_max), block, orders_in(block))
        if meter is not None:
            meter.count(1, len(message.body) + len(block))
        access_of(request).check_batches(queue.name, [message])
        self._traffic.published += 1
        try:
            _, seq, _ = await answer(lambda done: queue.publish([message], done))
        except QueueFull as error:
            raise Problem(503, str(error)) from None  # MQ's clients try again after this status
        self._traffic.confirmed += 1
        headers = {"x-message-id": queue.message_id(seq)}
        return Response(
            status_code=201, headers=headers | {DUPLICATE.decode(): "1"} if message.is_duplicate else headers
        )

    async def fetch(self, request: Request) -> Response:
        """GET a message: no other client gets it for `--mq-delay`; then it is requeued, unless it was deleted."""
        if request.method == "HEAD":
            raise Problem(
                405,
                "HEAD is not allowed here, because a fetch hides the message for a while",
                (_FETCH_ALLOW,),
            )
        self._origins.check_page(request)
        try:
            queue = access_of(request).queue(_name_in(request), Right.RECEIVE)
        except NoSuchQueue:
            return Response(status_code=204)
        leases: list[Lease]
        (leases,) = await answer(
            lambda done: access_of(request).lease(queue, 1, self._delay_ms, done, caller_of(request, "mq"))
        )
        if is_gone(request):
            queue.give_back(leases)
            raise ClientGone
        if not leases:
            return Response(status_code=204)
        self._traffic.deliver([leases[0].delivery])
        message = leases[0].delivery.message
        fields = [*http_headers(message.headers), (b"x-message-id", queue.message_id(message.seq).encode())]
        return MessageResponse(fields, message.body)

    async def remove(self, request: Request) -> Response:
        """DELETE a message, whatever its state; the same reply if no message has this id."""
        name = _name_in(request)
        try:
            queue = access_of(request).queue(name, Right.RECEIVE)
            seq = queue.parse_id(request.path_params["message_id"])
            if seq is not None:
                _, was_there = await answer(lambda done: access_of(request).settle_by_id(queue, seq, done))
                self._traffic.acked += was_there
        except NoSuchQueue:
            pass
        return Response(status_code=202)


def _name_in(request: Request) -> QueueName:
    return queue_name(request.path_params["queue"], access_of(request).home)
