"""On a cluster: executors are other processes, and have Curbstone as anybody installs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.kit import wheel
from tests.kit.server import ServerProcess
from tests.spark import jobs
from tests.spark.cluster import HOME, Cluster, environment
from tests.spark.kit import JAVA_OPTIONS, call, make_queue, numbered, publish, take_all

PROGRAM = Path(__file__).with_name("on_cluster.py")
TOKEN = "s3cr3t-t0ken"
ROWS = 660


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment in which the wheel is installed."""
    interpreter, _ = wheel.new_environment(tmp_path_factory.mktemp("environment"))
    work = tmp_path_factory.mktemp("wheel")
    wheel.install(wheel.build(wheel.copy_of_the_checkout(work), work), interpreter)
    return interpreter


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the cluster and its jobs write."""
    made = tmp_path / "cluster"
    (made / "events").mkdir(parents=True)
    return made


class Submit:
    """spark-submit on one cluster."""

    def __init__(self, cluster: Cluster, python: Path) -> None:
        self.cluster = cluster
        self.python = python

    def start(self, program: Path, *arguments: str, **settings: str) -> subprocess.Popen[str]:
        wanted = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
            "spark.executor.memory": "512m",
            "spark.executor.cores": "2",
            "spark.executor.extraJavaOptions": JAVA_OPTIONS,
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": (self.cluster.folder / "events").as_uri(),
        }
        words = [f"--conf={name}={value}" for name, value in (wanted | settings).items()]
        return subprocess.Popen(
            [str(HOME / "bin" / "spark-submit"), "--master", self.cluster.master, *words, str(program), *arguments],
            env=environment(PYSPARK_PYTHON=str(self.python)),
            cwd=self.cluster.folder,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def step(self, name: str, server: ServerProcess, folder: Path, **settings: str) -> subprocess.Popen[str]:
        given = json.dumps({"url": server.url, "token": TOKEN, "folder": str(folder)})
        return self.start(PROGRAM, name, given, **settings)


def content_types(server: ServerProcess, queue: str) -> list[str]:
    """Return those of all messages, in order."""
    found: list[str] = []
    at, end = 1, call(server.url, "GET", f"/v2/shop/queues/{queue}/offsets")["next"]
    while at < end:
        path = f"/v2/shop/queues/{queue}/browse?from={at}&to={end}&body=false"
        with urllib.request.urlopen(server.url + path, timeout=60) as reply:
            found += [json.loads(line)["Content-Type"] for line in reply]
            at = int(reply.headers["Next-Offset"])
    return found


def staged(server: ServerProcess, folder: Path) -> set[str]:
    """Return which task attempts of the step `slow` have staged something."""
    try:
        with urllib.request.urlopen(f"{server.url}/v2/shop/transactions/{folder.parent.name}", timeout=60) as reply:
            return {"-".join(part["part"].split("-")[:2]) for part in json.load(reply)["parts"]}
    except urllib.error.HTTPError as error:
        assert error.code == 404
        return set()


def found_by(process: subprocess.Popen[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(jobs.run(process).splitlines()[-1])
    return found


def leaks(folder: Path) -> list[str]:
    """Return the files that hold the token."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path.relative_to(folder)) for path in files if TOKEN.encode() in path.read_bytes()]


def test_cluster_reads_writes_and_archives_with_its_installed_packages(
    server: ServerProcess, folder: Path, python: Path
) -> None:
    make_queue(server.url, "shop/in")
    make_queue(server.url, "shop/out")
    with Cluster(folder) as cluster:
        found = found_by(Submit(cluster, python).step("everything", server, folder))
    assert (found["read"], found["copied"], found["archived"]) == (sum(range(300)), 300, 300)
    assert found["files"] and all(str(python.parent.parent) in file for file in found["files"])
    assert sorted(jobs.bodies(folder / "lake"), key=int) == [str(number) for number in range(300)]
    assert "shop/none" in found["error"]
    assert TOKEN not in json.dumps(found)
    assert list((folder / "events").iterdir())
    assert leaks(folder) == []


SMALL_BATCHES = {"spark.sql.execution.arrow.maxRecordsPerBatch": "20"}
EXACTLY = [f"test/{number}" for number in range(ROWS)]


@pytest.mark.soak
def test_executors_killed_during_a_write_duplicate_nothing(server: ServerProcess, folder: Path, python: Path) -> None:
    make_queue(server.url, "shop/out", cap="256MiB")
    with Cluster(folder) as cluster:
        running = Submit(cluster, python).step("slow", server, folder, **SMALL_BATCHES)
        jobs.wait_until(lambda: staged(server, folder) >= {"000000-0", "000001-0", "000002-0"}, running)
        [executor] = cluster.executors()
        os.kill(executor, signal.SIGKILL)
        jobs.wait_until(lambda: staged(server, folder) >= {"000001-1", "000002-1"}, running)
        assert content_types(server, "out") == []
        (folder / "go").touch()
        found_by(running)
    assert content_types(server, "out") == EXACTLY


@pytest.mark.soak
def test_speculative_task_attempt_duplicates_nothing(server: ServerProcess, folder: Path, python: Path) -> None:
    make_queue(server.url, "shop/out", cap="256MiB")
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.multiplier": "1.1",
    }
    with Cluster(folder, workers=2) as cluster:
        running = Submit(cluster, python).step("slow", server, folder, **SMALL_BATCHES, **speculation)
        jobs.wait_until(lambda: staged(server, folder) >= {"000001-0", "000001-1", "000002-0", "000002-1"}, running)
        (folder / "go").touch()
        found_by(running)
    assert content_types(server, "out") == EXACTLY


@pytest.mark.soak
def test_stream_is_exact_despite_killed_executors_server_and_driver(
    server: ServerProcess, folder: Path, python: Path
) -> None:
    make_queue(server.url, "shop/in")
    make_queue(server.url, "shop/out")
    publish(server.url, "shop/in", numbered(2000))
    with Cluster(folder, workers=2) as cluster:
        submit = Submit(cluster, python)

        def copied(goal: int) -> None:
            jobs.wait_until(lambda: len(content_types(server, "out")) >= goal, running)

        running = submit.step("copy", server, folder)
        for goal in (200, 600):
            copied(goal)
            os.kill(cluster.executors()[0], signal.SIGKILL)
        copied(1000)
        server.restart(same_ports=True)
        copied(1300)
        jobs.kill(running)  # the driver
        found_by(submit.step("copy", server, folder))
    assert take_all(server.url, "shop/out") == numbered(2000)


@pytest.mark.soak
def test_the_jobs_run_by_spark_submit(server: ServerProcess, folder: Path, python: Path) -> None:
    make_queue(server.url, "shop/in")
    make_queue(server.url, "shop/again")
    publish(server.url, "shop/in", numbered(1000))
    (folder / "token").write_text(TOKEN)
    common = ("--server", server.url, "--token-file", str(folder / "token"), "--lake", str(folder / "lake"))

    with Cluster(folder) as cluster:
        submit = Submit(cluster, python)

        def job(name: str, *arguments: str) -> str:
            where = wheel.run(python, "-c", f"import curbstone.spark.{name} as m; print(m.__file__)", cwd=folder)
            return jobs.run(submit.start(Path(where.strip()), *arguments, *common)).splitlines()[-1]

        said = job("archive", "shop/in", "--once", "--journal", "--max-per-batch", "300")
        assert said.startswith("archived 1,000 messages and 1,00")
        assert "reported" in job("report", "--out", str(folder / "report"))
        assert job("replay", "twice", "--into", "shop/again") == job("replay", "other", "--into", "shop/again")
        assert "was done before" in job("replay", "twice", "--into", "shop/again")
    assert jobs.bodies(folder / "lake") == numbered(1000)
    assert call(server.url, "GET", "/v2/shop/queues/again")["rdy"] == 2000
    (folder / "token").unlink()
    assert leaks(folder) == []
