"""Reading queues as a batch."""

from __future__ import annotations

from typing import Any

import pytest

from curbstone.spark.failure import last_line
from curbstone.spark.source import register
from tests.kit.server import ServerProcess
from tests.spark.kit import call, group_of, make_queue, numbered, publish

QUEUE = "shop/orders"


def reader(spark: Any, server: ServerProcess, **options: object) -> Any:
    return spark.read.format("curbstone").options(url=server.url, queue=QUEUE, retryTimeout=5, **options)


def bodies(frame: Any) -> list[str]:
    return [bytes(row.body).decode() for row in frame.select("body").collect()]


def test_row_has_all_message_fields(spark: Any, server: ServerProcess) -> None:
    make_queue(server.url, QUEUE)
    publish(server.url, QUEUE, ["grün"], **{"x-msg-x-lang": "de"})
    row = reader(spark, server).load().collect()[0]
    assert (row.queue, row.seq, row.content_type, row.tries) == (QUEUE, 1, "text/plain", 0)
    assert bytes(row.body).decode() == "grün"
    assert row.headers == {"lang": "de"}
    assert row.message_id == f"{row.epoch}-1"
    assert row.timestamp.year > 2020
    assert call(server.url, "GET", "/v2/shop/queues/orders")["rdy"] == 1, "reading changes nothing"


def test_filter_does_not_leak_into_the_next_action(spark: Any, server: ServerProcess) -> None:
    make_queue(server.url, QUEUE)
    publish(server.url, QUEUE, numbered(1000))
    frame = reader(spark, server, minPartitions=3, fetchRows=70).load()
    assert frame.where("seq < 11").count() == 10
    assert frame.count() == 1000
    assert frame.where("seq <= 10").union(frame).count() == 1010
    assert bodies(frame) == numbered(1000), "in order, over pages and partitions"


def test_start_and_end_by_position_or_time(spark: Any, server: ServerProcess) -> None:
    make_queue(server.url, QUEUE)
    publish(server.url, QUEUE, numbered(100))
    assert bodies(reader(spark, server, startingOffsets=11, endingOffsets=21).load()) == numbered(10, 10)
    first = reader(spark, server).load().first().timestamp
    assert reader(spark, server, startingTimestamp=first.isoformat() + "Z").load().count() == 100
    assert reader(spark, server, startingTimestamp="2100-01-01T00:00:00Z").load().count() == 0
    assert reader(spark, server, endingTimestamp="2001-01-01T00:00:00Z").load().count() == 0
    assert reader(spark, server, startingOffsets=50, endingOffsets=50).load().count() == 0


def test_several_queues_are_read_together(spark: Any, server: ServerProcess) -> None:
    for number, name in enumerate(("a", "b", "other")):
        make_queue(server.url, f"shop/{name}")
        publish(server.url, f"shop/{name}", numbered(10 * (number + 1)))
    plain = spark.read.format("curbstone").option("url", server.url)
    both = plain.option("queues", "shop/a, shop/b").load()
    assert {row.queue: row["count"] for row in both.groupBy("queue").count().collect()} == {"shop/a": 10, "shop/b": 20}
    like = spark.read.format("curbstone").options(url=server.url, project="shop", queuePattern="a|oth.*").load()
    assert like.count() == 40


def test_unselected_columns_are_not_sent(spark: Any, server: ServerProcess) -> None:
    make_queue(server.url, QUEUE)
    publish(server.url, QUEUE, numbered(10), **{"x-msg-x-a": "b"})
    lean = reader(spark, server, includeHeaders=False, includeBody=False).load()
    assert not {"headers", "body"} & set(lean.columns)
    assert lean.agg({"seq": "max"}).collect()[0][0] == 10
    chosen = reader(spark, server).schema("body BINARY, seq LONG NOT NULL").load()
    assert [(bytes(row.body).decode(), row.seq) for row in chosen.collect()][-1] == ("message 00000009", 10)


def test_group_reads_unacked_messages(spark: Any, server: ServerProcess) -> None:
    make_queue(server.url, QUEUE)
    call(server.url, "PUT", "/v2/shop/queues/orders/groups/reports")
    publish(server.url, QUEUE, numbered(10))
    epoch = group_of(server.url, QUEUE, "reports")["epoch"]
    call(server.url, "POST", "/v2/shop/queues/orders/groups/reports/ack", {"upTo": 4, "epoch": epoch})
    assert bodies(reader(spark, server, groupId="reports").load()) == numbered(6, 4)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"startingOfsets": "earliest"}, "unknown option 'startingofsets'; did you mean startingOffsets?"),
        ({"queue": "no such"}, "bad queue name 'no such'"),
        ({"startingOffsets": "latest"}, "a batch can't start at latest"),
        ({"queue": "shop/nothing"}, "shop/nothing"),
        ({"url": "http://127.0.0.1:1", "retryTimeout": 0}, "can't reach http://127.0.0.1:1"),
    ],
)
def test_errors_are_one_line_without_the_token(
    spark: Any, server: ServerProcess, options: dict[str, object], line: str
) -> None:
    with pytest.raises(Exception) as caught:
        reader(spark, server, token="s3cr3t-t0ken").options(**options).load().count()
    assert line in last_line(caught.value)
    assert "\n" not in last_line(caught.value)
    assert "s3cr3t" not in str(caught.value)


def test_token_is_in_no_plan(spark: Any, server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    make_queue(server.url, QUEUE)
    frame = reader(spark, server, token="s3cr3t-t0ken").load()
    frame.explain(True)
    frame.explain("cost")
    shown = capsys.readouterr().out + repr(frame) + frame._jdf.queryExecution().toString()
    assert "curbstone" in shown
    assert "s3cr3t" not in shown


def test_workers_default_to_the_registering_python(
    spark: Any, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark takes `python3` from the PATH: the first program of one's own died of `No module named 'pyarrow'`."""
    make_queue(server.url, QUEUE)
    publish(server.url, QUEUE, numbered(3))
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/no/such/python3")
    register(spark)
    assert reader(spark, server).load().count() == 3


def test_a_large_read_is_a_task_for_each_core(spark: Any, server: ServerProcess) -> None:
    """Spark does not tell a data source how many there are: `register` does."""
    make_queue(server.url, QUEUE, cap="64MiB")
    rows = spark.range(100_000).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("curbstone").options(url=server.url, queue=QUEUE).mode("append").save()
    assert reader(spark, server).load().rdd.getNumPartitions() == spark.sparkContext.defaultParallelism == 2
    assert reader(spark, server).load().count() == 100_000
