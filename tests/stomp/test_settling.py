"""ACK and NACK (A1 to A8).

Each test is named by the number its pitfall has in the project's conformance list.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.stomp.harness import CLIENT_SUB, SUB, Client, send


def test_a01_1_2_acks_by_the_ack_header(client: Client) -> None:
    (message,) = client.send(send(), SUB)
    assert "[id]" in client.error(f"ACK|message-id:{message.headers['message-id']}").headers["message"]
    (again,) = (other := Client(client.lab)).send(SUB)
    assert other.receipts(f"ACK|id:{again.headers['ack']}|receipt:r") == ["r"]
    assert client.lab.bodies("a") == []


def test_a02_1_1_acks_by_message_id_and_subscription() -> None:
    client = Client(version="1.1")
    one, _ = client.send(send("1"), send("2"), SUB)
    assert client.receipts(f"ACK|message-id:{one.headers['message-id']}|subscription:0|receipt:r") == ["r"]
    assert client.lab.bodies("a") == [b"2"]
    assert "[subscription]" in client.error(f"ACK|message-id:{one.headers['message-id']}").headers["message"]


def test_a02_1_0_acks_by_message_id() -> None:
    client = Client(version="1.0")
    one, _ = client.send(send("1"), send("2"), "SUBSCRIBE|destination:/queue/a|ack:client-individual")
    assert client.receipts(f"ACK|message-id:{one.headers['message-id']}|receipt:r") == ["r"]
    assert client.lab.bodies("a") == [b"2"]


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_a03_client_mode_is_cumulative_within_its_subscription(version: str) -> None:
    client = Client(version=version)
    other = "SUBSCRIBE|id:1|destination:/queue/b|ack:client"
    client.send(CLIENT_SUB, other)
    received = client.send(*[send(str(n)) for n in range(4)], *[send(str(n), queue="/queue/b") for n in range(2)])
    third = [f for f in received if f.headers["destination"] == "/queue/a"][2]
    by_id = (
        f"id:{third.headers.get('ack')}"
        if version == "1.2"
        else f"message-id:{third.headers['message-id']}|subscription:0"
    )
    assert client.receipts(f"ACK|{by_id}|receipt:r") == ["r"]
    assert client.lab.bodies("a") == [b"3"]
    assert client.lab.bodies("b") == [b"0", b"1"]


def test_a03_many_cumulative_acks_in_one_read_are_one_call(client: Client, calls: list[tuple[Any, ...]]) -> None:
    received = client.send(*[send(str(n)) for n in range(6)], CLIENT_SUB)
    ids = [frame.headers["ack"] for frame in received]
    assert client.receipts(f"ACK|id:{ids[1]}|receipt:1", f"ACK|id:{ids[4]}|receipt:4") == ["1", "4"]
    assert calls[-1] == ("ack", "a", [1, 2, 3, 4, 5])


def test_a04_individual_acks_of_one_read_are_one_call(client: Client, calls: list[tuple[Any, ...]]) -> None:
    received = client.send(*[send(str(n)) for n in range(4)], SUB)
    ids = [frame.headers["ack"] for frame in received]
    assert client.receipts(f"ACK|id:{ids[3]}|receipt:3", f"ACK|id:{ids[1]}|receipt:1") == ["3", "1"]
    assert calls[-1] == ("ack", "a", [4, 2])


def test_a05_nack_is_cumulative_in_client_mode(client: Client) -> None:
    received = client.send(*[send(str(n)) for n in range(3)], CLIENT_SUB)
    again = client.send(f"NACK|id:{received[1].headers['ack']}")
    assert [(f.body, f.headers["x-tries"]) for f in again] == [(b"0", "1"), (b"1", "1")]


@pytest.mark.parametrize(
    "ack_id", ["@-1.9.0", "@-1.1.1", "@-2.1.0", "x", "", "@-1.1", "@-1..0", "@-1.x.0", "@", "1.1.0", r"a\cb", "ü"]
)
def test_a06_an_unknown_id_is_fatal(ack_id: str) -> None:
    for command in ("ACK", "NACK"):
        client = Client()
        (message,) = client.send(send(), SUB)
        handle = message.headers["ack"].partition("-")[0]
        error = client.error(f"{command}|id:{ack_id.replace('@', handle)}|receipt:r")
        assert error.headers["receipt-id"] == "r"


def test_a06_acking_twice() -> None:
    for mode in (SUB, CLIENT_SUB):
        client = Client()
        (message,) = client.send(send(), mode)
        ack = f"ACK|id:{message.headers['ack']}"
        received = client.send(f"{ack}|receipt:1", f"{ack}|receipt:2")
        assert [(f.command, f.headers["receipt-id"]) for f in received] == [("RECEIPT", "1"), ("ERROR", "2")]
        assert client.lab.bodies("a") == []


def test_a06_an_ack_on_an_auto_subscription(client: Client) -> None:
    client.send(send(), "SUBSCRIBE|id:0|destination:/queue/a|ack:auto")
    client.error("ACK|id:1.1.0")


def test_a07_nack_with_a_delay_or_without_requeue(client: Client, calls: list[tuple[Any, ...]]) -> None:
    (first,) = client.send(send(), SUB)
    assert client.send(f"NACK|id:{first.headers['ack']}|x-delta-t:500") == []
    client.lab.pass_time(499)
    assert client.read() == []
    client.lab.pass_time(1)
    (second,) = client.read()
    client.send(f"NACK|id:{second.headers['ack']}|x-next-t:{client.lab.host.now_ms() + 2000}")
    client.lab.pass_time(2000)
    (third,) = client.read()
    assert third.headers["x-tries"] == "2"
    client.send(f"NACK|id:{third.headers['ack']}|requeue:false|error:why")
    assert calls[-1] == ("reject", "a", [1], "why")


def test_a07_a_plain_nack_waits_five_seconds_only_on_keuss_destinations(
    client: Client, calls: list[tuple[Any, ...]]
) -> None:
    (plain,) = client.send(send(), SUB)
    (keuss,) = client.send(send(queue="/q/p/k"), "SUBSCRIBE|id:1|destination:/q/p/k|ack:client-individual")
    client.send(f"NACK|id:{plain.headers['ack']}", f"NACK|id:{keuss.headers['ack']}")
    nacks = [call for call in calls if call[0] == "nack"]
    assert nacks == [("nack", "a", [1], None, ""), ("nack", "k", [1], 5000, "")]
