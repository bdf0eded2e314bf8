"""archive, report and replay: what they leave behind, and how their commands end."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyarrow import parquet

from curbstone.spark import jobs as command
from curbstone.spark.archive import archive
from curbstone.spark.client import Address, Secret
from curbstone.spark.columns import MESSAGES
from curbstone.spark.failure import PipelineError
from curbstone.spark.report import PAGE, TABLE, report
from curbstone.spark.table import Table
from tests.kit.commands import curbstone
from tests.kit.server import ServerProcess
from tests.spark import jobs
from tests.spark.kit import call, make_queue, numbered, publish

QUEUE = "shop/0042"


@pytest.fixture
def options(server: ServerProcess) -> dict[str, str]:
    make_queue(server.url, QUEUE)
    return {"url": server.url, "queues": QUEUE, "retryTimeout": "60", "failOnDataLoss": "false"}


def settle(server: ServerProcess, count: int) -> None:
    path = "/v2/shop/queues/0042/messages"
    leased = call(server.url, "POST", f"{path}/lease", {"count": count, "seconds": 3600})["messages"]
    tokens = [message["ackId"] for message in leased]
    call(server.url, "POST", f"{path}/nack", {"ackIds": tokens[:1], "delay": 0, "reject": True})
    assert call(server.url, "POST", f"{path}/ack", {"ackIds": tokens[1:]})["settled"] == count - 1


def test_queue_lake_and_report(spark: Any, server: ServerProcess, options: dict[str, str], tmp_path: Path) -> None:
    lake, out = tmp_path / "lake", tmp_path / "out"
    publish(server.url, QUEUE, numbered(300), **{"x-msg-x-a": "b"})
    settle(server, 51)
    done = archive(None, str(lake), options, once=True, journal=True)
    assert (done.messages, done.gaps) == (300 - 51, [])
    publish(server.url, QUEUE, numbered(20, 300))
    assert archive(None, str(lake), options, once=True, journal=True).messages == 20
    assert jobs.bodies(lake) == sorted(numbered(320)[51:])
    files = Table(str(lake), MESSAGES).files()
    assert len(files) >= 2 and spark.read.parquet(*files).count() == 320 - 51, "plain Parquet, for any reader"

    rows = report(out, server=Address(server.url, Secret("")), queues=[QUEUE], lake_path=str(lake))
    mine = [row for row in rows if not row.group]
    assert {(row.project, row.queue) for row in rows} == {("shop", "0042")}
    assert [sum(getattr(row, name) for row in mine) for name in ("published", "settled", "rejected")] == [320, 50, 1]
    assert mine[-1].backlog == 320 - 51
    assert sum(row.bytes for row in mine) == 320 * len(numbered(1)[0])
    latencies = [row for row in mine if row.p50_ms is not None]
    assert latencies and all(0 <= row.p50_ms <= row.p95_ms <= row.p99_ms for row in latencies)  # type: ignore[operator]
    assert sum(row.settled for row in rows if row.group == "archive") == 320 - 51
    assert parquet.read_table(out / TABLE).num_rows == len(rows)
    page = (out / PAGE).read_text(encoding="utf-8")
    assert "shop/0042" in page and "<svg" in page
    assert not re.search(r"(?:src|href)=\"(?!#)|@import|url\(", page), "the page loads nothing"


def test_archive_of_a_pattern_includes_new_queues(server: ServerProcess, tmp_path: Path) -> None:
    options = {"url": server.url, "project": "shop", "queuePattern": "in-.*", "failOnDataLoss": "false"}
    expected: list[str] = []
    for number, name in enumerate(("in-a", "in-b", "out", "in-c")):
        make_queue(server.url, f"shop/{name}")
        publish(server.url, f"shop/{name}", numbered(10, 10 * number))
        if name != "out":
            expected += numbered(10, 10 * number)
        assert archive(None, str(tmp_path), options, once=True, journal=True).messages == 10 * (name != "out")
    assert jobs.bodies(tmp_path) == expected


def test_loss_is_a_gap_in_the_lake(server: ServerProcess, tmp_path: Path) -> None:
    make_queue(server.url, QUEUE, cap="512KiB")
    options = {"url": server.url, "queues": QUEUE, "failOnDataLoss": "false"}
    lake = tmp_path / "lake"
    publish(server.url, QUEUE, ["first"])
    archive(None, str(lake), options, once=True)
    call(server.url, "PUT", "/v2/shop/queues/0042/groups/archive", {"on_full": "skip"})
    for start in range(0, 4000, 100):
        publish(server.url, QUEUE, [f"{body} {'x' * 200}" for body in numbered(100, start)])
        settle(server, 100)
    lost = call(server.url, "GET", "/v2/shop/queues/0042/groups/archive")["lost"]
    done = archive(None, str(lake), options, once=True)
    assert lost > 0
    assert done.messages == 4000 - lost
    [gap] = DeltaTable(lake / "gaps").to_pyarrow_table().to_pylist()
    assert (gap["queue"], gap["lost"], gap["from"], gap["number"]) == (QUEUE, lost, 2, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_archive_cleanly(
    server: ServerProcess, options: dict[str, str], tmp_path: Path, number: int
) -> None:
    publish(server.url, QUEUE, numbered(10))
    lake = tmp_path / "lake"
    running = jobs.job("archive", QUEUE, "--server", server.url, "--lake", str(lake), "--every", "0")
    jobs.wait_until(lambda: jobs.batches(lake) == 1, running)
    os.kill(running.pid, number)
    code, out, err = jobs.finish(running)
    assert (code, out, err) == (0, "archived 10 messages in 1 batch\n", "")


@pytest.mark.parametrize(
    ("job", "arguments", "line"),
    [
        ("archive", ["a b", "--lake", "x"], "bad queue name"),
        ("archive", ["a"], "--lake"),
        ("archive", ["a", "--pattern", "b", "--lake", "x"], "no queues: name them, or use --pattern"),
        ("archive", ["--pattern", "(", "--lake", "x"], "queuePattern='('"),
        ("report", [], "name queues, or a lake"),
        ("report", ["a", "--since", "soon"], "--since='soon'"),
        ("replay", ["a b", "--lake", "x"], "the name of a replay"),
    ],
)
def test_a_wrong_command_line_is_code_2(tmp_path: Path, job: str, arguments: list[str], line: str) -> None:
    done = curbstone("pipeline", job, *arguments, cwd=tmp_path)
    assert (done.code, done.out) == (command.WRONG, "")
    assert line in done.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("job", "arguments", "line"),
    [
        ("archive", ["shop/none", "--lake", "{folder}/lake"], "no such queue: shop/none"),
        (
            "archive",
            ["--pattern", "b.*", "--lake", "{folder}/lake"],
            "no queue of project default matches queuePattern",
        ),
        ("archive", ["a", "--lake", "{folder}/file/lake"], "--lake {folder}/file/lake: can't write there: Not a dir"),
        ("report", ["a", "--out", "{folder}/file/out"], "--out {folder}/file/out: can't write there: Not a directory"),
        ("report", ["--lake", "{folder}/none", "--out", "{folder}/out"], "there is no journal in the lake"),
        ("replay", ["a", "--lake", "{folder}/none"], "there are no messages in the lake"),
    ],
)
def test_invalid_options_are_reported_before_java_starts(
    server: ServerProcess, tmp_path: Path, job: str, arguments: list[str], line: str
) -> None:
    """An --out that can't be written was reported after 56 seconds, and an unwritable lake as `Py4JJavaError`."""
    (tmp_path / "file").touch()
    given = [argument.format(folder=tmp_path) for argument in arguments]
    first = "from curbstone.spark import session; session.find_java = None"
    done = curbstone("pipeline", job, *given, "--server", server.url, cwd=tmp_path, CURBSTONE_TESTS_FIRST=first)
    assert (done.code, done.out, done.err.count("\n")) == (command.FAILED, "", 1), done.err
    assert line.format(folder=tmp_path) in done.err


def test_missing_java_or_unreachable_master_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from curbstone.spark import session

    monkeypatch.setattr(session, "JVM_FOLDERS", ())
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineError, match="needs Java 17 or newer"):
        session.check_installed()
    monkeypatch.setenv("CURBSTONE_SPARK_MASTER", "spark://host:7077")
    with pytest.raises(PipelineError, match="spark-submit is for clusters"):
        session.local_settings(tmp_path)
