"""Writing into queues: all of it or nothing, and once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from curbstone.spark.failure import last_line
from tests.kit.server import ServerProcess
from tests.spark.kit import call, make_queue, numbered, publish, take_all

QUEUE = "shop/out"


@pytest.fixture(autouse=True)
def queues(server: ServerProcess) -> None:
    make_queue(server.url, QUEUE)
    make_queue(server.url, "shop/in")


def write(frame: Any, server: ServerProcess, **options: object) -> None:
    target = {"url": server.url, "queue": QUEUE, "retryTimeout": 5, **options}
    frame.write.format("curbstone").options(**target).mode("append").save()


def held(server: ServerProcess, queue: str = "out") -> list[dict[str, Any]]:
    found = call(server.url, "GET", f"/v2/shop/queues/{queue}/messages?limit=1000")["messages"]
    return [message for message in found if isinstance(message, dict)]


def test_row_becomes_a_message_with_all_columns(spark: Any, server: ServerProcess) -> None:
    rows = [("a", None, {"x-msg-x-n": "1"}, "text/csv", 0), ("b", "shop/in", None, None, 3_600_000)]
    write(spark.createDataFrame(rows, "value STRING, queue STRING, headers MAP<STRING,STRING>, content_type STRING, delay LONG"), server)  # fmt: skip # noqa: E501
    first, second = held(server)[0], held(server, "in")[0]
    assert (first["message"], first["Content-Type"], first["x-msg-x-n"]) == ("a", "text/csv", "1")
    assert second["message"] == "b"
    assert call(server.url, "GET", "/v2/shop/queues/in")["delayed"] == 1


def test_ttl_and_groups_round_trip(spark: Any, server: ServerProcess) -> None:
    rows = [("a", 60_000, ["g", ""]), ("b", None, None), ("c", 3_000_000, None)]
    write(spark.createDataFrame(rows, "body STRING, ttl LONG, groups ARRAY<STRING>"), server)
    read = spark.read.format("curbstone").options(url=server.url, queue=QUEUE).load()
    found = read.selectExpr("body", "groups", "expires - timestamp AS lives").collect()
    assert [(bytes(row.body), row.groups) for row in found] == [(b"a", ["g", ""]), (b"b", None), (b"c", None)]
    assert [row.lives and round(row.lives.total_seconds()) for row in found] == [60, None, 3000]
    one = call(server.url, "POST", "/v2/shop/queues/out/messages/lease?", {"group": "g", "count": 9})["messages"]
    assert [message["message"] for message in one] == ["a"]
    for columns, row, line in (
        ("body STRING, ttl LONG", ("a", -1), "a row's ttl is negative"),
        ("body STRING, groups ARRAY<STRING>", ("a", ["a b"]), "bad group name 'a b'"),
        ("body STRING, ttl LONG", ("a", 3_600_001), "bad ttl 3600001 ms: at most 3600000"),
    ):
        with pytest.raises(Exception) as caught:
            write(spark.createDataFrame([row], columns), server)
        assert line in last_line(caught.value)


def test_messages_are_written_with_priorities_and_names(spark: Any, server: ServerProcess) -> None:
    rows = [
        ("a", 1, None),
        ("b", None, None),
        ("c", 9, {"priority": "0"}),
        ("d", None, {"priority": "8", "x-unique": "n"}),
    ]
    rows += [("e", 12, {"x-unique": "n"})]
    write(spark.createDataFrame(rows, "body STRING, priority INT, headers MAP<STRING,STRING>").coalesce(1), server)
    leased = call(server.url, "POST", "/v2/shop/queues/out/messages/lease", {"count": 9})["messages"]
    assert [message["message"] for message in leased] == ["c", "d", "b", "a"]
    with pytest.raises(Exception) as caught:
        write(spark.createDataFrame([("a", 300)], "body STRING, priority INT"), server)
    assert "bad priority 300: it is a whole number from 0 to 9" in last_line(caught.value)


def test_ordering_keys_round_trip(spark: Any, server: ServerProcess) -> None:
    rows = [("a", "k", None), ("b", None, {"x-key": "other"}), ("c", "k", {"x-key": "beaten"}), ("d", None, None)]
    write(spark.createDataFrame(rows, "body STRING, key STRING, headers MAP<STRING,STRING>").coalesce(1), server)
    frame = spark.read.format("curbstone").options(url=server.url, queue=QUEUE).load()
    found = [(bytes(row.body), row.key, row.headers) for row in frame.select("body", "key", "headers").collect()]
    assert found == [
        *((b"a", "k", {"x-key": "k"}), (b"b", "other", {"x-key": "other"})),
        *((b"c", "k", {"x-key": "k"}), (b"d", None, {})),
    ]
    leased = call(server.url, "POST", "/v2/shop/queues/out/messages/lease", {"count": 9})["messages"]
    assert [message["message"] for message in leased] == ["a", "b", "d"], "c waits for a"
    with pytest.raises(Exception) as caught:
        write(spark.createDataFrame([("a", "")], "body STRING, key STRING"), server)
    assert "an ordering key is not empty" in last_line(caught.value)


def test_read_rows_can_be_written_in_order(spark: Any, server: ServerProcess) -> None:
    publish(server.url, "shop/in", numbered(500), **{"x-msg-x-a": "b"})
    read = spark.read.format("curbstone").options(url=server.url, queue="shop/in", minPartitions=3).load()
    write(read.select("body", "headers", "content_type"), server)
    assert [message["message"] for message in held(server)] == numbered(500)
    assert {message["x-msg-x-a"] for message in held(server)} == {"b"}


def test_a_job_that_fails_leaves_nothing(spark: Any, server: ServerProcess) -> None:
    frame = (
        spark.range(1000)
        .repartition(2)
        .selectExpr("IF(id = 777, raise_error('broken row'), CAST(id AS STRING)) AS body")
    )
    with pytest.raises(Exception, match="broken row"):
        write(frame, server)
    with pytest.raises(Exception, match="shop/nowhere"):
        write(spark.createDataFrame([("x", "shop/out"), ("y", "shop/nowhere")], "body STRING, queue STRING"), server)
    assert held(server) == []


def test_repeated_transaction_writes_nothing(spark: Any, server: ServerProcess) -> None:
    for _ in range(2):
        write(spark.createDataFrame([("once",)], "body STRING"), server, transactionId="load-2026-01")
    assert [message["message"] for message in held(server)] == ["once"]


@pytest.mark.parametrize(
    ("columns", "options", "line"),
    [
        ("body STRING, price LONG", {}, "column 'price' can't be written, only body, value, queue"),
        ("body LONG", {}, "column 'body' is bigint; it must be string or binary"),
        ("queue STRING", {}, "there is no column 'body' (or 'value')"),
        ("body STRING", {"queue": ""}, "no destination: set the option queue, or add a column 'queue'"),
        ("body STRING", {"queues": "a,b"}, "unknown option 'queues'; did you mean queue?"),
    ],
)
def test_invalid_write_is_refused_immediately(
    spark: Any, server: ServerProcess, columns: str, options: dict[str, object], line: str
) -> None:
    with pytest.raises(Exception) as caught:
        write(spark.createDataFrame([], columns), server, **options)
    assert line in last_line(caught.value)


def test_a_queue_is_not_overwritten(spark: Any, server: ServerProcess) -> None:
    frame = spark.createDataFrame([("x",)], "body STRING")
    with pytest.raises(Exception) as caught:
        frame.write.format("curbstone").options(url=server.url, queue=QUEUE).mode("overwrite").save()
    assert 'write with .mode("append")' in last_line(caught.value)


def test_repeated_stream_writes_each_batch_once(spark: Any, server: ServerProcess, tmp_path: Path) -> None:
    """A batch was known by its number, so the 100 messages of a batch of an old checkpoint were skipped and acked."""
    check, kept = tmp_path / "check", tmp_path / "kept"

    def run(checkpoint: Path = check) -> str:
        source = {"url": server.url, "queue": "shop/in", "groupId": "copy", "failOnDataLoss": "false"}
        target = {"url": server.url, "queue": QUEUE, "checkpointLocation": str(checkpoint)}
        stream = spark.readStream.format("curbstone").options(**source, maxOffsetsPerTrigger=100).load().select("body")
        query = stream.writeStream.format("curbstone").options(**target).trigger(availableNow=True).start()
        assert query.awaitTermination(300)
        return str(query.id)

    publish(server.url, "shop/in", numbered(300))
    run()
    shutil.copytree(check, kept)
    # Spark believes again that the last batch was not done, as after a crash right behind the commit.
    (check / "commits" / "2").unlink()
    (check / "commits" / ".2.crc").unlink()
    publish(server.url, "shop/in", numbered(10, 300))
    query = run()
    assert [message["message"] for message in held(server)] == numbered(310)
    assert call(server.url, "GET", f"/v2/shop/transactions/{query}@0")["state"] == "committed"
    # The next one was committed by the first release, which had another id for it; then Spark was killed.
    earlier = f"/v2/shop/transactions/{query}:4"
    row = {"queue": "out", "message": numbered(1, 310)[0]}
    call(server.url, "PUT", f"{earlier}/parts/0", row, "application/x-ndjson")
    call(server.url, "POST", f"{earlier}/commit")
    publish(server.url, "shop/in", numbered(1, 310))
    run()
    assert [message["message"] for message in held(server)] == numbered(311)
    # An old checkpoint, whose next batch has another content than the one of its number.
    shutil.rmtree(check)
    shutil.copytree(kept, check)
    publish(server.url, "shop/in", numbered(100, 311))
    with pytest.raises(Exception) as caught:
        run()
    assert "batch 3: transaction" in last_line(caught.value)
    assert f"the checkpoint {check} is older than what was published: restore" in last_line(caught.value)
    assert [message["message"] for message in held(server)] == numbered(311)
    assert call(server.url, "GET", "/v2/shop/queues/in/groups/copy")["position"] <= 312
    run(tmp_path / "new")
    assert [message["message"] for message in held(server)] == numbered(411)


def test_micro_batch_never_exceeds_the_staging_limit(spark: Any, tmp_path: Path) -> None:
    """It failed, and again with a smaller maxOffsetsPerTrigger: Spark repeats the range that it has planned."""
    with ServerProcess(tmp_path / "data", "--max-staged", "2MiB") as small:
        for queue in ("shop/in", "shop/more", QUEUE):
            make_queue(small.url, queue)
        large = [body + 2000 * "x" for body in numbered(1500)]
        publish(small.url, "shop/in", large)
        publish(small.url, "shop/more", large[:500])
        source = {"url": small.url, "queues": "shop/in,shop/more", "groupId": "copy"}
        target = {"url": small.url, "queue": QUEUE, "retryTimeout": 0, "checkpointLocation": str(tmp_path / "check")}
        stream = spark.readStream.format("curbstone").options(**source).load().select("body")
        query = stream.writeStream.format("curbstone").options(**target).trigger(availableNow=True).start()
        assert query.awaitTermination(300)
        assert sorted(take_all(small.url, QUEUE)) == sorted([*large, *large[:500]])
        batches = [batch["numInputRows"] for batch in query.recentProgress if batch["numInputRows"]]
        assert sum(batches) == 2000 and 150 < max(batches) < 400
        rows = spark.createDataFrame([(body,) for body in large], "body STRING").coalesce(1)
        with pytest.raises(Exception) as caught:
            write(rows, small, retryTimeout=0)
        assert "start the server with a larger --max-staged" in last_line(caught.value)
        write(
            spark.createDataFrame([(body,) for body in large[:700]], "body STRING").coalesce(1), small, retryTimeout=0
        )
        assert len(take_all(small.url, QUEUE)) == 700, "nothing is left of what did not fit"
