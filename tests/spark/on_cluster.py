"""A program for spark-submit: what it is asked for, done on a cluster. It knows nothing of the checkout.

spark-submit on_cluster.py STEP '{"url": …}'; the last line of its output is what it found, in JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

ROWS, TASKS = 660, 3
"""Of `slow`: rows of 100 kB, so that a task has sent a part of 16 MiB when it stops."""
WAIT_S_MAX = 300


def everything(spark: SparkSession, url: str, token: str, folder: str) -> dict[str, Any]:
    """Read, write, read and write as a stream, archive."""
    here = {"url": url, "token": token}

    def read(queue: str) -> Any:
        return spark.read.format("curbstone").options(**here, queue=queue, minPartitions=2).load()

    made = spark.range(300).selectExpr("CAST(id AS STRING) AS body").repartition(2)
    made.write.format("curbstone").options(**here, queue="shop/in").mode("append").save()
    found = {"read": read("shop/in").selectExpr("sum(CAST(CAST(body AS STRING) AS LONG))").collect()[0][0]}
    copy(spark, url, token, folder)
    found["copied"] = read("shop/out").select("body").distinct().count()
    from curbstone.spark.archive import archive

    options = {**here, "queues": "shop/in"}
    found["archived"] = archive(spark, f"{folder}/lake", options, once=True).messages
    try:
        read("shop/none").count()
    except Exception as error:
        found["error"] = str(error)
    found["plan"] = read("shop/in")._jdf.queryExecution().toString()
    return found


def where(spark: SparkSession) -> dict[str, Any]:
    """Say which Curbstone the executors have."""

    def look(_rows: Iterator[Any]) -> Iterator[str]:
        import curbstone

        yield curbstone.__file__

    return {"files": spark.sparkContext.parallelize(range(2), 2).mapPartitions(look).collect()}


def copy(spark: SparkSession, url: str, token: str, folder: str) -> dict[str, Any]:
    """Copy a queue into another as a stream of small batches."""
    source = {"url": url, "token": token, "queue": "shop/in", "groupId": "copy", "maxOffsetsPerTrigger": "100"}
    target = {"url": url, "token": token, "queue": "shop/out", "checkpointLocation": f"{folder}/check"}
    stream = spark.readStream.format("curbstone").options(**source).load().select("body")
    query = stream.writeStream.format("curbstone").options(**target).trigger(availableNow=True).start()
    query.awaitTermination()
    return {"batches": query.lastProgress["batchId"] + 1}


def slow(spark: SparkSession, url: str, token: str, folder: str) -> dict[str, Any]:
    """Write; each attempt of each task but the first leaves a file `<task>-<attempt>` near its end, and waits for `go`.

    A message's content type is its number.
    """

    def rows(part: int, numbers: Iterator[int]) -> Iterator[tuple[str, str]]:
        context = TaskContext.get()
        assert context is not None
        for count, number in enumerate(numbers):
            if part and count == ROWS // TASKS - 20:
                (Path(folder) / f"{part}-{context.attemptNumber()}").touch()
                _wait((Path(folder) / "go").exists)
            yield "x" * 100_000, f"test/{number}"

    made = spark.sparkContext.range(0, ROWS, 1, TASKS).mapPartitionsWithIndex(rows)
    target = {"url": url, "token": token, "queue": "shop/out", "transactionId": Path(folder).parent.name}
    frame = spark.createDataFrame(made, "body STRING, content_type STRING")
    frame.write.format("curbstone").options(**target).mode("append").save()
    return {}


def _wait(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + WAIT_S_MAX
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError("nobody let this task continue")
        time.sleep(0.05)


STEPS = {"everything": everything, "copy": copy, "slow": slow}


def main(step: str, arguments: str) -> None:
    spark = SparkSession.builder.appName(step).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        found = STEPS[step](spark, **json.loads(arguments)) | where(spark)
    finally:
        spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
