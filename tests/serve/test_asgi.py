"""Curbstone as an ASGI application: under uvicorn and hypercorn, and inside an application of FastAPI."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import hypercorn.asyncio
import hypercorn.config
import orjson
import pytest
import uvicorn
from fastapi import FastAPI
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin, Subprotocol

from curbstone.asgi import App, create_app
from curbstone.core.errors import CurbstoneError
from curbstone.gateway.asgi_socket import AsgiSocket
from curbstone.gateway.websocket.codec import binary_frame
from curbstone.net.budget import Budget
from curbstone.settings import SettingsError
from tests.kit.server import clean_environment

pytestmark = pytest.mark.anyio

QUEUE = "/v2/shop/queues/orders"
MESSAGES = f"{QUEUE}/messages"
Serve = Callable[[Any], AbstractAsyncContextManager[str]]


def free_port() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


@asynccontextmanager
async def by_uvicorn(app: Any, **options: Any) -> AsyncIterator[str]:
    """Serve an application with uvicorn; yield its address."""
    with free_port() as listener:
        config = uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=10, **options)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        async with asyncio.timeout(60):
            while not server.started and not serving.done():
                await asyncio.sleep(0.01)
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving


@asynccontextmanager
async def by_hypercorn(app: Any) -> AsyncIterator[str]:
    """Serve an application with hypercorn; yield its address."""
    listener = free_port()
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    config = hypercorn.config.Config()
    config.bind = [f"fd://{listener.detach()}"]  # hypercorn closes it
    config.graceful_timeout = 10
    config.errorlog = None
    stop = asyncio.Event()
    serving = asyncio.create_task(hypercorn.asyncio.serve(app, config, shutdown_trigger=stop.wait))
    async with http(address) as client:
        await client.get("/healthz")  # waits in the backlog until the lifespan has started
    yield address
    stop.set()
    await serving


@pytest.fixture(params=[by_uvicorn, by_hypercorn], ids=["uvicorn", "hypercorn"])
def serve(request: pytest.FixtureRequest) -> Serve:
    found: Serve = request.param
    return found


def http(address: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://{address}", trust_env=False, timeout=60)


def subprotocol(name: str) -> dict[str, Any]:
    return {"subprotocols": [Subprotocol(name)], "proxy": None, "compression": None}


async def wait_until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await is_so():
            await asyncio.sleep(0.01)


async def test_other_asgi_servers_serve_http_and_messages_survive_restarts(serve: Serve, tmp_path: Path) -> None:
    app = create_app(data=tmp_path, insecure=True)
    async with serve(app) as address, http(address) as client:
        assert (await client.put(QUEUE)).status_code == 201
        for body in (b"first", b"x" * 300_000):
            reply = await client.post(MESSAGES, content=body, headers={"content-type": "text/plain", "x-msg-x-a": "1"})
            assert reply.status_code == 201 and reply.headers["x-msg-id"]
        assert (await client.post(MESSAGES, content=b"x" * 2_000_000)).status_code == 413
        assert (await client.request("PATCH", MESSAGES)).json()["status"] == 405
        assert (await client.get("/healthz")).status_code == 200
    async with serve(app) as address, http(address) as client:
        popped = await client.delete(MESSAGES)
        assert (popped.content, popped.headers["x-msg-x-a"]) == (b"first", "1")
        assert len((await client.delete(MESSAGES)).content) == 300_000
        assert (await client.delete(MESSAGES)).status_code == 204


async def test_other_asgi_servers_serve_websockets(serve: Serve, tmp_path: Path) -> None:
    async with serve(create_app(data=tmp_path, insecure=True)) as address, http(address) as client:
        await client.put(QUEUE)
        url = f"ws://{address}{MESSAGES}"
        async with connect(f"{url}?confirm=json", **subprotocol("publish")) as producer:
            for number in range(300):
                await producer.send(orjson.dumps({"message": "x" * 1000, "x-number": str(number)}).decode())
            ids = [orjson.loads(await producer.recv())["id"] for _ in range(300)]
        async with connect(f"{url}?ack&limit=50&encoding=utf8", **subprotocol("consume")) as consumer:
            for number in range(300):
                message = orjson.loads(await consumer.recv())
                assert (message["x-number"], message["id"]) == (str(number), ids[number])
                await consumer.send(orjson.dumps({"ackId": message["ackId"]}).decode())

            async def is_empty() -> bool:
                info = (await client.get(QUEUE)).json()
                return bool(info["rdy"] == info["wip"] == 0)

            await wait_until(is_empty)
            await client.post(MESSAGES, content=b"one more")
            assert orjson.loads(await consumer.recv())["message"] == "one more"

        async def is_back() -> bool:
            return bool((await client.get(QUEUE)).json()["rdy"] == 1)

        await wait_until(is_back)  # the consumer left without an ack


async def test_a_websocket_is_refused_with_the_reason_or_in_a_frame(serve: Serve, tmp_path: Path) -> None:
    async with serve(create_app(data=tmp_path, insecure=True)) as address:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://{address}{MESSAGES}", **subprotocol("consume"))
        assert refused.value.response.status_code == 404
        async with connect(f"ws://{address}{MESSAGES}?errors=frame", **subprotocol("consume")) as reported:
            assert orjson.loads(await reported.recv())["code"] == 404
            with pytest.raises(ConnectionClosed):
                await reported.recv()
            assert reported.close_code == 4404


async def test_other_asgi_servers_serve_stomp_over_websocket(serve: Serve, tmp_path: Path) -> None:
    async with (
        serve(create_app(data=tmp_path, insecure=True)) as address,
        connect(f"ws://{address}/stomp", **subprotocol("v12.stomp")) as client,
    ):
        await client.send("CONNECT\naccept-version:1.2\nhost:x\n\n\0")
        assert str(await client.recv()).startswith("CONNECTED")
        await client.send("SUBSCRIBE\nid:1\ndestination:/queue/a\n\n\0")
        await client.send("SEND\ndestination:/queue/a\nreceipt:r\n\nhello\0")
        frames = [str(await client.recv()) for _ in range(2)]
        assert {frame.partition("\n")[0] for frame in frames} == {"RECEIPT", "MESSAGE"}


async def test_message_is_not_lost_when_a_waiting_client_disconnects(serve: Serve, tmp_path: Path) -> None:
    app = create_app(data=tmp_path, insecure=True)
    async with serve(app) as address, http(address) as client:
        await client.put(QUEUE)
        with pytest.raises(httpx.ReadTimeout):
            await client.delete(f"{MESSAGES}?wait=30", timeout=0.5)
        assert app.gateway is not None

        async def waits_no_more() -> bool:
            return app.gateway is not None and not app.gateway.waiting_requests

        await wait_until(waits_no_more)
        await client.post(MESSAGES, content=b"kept")
        assert (await client.delete(MESSAGES)).content == b"kept"


async def test_pages_count_only_while_being_built(tmp_path: Path) -> None:
    """Each counted for ever, until no user got another one."""
    app = create_app(data=tmp_path, insecure=True, max_buffered="32MiB")
    async with by_uvicorn(app) as address, http(address) as client:
        await client.put(QUEUE)
        await client.post(MESSAGES, content=b"a")
        for _ in range(10):
            assert (await client.get(f"{QUEUE}/browse?max_bytes=16000000")).status_code == 200
        assert (await client.get("/v2/stats")).json()["buffered"]["bytes"] == 0


async def test_a_stream_of_events_is_served_and_ends_when_the_server_stops(tmp_path: Path) -> None:
    app = create_app(data=tmp_path, insecure=True)
    async with app.lifespan(), by_uvicorn_without_lifespan(app) as address, http(address) as client:
        await client.put(QUEUE)
        await client.post(MESSAGES, content=b"a")
        async with client.stream("GET", MESSAGES, headers={"accept": "text/event-stream"}) as stream:
            lines = stream.aiter_lines()
            seen = [await anext(lines) for _ in range(4)]
            assert any('"message":"a"' in line for line in seen), seen


@asynccontextmanager
async def by_uvicorn_without_lifespan(app: Any) -> AsyncIterator[str]:
    with free_port() as listener:
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        async with asyncio.timeout(60):
            while not server.started:
                await asyncio.sleep(0.01)
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving


@pytest.mark.parametrize("root_path", ["", "/proxied"])
async def test_app_can_be_mounted_in_another_application(tmp_path: Path, root_path: str) -> None:
    queues = create_app(data=tmp_path, insecure=True)
    parent = FastAPI(lifespan=queues.lifespan)

    @parent.get("/")
    def own() -> str:
        return "the parent's"

    parent.mount("/messaging", queues)
    async with by_uvicorn(parent, root_path=root_path) as address, http(address) as client:
        assert (await client.get("/")).json() == "the parent's"
        assert (await client.put(f"/messaging{QUEUE}")).status_code == 201
        assert (await client.post(f"/messaging{MESSAGES}", content=b"a")).status_code == 201
        base = f"{root_path}/messaging"
        options = await client.options(f"/messaging{QUEUE}")
        assert options.headers["location"] == f"ws://{address}{base}{QUEUE}"
        assert (await client.get("/messaging/console/")).headers["location"] == f"{base}/console"
        assert (await client.get("/messaging/")).json()["ready"] == f"{base}/readyz"
        assert (await client.get("/messaging/v2/shop/queues/a%2Fb")).status_code == 400
        async with connect(f"ws://{address}/messaging{MESSAGES}?encoding=utf8", **subprotocol("consume")) as consumer:
            assert orjson.loads(await consumer.recv())["message"] == "a"


async def test_requests_outside_the_lifespan_are_refused(tmp_path: Path) -> None:
    app = create_app(data=tmp_path, insecure=True)
    async with by_uvicorn_without_lifespan(app) as address, http(address) as client:
        for _ in range(2):
            reply = await client.get("/healthz")
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
            assert "the engine is not running" in reply.json()["detail"]
            with pytest.raises(InvalidStatus):
                await connect(f"ws://{address}{MESSAGES}", **subprotocol("consume"))
            async with app.lifespan():
                assert (await client.get("/healthz")).status_code == 200


async def test_a_second_process_gets_the_error_of_the_lock(tmp_path: Path) -> None:
    async with create_app(data=tmp_path, insecure=True).lifespan():
        with pytest.raises(CurbstoneError, match="in use"):
            async with create_app(data=tmp_path, insecure=True).lifespan():
                pass
        listener = free_port()
        listener.set_inheritable(True)
        with listener:
            second = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "uvicorn", "--factory", "curbstone.asgi:create_app"),
                f"--fd={listener.fileno()}",
                env=clean_environment(CURBSTONE_DATA=str(tmp_path), CURBSTONE_INSECURE="true"),
                pass_fds=[listener.fileno()],
                stderr=asyncio.subprocess.PIPE,
            )
            _, output = await second.communicate()
        assert second.returncode == 3, output.decode()
        assert b"in use" in output and b"Application startup failed" in output


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({}, "without a login"),
        ({"insecure": False}, "without a login"),
        ({"insecure": True, "stomp_addr": ":61613"}, "stomp_addr is only for `curbstone serve`"),
        ({"insecure": True, "engine": "amqp://localhost"}, "engine is only for `curbstone serve`"),
        ({"insecure": True, "cup": 1}, "unknown setting 'cup'; there are data, cap, "),
        ({"insecure": True, "cap": "many"}, "cap: "),
    ],
)
def test_invalid_setting_is_refused(tmp_path: Path, settings: dict[str, Any], error: str) -> None:
    with pytest.raises(SettingsError, match=error):
        create_app(data=tmp_path, **settings)


def test_settings_are_taken_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURBSTONE_DATA", str(tmp_path / "there"))
    monkeypatch.setenv("CURBSTONE_INSECURE", "true")
    monkeypatch.setenv("CURBSTONE_HTTP_ADDR", "0.0.0.0:8080")
    app = create_app()
    assert isinstance(app, App)
    monkeypatch.setenv("CURBSTONE_ENGINE", "amqp://localhost")
    with pytest.raises(SettingsError, match="engine"):
        create_app()


async def test_clients_log_in_and_contracts_require_a_login(tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.write_text('[users.ada]\ngrants = ["admin server"]\n')
    users.chmod(0o600)
    async with by_uvicorn(create_app(data=tmp_path / "data", users=users)) as address, http(address) as client:
        assert (await client.put(QUEUE)).status_code == 401
        assert (await client.get("/openapi.yaml")).status_code == 401
        assert (await client.get("/healthz")).status_code == 200
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://{address}{MESSAGES}", **subprotocol("consume"))
        assert refused.value.response.status_code == 401


async def test_unlisted_origins_and_hosts_are_refused(tmp_path: Path) -> None:
    async with by_uvicorn(create_app(data=tmp_path, insecure=True)) as address, http(address) as client:
        assert (await client.put(QUEUE, headers={"host": "evil.example"})).status_code == 421
        assert (await client.put(QUEUE, headers={"origin": "https://evil.example"})).status_code == 403
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://{address}{MESSAGES}", origin=Origin("https://evil.example"), **subprotocol("consume"))
        assert refused.value.response.status_code == 403


async def test_deliveries_pause_under_asgi_back_pressure() -> None:
    sent: list[Any] = []
    is_taken = asyncio.Event()

    async def send(message: Any) -> None:
        await is_taken.wait()
        sent.append(message)

    async def receive() -> Any:
        return await asyncio.Event().wait()

    session = FakeSession()
    wire = AsgiSocket(session, send, 1000, Budget().account())
    serving = asyncio.create_task(wire.run(receive))
    for _ in range(30):
        await asyncio.sleep(0)
        wire.send(binary_frame(b"x" * 10_000))
    assert session.calls == ["start", "pause"]
    is_taken.set()
    async with asyncio.timeout(60):
        while session.calls[-1] != "resume":
            await asyncio.sleep(0)
    wire.close(1001, "the server is stopping")
    await serving
    assert [message.get("bytes", b"") for message in sent] == [b"x" * 10_000] * 30 + [b""]
    assert sent[-1] == {"type": "websocket.close", "code": 1001, "reason": "the server is stopping"}
    assert session.calls == ["start", "pause", "resume", "closed"]


class FakeSession:
    """Notes what it is asked."""

    subprotocol = None
    expires_ms = 0
    delivers = True

    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self, wire: object) -> None:
        self.calls.append("start")

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")

    def closed(self) -> None:
        self.calls.append("closed")

    def receive(self, messages: object) -> None:
        raise AssertionError(messages)

    def refuse(self, status: int, reason: str) -> None:
        raise AssertionError(status)

    def reading(self, on: bool) -> None:
        """Nothing depends on it."""

    def too_big(self) -> None:
        raise AssertionError

    def stop(self) -> None:
        raise AssertionError


async def test_a_server_on_a_unix_socket_has_no_port(tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.write_text('[users.ada]\ngrants = ["admin server"]\n')
    users.chmod(0o600)
    app = create_app(data=tmp_path / "data", users=users)
    config = uvicorn.Config(app, uds=str(tmp_path / "socket"), log_config=None, lifespan="on")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "socket"))
    async with asyncio.timeout(60), httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        while not server.started:
            await asyncio.sleep(0.01)
        assert (await client.get("/healthz")).status_code == 200
        refused = await client.post("/v2/session", headers={"x-curbstone-console": "1"})
        assert refused.status_code in (401, 403)
    server.should_exit = True
    await serving
