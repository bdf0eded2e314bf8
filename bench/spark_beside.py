"""The speed of ordinary consumers while Spark reads from the same server.

A STOMP producer and consumer (`pipe`) use their own queue: alone, then with Spark running. On few cores they mainly
compete for the CPU, which says nothing about the server. So there is another load for comparison: an equally busy Spark
that writes generated rows to Parquet. Spark runs one task at a time in all of them. The loads alternate, so that other
work on the machine affects all of them.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bench import workloads
from bench.measure import Measurement, Target
from bench.process_cpu import cpu_seconds_of_family
from bench.spark_figures import ALONE, APART, Beside
from bench.wire import BenchError
from bench.workloads import Plan

if TYPE_CHECKING:
    from bench.spark_load import Pipeline

SIZE = 100
MESSAGES = 150_000
ONE_TASK: dict[str, Any] = {"minPartitions": 1, "maxRecordsPerPartition": 1 << 40}


def measure(pipeline: "Pipeline", target: Target, runs: int, say: Callable[[str], None]) -> Iterator[Beside]:
    """Yield a run of `pipe` with each load, `runs` times."""
    loads: dict[str, Callable[[], None] | None] = {
        ALONE: None,
        APART: lambda: _apart(pipeline),
        "a batch read": lambda: _read(pipeline),
        "a stream to Parquet": lambda: _stream(pipeline),
    }
    plan = Plan(most=min(MESSAGES, pipeline.count))
    for _ in range(runs):
        for name, load in loads.items():
            with _busy(load):
                found = _pipe(pipeline, target, plan, name)
            say(f"  pipe beside {name:<28}{found.per_s:>12,.0f} messages/s, Spark {found.spark_cores:.2f} cores")
            yield found


def _pipe(pipeline: "Pipeline", target: Target, plan: Plan, name: str) -> Beside:
    spark_s, started = cpu_seconds_of_family(pipeline.java_pid), time.monotonic()
    (measured,) = list[Measurement](workloads.pipe(target, SIZE, plan))
    spark_s, seconds = cpu_seconds_of_family(pipeline.java_pid) - spark_s, time.monotonic() - started
    spark_cores = spark_s / seconds
    other_cores = max(0.0, measured.other_cpu_share * (os.cpu_count() or 1) - spark_cores)
    return Beside(
        name,
        measured.per_s,
        measured.server_cpu_us,
        spark_cores,
        measured.server_cpu_share,
        other_cores,
        measured.tally,
    )


def _apart(pipeline: "Pipeline") -> None:
    """Write generated rows with the columns of messages, without using the server."""
    with pipeline.place() as folder:
        made = pipeline.spark.range(pipeline.count, numPartitions=1).selectExpr(
            "'default/made' AS queue",
            "id AS seq",
            "concat('0123456789ab-', id) AS message_id",
            "timestamp_millis(1700000000000 + id) AS timestamp",
            "'text/plain' AS content_type",
            f"cast(rpad(cast(id AS STRING), {SIZE}, 'x') AS BINARY) AS body",
        )
        made.write.parquet(str(folder))


def _read(pipeline: "Pipeline") -> None:
    pipeline.read(**ONE_TASK).count()


def _stream(pipeline: "Pipeline") -> None:
    with pipeline.group() as group, pipeline.place() as folder:
        pipeline.stream(group, folder, **ONE_TASK)


@contextmanager
def _busy(load: Callable[[], None] | None) -> Iterator[None]:
    """Repeat the load in a thread during the block."""
    if load is None:
        yield
        return
    over, errors = threading.Event(), list[BaseException]()

    def repeat() -> None:
        try:
            while not over.is_set():
                load()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if errors:
        raise BenchError(f"Spark failed meanwhile: {errors[0]}")
