"""One message, several protocols: what one sends the others receive and settle, with the same id and counters."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.kit.server import ServerProcess
from tests.mqks.world import Peer as MqksPeer
from tests.stomp.client import Peer as StompPeer

pytestmark = pytest.mark.anyio

CONFIRMED = 60


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{server.url}/v2/default/queues", trust_env=False, timeout=CONFIRMED) as client:
        yield client


class Mqks:
    """A client whose calls block."""

    def __init__(self, server: ServerProcess) -> None:
        self._socket = socket.create_connection(server.mqks, timeout=CONFIRMED)
        self._file = self._socket.makefile("rwb")

    def send(self, *lines: str) -> None:
        self._file.write("".join([line + "\n" for line in lines]).encode())
        self._file.flush()

    def line(self) -> str:
        return self._file.readline().decode().removesuffix("\n")

    def confirm(self, *lines: str) -> None:
        for line in lines:
            self.send(line)
            assert self.line() == f"{line.split(' ')[0]} ok "

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@pytest.fixture
def mqks(server: ServerProcess) -> Iterator[Mqks]:
    client = Mqks(server)
    yield client
    client.close()


def test_an_event_fans_out_to_queues_that_each_protocol_drains(
    server: ServerProcess, http: httpx.Client, mqks: Mqks
) -> None:
    queues = ("over-stomp", "over-websocket", "over-http", "over-mq", "over-mqks")
    mqks.confirm(*[f"r rebind --confirm {queue} news" for queue in queues])
    mqks.confirm("m1 publish --confirm news hot off the press")

    with connect(
        f"{server.url.replace('http', 'ws', 1)}/v2/default/queues/over-websocket/messages",
        subprotocols=[Subprotocol("consume")],
        proxy=None,
    ) as websocket:
        head = json.loads(websocket.recv(timeout=CONFIRMED))
        assert websocket.recv(timeout=CONFIRMED) == b"hot off the press"
    assert (head["x-msg-x-mqks-id"], head["x-msg-x-mqks-event"]) == ("m1", "news")
    assert (head["tries"], head["redelivered"]) == (0, False)

    popped = http.delete("/over-http/messages")
    assert popped.text == "hot off the press"
    assert (popped.headers["x-msg-x-mqks-id"], popped.headers["x-msg-x-mqks-event"]) == ("m1", "news")
    assert httpx.get(f"{server.url}/mq/over-mq/messages", trust_env=False).text == "hot off the press"

    async def over_stomp() -> None:
        peer = await StompPeer.open(server.stomp)
        await peer.connect()
        await peer.send(b"SUBSCRIBE\nid:0\ndestination:/queue/over-stomp\n\n\0")
        message = await peer.frame()
        assert message.body == b"hot off the press"
        assert (message.headers["mqks-id"], message.headers["mqks-event"]) == ("m1", "news")
        assert message.headers["redelivered"] == "false"
        await peer.close()

    asyncio.run(over_stomp())
    mqks.send("c consume over-mqks")
    assert mqks.line() == "c ok m1 event=news hot off the press"
    figures = httpx.get(f"{server.url}/metrics", trust_env=False).text
    assert 'curbstone_protocol_messages_confirmed_total{protocol="mqks"} 1.0' in figures
    assert 'curbstone_protocol_messages_delivered_total{protocol="mqks"} 1.0' in figures
    assert 'curbstone_protocol_messages_delivered_total{protocol="mq"} 1.0' in figures


async def test_a_topic_of_stomp_is_an_event_of_mqks(server: ServerProcess) -> None:
    mqks = await MqksPeer.open(server.mqks)
    await mqks.confirm("c consume --confirm q prices --manual-ack")
    stomp = await StompPeer.open(server.stomp)
    await stomp.connect()
    await stomp.send(b"SUBSCRIBE\nid:0\ndestination:/topic/prices\nreceipt:s\n\n\0")
    assert (await stomp.frame()).headers["receipt-id"] == "s"

    await stomp.send(b"SEND\ndestination:/topic/prices\nk:v\n\ntwo\nlines\0")
    assert (await stomp.frame()).body == b"two\nlines"
    line = await mqks.line()
    consumer, ok, msg_id, properties, data = line.split(" ", 4)
    assert (consumer, ok, properties, data) == ("c", "ok", "event=q", r"two\nlines")
    (peeked,) = httpx.get(f"{server.url}/v2/default/queues/q/messages", trust_env=False).json()["messages"]
    assert peeked["id"] == msg_id, "over MQKS it has the id it has elsewhere"
    await mqks.confirm(f"a ack --confirm c {msg_id}")

    mqks.send("m publish prices 7")
    assert await mqks.line() == "c ok m event=prices 7"
    message = await stomp.frame()
    assert (message.body, message.headers["mqks-event"]) == (b"7", "prices")
    await stomp.close()
    await mqks.close()


def test_the_counters_of_all_protocols_agree(server: ServerProcess, http: httpx.Client) -> None:
    async def main() -> None:
        mqks = await MqksPeer.open(server.mqks)
        await mqks.confirm("c consume --confirm q e --manual-ack")
        mqks.send("m publish e x")
        assert await mqks.line() == "c ok m event=e x"
        assert await mqks.request("j reject c m") == "c ok m event=e,retry=1 x"
        await mqks.confirm("d delete_consumer --confirm c")

        stomp = await StompPeer.open(server.stomp)
        await stomp.connect()
        await stomp.send(b"SUBSCRIBE\nid:0\ndestination:/queue/q\nack:client-individual\n\n\0")
        message = await stomp.frame()
        assert (message.headers["x-tries"], message.headers["redelivered"]) == ("2", "true")
        message_id = message.headers["message-id"]
        await stomp.send(b"NACK\nid:%b\nreceipt:n\n\n\0UNSUBSCRIBE\nid:0\n\n\0" % message.headers["ack"].encode())
        await stomp.close()

        lease: dict[str, Any] = {}
        async with asyncio.timeout(CONFIRMED):
            while not lease:
                found = await asyncio.to_thread(http.post, "/q/messages/lease", json={"wait": 1})
                lease = next(iter(found.json()["messages"]), {})
        assert lease["tries"] in (3, 4), "the NACK may have gone to the same subscription once more"
        assert lease["redelivered"] is True
        assert lease["id"] == message_id
        http.post("/q/messages/nack", json={"ackIds": [lease["ackId"]]})

        mqks.send("c consume q --manual-ack")
        assert await mqks.line() == f"c ok m event=e,retry={lease['tries'] + 1} x"
        assert http.get("/q/messages").json()["messages"][0]["state"] == "wip"
        deleted = await asyncio.to_thread(httpx.delete, f"{server.url}/mq/q/messages/{message_id}", trust_env=False)
        assert deleted.status_code == 202
        await mqks.confirm("a ack --confirm c m")
        await mqks.close()

    asyncio.run(main())
    assert http.get("/q/messages").json()["messages"] == []


def test_move_keeps_mqks_event_and_id(server: ServerProcess, mqks: Mqks, tmp_path: Path) -> None:
    from tests.kit.commands import curbstone

    mqks.confirm("r rebind --confirm q e", "m1 publish --confirm e x")
    assert curbstone("move", "--from=q", "--to=r", "--create", "--server", server.url, cwd=tmp_path).code == 0
    mqks.send("c consume r")
    assert mqks.line() == "c ok m1 event=e x"


def test_http_message_is_delivered_over_mqks(http: httpx.Client, mqks: Mqks) -> None:
    http.put("/q")
    message_id = http.post("/q/messages", content=b"a\tb\r\n", headers={"x-msg-x-k": "v"}).headers["x-msg-id"]
    mqks.send("c consume q")
    assert mqks.line() == rf"c ok {message_id} event=q a\tb\r\n"


def test_a_queue_deleted_over_http_is_reported_to_its_mqks_consumers(http: httpx.Client, mqks: Mqks) -> None:
    mqks.confirm("c consume --confirm q e")
    assert http.get("/q").json()["consumers"] == 1
    assert http.delete("/q").status_code == 204
    assert mqks.line() == "c ok --update q"
