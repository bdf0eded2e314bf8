"""SEND, receipts and the end of a connection (M1 to M10), and the headers keuss adds to SEND.

Each test is named by the number its pitfall has in the project's conformance list.
"""

from __future__ import annotations

from typing import Any

import pytest

from curbstone.stomp.codec import Head
from curbstone.stomp.send import Publisher, SendPlan
from tests.stomp.harness import SUB, Client, send


@pytest.mark.parametrize(
    "destination",
    [None, "", " ", "/unknown/x", "/queue/", "/q/a", "a b", "/queue/a/b/c", "/queue/a/count", "..", "/exchange/x/y"],
)
def test_m01_a_bad_destination(client: Client, destination: str | None) -> None:
    line = "" if destination is None else f"|destination:{destination}"
    error = client.error(f"SEND{line}|receipt:r||x")
    assert error.headers["receipt-id"] == "r"
    assert "destination" in error.body.decode()
    assert not client.lab.names()


def test_m02_a_receipt_comes_only_after_the_commit(client: Client) -> None:
    client.feed(Client.frame(send("x", "receipt:r")))
    assert client.read() == []
    (receipt,) = client.turn()
    assert (receipt.command, receipt.headers) == ("RECEIPT", {"receipt-id": "r"})


def test_m03_one_publish_for_all_sends_of_a_read(client: Client, calls: list[tuple[Any, ...]]) -> None:
    assert client.receipts(send("1"), send("2", "receipt:r"), send("3")) == ["r"]
    assert calls == [("publish", "a", [b"1", b"2", b"3"])]


def test_m04_a_receipt_on_every_frame(client: Client) -> None:
    one, two = [f for f in client.send(send("1"), send("2"), SUB + "|receipt:s") if f.command == "MESSAGE"]
    assert client.receipts(f"ACK|id:{one.headers['ack']}|receipt:a") == ["a"]
    assert client.receipts(f"NACK|id:{two.headers['ack']}|receipt:n") == ["n"]
    assert client.receipts("UNSUBSCRIBE|id:0|receipt:u") == ["u"]
    assert client.receipts("BEGIN|transaction:t|receipt:b", "COMMIT|transaction:t|receipt:c") == ["b", "c"]
    assert client.receipts("BEGIN|transaction:t|receipt:b2", "ABORT|transaction:t|receipt:ab") == ["b2", "ab"]
    assert client.receipts(SUB + "|receipt:s2") == ["s2"]
    assert client.receipts("DISCONNECT|receipt:d") == ["d"]


@pytest.mark.parametrize("receipt", ["a", "ä ö", r"a\cb\\c\n", "a:b", "x" * 10_000, " spaced ", ""])
def test_m05_receipts_are_echoed_exactly(client: Client, receipt: str) -> None:
    client.feed(Client.frame(send("x", f"receipt:{receipt}", "receipt:second")))
    client.lab.settle()
    assert b"".join(client.session.take_output()) == f"RECEIPT\nreceipt-id:{receipt}\n\n\0\n".encode()


def test_m06_a_queue_is_created_on_first_use(client: Client) -> None:
    client.send(send(queue="/queue/shop/orders"))
    assert [str(name) for name in client.lab.names()] == ["shop/orders"]


def test_m07_messages_sent_before_the_socket_closed_are_stored(client: Client) -> None:
    client.feed(Client.frame(send("1", "receipt:1")) + Client.frame(send("2")) + b"SEND\ndestination:/queue/a\n\nhalf")
    client.session.connection_lost()
    assert client.turn() == []
    assert client.lab.bodies("a") == [b"1", b"2"]


def test_m08_frames_after_disconnect_are_ignored(client: Client) -> None:
    received = client.send(send("1", "receipt:1"), "DISCONNECT|receipt:d", send("2"))
    assert [frame.headers["receipt-id"] for frame in received] == ["1", "d"], "its receipt is the last"
    assert client.session.closing
    assert client.lab.bodies("a") == [b"1"]


def test_m09_disconnect_returns_deliveries_and_aborts_transactions(client: Client) -> None:
    client.send(send("1"), SUB, "BEGIN|transaction:t", send("2", "transaction:t"))
    assert client.send("DISCONNECT") == []
    assert client.session.closing
    (message,) = Client(client.lab).send(SUB)
    assert (message.body, message.headers["redelivered"], message.headers["x-tries"]) == (b"1", "true", "1")
    assert client.lab.bodies("a") == [b"1"]


def test_frames_before_an_invalid_one_take_effect_and_get_receipts(client: Client) -> None:
    received = client.send(send("1", "receipt:1"), "BOGUS", send("2"))
    assert [frame.command for frame in received] == ["RECEIPT", "ERROR"]
    assert client.lab.bodies("a") == [b"1"]


@pytest.mark.source
@pytest.mark.parametrize("name", ["x-key", "JMSXGroupID", "correlation-id", "traceparent"])
def test_varying_header_is_planned_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[Head] = []
    plan = Publisher.plan

    def note(self: Publisher, head: Head, varied: bytes) -> SendPlan:
        planned.append(head)
        return plan(self, head, varied)

    monkeypatch.setattr(Publisher, "plan", note)
    client = Client()
    client.send(*[send(f"{n}", f"{name}:v-{n}", "a:b") for n in range(50)])
    assert len(planned) == 1
    keys = {"JMSXGroupID": ("JMSXGroupID", "x-key")}.get(name, (name,))
    for n, message in enumerate(client.send(SUB)):
        assert message.body == b"%d" % n and message.headers["a"] == "b"
        assert {key: message.headers[key] for key in keys} == dict.fromkeys(keys, f"v-{n}")


def test_varied_headers_keep_the_rules_of_other_headers() -> None:
    client = Client()
    assert "256 bytes at most" in client.error(send("x", "x-key:" + "k" * 257)).headers["message"]
    client = Client()
    client.send(*[send(f"{n}", f"x-key:\\c{n}", f"correlation-id:{n}") for n in range(2)])
    assert [message.headers["x-key"] for message in client.send(SUB)] == [":0", ":1"]
    client = Client()
    sends = [send("0", "x-key:k", "idempotency-key:same", "receipt:r"), send("1", "x-key:l", "idempotency-key:other")]
    assert client.receipts(*sends, sends[0]) == ["r", "r"]
    assert [message.body for message in client.send(SUB)] == [b"0", b"1"]
    client.send("BEGIN|transaction:t", send("t", "transaction:t", "x-key:a"), send("u", "transaction:t", "x-key:b"))
    assert [message.body for message in client.send("COMMIT|transaction:t")] == [b"t", b"u"]


def test_a_higher_priority_is_delivered_first(client: Client) -> None:
    sends = [send(text, *([f"priority:{text}"] if text != "-" else [])) for text in ("0", "-", "9", "4", "12", "5")]
    client.send(*sends)
    messages = client.send("SUBSCRIBE|id:0|destination:/queue/a|ack:auto")
    assert [message.body for message in messages] == [b"9", b"12", b"5", b"-", b"4", b"0"]
    assert [message.headers.get("priority") for message in messages] == ["9", "12", "5", None, "4", "0"]


def test_priority_applies_in_a_transaction(client: Client) -> None:
    client.send("BEGIN|transaction:t", send("4", "transaction:t"), send("9", "transaction:t", "priority:9"))
    client.send("COMMIT|transaction:t")
    assert [message.body for message in client.send(SUB)] == [b"9", b"4"]


@pytest.mark.parametrize("value", ["", "high", "-1", "256", "4.0"])
def test_invalid_priority_is_an_error_with_the_rule(value: str) -> None:
    error = Client().error(send("x", f"priority:{value}", "receipt:r"))
    assert error.headers["receipt-id"] == "r"
    assert "bad priority: it is a whole number from 0 to 9; up to 255 counts as 9" in error.body.decode()


@pytest.mark.parametrize("until", ["", "x-unique-until:delivered"])
def test_duplicate_unique_name_is_skipped(client: Client, until: str) -> None:
    more = [until] * bool(until)
    frames = [send(text, f"x-unique:{name}", f"receipt:{text}", *more) for text, name in zip("123", "aba", strict=True)]
    receipts = client.send(*frames)
    assert [receipt.headers for receipt in receipts] == [
        {"receipt-id": "1"},
        {"receipt-id": "2"},
        {"receipt-id": "3", "x-duplicate": "true"},
    ]
    messages = client.send("SUBSCRIBE|id:0|destination:/queue/a|ack:client")
    assert [(message.body, message.headers["x-unique"]) for message in messages] == [(b"1", "a"), (b"2", "b")]
    again = [frame for frame in client.send(send("4", "x-unique:a", "receipt:r", *more)) if frame.command == "RECEIPT"]
    assert ("x-duplicate" in again[0].headers) is not bool(until)


def test_receipt_of_a_skipped_send_has_the_id_of_the_existing_message() -> None:
    client = Client(connect="|x-features:ids")
    one, two = client.send(send("1", "x-unique:a", "receipt:1"), send("2", "x-unique:a", "receipt:2"))
    assert two.headers == {"receipt-id": "2", "x-msg-id": one.headers["x-msg-id"], "x-duplicate": "true"}


def test_sends_differing_only_in_unique_names_share_a_plan(client: Client) -> None:
    frames = [
        send(text, "x-key:k", *more)
        for text, more in [("1", ["x-unique:a"]), ("2", []), ("3", []), ("4", ["x-unique:a"])]
    ]
    client.send(*frames)
    assert [message.body for message in client.send("SUBSCRIBE|id:0|destination:/queue/a|ack:auto")] == [
        b"1",
        b"2",
        b"3",
    ]


@pytest.mark.parametrize("lines", [["x-unique:"], ["x-unique:" + "x" * 257], ["x-unique-until:settled"]])
def test_a_bad_unique_name_is_an_error_with_the_rule(lines: list[str]) -> None:
    error = Client().error(send("x", *lines, "receipt:r"))
    assert error.headers["receipt-id"] == "r"
    assert "bad name: x-unique" in error.body.decode()


def test_transaction_skips_duplicate_unique_names(client: Client) -> None:
    client.send(send("1", "x-unique:a"))
    client.send(
        "BEGIN|transaction:t", send("2", "transaction:t", "x-unique:a"), send("3", "transaction:t", "x-unique:b")
    )
    client.send("COMMIT|transaction:t")
    assert [message.body for message in client.send(SUB)] == [b"1", b"3"]


def test_waiting_message_with_the_same_name_is_replaced(client: Client) -> None:
    client.send(
        *[send(text, f"x-replace:{name}", "x-replace-max:5000") for text, name in zip("1234", "abab", strict=True)]
    )
    messages = client.send("SUBSCRIBE|id:0|destination:/queue/a|ack:client")
    assert [(message.body, message.headers["x-replace"]) for message in messages] == [(b"3", "a"), (b"4", "b")]
    error = Client().error(send("x", "x-replace:a", "x-replace-max:1.5"))
    assert "bad name: x-replace-max is '1.5'" in error.body.decode()


def test_the_messages_of_a_batch_are_counted_and_its_report_is_a_message(client: Client) -> None:
    lines = ["x-batch:a", "x-batch-size:3"]
    client.send(
        send("1", *lines, "x-key:k"),
        send("2", *lines, "x-batch-to:done"),
        "BEGIN|transaction:t",
        send("3", "x-batch:a", "transaction:t"),
        "COMMIT|transaction:t",
    )
    messages = client.send("SUBSCRIBE|id:0|destination:/queue/a|ack:auto")
    assert [message.headers["x-batch"] for message in messages] == ["a"] * 3
    assert messages[1].headers["x-batch-to"] == "done"
    (report,) = client.send("SUBSCRIBE|id:1|destination:/queue/done|ack:auto")
    assert (report.headers["content-type"], report.headers["x-batch"]) == ("application/json", "a")
    assert b'"total": 3, "acked": 3' in report.body


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["x-batch:"], "bad batch: x-batch has 0 bytes"),
        (["x-batch:a", "x-batch-size:many"], "bad batch: x-batch-size is 'many'"),
        (["x-batch:a", "x-batch-to:p/q"], "bad queue name"),
        (["x-batch:a", "x-ks-groups:g"], "can't name groups"),
    ],
)
def test_invalid_batch_is_an_error_with_the_rule(lines: list[str], text: str) -> None:
    error = Client().error(send("x", *lines, "receipt:r"))
    assert error.headers["receipt-id"] == "r"
    assert text in error.body.decode()


@pytest.mark.parametrize("queue", ["/topic/e", "/temp-queue/t"])
def test_a_topic_and_a_temporary_queue_have_no_batches(queue: str) -> None:
    assert "batch" in Client().error(send("x", "x-batch:a", queue=queue)).body.decode()
