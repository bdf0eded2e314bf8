"""A SEND with an `idempotency-key`: stored once, also across connections and after a crash."""

from __future__ import annotations

import httpx
import pytest

from tests.kit.server import ServerProcess
from tests.stomp.harness import SUB, send
from tests.stomp.raw import CONNECTED, Raw


def bodies(server: ServerProcess, count: int) -> list[bytes]:
    with Raw(server.stomp) as reader:
        reader.confirm(SUB)
        messages = [message.body for message in reader.frames(count)]
        assert reader.waiting() == []
    return messages


def test_repeated_send_is_stored_once_in_order_also_after_a_crash(server: ServerProcess) -> None:
    with Raw(server.stomp, f"{CONNECTED}|x-features:ids") as peer:
        frames = [send("1", "receipt:r1"), send("2", "receipt:r2|idempotency-key:k-2"), send("3", "receipt:r3")]
        peer.send(*frames)
        receipts = {frame.headers["receipt-id"]: frame.headers["x-msg-id"] for frame in peer.frames(3)}
        seqs = [int(receipts[name].rsplit("-", 1)[1]) for name in ("r1", "r2", "r3")]
        assert seqs == sorted(seqs), "in the order they were sent"
        peer.send(send("2", "receipt:again|idempotency-key:k-2"))
        assert peer.frame().headers["x-msg-id"] == receipts["r2"]
    server.kill()
    server.restart()
    with Raw(server.stomp, f"{CONNECTED}|x-features:ids") as peer:
        peer.send(send("2", "receipt:late|idempotency-key:k-2"))
        assert peer.frame().headers["x-msg-id"] == receipts["r2"]
    assert bodies(server, 3) == [b"1", b"2", b"3"]


def test_key_is_shared_with_http_and_not_delivered(server: ServerProcess) -> None:
    url = f"{server.url}/v2/default/queues/a"
    httpx.put(url)
    httpx.post(f"{url}/messages", content=b"1", headers={"Idempotency-Key": "k"}).raise_for_status()
    with Raw(server.stomp) as peer:
        peer.confirm("SEND|destination:/queue/a|content-type:application/octet-stream|idempotency-key:other||1")
    first, second = httpx.get(f"{url}/messages").json()["messages"]
    assert (first["message"], second["message"]) == ("1", "1")
    assert not [name for name in second if "dempotency" in name]


def test_other_content_under_a_key_is_refused(server: ServerProcess) -> None:
    with Raw(server.stomp, f"{CONNECTED}|x-features:refusals") as peer:
        peer.confirm(send("1", "idempotency-key:k"))
        peer.send(send("2", "receipt:r|idempotency-key:k"))
        assert peer.frame().headers["x-error-code"] == "422"
        peer.confirm(send("3"))
    assert bodies(server, 2) == [b"1", b"3"]


@pytest.mark.parametrize(
    "frame",
    [send("1", "idempotency-key:"), send("1", "idempotency-key:a b"), send("1", "idempotency-key:k", queue="/topic/t"),
     send("1", "idempotency-key:k", queue="/temp-queue/t"), send("1", "idempotency-key:" + "k" * 256),
     send("1", "idempotency-key:k|transaction:t")],
)  # fmt: skip
def test_key_on_an_unsupported_destination_is_an_error(server: ServerProcess, frame: str) -> None:
    with Raw(server.stomp) as peer:
        assert "idempotency" in peer.error("BEGIN|transaction:t", frame).headers["message"]
