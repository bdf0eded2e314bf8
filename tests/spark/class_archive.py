"""Makes the archive of classes with which Java processes of the tests start faster.

Called as `python -m tests.spark.class_archive`. A small job uses what most tests use of Spark, and Java writes down all
classes it has at its end: "dynamic archive" in java(1). Java itself finds out whether an archive fits the classes of a
process, and leaves it out where it does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from pyspark.sql import SparkSession

from curbstone.spark.session import JAVA_MISSING, find_java
from tests.kit.processes import QUICK_JAVA
from tests.spark.kit import CLASS_ARCHIVE, LOCAL, job_environment

LIMIT_S = 300


def job(archive: str) -> None:
    """Do a little of everything, in a Java process that writes the archive when it ends, after this one."""
    options = f"{QUICK_JAVA} -XX:ArchiveClassesAtExit={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"
    settings = LOCAL | {"spark.master": "local[2]", "spark.driver.extraJavaOptions": options}
    with tempfile.TemporaryDirectory() as folder:
        spark = SparkSession.builder.config(map=settings).getOrCreate()
        rows = spark.createDataFrame([(number, "text") for number in range(10)], "number long, text string")
        rows.groupBy("text").count().collect()
        rows.write.parquet(f"{folder}/rows")
        spark.read.parquet(f"{folder}/rows").count()
        stream = spark.readStream.schema("number long, text string").parquet(f"{folder}/rows")
        writer = stream.writeStream.foreachBatch(lambda batch, _: batch.collect())
        writer.option("checkpointLocation", f"{folder}/check").trigger(availableNow=True).start().awaitTermination()
        spark.stop()


def main() -> None:
    """Make the archive, unless Java can't: then tests are slower."""
    beside = CLASS_ARCHIVE.with_suffix(".part")
    beside.unlink(missing_ok=True)
    java = find_java()
    if java is None:
        sys.exit(JAVA_MISSING)
    # Java ends after Python, but it holds the pipe: so this waits for both.
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.class_archive", str(beside)],
        env=job_environment() | {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    if done.returncode or not beside.exists():
        print(f"no archive of Spark's classes, so its tests take longer: {done.stdout}", file=sys.stderr)
        return
    os.replace(beside, CLASS_ARCHIVE)


if __name__ == "__main__":
    job(sys.argv[1]) if sys.argv[1:] else main()
