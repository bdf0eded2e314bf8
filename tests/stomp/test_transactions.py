"""BEGIN, COMMIT and ABORT (T1 to T6; T7, a crash during COMMIT, is the engine's).

Each test is named by the number its pitfall has in the project's conformance list.
"""

from __future__ import annotations

import pytest

from curbstone.stomp.limits import Limits
from tests.stomp.harness import SUB, Client, send


@pytest.mark.parametrize(
    "frame",
    ["COMMIT|transaction:t", "ABORT|transaction:t", send("x", "transaction:t"), "COMMIT", "BEGIN", "ABORT",
     "ACK|id:1.1.0|transaction:t", "NACK|id:1.1.0|transaction:t"],
)  # fmt: skip
def test_t01_an_unknown_transaction(client: Client, frame: str) -> None:
    client.send(send("0"), SUB)
    assert "transaction" in client.error(frame).headers["message"]


def test_t02_a_name_is_used_by_one_open_transaction(client: Client) -> None:
    client.send("BEGIN|transaction:t", "COMMIT|transaction:t", "BEGIN|transaction:t")
    assert "already open" in client.error("BEGIN|transaction:t").headers["message"]


def test_t03_a_send_is_invisible_until_commit(client: Client) -> None:
    got = client.receipts("BEGIN|transaction:t", send("1", "transaction:t", "receipt:1"), send("2", "transaction:t"))
    assert got == ["1"], "accepted, not durable"
    assert client.lab.bodies("a") == []
    client.feed(Client.frame("COMMIT|transaction:t|receipt:c"))
    assert client.read() == []
    assert [f.headers["receipt-id"] for f in client.turn()] == ["c"]
    assert client.lab.bodies("a") == [b"1", b"2"]


def test_t03_a_send_to_a_topic_too(client: Client) -> None:
    client.send("SUBSCRIBE|id:0|destination:/topic/news")
    frames = ["BEGIN|transaction:t", send("hot", "transaction:t", "receipt:1", queue="/topic/news")]
    assert client.receipts(*frames, send("kept", "transaction:t")) == ["1"]
    got = client.send("COMMIT|transaction:t|receipt:c")
    assert sorted((frame.command, frame.body) for frame in got) == [("MESSAGE", b"hot"), ("RECEIPT", b"")]
    assert client.lab.bodies("a") == [b"kept"]
    client.send("BEGIN|transaction:t", send("never", "transaction:t", queue="/topic/news"))
    assert client.send("ABORT|transaction:t") == []


def test_t04_an_ack_that_was_aborted_can_be_given_again(client: Client) -> None:
    (message,) = client.send(send(), SUB)
    ack = f"ACK|id:{message.headers['ack']}"
    client.send("BEGIN|transaction:t", f"{ack}|transaction:t", "ABORT|transaction:t")
    assert client.lab.bodies("a") == [b"x"]
    assert client.receipts(f"{ack}|receipt:r") == ["r"]


def test_t04_ack_and_send_take_effect_together(client: Client) -> None:
    one, two = client.send(send("1"), send("2"), SUB)
    client.send(
        "BEGIN|transaction:t",
        f"ACK|id:{one.headers['ack']}|transaction:t",
        send("out", "transaction:t", queue="/queue/b"),
        f"NACK|id:{two.headers['ack']}|transaction:t|x-delta-t:100",
    )
    assert client.lab.bodies("a") == [b"1", b"2"]
    assert client.receipts("COMMIT|transaction:t|receipt:c") == ["c"]
    assert client.lab.bodies("a") == [b"2"]
    assert client.lab.bodies("b") == [b"out"]


def test_t04_the_same_ack_twice_in_a_transaction(client: Client) -> None:
    (message,) = client.send(send(), SUB)
    ack = f"ACK|id:{message.headers['ack']}|transaction:t"
    assert "already" in client.error("BEGIN|transaction:t", ack, ack).headers["message"]


def test_t05_the_end_of_the_connection_aborts(client: Client) -> None:
    client.send("BEGIN|transaction:t", send("1", "transaction:t"))
    client.session.connection_lost()
    client.lab.settle()
    assert client.lab.bodies("a") == []


def test_t06_transactions_are_limited() -> None:
    limits = Limits(transactions_max=2, transaction_frames_max=3, transaction_bytes_max=10)
    client = Client(limits=limits)
    client.error(*[f"BEGIN|transaction:{n}" for n in range(3)])
    client = Client(limits=limits)
    client.error("BEGIN|transaction:t", *[send("1", "transaction:t")] * 4)
    client = Client(limits=limits)
    client.error("BEGIN|transaction:t", send("12345678901", "transaction:t"))
