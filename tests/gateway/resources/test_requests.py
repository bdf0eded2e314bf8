"""Request and reply in one call over HTTP."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.kit.gateway import MESSAGES, QUEUE, Running
from tests.kit.server import ServerProcess
from tests.stomp.harness import SUB
from tests.stomp.raw import Raw, encode

pytestmark = pytest.mark.anyio


async def test_request_gets_the_first_reply_and_leaves_nothing(gateway: Running) -> None:
    asking = asyncio.create_task(gateway.http.post(QUEUE + "/request", content=b"price?"))
    request = await gateway.http.delete(MESSAGES + "?wait=30")
    assert request.content == b"price?"
    address = request.headers["x-msg-x-reply-to"]
    assert address.startswith("/reply-queue/")
    path = f"/v2/replies/{address.rpartition('/')[2]}"
    headers = {"content-type": "text/plain", "x-msg-x-from": "me"}
    assert (await gateway.http.post(path, content=b"12", headers=headers)).status_code == 204
    reply = await asking
    assert (reply.status_code, reply.content, reply.headers["content-type"]) == (200, b"12", "text/plain")
    assert (reply.headers["x-msg-x-from"], reply.headers["x-msg-id"]) == ("me", request.headers["x-msg-id"])
    assert (await gateway.http.post(path, content=b"again")).status_code == 404
    async with asyncio.timeout(60):
        while gateway.broker.private_queues():
            await gateway.http.get("/healthz")


async def test_unanswered_request_is_204_and_expires(gateway: Running) -> None:
    reply = await gateway.http.post(QUEUE + "/request?wait=0.01", content=b"x")
    assert (reply.status_code, reply.content) == (204, b"")
    async with asyncio.timeout(60):
        while await gateway.counts() != (0, 0, 0) or gateway.broker.private_queues():
            pass
    kept = await gateway.http.post(QUEUE + "/request?wait=0.01&ttl=600", content=b"kept")
    assert kept.status_code == 204
    assert await gateway.pop_all() == [b"kept"]


@pytest.mark.parametrize("query", ["?wait=x", "?wait=-1", "?ttl=x"])
async def test_a_bad_request_publishes_nothing(gateway: Running, query: str) -> None:
    assert (await gateway.http.post(QUEUE + "/request" + query, content=b"x")).status_code == 400
    assert (await gateway.http.post("/v2/p1/queues/missing/request", content=b"x")).status_code == 404
    assert (await gateway.http.post("/v2/replies/nobody", content=b"x")).status_code == 404
    assert await gateway.counts() == (0, 0, 0)
    assert not gateway.broker.private_queues()


async def test_stomp_worker_can_reply(server: ServerProcess) -> None:
    def work() -> None:
        with Raw(server.stomp) as worker:
            worker.confirm(SUB)
            request = worker.frame()
            worker.send(encode(f"SEND|destination:{request.headers['reply-to']}|content-type:text/plain", b"pong"))
            worker.confirm(f"ACK|id:{request.headers['ack']}")

    working = asyncio.create_task(asyncio.to_thread(work))
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as http:
        await http.put("/v2/default/queues/a")
        reply = await http.post("/v2/default/queues/a/request", content=b"ping")
    assert (reply.status_code, reply.content) == (200, b"pong")
    await working
