"""The listener: limits, deadlines, pages of other origins, and how it stops."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from curbstone.core.options import QueueOptions
from curbstone.gateway.connection import HttpConnection
from curbstone.gateway.http.fields import Fields
from curbstone.gateway.http.origin_policy import OriginPolicy
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.limits import KEEP_ALIVE_S
from curbstone.gateway.settings import GatewaySettings
from tests.gateway.conftest import LIMITED
from tests.kit.gateway import MESSAGES, QUEUE, Running, json_from, running

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both event loops: uvloop does not exist everywhere."""
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


POST = b"POST " + MESSAGES.encode() + b" HTTP/1.1\r\nHost: localhost\r\n"


# ---------------------------------------------------------------- what is no good request


@pytest.mark.parametrize(
    "request_head",
    [
        POST
        + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\nHost: localhost\r\n\r\n",
        POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        POST + b"Content-Length: +1\r\n\r\na",
        POST + b"Content-Length: 0x1\r\n\r\na",
        POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
        POST + b"Content-Length : 1\r\n\r\na",
        POST + b"X-A: a\r\n folded\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_a_malformed_request_is_400_and_closed(gateway: Running, request_head: bytes) -> None:
    reply = await gateway.raw(request_head)
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in reply
    assert reply.count(b"HTTP/1.1 ") == 1
    assert await gateway.pop_all() == []


async def test_too_many_header_fields_are_431(gateway: Running) -> None:
    assert (await gateway.raw(POST + b"a: b\r\n" * 20_000 + b"\r\n")).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
async def test_a_header_of_a_megabyte_is_431(gateway: Running, end: bytes) -> None:
    assert (await gateway.raw(POST + b"a: " + b"b" * 1_000_000 + end)).startswith(b"HTTP/1.1 431 ")


async def test_a_target_of_a_megabyte_is_414(gateway: Running) -> None:
    assert (await gateway.raw(b"GET /" + b"x" * 1_000_000)).startswith(b"HTTP/1.1 414 ")


async def test_many_pipelined_requests_are_no_large_head(gateway: Running) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nx: " + b"y" * 1000 + b"\r\n"
    reply = await gateway.raw((request + b"\r\n") * 200 + request + b"Connection: close\r\n\r\n")
    assert reply.count(b"HTTP/1.1 200 OK") == 201


@pytest.mark.parametrize("sent", [b"", b"GET /hea", POST + b"Content-Length: 5\r\n\r\nab"])
async def test_missing_request_is_408_or_closed(gateway: Running, sent: bytes) -> None:
    before = set(gateway.server.clients)
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(sent)
    await gateway.http.get("/healthz")  # the server has seen by now what was sent
    [connection] = set(gateway.server.clients) - before
    connection.check(asyncio.get_running_loop().time() + 1000)
    reply = await reader.read()
    assert reply.startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_a_body_that_continues_after_its_refusal_is_cut_off_in_silence(gateway: Running) -> None:
    before = set(gateway.server.clients)
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(POST + b"Content-Length: 99999999\r\n\r\nabc")
    reply = await reader.readuntil(b"}")
    assert reply.startswith(b"HTTP/1.1 413 ")
    [connection] = set(gateway.server.clients) - before
    connection.check(asyncio.get_running_loop().time() + 1000)
    assert await reader.read() == b""
    writer.close()


async def test_error_does_not_overtake_an_earlier_answer(gateway: Running) -> None:
    reply = await gateway.raw(POST + b"Content-Length: 1\r\n\r\nanonsense\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 201 ")
    assert await gateway.pop_all() == [b"a"]


async def test_an_idle_connection_outlives_the_deadline_of_its_last_request(gateway: Running) -> None:
    await gateway.http.get("/healthz")
    [connection] = gateway.server.clients
    connection.check(asyncio.get_running_loop().time() + KEEP_ALIVE_S - 1)
    assert (await gateway.http.get("/healthz")).status_code == 200
    [the_same] = gateway.server.clients
    assert the_same is connection


async def test_idle_connection_is_closed_eventually(gateway: Running) -> None:
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    for connection in list(gateway.server.clients):
        connection.check(asyncio.get_running_loop().time() + KEEP_ALIVE_S + 10)
    rest = await reader.read()
    assert b"HTTP/1.1" not in rest, "an idle connection closes without a word"
    writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n\r\n",
        b"POST /v2/p1/queues/none/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc",
    ],
)
async def test_idle_connection_with_stray_bytes_is_closed(gateway: Running, sent: bytes) -> None:
    """An empty line, and a body behind its refusal, left a connection without any deadline."""
    before = set(gateway.server.clients)
    reader, writer = await asyncio.open_connection(*gateway.address)
    head, separator, rest = sent.partition(b"\r\n\r\n")
    writer.write(head + separator)
    await reader.readuntil(b"\r\n\r\n")
    writer.write(rest)
    [connection] = set(gateway.server.clients) - before
    assert isinstance(connection, HttpConnection)
    async with asyncio.timeout(60):
        while not connection.is_idle or connection.held:
            await asyncio.sleep(0.01)
    await gateway.http.get("/healthz")  # the server has seen by now what was sent
    connection.check(asyncio.get_running_loop().time() + KEEP_ALIVE_S + 10)
    await reader.read()
    writer.close()


async def test_http_1_0_gets_no_chunks_and_no_100(gateway: Running) -> None:
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(POST.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\nab")
    assert (await reader.read()).startswith(b"HTTP/1.1 201 ")
    writer.close()
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(f"GET {MESSAGES} HTTP/1.0\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"transfer-encoding" not in head and b"connection: close" in head
    assert (await reader.readuntil(b"\n\n")).startswith(b"retry: ")
    writer.close()


async def test_websocket_of_a_vanished_peer_requeues_its_messages(gateway: Running) -> None:
    await gateway.publish(b"a")
    reader, writer = await gateway.raw_socket("?ack")
    await reader.readuntil(b"}\x82\x01a")
    now = asyncio.get_running_loop().time()
    [wire] = [connection for connection in gateway.server.clients if hasattr(connection, "begin")]
    wire.check(now + 31)
    assert await reader.readexactly(2) == b"\x89\x00"  # a ping
    wire.check(now + 100)
    async with asyncio.timeout(60):
        while await gateway.counts() != (1, 0, 0):
            await asyncio.sleep(0.01)
    writer.close()


# ---------------------------------------------------------------- pages


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 421),
        ("evil.example:8080", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("intranet", 421),
        ("local", 421),
        ("127.1", 421),
        ("localhost", 200),
        ("LOCALHOST.", 200),
        ("a.localhost:1", 200),
        ("[::1]:80", 200),
        ("192.168.1.5:8080", 200),
    ],
)
async def test_foreign_host_name_is_refused(gateway: Running, host: str, status: int) -> None:
    reply = await gateway.http.get("/healthz", headers={"Host": host})
    assert reply.status_code == status
    for method in ("PUT", "DELETE"):
        changing = await gateway.http.request(method, QUEUE, headers={"Host": host, "Origin": f"http://{host}"})
        assert (changing.status_code == 421) == (status == 421)


@pytest.mark.parametrize("server", ["192.168.1.5", "172.17.0.2", "fe80::1", "127.0.0.1"])
@pytest.mark.parametrize(("hosts", "is_ours"), [((), False), (("Q.example.",), True), (("*",), True)])
def test_host_check_does_not_depend_on_the_listen_address(server: str, hosts: tuple[str, ...], is_ours: bool) -> None:
    """With --insecure on an address of the network, a page could make its own name point there."""
    scope = {"method": "PUT", "server": (server, 8080), "fields": Fields([(b"host", b"q.example:8080")])}

    async def send(_message: object) -> None:
        pass

    guard = OriginPolicy(GatewaySettings(hosts=hosts))
    if is_ours:
        guard.admit(scope, send)
    else:
        with pytest.raises(Problem, match=r"the host name 'q.example' is not served here; see --http-host"):
            guard.admit(scope, send)


async def test_cross_origin_changes_are_refused(gateway: Running) -> None:
    evil = {"Origin": "https://evil.example", "Content-Type": "text/plain"}
    assert (await gateway.http.post(MESSAGES, content=b"x", headers=evil)).status_code == 403
    assert (await gateway.http.delete(QUEUE, headers=evil)).status_code == 403
    reply = await gateway.http.get(QUEUE, headers=evil)
    assert "access-control-allow-origin" not in reply.headers
    assert await gateway.pop_all() == []


async def test_listed_origins_may_call(gateway: Running) -> None:
    listed = {"Origin": "https://app.example"}
    for reply in (
        await gateway.http.post(MESSAGES, content=b"x", headers=listed),
        await gateway.http.get("/v2/p1/queues/missing", headers=listed),
    ):
        assert reply.headers["access-control-allow-origin"] == "https://app.example"
        assert reply.headers["vary"] == "Origin"
        assert "access-control-allow-credentials" not in reply.headers


async def test_listed_origins_add_vary_origin_to_every_response(gateway: Running) -> None:
    """A cache could give a page of a listed origin the answer that another client had got, without its headers."""
    for headers in ({}, {"Origin": "https://evil.example"}, {"Origin": "https://app.example"}):
        assert (await gateway.http.get("/v2/p1/queues", headers=headers)).headers["vary"] == "Origin"


async def test_preflight_is_answered(gateway: Running) -> None:
    asked = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "x-msg-x-a"}
    listed = await gateway.http.options(QUEUE, headers={"Origin": "https://app.example", **asked})
    assert (listed.status_code, listed.headers["access-control-allow-origin"]) == (204, "https://app.example")
    assert "PUT" in listed.headers["access-control-allow-methods"]
    assert listed.headers["access-control-allow-headers"] == "x-msg-x-a"
    other = await gateway.http.options(QUEUE, headers={"Origin": "https://evil.example", **asked})
    assert "access-control-allow-origin" not in other.headers
    assert other.headers["vary"] == "Origin"


# ---------------------------------------------------------------- the end


async def test_a_stop_answers_everything_and_closes_websockets_with_1001(anyio_backend: object, tmp_path: Path) -> None:
    async with running(tmp_path / "data", LIMITED, QueueOptions()) as gateway:
        await gateway.http.put("/v2/p1/queues/empty")
        waiting = asyncio.create_task(gateway.http.delete("/v2/p1/queues/empty/messages?wait=30"))
        await gateway.polling(1)
        async with gateway.socket("publish") as producer, gateway.socket("consume", "?ack") as consumer:
            await producer.send(b"x")
            await json_from(consumer)
            await gateway.server.stop()
            assert await producer.recv() == ""
            for socket in (producer, consumer):
                with pytest.raises(ConnectionClosed):
                    while True:
                        await socket.recv()
                assert socket.close_code == 1001
            assert (await waiting).status_code == 204
            with pytest.raises(OSError):
                await asyncio.open_connection(*gateway.address)
        [queue] = [queue for queue in gateway.broker.queues() if queue.name.queue == "q"]
        assert queue.counts().rdy == 1
