"""What becomes of messages that were taken for a client that is gone, or refused, before it can be answered."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Delivery
from curbstone.core.options import QueueOptions
from curbstone.core.values import Lease
from curbstone.gateway.http.answer_budget import wait_for_budget
from curbstone.gateway.http.fields import Fields
from curbstone.gateway.http.long_poll import Held, Polls
from curbstone.gateway.http.problem import ClientGone
from curbstone.gateway.settings import GatewaySettings
from curbstone.net import budget
from curbstone.net.connection_limits import Admission
from curbstone.net.peer import Peer
from tests.kit.gateway import MESSAGES, Running, running

pytestmark = pytest.mark.anyio
MIB = 1 << 20


async def ask(gateway: Running, method: str, path: str, body: bytes = b"", *, is_gone: Callable[[], bool]) -> list[Any]:
    """Hand a request to the application as the server would; return what it sends."""
    path, _, query = path.partition("?")
    sent: list[Any] = []
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "length": len(body),
        "query_string": query.encode(),
        "fields": Fields([(b"host", b"localhost"), (b"content-length", b"%d" % len(body))]),
        "server": ("127.0.0.1", 1),
        "client": ("127.0.0.1", 2),
        "peer": Peer("127.0.0.1", 2),
        "slot": Admission().open_slot(),
        "scheme": "http",
        "state": {"is_gone": is_gone},
    }
    bodies = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return bodies.pop() if bodies else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(60):
        await gateway.server.app(scope, receive, send)
    return sent


@pytest.mark.parametrize("wait", [0, 20])
@pytest.mark.parametrize("call", ["pop", "lease"])
async def test_message_popped_for_a_disconnected_client_is_requeued(gateway: Running, call: str, wait: int) -> None:
    """A pop settled it for nobody, and a lease kept it away for its whole time."""
    await gateway.publish(b"a", b"b")
    if call == "pop":
        sent = await ask(gateway, "DELETE", f"{MESSAGES}?wait={wait}", is_gone=lambda: True)
    else:
        asked = orjson.dumps({"count": 2, "seconds": 600, "wait": wait})
        sent = await ask(gateway, "POST", MESSAGES + "/lease", asked, is_gone=lambda: True)
    assert sent == []
    leases = (await gateway.http.post(MESSAGES + "/lease", json={"count": 2})).json()["messages"]
    assert [(lease["message"], lease["tries"]) for lease in leases] == [("a", 0), ("b", 0)]


@pytest.mark.parametrize("call", ["pop", "lease"])
async def test_connected_client_gets_its_message(gateway: Running, call: str) -> None:
    await gateway.publish(b"a")
    method, path = ("DELETE", MESSAGES) if call == "pop" else ("POST", MESSAGES + "/lease")
    start, body = await ask(gateway, method, path, is_gone=lambda: False)
    assert start["status"] == 200 and b"a" in body["body"]


async def test_pops_behind_unread_responses_take_nothing(anyio_backend: object, tmp_path: Path) -> None:
    """Ten pops in one piece: their messages were settled one by one, though the client had not read the first."""
    settings = GatewaySettings(max_message_size=MIB)
    async with running(tmp_path / "data", settings, QueueOptions(cap=64 * MIB)) as gateway:
        for _ in range(10):
            await gateway.publish(b"x" * 900_000)
        client = socket.create_connection(gateway.address)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(f"DELETE {MESSAGES} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 10)
        async with asyncio.timeout(60):
            while (await gateway.counts())[0] == 10:
                pass
        for _ in range(50):
            await gateway.http.get("/healthz")
        client.close()
        async with asyncio.timeout(60):
            while len(gateway.server.clients) > 1:
                await gateway.http.get("/healthz")
        assert len(await gateway.pop_all()) >= 3


async def test_page_budget_is_released_when_the_client_left(gateway: Running) -> None:
    """It counted for ever, and the client's user got no deliveries any more."""
    budget_of_all = gateway.server.acceptor.admission.budget
    answer = gateway.server.app
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await wait_for_budget(scope, MIB)
        begun.set()
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"
        await may_end.wait()
        await answer(scope, receive, send)

    others = len(gateway.server.clients)
    gateway.server.app = slow  # type: ignore[assignment]
    try:
        async with asyncio.timeout(60):
            with socket.create_connection(gateway.address) as client:
                client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await begun.wait()
                assert budget_of_all.bytes == MIB
            while len(gateway.server.clients) > others:
                await asyncio.sleep(0.01)
            assert budget_of_all.bytes == MIB, "its page is still being made"
            may_end.set()
            while budget_of_all.bytes:
                await asyncio.sleep(0.01)
    finally:
        gateway.server.app = answer


# ---------------------------------------------------------------- requests that wait


class Call:
    """A call to the engine: `can_stop` says whether giving it up comes in time."""

    def __init__(self, *, can_stop: bool) -> None:
        self._can_stop = can_stop
        self.done: Callable[[Any], None]
        self.cancels = 0

    def start(self, done: Callable[[Any], None]) -> Call:
        self.done = done
        return self

    def cancel(self) -> bool:
        self.cancels += 1
        return self._can_stop


async def never() -> Any:
    await asyncio.Event().wait()


async def gone() -> Any:
    """Receive the end of the client."""
    return {"type": "http.disconnect"}


HELD = Held(lambda: None, lambda _look: lambda: None)


@pytest.mark.parametrize("can_stop", [True, False])
async def test_stop_answers_unserved_requests_with_nothing(can_stop: bool) -> None:
    polls = Polls()
    call = Call(can_stop=can_stop)
    poll = asyncio.ensure_future(polls.poll(call.start, never, HELD))
    await asyncio.sleep(0)
    polls.release()
    call.done("served")
    assert await poll == (None if can_stop else "served")
    assert call.cancels == 1


@pytest.mark.parametrize("result", ["served", CurbstoneError("refused")])
async def test_message_too_late_for_its_client_is_requeued(result: object) -> None:
    back: list[Delivery | Lease] = []
    call = Call(can_stop=False)
    with pytest.raises(ClientGone):
        await Polls().poll(call.start, gone, HELD, back.append)
    call.done(result)
    assert back == ([] if isinstance(result, CurbstoneError) else [result])


async def test_a_client_that_reads_nothing_of_its_answer_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such connections held their answers for ever."""
    monkeypatch.setattr(budget, "UNREAD_S_MAX", 2)
    options = QueueOptions(cap=32 * MIB, max_message_size=2 * MIB)
    async with running(tmp_path / "data", GatewaySettings(max_message_size=2 * MIB), options) as gateway:
        for _ in range(4):
            await gateway.publish(b"x" * 2 * MIB)
        held = gateway.server.acceptor.admission.budget
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.connect(gateway.address)
            peer.sendall(b"GET /v2/p1/queues/q/browse?max_bytes=16000000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(60):
                while not held.unread:
                    await asyncio.sleep(0.02)
                while held.bytes or len(gateway.server.acceptor.admission.slots) > 1:
                    await asyncio.sleep(0.02)
        assert held.unread == 1
