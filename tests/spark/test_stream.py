"""Reading queues as a stream: exactly once, and the group's ack follows what is committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curbstone.spark.failure import last_line
from tests.kit.server import ServerProcess
from tests.spark.kit import call, group_of, make_queue, numbered, publish

QUEUE = "shop/orders"
WAIT_S = 300


class Query:
    """A stream into a Parquet folder, with its checkpoint; may be run again and again."""

    def __init__(self, spark: Any, server: ServerProcess, folder: Path) -> None:
        self.spark = spark
        self.url = server.url
        self.folder = folder

    def load(self, **options: object) -> Any:
        settings = {"url": self.url, "queue": QUEUE, "groupId": "lake", "retryTimeout": 120, "pollWait": 0.2, **options}
        if "queues" in options:
            del settings["queue"]
        return self.spark.readStream.format("curbstone").options(**settings).load()

    def start(self, **options: object) -> Any:
        writer = self.load(**options).writeStream.format("parquet").option("checkpointLocation", self.folder / "check")
        return writer.option("path", self.folder / "rows")

    def once(self, **options: object) -> Any:
        """Take what there is now; return the finished query."""
        query = self.start(**options).trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S)
        return query

    def bodies(self) -> list[str]:
        rows = self.spark.read.parquet(str(self.folder / "rows")).orderBy("queue", "seq").collect()
        return [bytes(row.body).decode() for row in rows]


@pytest.fixture
def query(spark: Any, server: ServerProcess, tmp_path: Path) -> Query:
    make_queue(server.url, QUEUE)
    return Query(spark, server, tmp_path)


def test_available_now_respects_its_limit_and_acks_the_tail(query: Query) -> None:
    publish(query.url, QUEUE, numbered(1000))
    done = query.once(maxOffsetsPerTrigger=400)
    assert [batch["numInputRows"] for batch in done.recentProgress if batch["numInputRows"]] == [400, 400, 200]
    assert query.bodies() == numbered(1000)
    assert group_of(query.url, QUEUE, "lake")["position"] == 1001
    publish(query.url, QUEUE, numbered(10, 1000))
    query.once(maxOffsetsPerTrigger=400)
    query.once(maxOffsetsPerTrigger=400)
    assert query.bodies() == numbered(1010), "from where it was, and nothing again"
    assert group_of(query.url, QUEUE, "lake")["position"] == 1011


def test_idle_query_acks_its_tail_and_survives_a_server_restart(query: Query, server: ServerProcess) -> None:
    call(query.url, "PUT", "/v2/shop/queues/orders/groups/lake")
    publish(query.url, QUEUE, numbered(100))
    running = query.start().start()
    try:
        _until(running, lambda: group_of(query.url, QUEUE, "lake")["position"] == 101)
        server.restart(same_ports=True)
        publish(query.url, QUEUE, numbered(50, 100))
        _until(running, lambda: group_of(query.url, QUEUE, "lake")["position"] == 151)
    finally:
        running.stop()
    assert query.bodies() == numbered(150)


def test_query_from_latest_misses_nothing_after_its_start(query: Query) -> None:
    publish(query.url, QUEUE, numbered(10))
    running = query.start(startingOffsets="latest", pollWait=2).start()
    try:
        _until(running, lambda: "lake" in _groups(query.url))
        publish(query.url, QUEUE, numbered(20, 10))
        running.processAllAvailable()
    finally:
        running.stop()
    assert query.bodies() == numbered(20, 10)


def test_a_second_query_of_the_same_group_ends_the_first(
    query: Query, spark: Any, server: ServerProcess, tmp_path: Path
) -> None:
    call(query.url, "PUT", "/v2/shop/queues/orders/groups/lake")
    publish(query.url, QUEUE, numbered(10))
    first = query.start().start()
    try:
        _until(first, lambda: group_of(query.url, QUEUE, "lake")["position"] == 11)
        other = Query(spark, server, tmp_path / "other")
        publish(query.url, QUEUE, numbered(10, 10))
        other.once()
        publish(query.url, QUEUE, numbered(10, 20))
        with pytest.raises(Exception) as caught:
            first.awaitTermination(WAIT_S)
    finally:
        first.stop()
    assert "group=lake: another reader has taken over" in last_line(caught.value)
    other.once()
    assert other.bodies()[-10:] == numbered(10, 20)


def test_several_queues_share_a_batch_and_one_is_added(query: Query) -> None:
    make_queue(query.url, "shop/returns")
    publish(query.url, QUEUE, numbered(300))
    publish(query.url, "shop/returns", numbered(100, 300))
    done = query.once(queues=f"{QUEUE},shop/returns", maxOffsetsPerTrigger=200)
    assert [batch["numInputRows"] for batch in done.recentProgress if batch["numInputRows"]] == [200, 200]
    assert query.bodies() == numbered(400)
    make_queue(query.url, "shop/returns.late")
    publish(query.url, "shop/returns.late", numbered(50, 400))
    query.once(queues=f"{QUEUE},shop/returns,shop/returns.late")
    assert query.bodies() == numbered(450)
    assert group_of(query.url, "shop/returns.late", "lake")["position"] == 51


def _overtake(query: Query) -> int:
    """Publish more than the queue holds, past a group that may be overtaken; return how many it has lost."""
    query.once()
    path = "/v2/shop/queues/orders/groups/lake"
    call(query.url, "PUT", path, {"on_full": "skip"})
    for start in range(0, 6000, 100):
        publish(query.url, QUEUE, [f"{body} {'x' * 200}" for body in numbered(100, start)])
        _drain(query.url)
    lost = int(group_of(query.url, QUEUE, "lake")["lost"])
    assert lost > 0
    return lost


def test_lost_messages_end_a_query_unless_it_may_continue(spark: Any, server: ServerProcess, tmp_path: Path) -> None:
    make_queue(server.url, QUEUE, cap="512KiB")
    query = Query(spark, server, tmp_path)
    publish(query.url, QUEUE, ["first"])
    lost = _overtake(query)
    floor = group_of(query.url, QUEUE, "lake")["floor"]
    with pytest.raises(Exception) as caught:
        query.once()
    assert f"DATA_LOSS queue={QUEUE} group=lake missing=[2,{floor})" in last_line(caught.value)
    done = query.once(failOnDataLoss=False)
    assert len(query.bodies()) == 6001 - lost
    assert len(set(query.bodies())) == 6001 - lost
    assert f'"lost": {lost}' in done.lastProgress["sources"][0]["endOffset"].replace('":', '": ').replace("  ", " ")


def test_recreated_queue_is_detected(query: Query) -> None:
    publish(query.url, QUEUE, numbered(10))
    query.once()
    call(query.url, "DELETE", "/v2/shop/queues/orders")
    make_queue(query.url, QUEUE)
    call(query.url, "PUT", "/v2/shop/queues/orders/groups/lake")
    publish(query.url, QUEUE, numbered(5, 10))
    with pytest.raises(Exception) as caught:
        query.once()
    assert "the queue was deleted and created again" in last_line(caught.value)
    query.once(failOnDataLoss=False)
    assert sorted(query.bodies()) == numbered(15)


def _groups(url: str) -> list[str]:
    return [group["group"] for group in call(url, "GET", "/v2/shop/queues/orders/groups")["groups"]]


def _drain(url: str) -> None:
    """Take and settle all as an ordinary consumer."""
    path = "/v2/shop/queues/orders/messages"
    while messages := call(url, "POST", f"{path}/lease", {"count": 1000, "seconds": 60})["messages"]:
        call(url, "POST", f"{path}/ack", {"ackIds": [message["ackId"] for message in messages]})


def _until(running: Any, condition: Any) -> None:
    """Wait for a condition that the query brings about; each look waits for the query for a moment."""
    for _ in range(10 * WAIT_S):
        if condition():
            return
        assert not running.awaitTermination(0.1), running.exception()
    raise AssertionError("it did not come about")
