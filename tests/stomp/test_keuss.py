"""keuss-server's acceptance list (each test named by its number there), where Curbstone does not decide otherwise.

It decides otherwise on: other STOMP versions (2), all ack modes (5), transactions (15), other user headers, which are
kept (16), and dead letters, which are an option of the queue (18). MESSAGE carries the destination as subscribed and
an `ack` header, and a message keeps its place when it is given back.
"""

from __future__ import annotations

import json
import re
import time

import httpx
import pytest

from curbstone.stomp.subscription import KEUSS_NACK_DELAY_MS
from tests.kit.engine import WAIT_S
from tests.kit.server import ServerProcess
from tests.stomp.harness import Client, Received, send
from tests.stomp.raw import Raw

A = "/q/ns/a"
SUB = f"SUBSCRIBE|id:0|destination:{A}|ack:client-individual"
ISO_MS = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def keuss(body: str = "x", *headers: str, queue: str = A) -> str:
    return send(body, *headers, queue=queue)


def ack(message: Received) -> str:
    return f"ACK|id:{message.headers['ack']}"


def nack(message: Received, *headers: str) -> str:
    return "|".join([f"NACK|id:{message.headers['ack']}", *headers])


def test_keuss01_heart_beats_are_answered_with_the_pair_swapped() -> None:
    connected = Client(connect="|heart-beat:5000,6000").connected
    assert (connected.headers["version"], connected.headers["heart-beat"]) == ("1.2", "6000,5000")


def test_keuss02_versions_and_a_missing_heart_beat() -> None:
    assert Client(version="1.1").connected.headers["version"] == "1.1"
    assert Client().connected.headers["heart-beat"] == "0,0"


def test_keuss03_json_round_trips(client: Client) -> None:
    body = '{"b": [1, 2.50, null],\n "a": "ü"}'
    assert client.receipts(keuss(body, "receipt:r", "content-type:application/json")) == ["r"]
    (message,) = client.send(f"SUBSCRIBE|id:0|destination:{A}|ack:auto")
    assert message.body.decode() == body
    assert json.loads(message.body)["a"] == "ü"
    assert message.headers["x-tries"] == "0"
    assert re.fullmatch(ISO_MS, message.headers["x-mature"])
    assert message.headers["content-type"] == "application/json"
    assert message.headers["destination"] == A


@pytest.mark.parametrize("body", ["", "0", "false", "null", '""'])
def test_keuss03_bodies_invalid_in_keuss_are_messages(client: Client, body: str) -> None:
    client.send(keuss(body, "content-type:application/json"))
    (message,) = client.send(SUB)
    assert message.body.decode() == body
    assert client.receipts(f"{ack(message)}|receipt:r") == ["r"]


@pytest.mark.parametrize("destination", ["/q/a", "/q/a/b/c", "/q/", "/a/b"])
def test_keuss04_destination_without_match(client: Client, destination: str) -> None:
    error = client.error(keuss("x", "receipt:r", queue=destination))
    assert error.headers["receipt-id"] == "r"
    assert b"/q/<namespace>/<queue>" in error.body or b"/q/{project}/{queue}" in error.body
    assert not client.lab.names()


def test_keuss05_ack_modes(client: Client) -> None:
    for number, mode in enumerate(("auto", "client", "client-individual")):
        sub = f"SUBSCRIBE|id:{number}|destination:{A}|ack:{mode}|receipt:{mode}"
        assert client.receipts(sub) == [mode]
    assert "ack must be one of" in client.error(f"SUBSCRIBE|id:9|destination:{A}|ack:bogus").headers["message"]


def test_keuss06_an_acked_message_is_gone_after_a_reconnect(server: ServerProcess) -> None:
    with Raw(server.stomp) as peer:
        peer.confirm(keuss("1"))
        peer.send(SUB)
        peer.confirm(ack(peer.frame()))
    with Raw(server.stomp) as peer:
        peer.confirm(SUB)
        assert peer.waiting() == []


def test_keuss07_a_plain_nack_returns_after_five_seconds(client: Client) -> None:
    (first,) = client.send(keuss("body"), SUB)
    assert client.send(nack(first)) == []
    client.lab.pass_time(KEUSS_NACK_DELAY_MS - 1)
    assert client.read() == []
    client.lab.pass_time(1)
    (second,) = client.read()
    assert (second.body, second.headers["x-tries"]) == (b"body", "1")
    assert second.headers["message-id"] == first.headers["message-id"]
    assert KEUSS_NACK_DELAY_MS == 5000


def test_keuss08_a_nack_with_a_delay(client: Client) -> None:
    (message,) = client.send(keuss(), SUB)
    client.send(nack(message, "x-delta-t:500"))
    client.lab.pass_time(499)
    assert client.read() == []
    client.lab.pass_time(1)
    (message,) = client.read()
    client.send(nack(message, f"x-next-t:{client.lab.host.now_ms() + 2000}"))
    client.lab.pass_time(1999)
    assert client.read() == []
    client.lab.pass_time(1)
    (message,) = client.read()
    (again,) = client.send(nack(message, "x-delta-t:0"))
    assert again.headers["x-tries"] == "3", "no delay is possible too"


def test_keuss09_tries_count_up(server: ServerProcess) -> None:
    with Raw(server.stomp) as peer:
        peer.confirm(keuss("1"))
        peer.send(SUB)
        for tries in range(2):
            message = peer.frame()
            assert message.headers["x-tries"] == str(tries)
            peer.confirm(nack(message, "x-delta-t:20"))
        message = peer.frame()
        assert message.headers["x-tries"] == "2"
        peer.confirm(ack(message))
        peer.send(f"SUBSCRIBE|id:c|destination:{A}/count")
        assert peer.frame().body == b"0"


@pytest.mark.parametrize("absolute", [False, True])
def test_keuss10_a_delayed_message(client: Client, absolute: bool) -> None:
    due = client.lab.host.now_ms() + 2000
    client.send(SUB, keuss("late", f"x-next-t:{due}" if absolute else "x-delta-t:2000"))
    client.lab.pass_time(1999)
    assert client.read() == []
    client.lab.pass_time(1)
    (message,) = client.read()
    assert message.body == b"late"
    assert message.headers["x-mature"] == "2023-11-14T22:13:22.000Z", "when it became due"


def test_keuss10_delays_are_kept_over_a_crash(server: ServerProcess) -> None:
    with Raw(server.stomp) as peer:
        peer.confirm(keuss("late", "x-delta-t:600000"))
        peer.confirm(keuss("soon", "x-delta-t:1"))
    server.restart()
    with Raw(server.stomp) as peer:
        peer.confirm(SUB)
        assert peer.frame().body == b"soon"
        assert peer.waiting() == []


def test_keuss11_the_window(server: ServerProcess) -> None:
    with Raw(server.stomp) as peer:
        for n in range(5):
            peer.confirm(keuss(str(n)))
        peer.confirm(f"{SUB}|x-wsize:2")
        messages = peer.frames(2)
        assert [message.body for message in messages] == [b"0", b"1"]
        assert peer.waiting() == []
        for n in range(2, 5):
            peer.confirm(ack(messages.pop(0)))
            messages.append(peer.frame())
            assert messages[-1].body == b"%d" % n, "one more for each"
            assert peer.waiting() == []
    with Raw(server.stomp) as peer:
        peer.confirm(SUB)
        assert len(peer.frames(2)) == 2, "without a window all that is left comes at once"


def test_keuss12_parallel_consumers_get_each_message_once(server: ServerProcess) -> None:
    count = 60
    with Raw(server.stomp) as one, Raw(server.stomp) as two, Raw(server.stomp) as sender:
        one.confirm(f"{SUB}|x-parallel:3")
        two.confirm(SUB)
        for n in range(count - 1):
            sender.send(keuss(str(n)))
        sender.confirm(keuss(str(count - 1)))
        bodies: list[int] = []
        deadline = time.monotonic() + WAIT_S
        while len(bodies) < count and time.monotonic() < deadline:
            for peer in (one, two):
                bodies += [int(message.body) for message in peer.waiting()]
        assert sorted(bodies) == list(range(count))


def test_keuss13_disconnect_requeues_immediately(server: ServerProcess) -> None:
    with Raw(server.stomp) as peer:
        peer.confirm(keuss("1"))
        peer.confirm(keuss("2"))
        peer.send(SUB)
        peer.frame(), peer.frame()
    with Raw(server.stomp) as peer:
        peer.send(SUB)
        again = [peer.frame(), peer.frame()]
        assert [(message.body, message.headers["x-tries"]) for message in again] == [(b"1", "1"), (b"2", "1")]


@pytest.mark.parametrize("ack_id", ["nope", "1.99.0", "9.1.0"])
def test_keuss14_ack_of_an_undelivered_message(client: Client, ack_id: str) -> None:
    client.send(keuss(), SUB)
    assert "never delivered" in client.error(f"ACK|id:{ack_id}").headers["message"]


def test_keuss15_transactions_work(client: Client) -> None:
    frames = ["BEGIN|transaction:t|receipt:b", keuss("1", "transaction:t"), "COMMIT|transaction:t|receipt:c"]
    assert client.receipts(*frames) == ["b", "c"]


def test_keuss16_headers_are_kept(client: Client) -> None:
    client.send(keuss("x", "x-ks-hdr-foo:bar", "zzz:1"))
    (message,) = client.send(SUB)
    assert (message.headers["x-ks-hdr-foo"], message.headers["zzz"]) == ("bar", "1")


def test_keuss17_binary_bodies(server: ServerProcess) -> None:
    body = bytes(range(256)) * 4
    with Raw(server.stomp) as peer:
        peer.confirm(f"SEND|destination:{A}|content-type:application/octet-stream", body=body)
        peer.send(SUB)
        message = peer.frame()
        assert (message.body, message.headers["content-length"]) == (body, "1024")
        assert message.headers["content-type"] == "application/octet-stream"


def test_keuss18_dead_letters(server: ServerProcess) -> None:
    options = {"max_tries": 6, "dead_letter": "ns/__deadletter__"}
    assert httpx.put(f"{server.url}/v2/ns/queues/a", json=options, trust_env=False).status_code == 201
    with Raw(server.stomp) as peer:
        peer.confirm(keuss("poison", "x-ks-hdr-k:v"))
        peer.send(SUB, "SUBSCRIBE|id:dead|destination:/q/ns/__deadletter__|ack:client-individual")
        for tries in range(6):
            message = peer.frame()
            assert (message.headers["subscription"], message.headers["x-tries"]) == ("0", str(tries))
            peer.confirm(nack(message, "x-delta-t:0", "error:bad"))
        dead = peer.frame()
        assert (dead.headers["subscription"], dead.body, dead.headers["x-tries"]) == ("dead", b"poison", "0")
        assert dead.headers["x-dead-queue"] == "ns/a"
        assert dead.headers["x-dead-reason"] == "max_tries"
        assert dead.headers["x-dead-tries"] == "6"
        assert dead.headers["x-dead-error"] == "bad"
        assert dead.headers["x-ks-hdr-k"] == "v"


def test_keuss19_groups_read_independently(server: ServerProcess) -> None:
    with Raw(server.stomp) as peer:
        peer.confirm(keuss("1", "x-ks-groups:G1, G2, G3"))
        for n in range(1, 6):
            peer.confirm(f"SUBSCRIBE|id:{n}|destination:{A}|ack:client-individual|x-ks-group:G{n}")
        messages = {message.headers["subscription"]: message for message in peer.frames(3)}
        assert sorted(messages) == ["1", "2", "3"]
        assert peer.waiting() == []
        peer.confirm(nack(messages["1"], "x-delta-t:0"))
        again = peer.frame()
        assert (again.headers["subscription"], again.headers["x-tries"]) == ("1", "1")
        for message in (again, messages["3"]):
            peer.confirm(ack(message))
    with Raw(server.stomp) as peer:
        for n in range(1, 4):
            peer.confirm(f"SUBSCRIBE|id:{n}|destination:{A}|ack:client-individual|x-ks-group:G{n}")
        left = peer.frame()
        assert (left.headers["subscription"], left.headers["x-tries"]) == ("2", "1"), "once, by the disconnect"
        assert peer.waiting() == []


def test_keuss20_heart_beats_both_ways() -> None:
    client = Client(connect="|heart-beat:1000,500")
    now = client.now_ms
    while not client.session.closing:
        client.session.tick(now)
        now += 100
        assert now < client.now_ms + 60_000, "a silent client is given up"
    sent = b"".join(client.session.take_output())
    assert sent.startswith(b"\n\n\n"), "and until then the server beats"
    assert b"ERROR" in sent
