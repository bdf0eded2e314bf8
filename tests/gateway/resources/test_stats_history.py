"""The history of the charts over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from curbstone.charts import NAME
from curbstone.gateway.resources.metrics.chart_file import DAY, HOUR, SERVER, encode_row
from tests.kit.guarded_server import guarded_server
from tests.kit.server import ServerProcess
from tests.kit.waiting import wait_until

READY = "messages_ready"
USERS = """
[users.root]
grants = ["admin server"]
[users.clerk]
grants = ["peek shop/orders"]
[users.watcher]
grants = ["metrics server"]
"""


def write_history(data: Path, uid: str, steps: int) -> int:
    """Write a file in which the series of a queue and of the server count up; return the time of the last step."""
    last_s = HOUR.last(time.time())
    with data.joinpath(NAME).open("wb") as file:
        for ring in (HOUR, DAY):
            for index in range(steps):
                time_s = ring.last(last_s) - (steps - 1 - index) * ring.step_s
                file.seek(ring.place(time_s))
                file.write(encode_row(time_s, {uid: (float(index),) * 6, SERVER: (float(index + 1),) * 6}))
    return last_s


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data = tmp_path_factory.mktemp("history") / "data"
    with ServerProcess(data) as process:
        httpx.put(f"{process.url}/v2/shop/queues/orders", json={}, trust_env=False).raise_for_status()
        process.kill()
        (directory,) = data.joinpath("queues").iterdir()
        write_history(data, directory.name, 100)
        process.restart()
        wait_until(lambda: any(get(process, "?queue=shop/orders").json()["queues"][0][READY]))  # opened after the start
        yield process


def get(server: ServerProcess, query: str = "") -> httpx.Response:
    return httpx.get(f"{server.url}/v2/stats/history{query}", trust_env=False)


@pytest.mark.parametrize(("span", "step_s", "steps"), [("hour", 10, 360), ("day", 60, 1440)])
def test_last_hour_and_day_survive_a_restart(server: ServerProcess, span: str, step_s: int, steps: int) -> None:
    found = get(server, f"?span={span}&queue=shop/orders").json()
    assert found["step"] == step_s and found["from"] % (1000 * step_s) == 0
    (queue,) = found["queues"]
    assert (queue["project"], queue["queue"]) == ("shop", "orders")
    assert {len(values) for name, values in queue.items() if name.startswith("messages_")} == {steps}
    known = [value for value in queue[READY] if value is not None]
    assert known[:90] == list(range(90)) and None in queue[READY]
    whole = get(server, f"?span={span}").json()
    assert [value for value in whole["server"][READY] if value is not None][:90] == list(range(1, 91))
    assert "queues" not in whole


def test_part_of_the_history_can_be_requested(server: ServerProcess) -> None:
    since = int(time.time() * 1000) - 60_000
    found = get(server, f"?queue=shop/orders&since={since}").json()
    assert since <= found["from"] < since + 10_000 and 6 <= len(found["queues"][0][READY]) <= 8
    assert len(get(server, "?since=9000000000000").json()["server"][READY]) == 1


def test_recorded_values_are_appended(server: ServerProcess) -> None:
    path = f"{server.url}/v2/shop/queues/orders/messages"
    for _ in range(7):
        httpx.post(path, content="x", trust_env=False).raise_for_status()

    def recorded() -> dict[str, list[float | None]]:
        found: dict[str, list[float | None]] = get(server, "?queue=shop/orders").json()["queues"][0]
        return found

    wait_until(lambda: 7 in recorded()[READY][-3:])
    found = recorded()
    assert max(rate or 0 for rate in found["messages_published_per_second"][-3:]) > 0


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("?span=week", 400, "bad span 'week': hour or day"),
        ("?queue=shop/none", 404, "shop/none"),
        ("?queue=a%20b", 400, "bad queue name"),
        ("?queue=" + ",".join(f"shop/q{number}" for number in range(101)), 400, "101 queues with 360 steps each"),
        ("?since=-1", 400, "bad since"),
    ],
)
def test_invalid_requests_are_refused(server: ServerProcess, query: str, status: int, text: str) -> None:
    reply = get(server, query)
    assert reply.status_code == status and text in reply.json()["detail"]


def test_history_shows_only_visible_queues(tmp_path: Path) -> None:
    with guarded_server(tmp_path, USERS) as it:
        for queue in ("orders", "other"):
            it.call("root", "PUT", f"/v2/shop/queues/{queue}", json={}).raise_for_status()
        queries = ("", "?queue=shop/orders", "?queue=shop/orders,shop/other")
        for user, statuses, sees_server in (
            ("", [401, 401, 401], False),
            ("clerk", [200, 200, 403], False),
            ("watcher", [200, 403, 403], True),
            ("root", [200, 200, 200], True),
        ):
            answers = [it.call(user, "GET", f"/v2/stats/history{query}") for query in queries]
            assert [answer.status_code for answer in answers] == statuses, user
            assert ("server" in answers[0].json()) is sees_server, user
