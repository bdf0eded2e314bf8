"""The lake without Spark: tables that grow by batches, are compacted and looked back at, and lakes of before."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet

from curbstone.spark import compact, parts, upgrade
from curbstone.spark.columns import COLUMNS, JOURNAL, MESSAGES
from curbstone.spark.failure import PipelineError
from curbstone.spark.parts import Part, PartWriter, in_project_and_queue, stored_schema
from curbstone.spark.table import Table

ADDED = ("expires", "groups", "key")
"""Columns that tables did not always have."""
MORNING = datetime(2026, 11, 22, 23, 59, 59, 123_456, tzinfo=UTC)
"""One second and a little before the next day."""


def rows(seqs: Sequence[int], queue: str = "shop/a:b", start: datetime = MORNING, epoch: str = "e") -> pa.RecordBatch:
    """Return messages as they are read from a queue, a second apart."""
    columns: dict[str, Any] = {
        "queue": [queue] * len(seqs),
        "epoch": [epoch] * len(seqs),
        "seq": list(seqs),
        "message_id": [f"e-{seq}" for seq in seqs],
        "timestamp": pa.array([start + timedelta(seconds=n) for n in range(len(seqs))], pa.timestamp("us", "UTC")),
        "content_type": ["text/plain"] * len(seqs),
        "headers": pa.array([[("a", "b")]] * len(seqs), pa.map_(pa.string(), pa.string())),
        "body": [b"body %d" % seq for seq in seqs],
        "tries": pa.array([0] * len(seqs), pa.int32()),
        "expires": pa.array([start] * len(seqs), pa.timestamp("us", "UTC")),
        "groups": pa.array([["audit", ""]] * len(seqs), pa.list_(pa.string())),
        "key": [queue] * len(seqs),
    }
    return pa.RecordBatch.from_pydict(columns)


def written(table: Table, seqs: Sequence[int], queue: str = "shop/a:b", epoch: str = "e") -> list[Part]:
    """Write files that belong to nothing yet."""
    writer = PartWriter(table.uri, table.name)
    writer.add(in_project_and_queue(rows(seqs, queue, epoch=epoch)))
    return writer.close()


def store(table: Table, batch: int, seqs: Sequence[int], run: str = "run") -> None:
    add(table, written(table, seqs), batch, run)


def add(table: Table, parts: Sequence[Part], batch: int, run: str = "run") -> None:
    """Commit files under the number of a batch."""
    table.commit(parts, {run: batch}, table.transactions())


def seqs_of(table: Table, version: int | None = None) -> list[int]:
    found = table.open(version).to_pyarrow_table(columns=["seq"])
    return sorted(found.column("seq").to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(str(tmp_path / "a lake"), MESSAGES)


def test_rows_are_partitioned_by_day_and_all_columns_round_trip(table: Table) -> None:
    store(table, 0, range(4))
    first_day, second_day = sorted(table.files())
    assert [path.rpartition("/part-")[0] for path in (first_day, second_day)] == [
        f"{table.uri}/date=2026-11-22",
        f"{table.uri}/date=2026-11-23",
    ]
    found = table.open().to_pyarrow_table().sort_by("seq").to_pylist()
    first = rows(range(4)).to_pylist()[0]
    assert found[0] == first | {"project": "shop", "queue": "a:b", "date": date(2026, 11, 22)}
    assert parquet.read_schema(table.files()[0]).names == stored_schema(MESSAGES).names


def test_readers_skip_files_by_statistics(table: Table) -> None:
    """Times in the log have milliseconds: a row in the last one must not be missed."""
    store(table, 0, range(4))
    stats = sorted(map(json.loads, _stats(table)), key=lambda one: int(one["minValues"]["seq"]))
    assert stats[0]["maxValues"]["timestamp"] == "2026-11-22T23:59:59.124Z"
    assert [one["minValues"]["seq"] for one in stats] == [0, 1]
    data = table.open().to_pyarrow_dataset()
    assert data.to_table(filter=pa.compute.field("timestamp") >= pa.scalar(MORNING)).num_rows == 4
    assert data.to_table(filter=pa.compute.field("seq") == 3).num_rows == 1


def _stats(table: Table) -> list[str]:
    log = Path(table.uri, "_delta_log", f"{0:020d}.json").read_text().splitlines()
    return [line["add"]["stats"] for line in map(json.loads, log) if "add" in line]


def test_batch_is_added_once(table: Table) -> None:
    store(table, 0, range(3))
    store(table, 0, range(3), run="another")
    for batch in (0, 1):
        assert table.has_batch("run", batch) == (batch == 0)
    known = table.transactions() | {"run": 7}
    with pytest.raises(PipelineError, match="another archive has stored these messages in .*; this one ends"):
        table.commit(written(table, range(3)), {"run": 8}, known)
    assert len(seqs_of(table)) == 6


def test_a_task_that_fails_leaves_no_file(table: Table) -> None:
    writer = PartWriter(table.uri, table.name)
    writer.add(in_project_and_queue(rows(range(3))))
    writer.drop()
    assert not list(Path(table.uri).rglob("*.parquet"))


def test_compaction_merges_small_files(table: Table) -> None:
    for batch in range(10):
        store(table, batch, [batch])
    [done] = compact.compact(table.lake)
    assert (done.table, done.small, done.large, done.forgotten) == (MESSAGES, 10, 1, 0)
    assert seqs_of(table) == list(range(10))
    assert seqs_of(table, 4) == list(range(5)), "one may look back"
    assert len(table.files()) == 1
    assert table.has_batch("run", 9), "what was stored is known afterwards, too"
    store(table, 10, [10])
    assert seqs_of(table) == list(range(11))


def test_a_table_that_lacks_columns_gets_them_with_its_next_batch(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two archives find so at once: both batches are stored, and the columns are added once."""
    of_before = {**COLUMNS, MESSAGES: tuple(name for name in COLUMNS[MESSAGES] if name not in ADDED)}
    with monkeypatch.context() as patch:
        patch.setattr(parts, "COLUMNS", of_before)
        store(table, 0, [0])
    assert not {field.name for field in table.open().schema().fields} & set(ADDED)
    other, stale = Table(table.lake, MESSAGES), table.open()
    store(table, 1, [1])
    seen = iter([stale])
    monkeypatch.setattr(other, "open", lambda: next(seen, None) or table.open())
    store(other, 0, [2], run="another")
    found = table.open().to_pyarrow_table(columns=["seq", *ADDED]).sort_by("seq").to_pylist()
    assert [row["key"] for row in found] == [None, "shop/a:b", "shop/a:b"]
    assert [row["groups"] for row in found] == [None, ["audit", ""], ["audit", ""]]
    compact.compact(table.lake)
    assert table.open().to_pyarrow_table(columns=["seq", *ADDED]).sort_by("seq").to_pylist() == found


def test_old_unreferenced_files_are_removed(table: Table) -> None:
    """What a killed task left stayed for ever: only what a commit had replaced was looked for."""
    store(table, 0, range(3))
    left, fresh = (Path(table.uri, part.path) for _ in range(2) for part in written(table, [7]))
    before = datetime.now(UTC) - timedelta(days=8)
    os.utime(left, (before.timestamp(), before.timestamp()))
    for expected in (1, 0):
        [done] = compact.compact(table.lake)
        assert done.removed == expected
    assert not left.exists() and fresh.exists(), "a batch under way may have written the other"
    assert seqs_of(table) == [0, 1, 2]


def test_replaced_files_are_kept_as_configured(table: Table) -> None:
    """The log forgets it after a week unless told otherwise, and then it looks like what a killed task left."""
    for batch in range(3):
        store(table, batch, [batch])
    compact.compact(table.lake, keep_hours=1000)
    log = Path(table.uri, "_delta_log")
    for file in log.iterdir():
        if file.suffix != ".json":
            file.unlink()
            continue
        lines = list(map(json.loads, file.read_text().splitlines()))
        for line in lines:
            if "remove" in line:
                line["remove"]["deletionTimestamp"] -= 300 * 3_600_000
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    before = datetime.now(UTC) - timedelta(hours=2000)
    for path in Path(table.uri).glob("date=*/*"):
        os.utime(path, (before.timestamp(), before.timestamp()))
    assert [sum(done.removed for done in compact.compact(table.lake, keep_hours=1000)) for _ in range(2)] == [0, 0]
    assert seqs_of(table, 2) == [0, 1, 2]


def test_old_days_are_removed_on_request(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    store(table, 0, range(4))
    assert compact.main([table.lake, "--delete-before", "2026-11-23", "--keep-hours", "1"]) == 0
    assert capsys.readouterr().out.startswith("messages: 0 files became 0, 1 of earlier days left the table")
    assert seqs_of(table) == [1, 2, 3]
    assert compact.main([table.lake, "--keep-hours", "0"]) == 1
    assert "--keep-hours must be at least 1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        compact.main([table.lake, "--delete-before", "soon"])


def old_lake(lake: Path, batches: int = 3) -> None:
    """Write what the first release did: a folder for each batch, whose name is a part of its rows."""
    for number in range(batches):
        place = f"messages/run=r-1/batch={number:010d}/project=shop/queue=a%3Ab/date=2026-11-22"
        (lake / place).mkdir(parents=True)
        stored = pa.Table.from_batches([rows([2 * number, 2 * number + 1])]).drop_columns(["queue", *ADDED])
        parquet.write_table(stored, lake / place / f"part-{number}.zstd.parquet", compression="zstd")


def test_lake_of_the_first_release_is_upgraded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = tmp_path / "lake"
    old_lake(lake)
    before = Table(str(lake), MESSAGES)
    with pytest.raises(PipelineError, match=f"earlier release: run `curbstone pipeline upgrade {lake}` once"):
        before.open()
    assert upgrade.main([str(lake)]) == 0
    assert capsys.readouterr().out == "converted 3 batches\n"
    assert seqs_of(before) == list(range(6))
    assert not list(lake.glob("messages/run=*"))
    assert {row["queue"] for row in before.open().to_pyarrow_table(columns=["queue"]).to_pylist()} == {"a:b"}
    assert before.has_batch("r-1", 2) and not before.has_batch("r-1", 3)
    assert upgrade.main([str(lake)]) == 0
    assert capsys.readouterr().out == f"the lake {lake} needs no upgrade\n"
    assert upgrade.main([str(tmp_path / "none")]) == 1


def test_killed_upgrade_continues(tmp_path: Path) -> None:
    """It was committed, and its folder is there yet: it must not come twice."""
    lake, kept = tmp_path / "lake", tmp_path / "kept"
    old_lake(lake)
    shutil.copytree(lake / "messages" / "run=r-1" / f"batch={0:010d}", kept)
    assert upgrade.upgrade(str(lake)) == 3
    shutil.copytree(kept, lake / "messages" / "run=r-1" / f"batch={0:010d}")
    assert upgrade.upgrade(str(lake)) == 1
    assert seqs_of(Table(str(lake), MESSAGES)) == list(range(6))


def test_journal_is_a_table(tmp_path: Path) -> None:
    table = Table(str(tmp_path), JOURNAL)
    names = [name for name in stored_schema(JOURNAL).names if name != "project"]
    values = {"queue": "shop/a", "time": MORNING, "due": None, "epoch": "e", "event": "settled", "group": ""}
    batch = pa.RecordBatch.from_pylist(
        [{name: values.get(name, 1) for name in names}],
        schema=pa.schema([stored_schema(JOURNAL).field(name) for name in names]),
    )
    writer = PartWriter(table.uri, JOURNAL)
    writer.add(in_project_and_queue(batch))
    add(table, writer.close(), 0)
    [row] = DeltaTable(table.uri).to_pyarrow_table().to_pylist()
    assert (row["project"], row["queue"], row["event"]) == ("shop", "a", "settled")
