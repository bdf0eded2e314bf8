"""What one protocol delivered another settles, once: leases and what connections hold, while their holders live."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.kit.engine import WAIT_S
from tests.kit.guarded_server import GuardedServer, guarded_server
from tests.kit.server import ServerProcess
from tests.stomp.client import Peer
from tests.stomp.harness import Received

pytestmark = pytest.mark.anyio

GONE = "no unsettled delivery has this id; it was settled, released or never delivered"
USERS = """
[users.ada]
home = "shop"
grants = ["send shop/*", "receive shop/*", "peek shop/*", "manage shop/*"]
[users.bob]
home = "shop"
grants = ["receive shop/*"]
[users.eve]
home = "shop"
grants = ["receive shop/other"]
"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("shared") / "data") as process:
        yield process


class SharedQueue:
    """A queue of its own, and its clients."""

    def __init__(self, server: ServerProcess, http: httpx.AsyncClient, name: str) -> None:
        self.server = server
        self.http = http
        self.name = name
        self.path = f"/v2/default/queues/{name}"

    async def publish(self, *bodies: str) -> None:
        for body in bodies:
            assert (await self.http.post(f"{self.path}/messages", content=body)).status_code == 201

    async def lease(self, count: int = 1) -> list[dict[str, Any]]:
        reply = await self.http.post(f"{self.path}/messages/lease", json={"count": count, "wait": 30})
        assert reply.status_code == 200, reply.text
        messages: list[dict[str, Any]] = reply.json()["messages"]
        return messages

    async def settle(self, how: str, **asked: object) -> tuple[int, list[str]]:
        reply = await self.http.post(f"{self.path}/messages/{how}", json=asked)
        assert reply.status_code == 200, reply.text
        return reply.json()["settled"], reply.json()["stale"]

    async def counts(self) -> tuple[int, int]:
        """Return how many messages are ready, and how many are held."""
        info = (await self.http.get(self.path)).json()
        return info["rdy"], info["wip"]

    @asynccontextmanager
    async def stomp(self, subscribe: str = "", connect: str = "") -> AsyncIterator[Peer]:
        peer = await Peer.open(self.server.stomp)
        try:
            await peer.send(f"CONNECT\naccept-version:1.2\nhost:x\n{connect}\n\0".encode())
            assert (await peer.frame()).command == "CONNECTED"
            if subscribe:
                await peer.send(f"SUBSCRIBE\nid:0\ndestination:/queue/{self.name}\n{subscribe}\n\0".encode())
            yield peer
        finally:
            await peer.close()

    @asynccontextmanager
    async def socket(self, query: str) -> AsyncIterator[ClientConnection]:
        url = f"{self.server.url.replace('http', 'ws', 1)}{self.path}/messages?{query}"
        async with connect(url, subprotocols=[Subprotocol("consume")], compression=None, proxy=None) as connection:
            yield connection


@pytest.fixture
async def shared_queue(shared: ServerProcess, request: pytest.FixtureRequest) -> AsyncIterator[SharedQueue]:
    async with httpx.AsyncClient(base_url=shared.url, trust_env=False, timeout=WAIT_S) as http:
        shared_queue = SharedQueue(shared, http, "".join(filter(str.isalnum, request.node.name))[:60])
        await http.put(shared_queue.path, json={"nack_delay": 0})
        yield shared_queue


INDIVIDUAL = "ack:client-individual\nprefetch-count:1\n"


async def send_with_receipt(peer: Peer, frame: str) -> Received:
    """Send a frame with a receipt; return the answer."""
    await peer.send(f"{frame}\nreceipt:r\n\n\0".encode())
    return await peer.frame()


async def send_command(socket: ClientConnection, **command: object) -> dict[str, Any]:
    """Send a command; return the answer."""
    await socket.send(json.dumps(command))
    return await receive(socket)


async def receive(socket: ClientConnection) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(await asyncio.wait_for(socket.recv(), WAIT_S))
    return answer


async def test_stomp_settles_a_lease(shared_queue: SharedQueue) -> None:
    await shared_queue.publish("a", "b", "c")
    acked, returned, rejected = [message["ackId"] for message in await shared_queue.lease(3)]
    async with shared_queue.stomp() as peer:
        assert (await send_with_receipt(peer, f"ACK\nid:{acked}")).command == "RECEIPT"
        assert (await send_with_receipt(peer, f"NACK\nid:{rejected}\nrequeue:false")).command == "RECEIPT"
        assert await shared_queue.counts() == (0, 1)
        assert (await send_with_receipt(peer, f"NACK\nid:{returned}\nx-delta-t:0")).command == "RECEIPT"
        assert await shared_queue.settle("ack", ackIds=[acked, returned, rejected]) == (0, [acked, returned, rejected])
        (again,) = await shared_queue.lease()
        assert (again["message"], again["tries"]) == ("b", 1)
        error = await send_with_receipt(peer, f"ACK\nid:{acked}")
        assert (error.command, error.headers["message"], error.headers["receipt-id"]) == ("ERROR", GONE, "r")


async def test_transaction_does_not_settle_deliveries_after_its_ack(shared_queue: SharedQueue) -> None:
    """A COMMIT acked the redelivery of what was given back over HTTP between ACK and COMMIT."""
    await shared_queue.publish("a")
    async with shared_queue.stomp(INDIVIDUAL, "x-features:refusals\n") as peer:
        first = (await peer.frame()).headers["ack"]
        await peer.send(b"BEGIN\ntransaction:t\n\n\0")
        assert (await send_with_receipt(peer, f"ACK\nid:{first}\ntransaction:t")).command == "RECEIPT"
        assert await shared_queue.settle("nack", ackIds=[first], delay=0) == (1, [])
        again = await peer.frame()
        assert (again.command, again.headers["x-tries"]) == ("MESSAGE", "1")
        refused = await send_with_receipt(peer, "COMMIT\ntransaction:t")
        assert refused.headers["x-error"].endswith(" is not unsettled here any more")
        assert await shared_queue.counts() == (0, 1)
        assert (await send_with_receipt(peer, f"ACK\nid:{again.headers['ack']}")).command == "RECEIPT"
        assert await shared_queue.counts() == (0, 0)


async def test_http_settles_a_stomp_delivery_and_frees_its_window(shared_queue: SharedQueue) -> None:
    await shared_queue.publish("a", "b", "c", "d")
    async with shared_queue.stomp(INDIVIDUAL) as peer:
        first = (await peer.frame()).headers["ack"]
        assert await shared_queue.settle("ack", ackIds=[first]) == (1, [])
        second = (await peer.frame()).headers["ack"]
        assert await shared_queue.settle("settle", ack=[second]) == (1, [])
        third = (await peer.frame()).headers["ack"]
        assert (await shared_queue.http.delete(f"{shared_queue.path}/leases/{third}")).status_code == 204
        assert (await shared_queue.http.delete(f"{shared_queue.path}/leases/{third}")).status_code == 404
        fourth = await peer.frame()
        assert (fourth.body, await shared_queue.settle("ack", ackIds=[first, second, third])) == (
            b"d",
            (0, [first, second, third]),
        )
        assert (await send_with_receipt(peer, f"ACK\nid:{fourth.headers['ack']}")).command == "RECEIPT"
        assert await shared_queue.counts() == (0, 0)
        assert (await send_with_receipt(peer, f"ACK\nid:{first}")).headers["message"] == GONE


async def test_http_nack_redelivers_a_stomp_delivery(shared_queue: SharedQueue) -> None:
    await shared_queue.publish("a")
    async with shared_queue.stomp(INDIVIDUAL) as peer:
        first = await peer.frame()
        asked = {"nack": [{"ackId": first.headers["ack"], "delay": 0, "error": "not now"}]}
        assert await shared_queue.settle("settle", **asked) == (1, [])
        second = await peer.frame()
        assert (second.body, second.headers["x-tries"]) == (b"a", "1")
        assert await shared_queue.settle("settle", **asked) == (0, [first.headers["ack"]]), (
            "the first delivery has ended"
        )
        assert await shared_queue.settle("nack", ackIds=[second.headers["ack"]], reject=True) == (1, [])
        assert await shared_queue.counts() == (0, 0)


async def test_settling_elsewhere_is_not_cumulative_in_client_mode(shared_queue: SharedQueue) -> None:
    await shared_queue.publish("a", "b", "c")
    async with shared_queue.stomp("ack:client\n") as peer:
        ids = [(await peer.frame()).headers["ack"] for _ in range(3)]
        assert await shared_queue.settle("ack", ackIds=[ids[1]]) == (1, [])
        assert await shared_queue.counts() == (0, 2)
        assert (await send_with_receipt(peer, f"ACK\nid:{ids[2]}")).command == "RECEIPT"
        assert await shared_queue.counts() == (0, 0)


async def test_http_and_stomp_settle_websocket_deliveries(shared_queue: SharedQueue) -> None:
    await shared_queue.publish("a", "b", "c")
    async with (
        shared_queue.socket("ack&confirm=json&encoding=utf8&limit=1&lease=600") as socket,
        shared_queue.stomp() as peer,
    ):
        first = (await receive(socket))["ackId"]
        assert await shared_queue.settle("ack", ackIds=[first]) == (1, [])
        second = (await receive(socket))["ackId"]
        assert (await send_with_receipt(peer, f"ACK\nid:{second}")).command == "RECEIPT"
        third = await receive(socket)
        assert await send_command(socket, ackId=first) == {"stale": [first]}
        assert await send_command(socket, ackToId=third["ackId"]) == {"settled": [third["ackId"]]}
        assert await shared_queue.settle("ack", ackIds=[third["ackId"]]) == (0, [third["ackId"]])
        assert await shared_queue.counts() == (0, 0)


async def test_websocket_settles_leases_and_deliveries_of_others(shared_queue: SharedQueue) -> None:
    await shared_queue.publish("a", "b", "c")
    (lease,) = await shared_queue.lease()
    query = "ack&encoding=utf8&limit=1"
    async with shared_queue.stomp(INDIVIDUAL) as peer, shared_queue.socket(query) as other:
        of_stomp, of_other = (await peer.frame()).headers["ack"], (await receive(other))["ackId"]
        async with shared_queue.socket(f"{query}&confirm=json") as socket:
            assert await send_command(socket, ackId=lease["ackId"]) == {"settled": [lease["ackId"]]}
            assert await send_command(socket, rejectId=of_stomp, error="bad") == {"settled": [of_stomp]}
            assert await send_command(socket, ackToId=of_other) == {"stale": [of_other]}, "only what is delivered here"
            assert await send_command(socket, ackId=of_other) == {"settled": [of_other]}
            assert await send_command(socket, ackId=of_other) == {"stale": [of_other]}
            assert await shared_queue.counts() == (0, 0)


async def test_multi_queue_socket_and_others_settle_each_others_deliveries(shared_queue: SharedQueue) -> None:
    await shared_queue.publish("a", "b", "c")
    (lease,) = await shared_queue.lease()
    url = f"{shared_queue.server.url.replace('http', 'ws', 1)}/v2/default/queues"
    async with connect(url, subprotocols=[Subprotocol("queues")], compression=None, proxy=None) as socket:
        assert await send_command(socket, ackId=lease["ackId"]) == {"settled": [lease["ackId"]]}
        assert await send_command(socket, ackId=lease["ackId"]) == {"stale": [lease["ackId"]]}
        await socket.send(json.dumps({"subscribe": shared_queue.name, "ack": True, "limit": 1, "encoding": "utf8"}))
        ids: list[str] = []
        while len(ids) < 2:  # the second comes when the first was settled
            answer = await receive(socket)
            if "ackId" in answer:
                ids.append(answer["ackId"])
                assert await shared_queue.settle("ack", ackIds=ids[-1:]) == (1, [])
    assert await shared_queue.counts() == (0, 0)


async def test_event_stream_continues_when_stomp_settles_its_messages(shared_queue: SharedQueue) -> None:
    await shared_queue.publish("a", "b")
    async with (
        shared_queue.stomp() as peer,
        shared_queue.http.stream(
            "GET", f"{shared_queue.path}/messages?limit=1&seconds=600", headers={"accept": "text/event-stream"}
        ) as stream,
    ):
        lines = stream.aiter_lines()
        ids: list[str] = []
        while len(ids) < 2:
            line = await asyncio.wait_for(anext(lines), WAIT_S)
            if line.startswith("id: "):
                ids.append(line[4:])
                assert (await send_with_receipt(peer, f"ACK\nid:{ids[-1]}")).command == "RECEIPT"
    assert await shared_queue.counts() == (0, 0)


async def test_ids_of_a_dead_holder_are_stale(shared_queue: SharedQueue) -> None:
    await shared_queue.publish("a", "b")
    async with shared_queue.stomp(INDIVIDUAL) as peer:
        of_stomp = (await peer.frame()).headers["ack"]
        async with shared_queue.socket("ack&encoding=utf8&limit=1") as socket:
            of_socket = (await receive(socket))["ackId"]
    back: list[dict[str, Any]] = []
    while len(back) < 2:  # each returns when the server has seen its holder go
        back += await shared_queue.lease(2 - len(back))
    assert await shared_queue.settle("ack", ackIds=[of_stomp, of_socket]) == (0, [of_stomp, of_socket])
    assert sorted((each["message"], each["tries"]) for each in back) == [("a", 1), ("b", 1)]
    assert await shared_queue.settle("ack", ackIds=[each["ackId"] for each in back]) == (2, [])


async def test_one_of_two_concurrent_settles_wins(shared_queue: SharedQueue) -> None:
    count = 200
    await shared_queue.publish(*[str(number) for number in range(count)])
    async with shared_queue.stomp("ack:client-individual\nprefetch-count:1000\n", "x-features:refusals\n") as peer:
        ids = [(await peer.frame()).headers["ack"] for _ in range(count)]

        async def over_stomp() -> set[str]:
            won = set()
            for start in range(0, count, 10):
                some = ids[start : start + 10]
                await peer.send("".join([f"ACK\nid:{each}\nreceipt:{each}\n\n\0" for each in some]).encode())
                for _ in some:
                    answer = await peer.frame()
                    assert answer.command == "RECEIPT"
                    if "x-error-code" in answer.headers:
                        assert answer.headers["x-error-code"] == "410"
                    else:
                        won.add(answer.headers["receipt-id"])
            return won

        async def over_http() -> set[str]:
            won = set()
            for start in range(count, 0, -10):
                some = ids[start - 10 : start]
                settled, stale = await shared_queue.settle("ack", ackIds=some)
                assert settled + len(stale) == len(some)
                won |= set(some) - set(stale)
            return won

        by_stomp, by_http = await asyncio.gather(over_stomp(), over_http())
        assert not by_stomp & by_http
        assert by_stomp | by_http == set(ids)
        assert await shared_queue.counts() == (0, 0)


async def test_transaction_settles_only_deliveries_of_its_connection(shared_queue: SharedQueue) -> None:
    await shared_queue.publish("a")
    (lease,) = await shared_queue.lease()
    async with shared_queue.stomp() as peer:
        await peer.send(b"BEGIN\ntransaction:t\n\n\0")
        error = await send_with_receipt(peer, f"ACK\ntransaction:t\nid:{lease['ackId']}")
        assert error.headers["message"] == "a transaction can settle only deliveries of its own connection"
    assert await shared_queue.settle("ack", ackIds=[lease["ackId"]]) == (1, [])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    with guarded_server(tmp_path_factory.mktemp("guarded"), USERS) as made:
        yield made


async def test_settling_requires_the_holder_with_receive(guarded: GuardedServer) -> None:
    path = "/v2/shop/queues/orders"
    assert guarded.call("ada", "PUT", path).status_code == 201
    assert guarded.call("ada", "POST", f"{path}/messages", content="a").status_code == 201
    assert guarded.call("ada", "POST", f"{path}/messages", content="b").status_code == 201
    (lease,) = guarded.call("ada", "POST", f"{path}/messages/lease", json={}).json()["messages"]
    peer = await Peer.open(guarded.server.stomp)
    login = f"login:ada\npasscode:{guarded.secrets['ada']}\n"
    await peer.send(f"CONNECT\naccept-version:1.2\nhost:x\n{login}\n\0".encode())
    assert (await peer.frame()).command == "CONNECTED"
    await peer.send(b"SUBSCRIBE\nid:0\ndestination:/queue/shop/orders\nack:client-individual\n\n\0")
    delivered = (await peer.frame()).headers["ack"]
    for ack_id in (lease["ackId"], delivered):
        asked = {"ackIds": [ack_id]}
        assert guarded.call("bob", "POST", f"{path}/messages/ack", json=asked).json() == {
            "settled": 0,
            "stale": [ack_id],
        }
        assert guarded.call("eve", "POST", f"{path}/messages/ack", json=asked).status_code == 403
        assert guarded.stomp("bob", f"ACK\nid:{ack_id}\n\n") == ["CONNECTED", f"ERROR {GONE}"]
    assert guarded.stomp("eve", f"ACK\nid:{lease['ackId']}\n\n") == [
        "CONNECTED",
        "ERROR no right to receive on queue shop/orders",
    ]
    assert guarded.stomp("ada", f"ACK\nid:{lease['ackId']}\n\n") == ["CONNECTED", "RECEIPT"]
    assert guarded.call("ada", "POST", f"{path}/messages/ack", json={"ackIds": [delivered]}).json()["settled"] == 1
    await peer.close()
