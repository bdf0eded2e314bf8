"""What the tests of the pipeline share: whether Spark can run, its settings, and queues with messages in them."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from curbstone.spark import session
from tests.kit.processes import QUICK_JAVA
from tests.kit.server import clean_environment

# A start reads 15,000 classes of Spark. Where they lie in an archive as they are in memory (`class_archive`) it takes
# hardly more than half the time. Programs with other classes, such as Spark's launcher, would complain that they can't
# use it.
CLASS_ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
USE_ARCHIVE = f" -XX:SharedArchiveFile={CLASS_ARCHIVE} -Xlog:cds=off -Xlog:cds+dynamic=off"
JAVA_OPTIONS = QUICK_JAVA + (USE_ARCHIVE if CLASS_ARCHIVE.exists() else "")
LOCAL = {
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.sql.shuffle.partitions": "2",
    # Queries of a few rows: Spark would take longer to generate and compile code for them than to run them.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    # For Java and Python to find each other on a busy machine; 15 s else.
    "spark.python.authenticate.socketTimeout": "300s",
}


def missing() -> str:
    """Return why Spark can't run here, "" where it can."""
    if names := session.missing_packages():
        return f"{' and '.join(names)} not installed; `make test` does it"
    return "" if session.find_java() else session.JAVA_MISSING


def spark_environment() -> dict[str, str]:
    """Return what a process that starts Spark gets in its environment, beside what it has."""
    return {"CURBSTONE_SPARK_MASTER": "local[2]", "CURBSTONE_SPARK_MEMORY": "512m"}


def job_environment() -> dict[str, str]:
    """Return the whole environment of a job that runs in a process of its own."""
    return clean_environment(**spark_environment())


def call(url: str, method: str, path: str, value: Any = None, kind: str = "application/json") -> Any:
    """Call the server's HTTP interface; return the JSON of the reply, None without any."""
    body = None if value is None else json.dumps(value).encode()
    request = urllib.request.Request(url + path, body, {"Content-Type": kind}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            text = reply.read()
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{method} {path}: {error.code} {error.read()!r}") from None
    return json.loads(text) if text else None


def make_queue(url: str, queue: str, **options: Any) -> None:
    project, _, name = queue.partition("/")
    call(url, "PUT", f"/v2/{project}/queues/{name}", options or None)


def publish(url: str, queue: str, bodies: Sequence[str], **members: Any) -> None:
    """Publish these bodies, in order, with more members of their JSON."""
    project, _, name = queue.partition("/")
    for start in range(0, len(bodies), 1000):
        batch = [{"Content-Type": "text/plain", **members, "message": body} for body in bodies[start : start + 1000]]
        call(url, "POST", f"/v2/{project}/queues/{name}/messages/batch", batch)


def numbered(count: int, first: int = 0) -> list[str]:
    return [f"message {number:08d}" for number in range(first, first + count)]


def group_of(url: str, queue: str, group: str) -> dict[str, Any]:
    project, _, name = queue.partition("/")
    found: dict[str, Any] = call(url, "GET", f"/v2/{project}/queues/{name}/groups/{group}")
    return found


def take_all(url: str, queue: str) -> list[str]:
    """Take all messages of a queue, and return their bodies in the order they came."""
    project, _, name = queue.partition("/")
    found: list[str] = []
    request = {"count": 1000, "seconds": 3600}
    while messages := call(url, "POST", f"/v2/{project}/queues/{name}/messages/lease", request)["messages"]:
        found += [message["message"] for message in messages]
    return found
