"""The session as a whole: how much it hands over at once, how it is held, and that nothing a client sends breaks it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curbstone.core.errors import QueueFull
from curbstone.stomp.limits import Limits
from tests.stomp.harness import SUB, Client, Refuse, send


def test_names_of_the_same_queue_keep_its_order(client: Client, calls: list[tuple[Any, ...]]) -> None:
    client.send(send("1"), send("2", queue="a"), send("3"), send("4", queue="./a"), send("5", queue="/q/default/a"))
    assert calls == [("publish", "a", [b"1", b"2", b"3", b"4", b"5"])]


def test_sends_and_acks_of_different_queues_are_handed_over_together(
    client: Client, calls: list[tuple[Any, ...]]
) -> None:
    received = client.send(*[send(str(n)) for n in range(3)], SUB)
    calls.clear()
    mixed = []
    for frame in received:
        mixed += [send(frame.body.decode(), queue="/queue/b"), f"ACK|id:{frame.headers['ack']}"]
    client.send(*mixed)
    assert calls == [("publish", "b", [b"0", b"1", b"2"]), ("ack", "a", [1, 2, 3])]


def test_sends_and_acks_of_one_queue_keep_their_order(client: Client, calls: list[tuple[Any, ...]]) -> None:
    """An ack makes room under the cap for the send behind it."""
    one, two = client.send(send("1"), send("2"), SUB)
    calls.clear()
    client.send(f"ACK|id:{one.headers['ack']}", send("3"), f"ACK|id:{two.headers['ack']}", send("4"))
    assert [call[0] for call in calls] == ["ack", "publish", "ack", "publish"]


def test_a_refused_publish_ends_the_connection_and_names_the_first_receipt(
    client: Client,
    refuse: Refuse,
) -> None:
    client.send(send("1"))
    refuse("a", QueueFull("queue default/a is at its cap"))
    error = client.error(send("2", "receipt:r2"), send("3", "receipt:r3"), send("4", "receipt:r4", queue="/queue/b"))
    assert error.headers["receipt-id"] == "r2"
    assert b"at its cap" in error.body


def test_held_session_delivers_nothing(client: Client) -> None:
    client.send(SUB, "SUBSCRIBE|id:c|destination:/queue/a/count")
    client.session.pause()
    assert client.send(send("1"), SUB.replace("id:0", "id:1")) == []
    client.session.resume()
    assert sorted(frame.body for frame in client.turn()) == [b"1", b"1"], "the message and the count"


def test_congestion_pauses_and_resumes_reading() -> None:
    for limits in (Limits(unconfirmed_max=10), Limits(unconfirmed_bytes_max=10)):
        client = Client(limits=limits)
        client.feed(Client.frame(send()) * 11)
        assert client.session.congested
        before = client.changes
        client.lab.settle()
        assert not client.session.congested
        assert client.changes > before, "the owner of the socket hears of it"


@pytest.mark.parametrize("header", ["receipt:", "k:"])
def test_large_headers_count_for_congestion_as_bodies_do(header: str) -> None:
    """20,000 empty messages with receipts of 5 KB each used to be taken in at once."""
    client = Client(limits=Limits(unconfirmed_bytes_max=10_000))
    client.feed(Client.frame(send("", header + "x" * 5_000)) * 3)
    assert client.session.congested
    client.turn()
    assert not client.session.congested
    limits = Limits(transaction_bytes_max=10_000)
    many = [send("", "transaction:t", "k:" + "x" * 5_000)] * 3
    assert "bytes together" in Client(limits=limits).error("BEGIN|transaction:t", *many).headers["message"]


def test_concurrent_plans_do_not_mix_headers(client: Client) -> None:
    for n in range(2000):
        client.feed(Client.frame(send(str(n), f"n:{n}", "x-delta-t:0" if n % 2 else "k:v")))
    client.lab.settle()
    received = client.send(f"{SUB}|x-wsize:5000")
    assert [(frame.body, frame.headers["n"]) for frame in received] == [(str(n).encode(), str(n)) for n in range(2000)]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_headers_round_trip_across_versions(client: Client, version: str) -> None:
    """What 1.2 can say and the reader's version can't must not become another header there."""
    client.send(send("x", r"evil:a\nack\cforged", r"na\nme\c:v", r"cr:a\rb", "plain:12:30"))
    reader = Client(client.lab, version=version)
    reader.feed(Client.frame("SUBSCRIBE|id:0|destination:/queue/a"))
    reader.lab.settle()
    head = b"".join(reader.session.take_output()).partition(b"\n\n")[0].decode()
    lines = head.split("\n")
    assert not [line for line in lines if line.startswith("ack")]
    assert "plain:12:30" in lines or r"plain:12\c30" in lines
    assert "\r" not in head
    if version == "1.0":
        assert "evil:a ack:forged" in lines
        assert not [line for line in lines if line.startswith("na")]
    else:
        assert r"evil:a\nack\cforged" in lines
        assert r"na\nme\c:v" in lines


PIECES = [
    "CONNECT|accept-version:1.2", "CONNECT", "STOMP|accept-version:1.1|heart-beat:1,1", send(), send("y", "receipt:1"),
    send("y", "transaction:t"), send("z", "x-delta-t:5"), send("z", queue="/topic/e"), SUB,
    "SUBSCRIBE|id:1|destination:a|ack:client",
    "SUBSCRIBE|id:2|destination:a/count", "SUBSCRIBE|id:3|destination:/topic/e", "SUBSCRIBE|destination:/queue/a",
    "UNSUBSCRIBE|id:0", "UNSUBSCRIBE|id:1", "ACK|id:1.1.0", "ACK|id:1.2.0", "ACK|id:2.1.0", "NACK|id:1.1.0",
    "ACK|message-id:u1-1|subscription:0", "ACK|id:1.1.0|transaction:t", "NACK|id:1.2.0|transaction:t|requeue:false",
    "BEGIN|transaction:t", "COMMIT|transaction:t", "ABORT|transaction:t", "DISCONNECT|receipt:d", "FOO", "SEND||x",
]  # fmt: skip


@given(st.lists(st.sampled_from([*PIECES, *PIECES, "turn", "junk"]), max_size=25), st.booleans(), st.binary(max_size=9))
def test_session_survives_any_frames(pieces: list[str], connect: bool, junk: bytes) -> None:
    client = Client(version="1.2" if connect else None)
    for piece in pieces:
        if piece == "turn":
            client.lab.settle()
        else:
            client.feed(junk if piece == "junk" else Client.frame(piece))
        client.session.tick(client.now_ms)
    was_closing = client.session.closing
    client.lab.settle()
    if client.session.ending:
        assert client.session.closing, "nothing is left to wait for"
    output = b"".join(client.session.take_output())
    if was_closing:
        assert output.count(b"ERROR\nmessage:") <= 1
    client.session.connection_lost()
    client.lab.settle()
    assert client.session.take_output() == []
    for queue in client.lab.broker.queues():
        assert not queue.dispatcher.attached
        assert queue.counts().wip == 0
