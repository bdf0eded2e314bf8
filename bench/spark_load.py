"""The pipeline: how fast Spark reads a queue, streams it to Parquet, and writes one, and the effect on the server.

It needs the extra `spark` and Java, so it runs only on request (`--workload spark`). Queues are filled by staged
transactions, which is the fastest way. All counts are checked, outside of the timed part.
"""

import contextlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench import spark_beside
from bench.measure import Target
from bench.process_cpu import cpu_seconds_of_family
from bench.server import Control, Server, curbstone_command, machine_seconds, queue_path
from bench.spark_figures import Run, SparkFigures
from bench.stomp_load import Account
from bench.wire import BenchError

ROWS = 1_000_000
SIZE = 100
QUEUE, TARGET = "default/bench", "default/written"
QUEUES = tuple(f"default/many-{number:02d}" for number in range(100))
"""The queues over which the same messages are spread."""
LOCAL = {"spark.sql.shuffle.partitions": "2"}
FILES = {"json": "JSON lines", "parquet": "Parquet"}
"""The formats that Spark reads and writes without a queue, for comparison."""

Say = Callable[[str], None]


def run(folder: Path, count: int, runs: int, say: Say) -> SparkFigures:
    """Measure everything. Raise BenchError if a count is wrong or Spark is missing."""
    from curbstone.spark.failure import PipelineError
    from curbstone.spark.session import session

    os.environ.setdefault("CURBSTONE_SPARK_MASTER", "local[2]")
    os.environ.setdefault("CURBSTONE_SPARK_MEMORY", "512m")
    cap = count * (SIZE + 200) * 2 + (1 << 28)
    if shutil.disk_usage(folder).free < 3 * cap:
        raise BenchError(f"not enough room in {folder} for {count:,} messages twice")
    staged = f"--max-staged={count * (SIZE + 100)}"
    server = Server(curbstone_command(folder / "spark", cap, [staged]), folder / "spark.log")
    figures = SparkFigures(count)
    try:
        with session("bench", more=LOCAL) as spark:
            pipeline = Pipeline(spark, server, folder, count)
            _steps(pipeline, figures, runs, say)
            target = Target("curbstone", server, Account(server.stomp), server.http)
            for beside in spark_beside.measure(pipeline, target, runs, say):
                figures.beside.append(beside)
    except (PipelineError, ImportError) as error:
        raise BenchError(str(error)) from error
    finally:
        server.stop()
    return figures


class Pipeline:
    """A Spark session, a server, and the steps that use both, by default with the data source's defaults."""

    def __init__(self, spark: Any, server: Server, folder: Path, count: int) -> None:
        assert server.http
        self.spark = spark
        self.server = server
        self.folder = folder
        self.count = count
        self._control = Control(server.http)
        self._url = f"http://{server.http[0]}:{server.http[1]}"
        self._control.declare(QUEUE)

    @property
    def java_pid(self) -> int:
        """The pid of Java, the parent of all processes of Spark except this one."""
        return int(self.spark.sparkContext._gateway.proc.pid)

    def rows(self, partitions: int, *more: str) -> Any:
        """Return the rows for a queue, with columns that can be written."""
        columns = (f"rpad(cast(id AS STRING), {SIZE}, 'x') AS body", "'text/plain' AS content_type", *more)
        return self.spark.range(self.count, numPartitions=partitions).selectExpr(*columns)

    def write(self, queue: str) -> None:
        self.rows(4).write.format("curbstone").options(url=self._url, queue=queue).mode("append").save()

    def write_many(self) -> None:
        """Write the same number of rows, distributed over the hundred queues."""
        rows = self.rows(4, f"concat('many-', lpad(cast(id % {len(QUEUES)} AS STRING), 2, '0')) AS queue")
        rows.write.format("curbstone").options(url=self._url).mode("append").save()

    def read(self, *queues: str, **options: Any) -> Any:
        names = ",".join(queues or (QUEUE,))
        return self.spark.read.format("curbstone").options(url=self._url, queues=names, **options).load()

    def noop(self) -> None:
        """Read every column of every row into Java."""
        into_java(self.read())

    def write_files(self, kind: str, folder: Path, rows: Any) -> Any:
        """Write rows to files, which Spark does not sync, and read them back."""
        rows.write.format(kind).mode("overwrite").save(str(folder / kind))
        return self.spark.read.format(kind).schema(rows.schema).load(str(folder / kind))

    @contextlib.contextmanager
    def queues(self, *names: str) -> Iterator[None]:
        """Create queues for the block, each with room for its share."""
        cap = max(1 << 24, 2 * self.count * (SIZE + 200) // len(names))
        for name in names:
            self._control.expect(201, "PUT", queue_path(name), json.dumps({"cap": cap}))
        try:
            yield
        finally:
            for name in names:
                self._control.delete(name)

    @contextlib.contextmanager
    def group(self, *queues: str) -> Iterator[str]:
        """Yield a group of the queues that is removed after the block."""
        name = f"bench-{uuid.uuid4().hex[:8]}"
        try:
            yield name
        finally:
            for queue in queues or (QUEUE,):
                self._control.expect(204, "DELETE", f"{queue_path(queue)}/groups/{name}")

    @contextlib.contextmanager
    def place(self) -> Iterator[Path]:
        """Yield a folder that is removed after the block."""
        folder = self.folder / uuid.uuid4().hex[:8]
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def archive(self, group: str, folder: Path) -> int:
        """Archive the whole queue in the lake `folder`, and return the number of messages."""
        from curbstone.spark.archive import archive

        return archive(
            self.spark, str(folder), {"url": self._url, "queues": QUEUE, "groupId": group}, once=True
        ).messages

    def report(self, folder: Path) -> int:
        """Create a report on the queue, and return its number of published messages."""
        from curbstone.spark.options import address_of
        from curbstone.spark.report import report

        return sum(
            row.published for row in report(folder, server=address_of(self._url, ""), queues=(QUEUE,)) if not row.group
        )

    def stream(self, group: str, folder: Path, *queues: str, **options: Any) -> None:
        """Stream the whole contents of the queues to Parquet files in `folder`/rows."""
        source = self.spark.readStream.format("curbstone")
        names = ",".join(queues or (QUEUE,))
        stream = source.options(url=self._url, queues=names, groupId=group, **options).load()
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
        writer.option("path", str(folder / "rows")).trigger(availableNow=True).start().awaitTermination()


def into_java(rows: Any) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _steps(pipeline: Pipeline, figures: SparkFigures, runs: int, say: Say) -> None:
    """Run each step alone. The first one of a kind is called cold, because Java still compiles its code."""

    def timed(name: str, step: Callable[[], Any]) -> Any:
        result, found = _timed(pipeline, name, step)
        figures.runs.append(found)
        say(
            f"  {name:<28}{found.rows / found.seconds:>12,.0f} rows/s, server RSS {found.rss_before / 1e6:.0f} MB, "
            f"most {found.rss_most / 1e6:.0f}, then {found.rss_after / 1e6:.0f}"
        )
        return result

    def checked(name: str, found: int) -> None:
        if found != pipeline.count:
            raise BenchError(f"{name}: {found:,} rows of {pipeline.count:,}")

    def streamed(name: str, *queues: str) -> None:
        with pipeline.group(*queues) as group, pipeline.place() as folder:
            timed(name, lambda: pipeline.stream(group, folder, *queues))
            rows = pipeline.spark.read.parquet(str(folder / "rows"))
            checked(name, rows.select("queue", "seq").distinct().count())

    timed("write, cold", lambda: pipeline.write(QUEUE))
    checked("read, cold", timed("read, cold", lambda: pipeline.read().count()))
    for _ in range(runs):
        checked("read", timed("read", lambda: pipeline.read().count()))
    for _ in range(runs):
        timed("read, all columns into Java", pipeline.noop)
    for kind, name in FILES.items():
        with pipeline.place() as folder:
            rows = pipeline.write_files(kind, folder, pipeline.read())
            for _ in range(runs):
                checked(name, timed(f"read, {name} files", rows.count))
            for _ in range(runs):
                timed(f"read, {name} files, all columns into Java", partial(into_java, rows))
    streamed("stream to Parquet, cold")
    for _ in range(runs):
        streamed("stream to Parquet")
    for _ in range(runs):
        with pipeline.group() as group, pipeline.place() as folder:
            checked("archive", timed("archive, into a Delta table", partial(pipeline.archive, group, folder)))
    for _ in range(runs):
        with pipeline.place() as folder:
            checked("report", timed("report", partial(pipeline.report, folder)))
    with pipeline.queues(*QUEUES):
        pipeline.write_many()
        for _ in range(runs):
            checked("read of 100", timed("read, of 100 queues", lambda: pipeline.read(*QUEUES).count()))
        for _ in range(runs):
            streamed("stream of 100 queues to Parquet", *QUEUES)
    for _ in range(runs):
        with pipeline.queues(TARGET):
            timed("write", lambda: pipeline.write(TARGET))
            checked("what was written", pipeline.read(TARGET).select("body").distinct().count())
    for kind, name in FILES.items():
        for _ in range(runs):
            with pipeline.place() as folder:
                step = partial(pipeline.write_files, kind, folder, pipeline.rows(4))
                checked(name, timed(f"write, {name} files, not synced", step).count())


def _timed(pipeline: Pipeline, name: str, step: Callable[[], Any]) -> tuple[Any, Run]:
    server, java = pipeline.server, pipeline.java_pid
    rss_before = server.rss()
    server.forget_peak()
    server_s, machine_s, spark_s = server.cpu_s(), machine_seconds(), cpu_seconds_of_family(java) + time.process_time()
    started = time.monotonic()
    result = step()
    seconds = time.monotonic() - started
    server_s, machine_s = server.cpu_s() - server_s, machine_seconds() - machine_s
    spark_s = cpu_seconds_of_family(java) + time.process_time() - spark_s
    other_s = max(0.0, machine_s - server_s - spark_s)
    found = Run(name, pipeline.count, seconds, spark_s, server_s, other_s, rss_before, server.peak_rss(), server.rss())
    return result, found
