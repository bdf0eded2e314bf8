"""The pipeline: how fast Spark reads a queue, streams it to Parquet, and writes one. Checks every count.

It needs the extra `spark` and Java, so it runs only when asked for (`--workload spark`). Queues are filled through
staged transactions, which is the fastest way in.
"""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.server import Server, curbstone_command
from bench.wire import BenchError

ROWS = 1_000_000
SIZE = 100
QUEUE, TARGET = "default/bench", "default/written"
LOCAL = {"spark.sql.shuffle.partitions": "2"}


def run(folder: Path, count: int, say: Callable[[str], None]) -> dict[str, float]:
    """Return rows per second of each kind; raise BenchError where a count is wrong or Spark is missing."""
    from curbstone.spark.failure import PipelineError
    from curbstone.spark.session import session

    os.environ.setdefault("CURBSTONE_SPARK_MASTER", "local[2]")
    os.environ.setdefault("CURBSTONE_SPARK_MEMORY", "512m")
    cap = count * (SIZE + 200) * 2 + (1 << 28)
    if shutil.disk_usage(folder).free < 3 * cap:
        raise BenchError(f"not enough room in {folder} for {count:,} messages twice")
    staged = f"--max-staged={count * (SIZE + 100)}"
    server = Server(curbstone_command(folder / "spark", cap, [staged]), folder / "spark.log")
    try:
        with session("bench", more=LOCAL) as spark:
            return _Bench(spark, f"http://{server.http[0]}:{server.http[1]}", folder, count, say).run()
    except (PipelineError, ImportError) as error:
        raise BenchError(str(error)) from error
    finally:
        server.stop()


class _Bench:
    def __init__(self, spark: Any, url: str, folder: Path, count: int, say: Callable[[str], None]) -> None:
        self._spark = spark
        self._url = url
        self._folder = folder
        self._count = count
        self._say = say
        self._figures: dict[str, float] = {}

    def run(self) -> dict[str, float]:
        from curbstone.spark.server import Address, Secret, Server, queue_path

        server = Server(Address(self._url, Secret("")))
        for queue in (QUEUE, TARGET):
            server.call("PUT", queue_path(queue))
        server.close()
        body = f"rpad(cast(id AS STRING), {SIZE}, 'x') AS body"
        rows = self._spark.range(self._count, numPartitions=4).selectExpr(body, "'text/plain' AS content_type")
        self._timed("write, cold", lambda: self._write(rows, QUEUE))
        self._check("read, cold", lambda: self._read(QUEUE).count())
        for _ in range(3):
            self._check("read", lambda: self._read(QUEUE).count())
        self._check("read, all columns into Java", lambda: self._noop(self._read(QUEUE)))
        self._check("stream to Parquet", self._stream)
        self._timed("write", lambda: self._write(rows, TARGET))
        self._check("read back", lambda: self._read(TARGET).select("body").distinct().count())
        return self._figures

    def _read(self, queue: str) -> Any:
        return self._spark.read.format("curbstone").options(url=self._url, queue=queue).load()

    def _noop(self, rows: Any) -> int:
        rows.write.format("noop").mode("overwrite").save()
        return self._count

    def _write(self, rows: Any, queue: str) -> None:
        rows.write.format("curbstone").options(url=self._url, queue=queue).mode("append").save()

    def _stream(self) -> int:
        options = {"url": self._url, "queue": QUEUE, "groupId": "bench", "maxOffsetsPerTrigger": 200_000}
        stream = self._spark.readStream.format("curbstone").options(**options).load()
        target = str(self._folder / "parquet")
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(self._folder / "checkpoint"))
        writer.option("path", target).trigger(availableNow=True).start().awaitTermination()
        return int(self._spark.read.parquet(target).select("seq").distinct().count())

    def _timed(self, name: str, step: Callable[[], Any]) -> Any:
        started = time.monotonic()
        result = step()
        rate = self._count / (time.monotonic() - started)
        self._figures[name] = max(rate, self._figures.get(name, 0))
        self._say(f"  {name:<28}{rate:>12,.0f} rows/s")
        return result

    def _check(self, name: str, step: Callable[[], int]) -> None:
        found = self._timed(name, step)
        if found != self._count:
            raise BenchError(f"{name}: {found:,} rows of {self._count:,}")
