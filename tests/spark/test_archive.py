"""The archive after kills, power cuts, old checkpoints and beside another: nothing is lost, doubled or hidden."""

from __future__ import annotations

import http.client
import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from curbstone.spark import archive as job
from curbstone.spark import calls, frames, positions
from curbstone.spark.archive import archive
from curbstone.spark.columns import JOURNAL, MESSAGES
from curbstone.spark.failure import PipelineError
from curbstone.spark.gaps import gaps_of
from curbstone.spark.table import Table
from tests.kit.server import ServerProcess
from tests.spark import jobs
from tests.spark.kit import call, group_of, make_queue, numbered, publish
from tests.spark.test_lake import add, written

QUEUE = "shop/kept"


@pytest.fixture
def options(server: ServerProcess) -> dict[str, str]:
    make_queue(server.url, QUEUE)
    return {"url": server.url, "queues": QUEUE, "failOnDataLoss": "false"}


def run(lake: Path, options: dict[str, str], **more: Any) -> job.Archived:
    return archive(None, str(lake), options, once=True, **more)


def test_archive_needs_no_java(server: ServerProcess, options: dict[str, str], tmp_path: Path) -> None:
    """Nor pyspark: the program fails if either is touched."""
    publish(server.url, QUEUE, numbered(10))
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from curbstone.spark import archive, session\n"
        "session.find_java = None\n"
        "sys.exit(archive.main(sys.argv[1:]))"
    )
    words = (QUEUE, "--journal", "--once", "--lake", str(tmp_path), "--server", server.url)
    assert "archived 10 messages" in jobs.run(jobs.start("-c", program, *words))
    assert jobs.bodies(tmp_path) == numbered(10)


def test_position_is_committed_with_the_rows(server: ServerProcess, options: dict[str, str], tmp_path: Path) -> None:
    publish(server.url, QUEUE, numbered(25))
    assert run(tmp_path, {**options, "maxOffsetsPerTrigger": "10"}, journal=True).batches >= 4
    epoch = group_of(server.url, QUEUE, "archive")["epoch"]
    at = positions.stored(Table(str(tmp_path), MESSAGES))[QUEUE]
    assert (at["epoch"], at["next"]) == (epoch, 26)
    assert positions.stored(Table(str(tmp_path), JOURNAL))[QUEUE]["position"] > 0
    table = DeltaTable(tmp_path / "messages")
    table.create_checkpoint()
    table.cleanup_metadata()
    publish(server.url, QUEUE, numbered(5, 25))
    assert run(tmp_path, options).messages == 5, "the position is known from a checkpoint of the table, too"
    assert jobs.bodies(tmp_path) == numbered(30)


def test_stored_unacked_messages_are_not_stored_again(
    server: ServerProcess, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(server.url, QUEUE, numbered(20))

    def fail(*_args: object) -> None:
        raise PipelineError("killed before the ack")

    with monkeypatch.context() as patch:
        patch.setattr(calls, "acks", fail)
        run(tmp_path, options)
    assert group_of(server.url, QUEUE, "archive")["position"] == 1
    publish(server.url, QUEUE, numbered(5, 20))
    assert run(tmp_path, options).messages == 5
    assert group_of(server.url, QUEUE, "archive")["position"] == 26
    assert jobs.bodies(tmp_path) == numbered(25)


def test_everything_is_synced_before_the_ack(
    server: ServerProcess, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut lost 1,000 of 2,000 acked messages."""
    publish(server.url, QUEUE, numbered(20))
    steps: list[str] = []
    sync, acks = os.fsync, calls.acks

    def synced(descriptor: int) -> None:
        steps.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    def acked(*args: Any) -> Any:
        steps.append("ack of " + str(args[2].get(QUEUE, ("nothing",))[0]))
        return acks(*args)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(calls, "acks", acked)
    run(tmp_path, options)
    before = steps[: steps.index("ack of 20")]
    root = str(tmp_path / "messages")
    files = [str(path) for path in Path(root).rglob("*.parquet")] + [f"{root}/_delta_log/{0:020d}.json"]
    folders = {str(Path(path).parent) for path in files} | {root, str(tmp_path)}
    assert {*files, *folders} <= set(before)


@pytest.mark.parametrize("share", [0, 0.5])
def test_commit_torn_by_a_power_cut_is_quarantined(
    server: ServerProcess, options: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], share: float
) -> None:
    publish(server.url, QUEUE, numbered(20))
    run(tmp_path, options)
    log = tmp_path / "messages" / "_delta_log"
    whole = (log / f"{0:020d}.json").read_text()
    (log / f"{1:020d}.json").write_text(whole[: int(len(whole) * share)])
    publish(server.url, QUEUE, numbered(5, 20))
    assert run(tmp_path, options).messages == 5
    assert "a power cut damaged this commit; nothing of it was acked" in capsys.readouterr().err
    assert jobs.bodies(tmp_path) == numbered(25)


def test_second_archive_of_a_queue_ends_the_first_without_duplicates(
    server: ServerProcess, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(server.url, QUEUE, numbered(10))
    commit = Table.commit

    def overtaken(table: Table, *args: Any) -> None:
        monkeypatch.setattr(Table, "commit", commit)
        assert run(tmp_path, options).messages == 10
        commit(table, *args)

    monkeypatch.setattr(Table, "commit", overtaken)
    with pytest.raises(PipelineError, match="another archive has stored these messages"):
        run(tmp_path, options)
    assert jobs.bodies(tmp_path) == numbered(10)
    assert gaps_of(str(tmp_path)) == []


def test_concurrent_archives_do_not_duplicate_rows(
    server: ServerProcess, options: dict[str, str], tmp_path: Path
) -> None:
    make_queue(server.url, QUEUE, cap="64MiB")
    errors: list[BaseException] = []
    stop = threading.Event()

    def follow() -> None:
        try:
            archive(None, str(tmp_path), {**options, "pollWait": "0.1"}, every_s=0, stop=stop)
        except PipelineError as error:
            errors.append(error)

    both = [threading.Thread(target=follow) for _ in range(2)]
    for one in both:
        one.start()
    for start in range(0, 2000, 100):
        publish(server.url, QUEUE, numbered(100, start))
    give_up = time.monotonic() + 120
    while any(one.is_alive() for one in both) and time.monotonic() < give_up:
        if group_of(server.url, QUEUE, "archive")["position"] > 2000:
            break
        stop.wait(0.05)
    stop.set()
    for one in both:
        one.join()
    run(tmp_path, options)
    assert len(errors) <= 1, errors
    assert jobs.bodies(tmp_path) == numbered(2000)
    assert gaps_of(str(tmp_path)) == []


def spark_checkpoint(lake: Path, table: str, query: str, batch: int, offset: dict[str, Any]) -> None:
    """Write what Spark's checkpoint of an earlier release's archive looks like."""
    folder = lake / "_checkpoints" / "archive" / table
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": query}))
    (folder / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(offset)}")


@pytest.mark.parametrize("checkpoint", ["whole", "of an earlier batch", "torn", "in another place"])
def test_a_lake_of_an_earlier_release_is_continued(
    server: ServerProcess, options: dict[str, str], tmp_path: Path, checkpoint: str
) -> None:
    """Such a lake names Spark's query and batch. With an old checkpoint, 100 messages were lost."""
    lake = tmp_path / "lake"
    publish(server.url, QUEUE, numbered(30))
    call(server.url, "PUT", "/v2/shop/queues/kept/groups/archive", {"start": "earliest"})
    epoch = group_of(server.url, QUEUE, "archive")["epoch"]
    table = Table(str(lake), MESSAGES)
    add(table, written(table, range(1, 21), QUEUE, epoch), 4, run="query-id")
    place = {QUEUE: {"from": 11, "next": 21, "epoch": epoch, "floor": 0, "lost": 0}}
    kept = tmp_path / "elsewhere" if checkpoint == "in another place" else lake
    spark_checkpoint(kept, MESSAGES, "query-id", 3 if checkpoint == "of an earlier batch" else 4, place)
    if checkpoint == "torn":
        (kept / "_checkpoints" / "archive" / MESSAGES / "offsets" / "4").write_text("")
    given = {"checkpoint": str(kept / "_checkpoints" / "archive")} if kept != lake else {}
    assert run(lake, options, **given).messages == 10
    seqs = DeltaTable(lake / "messages").to_pyarrow_table(columns=["seq"]).column("seq").to_pylist()
    assert sorted(seqs) == list(range(1, 31))
    publish(server.url, QUEUE, numbered(5, 30))
    assert run(lake, options).messages == 5, "the second time, the table itself has the position"


@pytest.mark.parametrize("times", [1, 10])
def test_page_damaged_in_transit_is_fetched_again(
    server: ServerProcess, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """One flipped bit became one wrong body in the lake."""
    publish(server.url, QUEUE, numbered(20))
    read, left = http.client.HTTPResponse.read, [times]

    def damaged(reply: http.client.HTTPResponse, *args: Any) -> bytes:
        data = bytearray(read(reply, *args))
        if reply.headers.get("Content-Type") == frames.BATCHES and left[0]:
            left[0] -= 1
            data[-1] ^= 1
        return bytes(data)

    monkeypatch.setattr(http.client.HTTPResponse, "read", damaged)
    if times > 1:
        with pytest.raises(PipelineError, match="a page of .* bytes was damaged in transit"):
            run(tmp_path, {**options, "retryTimeout": "0"})
        left[0] = 0
    assert run(tmp_path, options).messages == 20
    assert jobs.bodies(tmp_path) == numbered(20)


def purge(server: ServerProcess) -> None:
    call(server.url, "POST", "/v2/shop/queues/kept/purge")


def test_message_purged_after_reading_is_no_loss(
    server: ServerProcess, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 3,000 messages that gaps counted as lost, 600 were in the lake."""
    commit, purges = Table.commit, [True, False]

    def purged(table: Table, *args: Any) -> None:
        commit(table, *args)
        if purges and purges.pop():  # in the second batch
            publish(server.url, QUEUE, numbered(5, 30))
            purge(server)

    monkeypatch.setattr(Table, "commit", purged)
    publish(server.url, QUEUE, numbered(10))
    run(tmp_path, options)
    publish(server.url, QUEUE, numbered(20, 10))
    assert run(tmp_path, options).messages == 20
    publish(server.url, QUEUE, numbered(5, 35))
    purge(server)
    publish(server.url, QUEUE, numbered(5, 40))
    assert group_of(server.url, QUEUE, "archive")["lost"] == 30
    run(tmp_path, options)
    assert jobs.bodies(tmp_path) == [*numbered(30), *numbered(5, 40)]
    assert sum(gap.lost or 0 for gap in gaps_of(str(tmp_path))) == 10


def test_loss_before_the_first_run_is_a_gap(server: ServerProcess, options: dict[str, str], tmp_path: Path) -> None:
    """The group had lost 4,010 messages, and the lake had no gap."""
    call(server.url, "PUT", "/v2/shop/queues/kept/groups/archive", {"start": "earliest"})
    publish(server.url, QUEUE, numbered(10))
    purge(server)
    for _ in range(2):
        run(tmp_path, options)
        [gap] = gaps_of(str(tmp_path))
        assert (gap.lost, gap.high) == (10, 11) and "before the first batch" in gap.why
    publish(server.url, QUEUE, numbered(5, 10))
    run(tmp_path, options)
    assert jobs.bodies(tmp_path) == numbered(5, 10)
    assert len(gaps_of(str(tmp_path))) == 1


@pytest.mark.parametrize("has_run", [True, False])
def test_gap_of_an_uncommitted_batch_is_not_duplicated(
    server: ServerProcess, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_run: bool
) -> None:
    call(server.url, "PUT", "/v2/shop/queues/kept/groups/archive", {"start": "earliest"})
    publish(server.url, QUEUE, numbered(10))
    if has_run:
        run(tmp_path, options)

    def fail(*_args: object) -> None:
        raise PipelineError("killed before the commit")

    for start in (10, 20):
        publish(server.url, QUEUE, numbered(10, start))
        purge(server)
        with monkeypatch.context() as patch:
            patch.setattr(Table, "commit", fail)
            with pytest.raises(PipelineError, match="killed"):
                run(tmp_path, options)
    run(tmp_path, options)
    [gap] = gaps_of(str(tmp_path))
    assert (gap.low, gap.high, gap.lost) == ((11, 31, 20) if has_run else (1, 31, 30))


def test_headers_of_a_lake_keep_their_form(server: ServerProcess, options: dict[str, str], tmp_path: Path) -> None:
    publish(server.url, QUEUE, numbered(3), **{"x-msg-x-lang": "de"})
    before = tmp_path / "before"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "DESCRIPTION", "")
        patch.setattr(Table, "plain_headers", False)
        run(before, options)
    publish(server.url, QUEUE, numbered(3, 3), **{"x-msg-x-lang": "de"})
    for lake, name, count in ((before, "x-msg-x-lang", 6), (tmp_path / "new", "lang", 6)):
        run(lake, {**options, "groupId": "archive" if lake == before else "other"})
        found = DeltaTable(lake / "messages").to_pyarrow_table(columns=["headers"]).column("headers").to_pylist()
        assert found == [[(name, "de")]] * count


def test_deleted_queue_is_one_gap(server: ServerProcess, options: dict[str, str], tmp_path: Path) -> None:
    options = {"url": server.url, "project": "shop", "queuePattern": "k.*", "failOnDataLoss": "false"}
    publish(server.url, QUEUE, numbered(10))
    run(tmp_path, options)
    publish(server.url, QUEUE, numbered(10, 10))
    call(server.url, "DELETE", "/v2/shop/queues/kept")
    make_queue(server.url, "shop/k2")
    for _ in range(2):
        run(tmp_path, options)
        [gap] = gaps_of(str(tmp_path))
        assert (gap.queue, gap.low, gap.why) == (QUEUE, 11, "the queue was deleted")


def test_journal_is_archived_to_its_end_despite_clock_skew(
    server: ServerProcess, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the server's clock ahead of the archive's, the events after the jump were left out."""
    publish(server.url, QUEUE, numbered(10))
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert run(tmp_path, options, journal=True).events >= 10


def test_batch_whose_files_a_compaction_removed_is_not_acked(
    server: ServerProcess, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock far ahead it removes files of the batch under way, and their rows were acked all the same."""
    publish(server.url, QUEUE, numbered(10))
    written = job._written

    def removed(table: Table, *args: Any) -> Any:
        found = written(table, *args)
        for path in Path(table.uri).rglob("*.parquet"):
            path.unlink()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(job, "_written", removed)
        with pytest.raises(
            PipelineError, match="of this batch is gone: a compaction with a wrong clock removes new files"
        ):
            run(tmp_path, options)
    assert group_of(server.url, QUEUE, "archive")["position"] == 1
    assert run(tmp_path, options).messages == 10
    assert jobs.bodies(tmp_path) == numbered(10)


def test_random_kills_lose_and_duplicate_nothing(
    server: ServerProcess, options: dict[str, str], tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    lake = tmp_path / "lake"
    sent = 0
    for _ in range(3):
        running = jobs.job(
            *("archive", QUEUE, "--journal", "--server", server.url, "--lake", str(lake)),
            *("--every", "0", "--max-per-batch", "100"),
        )
        seen = jobs.batches(lake)
        publish(server.url, QUEUE, numbered(500, sent))
        sent += 500
        wanted = seen + dice.randrange(1, 5)
        jobs.wait_until(lambda wanted=wanted: jobs.batches(lake) >= wanted, running)  # type: ignore[misc]
        jobs.kill(running)
    run(lake, options)
    assert jobs.bodies(lake) == numbered(sent)
    assert gaps_of(str(lake)) == []
