"""A Spark session for the jobs: the one that spark-submit set up, or a quiet local one.

For a local session Spark starts a Java process. This module selects the Java, passes the Python interpreter of this
process (Spark would use `python3` from the PATH), and redirects the log output from stderr to a file.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from curbstone.spark.failure import PipelineError, last_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
JVM_FOLDERS = ("/usr/lib/jvm", "/Library/Java/JavaVirtualMachines", "/opt/java")
EXTRA_MISSING = "the pipeline needs Spark: pip install 'curbstone[spark]'"
JAVA_MISSING = f"the pipeline needs Java {JAVA_MIN} or newer: set JAVA_HOME, or install one (openjdk-17-jre-headless)"

_VERSION = re.compile(r'version "(\d+)')


PACKAGES = ("pyspark", "pyarrow", "deltalake")
"""The packages of the extra `spark`."""


def missing_packages(needed: Sequence[str] = PACKAGES) -> list[str]:
    """Return which of the needed packages are not installed."""
    return [name for name in needed if importlib.util.find_spec(name) is None]


def find_java() -> Path | None:
    """Return the home of a recent enough Java, from JAVA_HOME, the PATH or the usual folders, or None."""
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    if on_path := shutil.which("java"):
        homes.append(Path(on_path).resolve().parent.parent)
    for folder in map(Path, JVM_FOLDERS):
        if folder.is_dir():
            homes += sorted(child for home in folder.iterdir() for child in (home, home / "Contents" / "Home"))
    return next((home for home in homes if java_version(home) >= JAVA_MIN), None)


def java_version(home: Path) -> int:
    """Return the major version of the Java at this home, or 0 if it does not run."""
    try:
        command = [str(home / "bin" / "java"), "-version"]
        output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    found = _VERSION.search(output)
    return int(found[1]) if found else 0


def submitted() -> bool:
    """Return whether spark-submit started this process, so that it provides Java and the settings."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def check_packages(needed: Sequence[str] = PACKAGES) -> None:
    """Raise PipelineError with one line if packages of the extra are missing."""
    if missing := missing_packages(needed):
        advice = EXTRA_MISSING if "pyspark" in needed else "pip install 'curbstone[sql]'"
        raise PipelineError(f"{' and '.join(missing)} not installed; {advice}")


def check_installed() -> None:
    """Set up the environment for Java. Raise PipelineError with one line if the extra or Java is missing."""
    check_packages()
    if submitted():
        return
    home = find_java()
    if home is None:
        raise PipelineError(JAVA_MISSING)
    os.environ["JAVA_HOME"] = str(home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def local_settings(folder: Path, *, short: bool = False) -> dict[str, str]:
    """Return the settings of a local session that keeps its files in `folder`. Raise PipelineError."""
    master = os.environ.get("CURBSTONE_SPARK_MASTER", "local[*]")
    if not master.startswith("local"):
        raise PipelineError(f"CURBSTONE_SPARK_MASTER={master!r}: local[…] only; spark-submit is for clusters")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    log4j = Path(__file__).with_name("log4j2.properties").resolve().as_uri()
    java = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1" if short else "-XX:+UseSerialGC"
    return {
        "spark.master": master,
        "spark.driver.memory": os.environ.get("CURBSTONE_SPARK_MEMORY", "1g"),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{java} -Dlog4j2.configurationFile={log4j} -Duser.timezone=UTC",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }


COMMON = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Without this, Spark would read a queue name such as 0042 as a number.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # All readers support this type, and it is exact.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


@contextmanager
def session(
    name: str,
    *,
    verbose: bool = False,
    more: Mapping[str, str] | None = None,
    registered: bool = True,
    short: bool = False,
) -> Iterator[SparkSession]:
    """Open a session for a job, and stop it at the end. Raise PipelineError if it can't be opened.

    With `registered=False`, Spark has to find the data source by its name, as in any other session. `short` marks a job
    that ends before Java's second compiler would pay off.
    """
    check_installed()
    from curbstone.spark.source import register

    with tempfile.TemporaryDirectory(prefix="curbstone-spark-", ignore_cleanup_errors=True) as text:
        folder = Path(text)
        settings = {**COMMON, **(more or {})}
        if not submitted():
            settings = {**local_settings(folder, short=short), **settings}
        spark = _start(name, settings, folder / "spark.log" if not verbose and not submitted() else None)
        if registered:
            register(spark)
        if not verbose:
            _quiet()
        try:
            yield spark
        except Exception as error:
            if verbose or not type(error).__module__.startswith(("pyspark", "py4j")):
                raise
            # The line is built now, because such an error can't be read once Java has ended.
            raise PipelineError(last_line(error)) from None
        finally:
            spark.stop()
            _end_java()


def _quiet() -> None:
    """Keep PySpark from printing errors that it also raises, as pages of JSON or as a traceback."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    # The bridge to Java logs an interruption to the root logger.
    logging.getLogger().addFilter(_is_not_interruption)


def _is_not_interruption(record: logging.LogRecord) -> bool:
    return not (record.exc_info and record.exc_info[0] is KeyboardInterrupt)


def _start(name: str, settings: Mapping[str, str], log: Path | None) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    interrupt = signal.getsignal(signal.SIGINT)
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _stderr_to(log):
            spark = builder.getOrCreate()
    except (PySparkException, RuntimeError, OSError) as error:
        why = f" ({_end_of(log)})" if log else ""
        raise PipelineError(f"Spark did not start: {error}{why}") from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)  # Spark has replaced the handler of the job
    return spark


def _end_java() -> None:
    """End the Java process and wait for it, so that the command leaves nothing running."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    gateway.shutdown()
    process.stdin.close()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None


@contextmanager
def _stderr_to(log: Path | None) -> Iterator[None]:
    """Redirect the stderr of processes that are started in the block to a file."""
    if log is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _end_of(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    return " ".join(line.strip() for line in lines if line.strip())[-300:]
