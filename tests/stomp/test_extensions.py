"""What a client gets that asks for it by `x-features`: refusals that end nothing, ids, windows, joined messages."""

from __future__ import annotations

import pytest

from curbstone.access.identity import Identity
from curbstone.access.rights import EVERYTHING
from curbstone.core.errors import BadRequest, CurbstoneError, MessageTooLarge, QueueFull, Unavailable
from curbstone.core.names import parse_queue_name
from curbstone.stomp.limits import Limits
from tests.stomp.harness import SUB, Client, Refuse, send

QUEUE = parse_queue_name("a")


def client(wanted: str = "refusals,ids,window,joined", **options: object) -> Client:
    return Client(connect=f"|x-features:{wanted}", **options)  # type: ignore[arg-type]


def test_connected_lists_the_supported_requested_features() -> None:
    headers = client("ids, refusals,teleport").connected.headers
    assert headers["x-features"] == "refusals,ids"
    assert headers["x-body-max"] == str(Limits().body_bytes_max)
    assert "x-features" not in Client().connected.headers
    assert "x-features" not in Client(version="1.1", connect="|x-features:ids").connected.headers


@pytest.mark.parametrize(
    ("error", "code", "retry"),
    [(QueueFull("full"), "507", "1"), (MessageTooLarge("large"), "413", None), (Unavailable("disk"), "503", "5")],
)
def test_a_refused_send_is_answered_and_the_connection_continues(
    refuse: Refuse, error: CurbstoneError, code: str, retry: str | None
) -> None:
    asking = client("refusals")
    asking.send(send("1"))
    refuse("a", error)
    (refused,) = asking.send(send("2", "receipt:two"))
    assert refused.command == "RECEIPT"
    assert refused.headers["receipt-id"] == "two"
    assert refused.headers["x-error-code"] == code
    assert refused.headers["x-error"] == str(error)
    assert refused.headers.get("retry-after") == retry
    refuse("a", None)
    assert asking.receipts(send("3", "receipt:three")) == ["three"]


def test_refused_send_without_a_receipt_ends_the_connection_with_a_code(
    refuse: Refuse,
) -> None:
    asking = client("refusals")
    asking.send(send("1"))
    refuse("a", QueueFull("full"))
    assert asking.error(send("2", "receipt:two"), send("3")).headers["x-error-code"] == "507"


def test_stale_ack_and_nack_are_410_and_keep_the_connection() -> None:
    asking = client("refusals")
    (message,) = asking.send(send(), SUB)
    ack = f"ACK|id:{message.headers['ack']}"
    assert asking.receipts(f"{ack}|receipt:first") == ["first"]
    for command in ("ACK", "NACK"):
        (refused,) = asking.send(f"{command}|id:{message.headers['ack']}|receipt:again")
        assert (refused.headers["receipt-id"], refused.headers["x-error-code"]) == ("again", "410")
    asking.error(ack)


def test_commit_reports_why_a_transaction_was_refused() -> None:
    asking = client("refusals")
    (message,) = asking.send(send(), SUB)
    ack = f"ACK|id:{message.headers['ack']}"
    asking.receipts(f"{ack}|receipt:first")
    frames = ["BEGIN|transaction:t", send("in", "transaction:t", queue="/queue/b"), f"{ack}|transaction:t"]
    (refused,) = asking.send(*frames, "COMMIT|transaction:t|receipt:end")
    assert (refused.headers["receipt-id"], refused.headers["x-error-code"]) == ("end", "410")
    assert asking.lab.bodies("b") == []
    assert asking.receipts(send("out", "receipt:on")) == ["on"]


def test_refused_transaction_keeps_the_connection() -> None:
    asking = client("refusals")
    (message,) = asking.send(send("1"), SUB)
    frames = ["BEGIN|transaction:t", f"ACK|id:{message.headers['ack']}|transaction:t"]
    asking.send(*frames, f"ACK|id:{message.headers['ack']}")  # another settles it before the commit
    (refused,) = asking.send("COMMIT|transaction:t|receipt:end")
    assert (refused.headers["receipt-id"], refused.headers["x-error-code"]) == ("end", "410")


def test_protocol_violation_ends_the_connection_despite_reported_refusals() -> None:
    client("refusals").error("ACK|receipt:r")


def test_receipts_have_the_ids_of_the_messages() -> None:
    asking = client("ids")
    received = asking.send(send("1", "receipt:1"), send("2"), send("3", "receipt:3"), SUB)
    ids = {frame.body: frame.headers["message-id"] for frame in received if frame.command == "MESSAGE"}
    receipts = {f.headers["receipt-id"]: f.headers["x-msg-id"] for f in received if f.command == "RECEIPT"}
    assert receipts == {"1": ids[b"1"], "3": ids[b"3"]}


def test_a_second_subscribe_changes_the_window() -> None:
    asking = client("window")
    narrow = f"{SUB}|prefetch-count:2"
    received = asking.send(*[send(str(n)) for n in range(9)], narrow)
    assert len(received) == 2
    (*more, receipt) = asking.send(f"{SUB}|prefetch-count:5|receipt:r") + asking.turn()
    bodies = [frame.body for frame in [*more, receipt] if frame.command == "MESSAGE"]
    assert bodies == [b"2", b"3", b"4"]
    asking.send(narrow)
    for frame in received:
        assert not [f for f in asking.send(f"ACK|id:{frame.headers['ack']}") if f.command == "MESSAGE"]


def test_second_subscribe_matches_the_destination_despite_a_home_project() -> None:
    """A queue without a project was taken for one of the project `default`: the connection ended."""
    asking = client("window", identity=Identity("ann", [EVERYTHING], home="shop"))
    received = asking.send(*[send(str(n)) for n in range(3)], f"{SUB}|prefetch-count:1")
    assert [frame.body for frame in received if frame.command == "MESSAGE"] == [b"0"]
    (*more, _receipt) = asking.send(f"{SUB}|prefetch-count:2|receipt:r") + asking.turn()
    assert [frame.command for frame in [*more, _receipt]].count("MESSAGE") == 1
    assert parse_queue_name("shop/a") in asking.lab.names()


def test_second_subscribe_to_another_queue_is_refused() -> None:
    asking = client("window")
    asking.send(SUB)
    error = asking.error("SUBSCRIBE|id:0|destination:/queue/other|ack:client-individual|prefetch-count:5")
    assert "another destination" in error.headers["message"]


def test_errors_have_no_code_unless_requested(refuse: Refuse) -> None:
    plain = Client()
    plain.send(send("1"))
    refuse("a", BadRequest("no"))
    assert "x-error-code" not in plain.error(send("2")).headers
