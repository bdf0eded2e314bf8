"""Numbered producers over HTTP: stored once under a number, also after kill -9."""

from __future__ import annotations

import httpx

from tests.kit.server import ServerProcess


def numbers(seq: int, after: int | None = None, producer: str = "web-1") -> dict[str, str]:
    headers = {"x-msg-producer": producer, "x-msg-seq": str(seq)}
    return headers if after is None else headers | {"x-msg-after": str(after)}


def create_queue(server: ServerProcess) -> str:
    url = f"{server.url}/v2/p/queues/q"
    assert httpx.put(url).status_code == 201
    return url


def test_a_number_is_stored_once_also_after_kill_9(server: ServerProcess) -> None:
    url = create_queue(server)
    first = httpx.post(f"{url}/messages", content=b"one", headers=numbers(1041, after=0))
    assert (first.status_code, first.headers.get("x-msg-duplicate")) == (201, None)
    server.kill()
    server.restart()
    url = f"{server.url}/v2/p/queues/q"
    again = httpx.post(f"{url}/messages", content=b"one", headers=numbers(1041, after=0))
    assert (again.status_code, again.headers["x-msg-duplicate"]) == (201, "1")
    assert again.headers["x-msg-id"] == first.headers["x-msg-id"]
    assert httpx.get(f"{url}/messages").json()["messages"][0]["message"] == "one"
    assert httpx.get(url).json()["rdy"] == 1


def test_stored_messages_of_a_repeated_batch_are_skipped(server: ServerProcess) -> None:
    url = create_queue(server)
    batch = [{"message": str(number)} for number in range(1, 6)]
    assert len(httpx.post(f"{url}/messages/batch", json=batch[:3], headers=numbers(1)).json()["ids"]) == 3
    reply = httpx.post(f"{url}/messages/batch", json=batch, headers=numbers(1))
    assert (reply.status_code, reply.headers["x-msg-duplicate"], len(reply.json()["ids"])) == (201, "3", 2)
    reply = httpx.post(f"{url}/messages/batch", json=batch, headers=numbers(1))
    assert (reply.headers["x-msg-duplicate"], reply.json()["ids"]) == ("5", [])
    assert [each["message"] for each in httpx.get(f"{url}/messages").json()["messages"]] == ["1", "2", "3", "4", "5"]


def test_early_number_is_409_with_the_expected_number(server: ServerProcess) -> None:
    url = create_queue(server)
    httpx.post(f"{url}/messages", content=b"one", headers=numbers(1))
    for path, body in (("/messages", {"content": b"three"}), ("/messages/batch", {"json": [{"message": "three"}]})):
        refused = httpx.post(url + path, headers=numbers(3), **body)
        assert (refused.status_code, refused.json()["expected"]) == (409, 2)
        assert refused.json()["type"] == "/docs/problems#number-gap"
    assert httpx.post(f"{url}/messages", content=b"three", headers=numbers(3, after=1)).status_code == 201
    assert httpx.post(f"{url}/messages", content=b"nine", headers=numbers(9, after=0)).status_code == 201
    assert httpx.get(url).json()["rdy"] == 3


def test_second_message_does_not_overtake_a_refused_first(
    server: ServerProcess,
) -> None:
    """It was stored, and the first, sent again, was answered as a repeat that nobody has ever received."""
    url = f"{server.url}/v2/p/queues/q"
    assert httpx.put(url, json={"cap": 65536}).status_code == 201
    while (reply := httpx.post(f"{url}/messages", content=b"0" * 3000)).status_code == 201:
        pass
    assert reply.status_code == 507
    assert httpx.post(f"{url}/messages", content=b"1" * 3000, headers=numbers(1)).status_code == 507
    refused = httpx.post(f"{url}/messages", content=b"2", headers=numbers(2))
    assert (refused.status_code, refused.json()["expected"]) == (409, 1)
    assert httpx.post(f"{url}/messages", content=b"1" * 3000, headers=numbers(1)).status_code == 507
    assert httpx.delete(f"{url}/messages").status_code == 200
    while httpx.delete(f"{url}/messages").status_code == 200:
        pass
    assert [httpx.post(f"{url}/messages", content=b"x", headers=numbers(seq)).status_code for seq in (1, 2)] == [
        201,
        201,
    ]
    assert httpx.get(url).json()["rdy"] == 2


def test_last_stored_number_of_a_producer_is_reported(server: ServerProcess) -> None:
    url = create_queue(server)
    assert httpx.get(f"{url}/producers/web-1").status_code == 404
    stored = httpx.post(f"{url}/messages", content=b"one", headers=numbers(7, after=0))
    last = httpx.get(f"{url}/producers/web-1").json()
    assert last.pop("timestamp") > 1_600_000_000_000
    assert last == {"producer": "web-1", "seq": 7, "id": stored.headers["x-msg-id"]}


def test_bad_numbers_are_400(server: ServerProcess) -> None:
    url = create_queue(server)
    bad: list[dict[str, str]] = [{"x-msg-producer": "p"}, {"x-msg-seq": "1"}, {"x-msg-after": "1"}]
    bad += [numbers(1, producer=name) for name in ("", "a b", "x" * 65)]
    bad += [numbers(1) | {"x-msg-seq": seq} for seq in ("0", "-1", "1.5", "1" * 16, "")]
    bad += [numbers(3, after=3), numbers(1) | {"Idempotency-Key": "k"}]
    for headers in bad:
        assert httpx.post(f"{url}/messages", content=b"one", headers=headers).status_code == 400, headers
    assert httpx.get(f"{url}/producers/a%20b").status_code == 400
    assert httpx.get(url).json()["rdy"] == 0
