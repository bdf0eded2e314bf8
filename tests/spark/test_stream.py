"""Reading queues as a stream of Spark: exactly once, and the group's ack follows what is committed.

What a reader does without Spark is tested in `test_following`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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

    def start(self, **options: object) -> Any:
        settings = {"url": self.url, "queue": QUEUE, "groupId": "lake", "retryTimeout": 120, "pollWait": 0.2, **options}
        stream = self.spark.readStream.format("curbstone").options(**settings).load()
        writer = stream.writeStream.format("parquet").option("checkpointLocation", self.folder / "check")
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


def _until(running: Any, condition: Any) -> None:
    """Wait for a condition that the query brings about; each look waits for the query for a moment."""
    for _ in range(10 * WAIT_S):
        if condition():
            return
        assert not running.awaitTermination(0.1), running.exception()
    raise AssertionError("it did not come about")
