"""`Idempotency-Key`: stored once, answered the same, also after kill -9."""

from __future__ import annotations

import httpx

from tests.kit.server import ServerProcess


def test_a_repeated_post_is_stored_once_also_after_kill_9(server: ServerProcess) -> None:
    key = {"Idempotency-Key": "order-1"}
    url = f"{server.url}/v2/p/queues/q"
    httpx.put(url)
    first = httpx.post(f"{url}/messages", content=b"one", headers=key)
    assert first.status_code == 201
    assert httpx.post(f"{url}/messages", content=b"one", headers=key).headers["x-msg-id"] == first.headers["x-msg-id"]
    server.kill()
    server.restart()
    url = f"{server.url}/v2/p/queues/q"
    assert httpx.post(f"{url}/messages", content=b"one", headers=key).headers["x-msg-id"] == first.headers["x-msg-id"]
    assert httpx.get(url).json()["rdy"] == 1


def test_other_content_under_the_same_key_is_422(server: ServerProcess) -> None:
    key = {"Idempotency-Key": "order-1"}
    url = f"{server.url}/v2/p/queues/q"
    httpx.put(url)
    assert httpx.post(f"{url}/messages", content=b"one", headers=key).status_code == 201
    for changed in ({"content": b"two"}, {"content": b"one", "params": {"delay": "5"}}):
        refused = httpx.post(f"{url}/messages", headers=key, **changed)
        assert (refused.status_code, refused.json()["status"]) == (422, 422)


def test_a_repeated_batch_has_the_same_ids(server: ServerProcess) -> None:
    key = {"Idempotency-Key": "batch-1"}
    url = f"{server.url}/v2/p/queues/q"
    httpx.put(url)
    batch = [{"message": "a"}, {"message": "b"}]
    ids = [httpx.post(f"{url}/messages/batch", json=batch, headers=key).json()["ids"] for _ in range(2)]
    assert ids[0] == ids[1]
    assert len(ids[0]) == 2
    assert httpx.get(url).json()["rdy"] == 2


def test_a_bad_key_is_400(server: ServerProcess) -> None:
    url = f"{server.url}/v2/p/queues/q"
    httpx.put(url)
    for key in ("", "x" * 256, "\u00e9"):
        headers = {b"Idempotency-Key": key.encode("latin-1")}
        assert httpx.post(f"{url}/messages", content=b"one", headers=headers).status_code == 400
