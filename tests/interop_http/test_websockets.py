"""The `websockets` client, in its blocking form, against the server as it is started by hand."""

from __future__ import annotations

from typing import Any

import httpx
import orjson
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.kit.server import ServerProcess

PATH = "/v2/myproject/queues/myqueue"


def socket(server: ServerProcess, protocol: str, query: str = "", path: str = PATH + "/messages") -> ClientConnection:
    url = server.url.replace("http", "ws", 1) + path + query
    return connect(url, subprotocols=[Subprotocol(protocol)], proxy=None, max_size=None)


@pytest.fixture(autouse=True)
def queue(server: ServerProcess) -> None:
    assert httpx.put(server.url + PATH, trust_env=False).status_code == 201


def json_from(consumer: ClientConnection) -> dict[str, Any]:
    value: dict[str, Any] = orjson.loads(consumer.recv(timeout=60))
    return value


def test_one_socket_publishes_and_another_consumes_and_acks(server: ServerProcess) -> None:
    with socket(server, "publish") as producer, socket(server, "consume", "?ack&limit=3") as consumer:
        producer.send('{"Content-Type":"text/plain","x-msg-x-name1":"foo"}')
        producer.send("one")
        producer.send("")
        producer.send(b"\0two")
        producer.send('{"message":"three"}')
        producer.send(b"four")
        assert [producer.recv(timeout=60) for _ in range(4)] == [""] * 4
        got = [(json_from(consumer), consumer.recv(timeout=60)) for _ in range(3)]
        assert [body for _, body in got] == [b"one", b"\0two", b"three"]
        assert len({metadata["ackId"] for metadata, _ in got}) == 3
        assert (got[0][0]["Content-Type"], got[0][0]["x-msg-x-name1"]) == ("text/plain", "foo")
        assert got[1][0]["Content-Type"] == "application/octet-stream"
        consumer.send(orjson.dumps({"ackToId": got[2][0]["ackId"]}).decode())
        held = json_from(consumer)["ackId"]
    with socket(server, "consume", "?ack&encoding=base64") as consumer:
        again = json_from(consumer)
        assert (again["message"], again["redelivered"]) == ("Zm91cg==", True)
        assert again["ackId"] != held


def test_errors_are_reported_before_the_end(server: ServerProcess) -> None:
    with socket(server, "consume", "?ack", PATH) as consumer:
        consumer.send('{"ackId":"999"}')
        assert json_from(consumer) == {"code": 500, "error": "Unrecognized acknowledgment ID"}
        with pytest.raises(ConnectionClosed):
            consumer.recv(timeout=60)


def test_ten_thousand_pipelined_messages(server: ServerProcess) -> None:
    count = 10_000
    with socket(server, "publish") as producer, socket(server, "consume") as consumer:
        for number in range(count):
            producer.send(b"%d" % number)
        for number in range(count):
            consumer.recv(timeout=60)
            assert consumer.recv(timeout=60) == b"%d" % number
        for _ in range(count):
            assert producer.recv(timeout=60) == ""


def test_server_closes_sockets_with_1001_when_it_stops(server: ServerProcess) -> None:
    with socket(server, "consume", "?ack") as consumer:
        assert server.stop() == 0
        with pytest.raises(ConnectionClosed) as closed:
            consumer.recv(timeout=60)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001
