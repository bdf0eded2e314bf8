"""Searching messages over HTTP."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from curbstone.gateway.resources.reading import search
from tests.kit.gateway import MESSAGES, QUEUE, Running

SEARCH = QUEUE + "/search"


async def found(gateway: Running, **query: object) -> dict[str, Any]:
    reply = await gateway.http.get(SEARCH, params={name: str(value) for name, value in query.items()})
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def bodies(answer: dict[str, Any]) -> list[str]:
    return [each["message"] for each in answer["messages"]]


@pytest.mark.anyio
async def test_bodies_and_headers_are_searched_whatever_the_case_and_the_state(gateway: Running) -> None:
    await gateway.publish("Order 17", "order 18", "nothing")
    await gateway.publish("x", **{"x-msg-x-note": "an ORDER: 19"})
    (await gateway.http.post(MESSAGES + "?delay=100", content="later order")).raise_for_status()
    await gateway.http.post(MESSAGES + "/lease", json={"count": 1})
    answer = await found(gateway, text="oRDER")
    assert bodies(answer) == ["Order 17", "order 18", "x", "later order"]
    assert [each["state"] for each in answer["messages"]] == ["wip", "rdy", "rdy", "delayed"]
    assert answer["looked"]["messages"] == 5 and answer["looked"]["bytes"] > 0 and "next" not in answer
    assert bodies(await found(gateway, text="order: 19")) == ["x"]
    assert bodies(await found(gateway, text="orders")) == []


@pytest.mark.anyio
async def test_settled_messages_are_not_found_and_text_is_utf8(gateway: Running) -> None:
    await gateway.publish("größer", "größer")
    assert (await gateway.http.delete(MESSAGES)).status_code == 200
    assert len(bodies(await found(gateway, text="größ"))) == 1


@pytest.mark.anyio
async def test_a_search_continues_where_the_limit_has_ended_it(gateway: Running) -> None:
    await gateway.publish(*[f"m{number}" for number in range(10)])
    all_of_it: list[str] = []
    after: dict[str, object] = {}
    for _ in range(4):
        answer = await found(gateway, text="m", limit=3, **after)
        all_of_it += bodies(answer)
        after = {"after": answer["messages"][-1]["id"]} if "next" not in answer else {"after": answer["next"]}
    assert all_of_it == [f"m{number}" for number in range(10)]
    assert bodies(await found(gateway, text="m", **after)) == []


@pytest.mark.anyio
async def test_a_search_looks_through_so_many_bytes_and_says_how_far(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SEARCH_BYTES_MAX", 10_000)
    monkeypatch.setattr(search, "PAGE_BYTES", 3000)
    batch = [{"message": ("last" if number == 99 else "y") + "x" * 500} for number in range(100)]
    await gateway.http.post(MESSAGES + "/batch", content=orjson.dumps(batch))
    answer = await found(gateway, text="last")
    calls, looked = 1, answer["looked"]["messages"]
    while "next" in answer:
        assert answer["messages"] == [] and answer["looked"]["bytes"] <= 11_000
        answer = await found(gateway, text="last", after=answer["next"])
        calls, looked = calls + 1, looked + answer["looked"]["messages"]
    assert calls >= 5 and looked == 100
    assert bodies(answer) == ["last" + "x" * 500]


@pytest.mark.anyio
@pytest.mark.parametrize("query", ["", "text=", "text=a&limit=101", "text=a&after=no-id", "text=" + "a" * 1001])
async def test_what_is_wrong_is_refused(gateway: Running, query: str) -> None:
    assert (await gateway.http.get(f"{SEARCH}?{query}")).status_code == 400
