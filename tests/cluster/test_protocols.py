"""Every protocol on a real RabbitMQ node: what it says of the local engine holds there, or it says what does not."""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tests.cluster.gateway import GatewayProcess
from tests.crash.mqks_peer import MqksPeer
from tests.crash.stomp_peer import StompFrame, StompPeer, encode
from tests.cross_protocol.test_every_pair import COMMON, LINES, judge
from tests.cross_protocol.wire import CONSUMERS, MESSAGES, PRODUCERS, QUEUE, http

pytestmark = pytest.mark.anyio

PATIENCE_S = 60
NDJSON = {"content-type": "application/x-ndjson"}
_numbers = itertools.count(1)


def fresh() -> str:
    return f"q{next(_numbers)}-{secrets.token_hex(3)}"


@pytest.mark.parametrize("producer", PRODUCERS)
async def test_message_of_one_protocol_is_received_by_all(gateway: GatewayProcess, producer: str) -> None:
    messages = [*COMMON, *LINES] if producer == "stomp" else COMMON
    async with http(gateway) as client:
        await client.delete(QUEUE)
        reply = await client.put(QUEUE, json={"groups": list(CONSUMERS), "cap": "10MiB"})
        assert reply.status_code == 201
    for sent in messages:
        await PRODUCERS[producer](gateway, sent)
    async with asyncio.timeout(PATIENCE_S):
        received = [await consume(gateway, group, len(messages)) for group, consume in CONSUMERS.items()]
    judge(messages, dict(zip(CONSUMERS, received, strict=True)))


def frames(peer: StompPeer, count: int) -> list[StompFrame]:
    found: list[StompFrame] = []
    while len(found) < count:
        found += peer.read(PATIENCE_S)
    assert len(found) == count, found
    return found


async def test_one_websocket_publishes_to_several_queues_and_consumes_from_them(gateway: GatewayProcess) -> None:
    names, host, port = [fresh(), fresh()], *gateway.http
    async with http(gateway) as client:
        for name in names:
            assert (await client.put(f"/v2/default/queues/{name}")).status_code == 201
        url = f"ws://{host}:{port}/v2/default/queues"
        async with (
            asyncio.timeout(PATIENCE_S),
            connect(url, subprotocols=[Subprotocol("queues")], proxy=None) as socket,
        ):

            async def heard(count: int) -> list[Any]:
                return [json.loads(await socket.recv()) for _ in range(count)]

            for name in names:
                await socket.send(json.dumps({"subscribe": name, "ack": True, "encoding": "utf8"}))
            assert sorted(each["subscribed"] for each in await heard(2)) == sorted(names)
            for name in names:
                await socket.send(json.dumps({"publish": name, "message": f"for {name}"}))
            frames = await heard(4)
            assert [each["published"] for each in frames if "published" in each] == names
            deliveries = {each["queue"]: each for each in frames if "message" in each}
            assert {name: each["message"] for name, each in deliveries.items()} == {
                each: f"for {each}" for each in names
            }
            for each in deliveries.values():
                await socket.send(json.dumps({"ackId": each["ackId"]}))
            settled = [ack_id for each in await heard(2) for ack_id in each["settled"]]
            assert sorted(settled) == sorted(each["ackId"] for each in deliveries.values())
            assert (await client.delete(f"/v2/default/queues/{names[0]}")).status_code == 204
            (ended,) = await heard(1)
            assert (ended["unsubscribed"], ended["code"]) == (names[0], 404)
            await socket.send(json.dumps({"publish": names[1], "message": "continues"}))
            assert {each.get("message") for each in await heard(2)} == {None, "continues"}
            await socket.send(json.dumps({"publish": names[1], "message": "once", "Idempotency-Key": "k"}))
            (lacking,) = await heard(1)
            assert (lacking["publish"], lacking["code"]) == (names[1], 501)
        url += f"/{names[1]}"
        async with (
            asyncio.timeout(PATIENCE_S),
            connect(url, subprotocols=[Subprotocol("publish")], proxy=None) as alone,
        ):
            await alone.send(json.dumps({"message": "in order", "key": "k"}))
            assert json.loads(await alone.recv())["code"] == 501


def test_stomp_names_the_engine_and_confirms_after_a_majority(gateway: GatewayProcess) -> None:
    queue = f"/queue/{fresh()}"
    with StompPeer(gateway.stomp, PATIENCE_S) as peer:
        assert peer.call("SEND", {"destination": queue}, b"a").command == "RECEIPT"
        peer.send(encode("SUBSCRIBE", {"id": "s", "destination": queue, "ack": "client"}))
        (message,) = frames(peer, 1)
        assert message.body == b"a"
        peer.send(encode("NACK", {"id": message.headers["ack"], "receipt": "n"}))
        by_command = {frame.command: frame for frame in frames(peer, 2)}  # in either order
        assert set(by_command) == {"RECEIPT", "MESSAGE"}
        again = by_command["MESSAGE"]
        assert again.headers["message-id"] == message.headers["message-id"] and again.headers["redelivered"] == "true"
        assert peer.call("ACK", {"id": again.headers["ack"]}).command == "RECEIPT"
        peer.send(encode("SUBSCRIBE", {"id": "count", "destination": queue + "/count"}))
        assert frames(peer, 1)[0].body == b"0"


def test_a_stomp_transaction_takes_effect_on_commit(gateway: GatewayProcess) -> None:
    source, target = f"/queue/{fresh()}", f"/queue/{fresh()}"
    with StompPeer(gateway.stomp, PATIENCE_S) as peer:
        peer.call("SEND", {"destination": source}, b"a")
        peer.send(encode("SUBSCRIBE", {"id": "s", "destination": source, "ack": "client-individual"}))
        (message,) = frames(peer, 1)
        peer.send(encode("BEGIN", {"transaction": "t"}))
        peer.send(encode("SEND", {"destination": target, "transaction": "t"}, b"b"))
        peer.send(encode("ACK", {"id": message.headers["ack"], "transaction": "t"}))
        assert peer.call("COMMIT", {"transaction": "t"}).command == "RECEIPT"
        peer.send(encode("SUBSCRIBE", {"id": "t", "destination": target}))
        assert frames(peer, 1)[0].body == b"b"


def test_a_topic_reaches_the_subscribers_of_all_gateways(
    two_gateways: tuple[GatewayProcess, GatewayProcess],
) -> None:
    topic = f"/topic/{fresh()}"
    one, two = two_gateways
    with StompPeer(one.stomp, PATIENCE_S) as first, StompPeer(two.stomp, PATIENCE_S) as second:
        for peer in (first, second):
            assert peer.call("SUBSCRIBE", {"id": "s", "destination": topic}).command == "RECEIPT"
        first.send(encode("SEND", {"destination": topic}, b"news"))
        assert [frames(peer, 1)[0].body for peer in (first, second)] == [b"news", b"news"]


def test_request_at_one_gateway_is_answered_at_another(
    two_gateways: tuple[GatewayProcess, GatewayProcess],
) -> None:
    queue = f"/queue/{fresh()}"
    one, two = two_gateways
    with StompPeer(one.stomp, PATIENCE_S) as client, StompPeer(two.stomp, PATIENCE_S) as service:
        service.call("SUBSCRIBE", {"id": "s", "destination": queue})
        client.call("SUBSCRIBE", {"id": "r", "destination": "/temp-queue/answers"})
        client.send(encode("SEND", {"destination": queue, "reply-to": "/temp-queue/answers"}, b"question"))
        (question,) = frames(service, 1)
        service.send(encode("SEND", {"destination": question.headers["reply-to"]}, b"answer"))
        assert frames(client, 1)[0].body == b"answer"


def test_mqks_publishes_to_events_and_acks_remove_messages(gateway: GatewayProcess) -> None:
    queue, event = fresh(), fresh()
    with MqksPeer(gateway.mqks, PATIENCE_S) as peer:
        peer.call("c", f"consume --confirm {queue} {event} --manual-ack")
        peer.send(f"m1 publish {event} hello".encode())
        (delivery,) = peer.read(PATIENCE_S)
        assert delivery.request_id == "c" and delivery.data.endswith(b"hello")
        peer.call("a", "ack --confirm c m1")
        peer.call("d", "delete_consumer --confirm c")


async def test_queue_created_at_one_gateway_exists_at_the_other(
    two_gateways: tuple[GatewayProcess, GatewayProcess],
) -> None:
    one, two = (httpx.AsyncClient(base_url=each.url, timeout=PATIENCE_S) for each in two_gateways)
    for _ in range(5):
        path = f"/v2/shop/queues/{fresh()}"
        assert (await one.put(path, json={"max_tries": 2})).status_code == 201
        assert (await two.post(f"{path}/messages", content="a")).status_code == 201
        assert (await one.get(path)).json()["rdy"] == 1
        (lease,) = (await one.post(f"{path}/messages/lease", json={"count": 1})).json()["messages"]
        extended = await two.post(f"{path}/messages/extend", json={"ackIds": [lease["ackId"], "x"], "seconds": 60})
        assert extended.json() == {"settled": 1, "stale": ["x"]}
        settled = await two.post(f"{path}/messages/ack", json={"ackIds": [lease["ackId"]]})
        assert settled.json() == {"settled": 1, "stale": []}
        again = await one.post(f"{path}/messages/ack", json={"ackIds": [lease["ackId"]]})
        assert again.json() == {"settled": 0, "stale": [lease["ackId"]]}
        assert (await two.delete(path)).status_code == 204
        assert (await two.post(f"{path}/messages", content="a")).status_code == 404
    await one.aclose()
    await two.aclose()


async def test_unsupported_cluster_operation_is_501_with_a_reason(gateway: GatewayProcess) -> None:
    async with http(gateway) as client:
        await client.put(QUEUE)
        refused: dict[str, Any] = {
            "peek": await client.get(MESSAGES),
            "browse": await client.get(f"{QUEUE}/browse"),
            "journal": await client.get(f"{QUEUE}/journal"),
            "offsets": await client.get(f"{QUEUE}/offsets"),
            "groups": await client.put(f"{QUEUE}/groups/g", json={}),
            "key": await client.post(MESSAGES, content="x", headers={"idempotency-key": '"a"'}),
            "staged": await client.put("/v2/default/transactions/t/parts/p", content="", headers=NDJSON),
        }
        for what, reply in refused.items():
            assert reply.status_code == 501, (what, reply.text)
            assert "local engine" in reply.json()["detail"], what
        conflict = await client.put(QUEUE, json={"cap": "20MiB"})
        assert conflict.status_code == 409 and "can't change" in conflict.json()["detail"]
        options = await client.options(QUEUE)
        health = (await client.get("/healthz")).json()
        assert options.json()["engine"] == health["engine"]
        assert health["engine"]["name"] == "rabbitmq" and health["sync"] == "quorum"
        assert health["engine"]["capabilities"] == ["deleting"]
        assert "bytes" not in (await client.get(QUEUE)).json()
        metrics = (await client.get("/metrics")).text
        assert 'curbstone_engine_info{name="rabbitmq"' in metrics


async def test_guarded_queue_reports_its_refusal_over_http(gateway: GatewayProcess) -> None:
    guarded = "/v2/default/queues/guarded"
    async with http(gateway) as client:
        await client.delete(guarded)
        reply = await client.put(guarded, json={"publish_paused": True})
        assert reply.status_code == 201
        reply = await client.post(f"{guarded}/messages", content="a")
        assert (reply.status_code, reply.json()["type"].rpartition("#")[2]) == (507, "publish-paused")
        assert (await client.post(f"{guarded}/resume")).json() == {"paused": False, "publish_paused": False}
        assert (await client.post(f"{guarded}/messages", content="a")).status_code == 201
        await client.delete(guarded)
        reply = await client.put(guarded, json={"schema": {"required": ["id"]}})
        assert reply.status_code == 201
        reply = await client.post(f"{guarded}/messages", content="{}")
        assert (reply.status_code, reply.json()["rule"]) == (422, "/required")
        assert (await client.post(f"{guarded}/messages", content='{"id":1}')).status_code == 201


async def test_a_batch_is_stored_and_has_its_ids(gateway: GatewayProcess) -> None:
    async with http(gateway) as client:
        await client.delete(QUEUE)
        await client.put(QUEUE)
        reply = await client.post(f"{MESSAGES}/batch", json=[{"message": str(n)} for n in range(100)])
        ids = reply.json()["ids"]
        leases = (await client.post(f"{MESSAGES}/lease", json={"count": 100})).json()["messages"]
        assert [lease["id"] for lease in leases] == ids
        assert [lease["message"] for lease in leases] == [str(n) for n in range(100)]


async def test_mq_fetches_and_deletes(gateway: GatewayProcess) -> None:
    path = f"/mq/{fresh()}"
    async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE_S) as client:
        assert (await client.put(path)).status_code in (200, 201)
        added = await client.post(f"{path}/messages", content="a")
        fetched = await client.get(f"{path}/messages")
        assert fetched.text == "a" and fetched.headers["x-message-id"] == added.headers["x-message-id"]
        assert (await client.delete(f"{path}/messages/{fetched.headers['x-message-id']}")).is_success
        assert (await client.get(f"{path}/messages")).status_code != 200


def test_options_of_the_other_engine_are_refused() -> None:
    from curbstone.settings import SettingsError, load

    with pytest.raises(SettingsError, match="--data: it can't be used with --engine"):
        load({"engine": "amqp://localhost", "data": "here"})
    with pytest.raises(SettingsError, match="--engine-prefix: it needs --engine"):
        load({"engine_prefix": "x/"})
    with pytest.raises(SettingsError) as caught:
        load({"engine": "http://u:secret@h"})
    assert "secret" not in str(caught.value)
