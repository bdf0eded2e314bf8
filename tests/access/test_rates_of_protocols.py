"""A user over its rate, over each protocol: it is read no further, or gets a time to retry, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from curbstone.spark.client import Client as SparkClient
from curbstone.spark.options import read_options
from curbstone_client.sync import Client
from tests.kit.commands import curbstone
from tests.kit.guarded_server import GuardedServer, RawConnection, guarded_server
from tests.kit.waiting import wait_until

TINY = "{ bytes = 100 }"
"""One message of `LARGE` is a debt of an hour: it is not paid while a test runs."""
LARGE = "x" * 400_000
USERS = """
[users.root]
grants = ["admin server"]
[users.ann]
home = "shop"
grants = ["send,receive,peek,manage shop/*", "send,receive topic:shop/*"]
rate = RATE
[users.bob]
home = "shop"
grants = ["send shop/*"]
"""
Q = "/v2/shop/queues/q"


@pytest.fixture
def it(tmp_path: Path) -> Iterator[GuardedServer]:
    with guarded_server(tmp_path, USERS.replace("RATE", TINY)) as opened:
        for name in ("q", "other"):
            assert opened.call("root", "PUT", f"/v2/shop/queues/{name}", json={"cap": "64MiB"}).status_code == 201
        yield opened


def change(it: GuardedServer, rate: str) -> None:
    """Give ann another rate; "" for none."""
    line = f"rate = {rate}\n" if rate else ""
    it.users_file.write_text(USERS.replace("rate = RATE\n", line), encoding="utf-8")
    assert it.call("root", "POST", "/v2/reload").status_code == 204


def times_held_back(it: GuardedServer, protocol: str) -> int:
    """Return how often a protocol has held back somebody."""
    times: int = it.call("root", "GET", "/v2/stats").json()["held_back"].get(protocol, 0)
    return times


def held_back(it: GuardedServer, protocol: str, least: int = 1) -> None:
    """Wait until a protocol has held back somebody so often."""
    wait_until(lambda: times_held_back(it, protocol) >= least, "nobody is held back")


def stored(it: GuardedServer, queue: str = "q") -> int:
    count = it.call("root", "GET", f"/v2/shop/queues/{queue}").json()["rdy"]
    assert isinstance(count, int)
    return count


def stomp(it: GuardedServer, more: str = "") -> RawConnection:
    line = RawConnection(it.server.stomp)
    line.socket.settimeout(60)
    line.send(f"CONNECT\naccept-version:1.2\nhost:x\nheart-beat:0,100\npasscode:{it.secrets['ann']}\n\n\0{more}")
    return line


def sent(text: str, receipt: str, queue: str = "q") -> str:
    return f"SEND\ndestination:/queue/{queue}\nreceipt:{receipt}\n\n{text}\0"


def owe(it: GuardedServer) -> None:
    """Let ann send so much that it takes an hour to pay."""
    assert it.call("ann", "POST", f"{Q}/messages", content=LARGE).status_code == 201


def websocket(it: GuardedServer, path: str, protocol: str) -> ClientConnection:
    host, port = it.server.http
    return connect(
        f"ws://{host}:{port}{path}", subprotocols=[Subprotocol(protocol)], proxy=None, compression=None,
        additional_headers={"authorization": f"Bearer {it.secrets['ann']}"}, open_timeout=60,
    )  # fmt: skip


def test_throttled_stomp_is_not_read_but_still_written_until_a_reload(it: GuardedServer) -> None:
    with stomp(it) as line:
        line.send("SUBSCRIBE\nid:1\nack:auto\ndestination:/queue/other\nreceipt:sub\n\n\0")
        line.read_until(b"receipt-id:sub")
        line.send(sent(LARGE, "large"))
        line.read_until(b"receipt-id:large")
        line.send(sent("small", "small") + "BEGIN\ntransaction:t\n\n\0")
        held_back(it, "stomp")
        line.send("SEND\ndestination:/queue/q\ntransaction:t\n\nin it\0COMMIT\ntransaction:t\nreceipt:all\n\n\0")
        assert it.call("bob", "POST", "/v2/shop/queues/other/messages", content="to you").status_code == 201
        read = line.read_until(b"to you") + line.read_until(b"\n")
        assert b"small" not in read
        assert stored(it) == 1
        change(it, "")
        read = line.read_until(b"receipt-id:all")
        assert read.index(b"receipt-id:small") < read.index(b"receipt-id:all") and b"ERROR" not in read
    assert stored(it) == 3


def test_throttling_applies_right_after_login_and_not_to_consumers(it: GuardedServer) -> None:
    owe(it)
    with stomp(it, sent("first", "first")) as line, stomp(it) as consumer:
        assert b"CONNECTED" in line.read_until(b"\0")
        held_back(it, "stomp")
        consumer.send("SUBSCRIBE\nid:1\nack:client-individual\ndestination:/queue/q\n\n\0")
        read = consumer.read_until(b"xx\0")
        ack = next(text for text in read.decode().split("\n") if text.startswith("ack:"))
        consumer.send(f"ACK\nid:{ack[4:]}\nreceipt:acked\n\n\0")
        consumer.read_until(b"receipt-id:acked")
        change(it, "")
        line.read_until(b"receipt-id:first")


def test_throttled_messages_of_a_half_closed_client_are_stored(it: GuardedServer) -> None:
    import socket

    owe(it)
    with stomp(it, sent("last", "last")) as line, RawConnection(it.server.mqks) as mqks:
        mqks.socket.settimeout(60)
        mqks.send(f"in auth {it.secrets['ann']}\nq consume --confirm q e\n1 publish --confirm e last\n")
        held_back(it, "stomp")
        held_back(it, "mqks")
        line.socket.shutdown(socket.SHUT_WR)
        mqks.socket.shutdown(socket.SHUT_WR)
        change(it, "")
        assert b"receipt-id:last" in line.read_all()
        assert b"\n1 ok" in mqks.read_all()


def test_mqks_keeps_the_order_of_lines_behind_a_throttled_publish(it: GuardedServer) -> None:
    with RawConnection(it.server.mqks) as line:
        line.socket.settimeout(60)
        line.send(f"in auth {it.secrets['ann']}\nq consume --confirm other e\n1 publish --confirm e {LARGE}\n")
        line.read_until(b"1 ok")
        line.send("2 ping before\n3 publish --confirm e small\n4 ping behind\n")
        read = line.read_until(b"2 ok")
        held_back(it, "mqks")
        assert b"3 ok" not in read and b"4 ok" not in read
        change(it, "")
        read = line.read_until(b"3 ok")
        assert b"4 ok" in read or line.read_until(b"4 ok")


def test_websocket_confirms_throttled_messages_once_stored(it: GuardedServer) -> None:
    with ExitStack() as stack:
        publish = stack.enter_context(websocket(it, f"{Q}/messages?confirm=json", "publish"))
        over_stomp = stack.enter_context(websocket(it, "/stomp", "v12.stomp"))
        over_stomp.send("CONNECT\naccept-version:1.2\nhost:x\n\n\0")
        assert "CONNECTED" in str(over_stomp.recv(60))
        publish.send(LARGE.encode())
        assert "id" in json.loads(publish.recv(60))
        for number in range(3):
            publish.send(b"%d" % number)
        over_stomp.send(sent("small", "small"))
        held_back(it, "websocket")
        held_back(it, "stomp-websocket")
        assert stored(it) == 1
        change(it, "")
        assert all("id" in json.loads(publish.recv(60)) for _ in range(3))
        assert "receipt-id:small" in str(over_stomp.recv(60))
    assert stored(it) == 5


def test_throttled_http_publish_is_429_with_retry_after(it: GuardedServer) -> None:
    owe(it)
    calls = {
        f"{Q}/messages": "m",
        f"{Q}/messages/batch": '[{"message": "m"}]',
        f"{Q}/request": "m",
        "/v2/shop/events/e/messages": "m",
        "/v2/shop/events/e/messages/batch": '[{"message": "m"}]',
        "/mq/q/messages": "m",
        "/v2/replies/aaaaaaaaaaaaaaaaaaaaaa": "m",
    }
    for path, body in calls.items():
        refused_until_paid(it.call("ann", "POST", path, content=body))
    part = "/v2/shop/transactions/t/parts/p"
    lines = {"content-type": "application/x-ndjson"}
    body = '{"queue": "q", "message": "m"}\n'
    refused_until_paid(it.call("ann", "PUT", part, content=body, headers=lines))
    assert stored(it) == 1
    held_back(it, "http", len(calls) + 1)
    assert 'curbstone_held_back_total{protocol="http"}' in it.call("root", "GET", "/metrics").text
    assert it.call("bob", "POST", f"{Q}/messages", content="of another").status_code == 201
    assert it.call("ann", "DELETE", f"{Q}/messages").status_code == 200, "taking costs nothing"
    change(it, "")
    assert it.call("ann", "PUT", part, content=body, headers=lines).status_code == 200
    assert it.call("ann", "POST", f"{Q}/messages", content="m").status_code == 201


def refused_until_paid(reply: httpx.Response) -> None:
    assert reply.status_code == 429, reply.text
    assert reply.json()["type"] == "/docs/problems#too-fast"
    assert reply.json()["detail"] == "this user may publish 100 bytes per second"
    assert 1000 < int(reply.headers["retry-after"]) <= 4100


def test_staged_messages_count_when_received(it: GuardedServer) -> None:
    part = "/v2/shop/transactions/t/parts/p"
    body = json.dumps({"queue": "q", "message": LARGE}) + "\n"
    reply = it.call("ann", "PUT", part, content=body, headers={"content-type": "application/x-ndjson"})
    assert reply.status_code == 200, reply.text
    refused_until_paid(it.call("ann", "POST", f"{Q}/messages", content="m"))
    assert it.call("ann", "POST", "/v2/shop/transactions/t/commit").status_code == 200, "it has been counted"


def test_command_line_and_client_retry_after_throttling(it: GuardedServer, tmp_path: Path) -> None:
    change(it, "{ messages = 300 }")
    settings = {"CURBSTONE_SERVER": it.server.url, "CURBSTONE_TOKEN": it.secrets["ann"]}
    sent = 0
    while not times_held_back(it, "http"):  # who is very slow is not too fast
        assert sent < 20 * 1_100, "nobody is held back"
        done = curbstone("send", "shop/q", cwd=tmp_path, stdin=b"m\n" * 1_100, **settings)
        assert (done.code, done.out, done.err) == (0, "1100 messages sent\n", "")
        sent += 1_100
    with Client(f"stomp://{it.server.stomp[0]}:{it.server.stomp[1]}", token=it.secrets["ann"]) as client:
        queue = client.queue("shop/other")
        for number in range(1_100):
            queue.publish(str(number))
        client.flush()
    assert (stored(it), stored(it, "other")) == (sent, 1_100)
    assert it.call("root", "PUT", "/v2/shop/queues/third", json={"cap": "64MiB"}).status_code == 201
    before = times_held_back(it, "http")
    for here, there in [("q", "third"), ("third", "q")] * 10:
        done = curbstone("move", "--from", f"shop/{here}", "--to", f"shop/{there}", cwd=tmp_path, stdin=b"", **settings)
        assert (done.code, done.out, done.err) == (0, f"{sent} messages moved\n", "")
        if times_held_back(it, "http") > before:
            break
    else:
        raise AssertionError("nobody is held back")
    assert (stored(it, here), stored(it, there)) == (0, sent)


def test_spark_writer_waits_as_long_as_the_server_demands(it: GuardedServer) -> None:
    address = read_options({"queue": "shop/q", "url": it.server.url, "token": it.secrets["ann"]}).address
    body = json.dumps({"queue": "q", "message": LARGE}).encode() + b"\n"
    path = "/v2/shop/transactions/t/parts/"
    with closing(SparkClient(replace(address, retry_s=0.0))) as server:
        server.call("PUT", f"{path}1", body=body, kind="application/x-ndjson")
        change(it, '{ bytes = "300KB" }')
        parts = 1
        while not times_held_back(it, "http"):  # the second or the third, and a later one where all is slow
            parts += 1
            assert parts < 40, "nobody is held back"
            server.call("PUT", f"{path}{parts}", body=body, kind="application/x-ndjson")
        assert server.json("POST", "/v2/shop/transactions/t/commit")["messages"] == parts
