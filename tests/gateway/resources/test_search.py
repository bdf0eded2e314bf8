"""Searching messages over HTTP."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from curbstone.gateway.resources.messages import searching
from tests.gateway.frames import rows_of
from tests.kit.gateway import MESSAGES, QUEUE, Running

SEARCH = QUEUE + "/search"


async def search(gateway: Running, **query: object) -> dict[str, Any]:
    reply = await gateway.http.get(SEARCH, params={name: str(value) for name, value in query.items()})
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def bodies(answer: dict[str, Any]) -> list[str]:
    return [each["message"] for each in answer["messages"]]


@pytest.mark.anyio
async def test_search_covers_bodies_and_headers_in_any_state_ignoring_case(gateway: Running) -> None:
    await gateway.publish("Order 17", "order 18", "nothing")
    await gateway.publish("x", **{"x-msg-x-note": "an ORDER: 19"})
    (await gateway.http.post(MESSAGES + "?delay=100", content="later order")).raise_for_status()
    await gateway.http.post(MESSAGES + "/lease", json={"count": 1})
    answer = await search(gateway, text="oRDER")
    assert bodies(answer) == ["Order 17", "order 18", "x", "later order"]
    assert [each["state"] for each in answer["messages"]] == ["wip", "rdy", "rdy", "delayed"]
    assert answer["looked"]["messages"] == 5 and answer["looked"]["bytes"] > 0 and "next" not in answer
    assert bodies(await search(gateway, text="order: 19")) == ["x"]
    assert bodies(await search(gateway, text="orders")) == []


@pytest.mark.anyio
async def test_settled_messages_are_not_found_and_text_is_utf8(gateway: Running) -> None:
    await gateway.publish("größer", "größer")
    assert (await gateway.http.delete(MESSAGES)).status_code == 200
    assert len(bodies(await search(gateway, text="größ"))) == 1


@pytest.mark.anyio
async def test_search_can_be_continued_after_its_limit(gateway: Running) -> None:
    await gateway.publish(*[f"m{number}" for number in range(10)])
    all_of_it: list[str] = []
    after: dict[str, object] = {}
    for _ in range(4):
        answer = await search(gateway, text="m", limit=3, **after)
        all_of_it += bodies(answer)
        after = {"after": answer["messages"][-1]["id"]} if "next" not in answer else {"after": answer["next"]}
    assert all_of_it == [f"m{number}" for number in range(10)]
    assert bodies(await search(gateway, text="m", **after)) == []


@pytest.mark.anyio
async def test_search_is_bounded_by_bytes_and_reports_its_position(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "SCAN_BYTES_MAX", 10_000)
    monkeypatch.setattr(searching, "PAGE_BYTES", 3000)
    batch = [{"message": ("last" if number == 99 else "y") + "x" * 500} for number in range(100)]
    await gateway.http.post(MESSAGES + "/batch", content=orjson.dumps(batch))
    answer = await search(gateway, text="last")
    calls, looked = 1, answer["looked"]["messages"]
    while "next" in answer:
        assert answer["messages"] == [] and answer["looked"]["bytes"] <= 11_000
        answer = await search(gateway, text="last", after=answer["next"])
        calls, looked = calls + 1, looked + answer["looked"]["messages"]
    assert calls >= 5 and looked == 100
    assert bodies(answer) == ["last" + "x" * 500]


@pytest.mark.anyio
@pytest.mark.parametrize("query", ["", "text=", "text=a&limit=101", "text=a&after=no-id", "text=" + "a" * 1001])
async def test_invalid_requests_are_refused(gateway: Running, query: str) -> None:
    assert (await gateway.http.get(f"{SEARCH}?{query}")).status_code == 400


# --- filters


async def fill(gateway: Running, count: int) -> None:
    """Publish messages with their numbers as body and header; the last one is a lease, and one more is delayed."""
    for number in range(count):
        await gateway.publish(str(number), **{"x-msg-x-n": str(number)})
    (await gateway.http.post(MESSAGES + "?delay=100", content="later", headers={"x-msg-x-n": "99"})).raise_for_status()
    (await gateway.http.post(MESSAGES + "/lease", json={"count": 1})).raise_for_status()


@pytest.mark.anyio
async def test_search_supports_a_filter_with_or_without_text(gateway: Running) -> None:
    await fill(gateway, 12)
    assert bodies(await search(gateway, filter="n >= 10 OR n = 1")) == ["1", "10", "11", "later"]
    assert bodies(await search(gateway, filter="n >= 10", text="1")) == ["10", "11"]
    assert (await gateway.http.get(SEARCH, params={"filter": "n ="})).status_code == 400
    assert (await gateway.http.get(SEARCH)).status_code == 400


@pytest.mark.anyio
async def test_filtered_peek_reports_its_position(gateway: Running) -> None:
    await fill(gateway, 12)
    peek = {"filter": "n < 3 OR n > 10"}
    first = (await gateway.http.get(MESSAGES, params={**peek, "limit": "2"})).json()
    assert (bodies(first), first["looked"]["messages"]) == (["0", "1"], 13)
    rest = (await gateway.http.get(MESSAGES, params={**peek, "after": first["next"]})).json()
    assert bodies(rest) == ["2", "11", "later"] and "next" not in rest
    for state, expected in {"wip": ["0"], "rdy": ["1", "2", "11"], "delayed": ["later"]}.items():
        assert bodies((await gateway.http.get(MESSAGES, params={**peek, "state": state})).json()) == expected


@pytest.mark.anyio
async def test_filtered_peek_is_bounded_and_can_be_continued(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "SCAN_MESSAGES_MAX", 4)
    monkeypatch.setattr(searching, "PAGE_MESSAGES", 4)
    await fill(gateway, 12)
    seen: list[list[str]] = []
    after: dict[str, str] = {}
    for _ in range(10):
        answer = (await gateway.http.get(MESSAGES, params={"filter": "n > 8", **after})).json()
        seen.append(bodies(answer))
        if "next" not in answer:
            break
        after = {"after": answer["next"]}
    assert seen == [[], [], ["9", "10", "11"], ["later"]]


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["application/x-ndjson", "application/vnd.curbstone.batches"])
async def test_browse_page_has_matching_messages(gateway: Running, kind: str) -> None:
    await fill(gateway, 12)
    query = {"filter": "n > 8", "limit": "11"}
    pages: list[bytes] = []
    for _ in range(2):
        reply = await gateway.http.get(QUEUE + "/browse", params=query, headers={"accept": kind})
        assert reply.status_code == 200, reply.text
        pages.append(reply.content)
        query["from"] = reply.headers["next-offset"]
    if kind == "application/x-ndjson":
        found = [[json["message"] for json in map(orjson.loads, page.splitlines())] for page in pages]
    else:
        found = [[row.body.decode() for row in rows_of(page)] for page in pages]
    assert found == [["9", "10"], ["11", "later"]]
