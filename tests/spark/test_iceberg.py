"""The tables of a lake as Iceberg tables: the same rows at every version, for every reader, whatever is killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from curbstone.spark import compact, iceberg
from curbstone.spark.columns import JOURNAL, MESSAGES
from curbstone.spark.failure import PipelineError
from curbstone.spark.parts import PartWriter, in_project_and_queue
from curbstone.spark.table import Table
from tests.kit.server import ServerProcess
from tests.spark import jobs
from tests.spark.kit import call, make_queue, numbered, publish
from tests.spark.test_archive import QUEUE, run
from tests.spark.test_filters import CASES, check, fill, place_of
from tests.spark.test_lake import add, rows, seqs_of, store

PACKAGES = Path(sys.prefix) / "spark-iceberg"
PROGRAM = Path(__file__).with_name("iceberg_filters.py")
Ask = Callable[..., list[int]]


@pytest.fixture(scope="module", autouse=True)
def pyiceberg() -> Iterator[None]:
    """Let this process import what it has not got otherwise."""
    if not PACKAGES.is_dir() and os.environ.get("CURBSTONE_REQUIRE_SPARK") != "1":
        pytest.skip("pyiceberg is missing; `make spark-deps` installs it")
    sys.path.append(str(PACKAGES))
    yield
    sys.path.remove(str(PACKAGES))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(str(tmp_path / "a lake"), MESSAGES)


def folder_of(table: Table) -> str:
    return f"{table.lake}/iceberg/{table.name}"


def opened(table: Table) -> Any:
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(folder_of(table))


def read(table: Table) -> list[int]:
    """Return the seqs in an Iceberg table."""
    return sorted(opened(table).scan().to_arrow().column("seq").to_pylist())


def update(table: Table, **more: Any) -> int:
    return iceberg.update(table.lake, table.name, **more)


def contents(table: Table) -> set[str]:
    return {path.name for path in Path(folder_of(table), "metadata").iterdir()}


def test_iceberg_table_has_the_rows_of_each_version(table: Table) -> None:
    for batch in range(3):
        store(table, batch, range(4 * batch, 4 * batch + 4))
        assert update(table) == batch
        assert read(table) == seqs_of(table) == list(range(4 * batch + 4))
    before = contents(table)
    assert update(table) == 2 and contents(table) == before
    table.open().optimize.compact()
    assert update(table) == 3 and read(table) == list(range(12))
    table.open().delete("date < '2026-11-23'")
    assert update(table) == 4 and read(table) == seqs_of(table) == [seq for seq in range(12) if seq % 4]
    snapshots = opened(table).snapshots()
    assert [one.summary["curbstone.delta-version"] for one in snapshots] == list("01234")
    assert [one.summary.operation.value for one in snapshots] == ["append"] * 3 + ["overwrite"] * 2
    assert opened(table).scan(snapshot_id=snapshots[1].snapshot_id).to_arrow().num_rows == 8


def test_all_columns_round_trip_and_new_ones_are_added(table: Table) -> None:
    store(table, 0, range(2))
    update(table)
    table.more = [pa.field("order_id", pa.int64()), pa.field("_rescued", pa.string())]
    writer = PartWriter(table.uri, MESSAGES, table.more)
    writer.add(in_project_and_queue(rows(range(2, 4)).append_column("order_id", pa.array([7, 8]))))
    add(table, writer.close(), 1)
    update(table)
    found = sorted(opened(table).scan().to_arrow().to_pylist(), key=lambda row: row["seq"])
    wanted = sorted(table.dataset().to_table().to_pylist(), key=lambda row: row["seq"])
    assert [{**row, "date": None} for row in found] == [{**row, "date": None} for row in wanted]
    assert [row["order_id"] for row in found] == [None, None, 7, 8]
    assert "date" not in found[0], "a table of Iceberg is partitioned by the day of its time"


@pytest.mark.parametrize("by_queue", [False, True])
def test_filter_skips_files_also_after_a_compaction(table: Table, by_queue: bool) -> None:
    if by_queue:
        table.partition_by_queue()
    for batch in range(4):
        writer = PartWriter(table.uri, MESSAGES, by_queue=by_queue)
        writer.add(in_project_and_queue(rows([batch], f"shop/q{batch % 2}")))
        add(table, writer.close(), batch)
    table.open().optimize.compact()
    update(table)
    scan = opened(table).scan(row_filter="queue = 'q1'")
    assert sorted(scan.to_arrow().column("seq").to_pylist()) == [1, 3]
    assert len(list(scan.plan_files())) == 1
    assert len(list(opened(table).scan(row_filter="timestamp < '2026-11-22T00:00:00+00:00'").plan_files())) == 0


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Lakes with files of an archive, and of a compaction."""
    made = [tmp_path_factory.mktemp("lakes") / name for name in ("new", "compacted")]
    for lake in made:
        fill(lake)
        if lake.name == "compacted":
            assert Table(str(lake), MESSAGES).open().optimize.z_order(["key"])["numFilesAdded"] == 2
        assert iceberg.main([str(lake)]) == 0
    return made


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Ask a program that has pyiceberg, Polars and DuckDB's extension."""
    running = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(PROGRAM)],
        env=os.environ | {"PYTHONPATH": str(PACKAGES)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stdin and running.stdout

    def asked(reader: str, folder: str, place: str, column: str | None = None, value: Any = None) -> list[int]:
        assert running.stdin and running.stdout
        text = value.hex() if isinstance(value, bytes) else str(value)
        print(json.dumps([reader, folder, place, column, type(value).__name__, text]), file=running.stdin, flush=True)
        answer: list[int] = json.loads(running.stdout.readline())
        return answer

    yield asked
    running.communicate(timeout=60)


@pytest.mark.parametrize("reader", ["pyiceberg", "polars", "duckdb"])
@pytest.mark.parametrize(("table_name", "column"), CASES)
def test_each_filter_finds_its_rows(ask: Ask, lakes: list[Path], table_name: str, column: str, reader: str) -> None:
    for lake in lakes:
        folder = f"{lake}/iceberg/{table_name}"
        check(table_name, column, partial(ask, reader, folder, place_of(table_name), column))
    assert len(ask(reader, f"{lakes[0]}/iceberg/{JOURNAL}", "position")) == 3


@pytest.mark.parametrize("name", ["v2.metadata.json", "version-hint.text"])
def test_kill_keeps_the_last_version_and_a_retry_completes_the_next(
    table: Table, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store(table, 0, range(4))
    update(table)
    store(table, 1, range(4, 8))
    table.open().optimize.compact()
    replace = os.replace

    def killed(source: str, target: str) -> None:
        if target.endswith(name):
            raise PipelineError("killed")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(PipelineError, match="killed"):
            update(table)
    assert read(table) == list(range(4))
    assert update(table) == 2
    assert read(table) == list(range(8))


def test_concurrent_updates_keep_the_correct_rows(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    from curbstone.spark import iceberg_table

    store(table, 0, range(4))
    update(table)
    store(table, 1, range(4, 8))
    commit = iceberg_table._commit

    def overtaken(*args: Any) -> bool:
        monkeypatch.setattr(iceberg_table, "_commit", commit)
        assert update(table) == 1
        store(table, 2, range(8, 12))
        assert update(table) == 2
        return commit(*args)

    monkeypatch.setattr(iceberg_table, "_commit", overtaken)
    assert update(table) == 1
    assert read(table) == list(range(8)), "the slower one has named its version last"
    assert update(table) == 2 and read(table) == list(range(12))
    store(table, 3, range(12, 16))
    assert update(table) == 3 and read(table) == list(range(16))


def test_files_are_synced_before_the_version_that_names_them(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    store(table, 0, range(4))
    synced: set[str] = set()
    at: dict[str, set[str]] = {}
    fsync, replace = os.fsync, os.replace

    def noted(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def replaced(source: str, target: str) -> None:
        assert source in synced
        at[Path(target).name] = set(synced)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", replaced)
    update(table)
    folder = Path(folder_of(table), "metadata")
    avro = {str(path) for path in folder.glob("*.avro")}
    assert len(avro) == 2
    assert {*avro, *table.files(), f"{table.uri}/_delta_log/{0:020d}.json"} <= at["v0.metadata.json"]
    assert str(folder) in at["version-hint.text"]


@pytest.mark.parametrize("what", ["copied", "restored", "made anew", "the clock was ahead"])
def test_table_of_another_lake_is_rebuilt(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    lake = Path(table.lake)
    store(table, 0, range(4))
    shutil.copytree(lake, tmp_path / "earlier")
    if what == "the clock was ahead":
        now = time.time_ns
        with monkeypatch.context() as patch:
            from pyiceberg.table import snapshots

            patch.setattr(snapshots.time, "time", lambda: now() / 1e9 + 86_400)
            patch.setattr(snapshots.time, "time_ns", lambda: now() + 86_400 * 10**9)
            update(table)
        assert opened(table).metadata.last_updated_ms > now() // 10**6
    store(table, 1, range(4, 8))
    if what != "the clock was ahead":
        update(table)
    if what == "copied":
        lake.rename(tmp_path / "copy")
        table = Table(str(tmp_path / "copy"), MESSAGES)
    elif what in ("restored", "made anew"):
        shutil.rmtree(lake / MESSAGES)
        if what == "restored":
            shutil.copytree(tmp_path / "earlier" / MESSAGES, lake / MESSAGES)
        else:
            store(Table(str(lake), MESSAGES), 0, range(4))
    update(table)
    assert read(table) == seqs_of(table)
    store(table, 2, range(20, 22))
    assert update(table) == DeltaTable(table.uri).version()
    assert read(table) == seqs_of(table)
    assert len(opened(table).snapshots()) == 2


def test_snapshots_with_removable_files_are_expired(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    from curbstone.spark import iceberg_table

    monkeypatch.setattr(iceberg_table, "UNUSED_S", -1)
    for batch in range(3):
        store(table, batch, [batch])
        update(table)
    table.open().optimize.compact()
    update(table, keep_hours=0)
    [snapshot] = opened(table).snapshots()
    needed = {path.rpartition("/")[2] for path in iceberg_table._files_of(opened(table), snapshot)}
    assert contents(table) == needed | {"v3.metadata.json", "version-hint.text"}
    assert read(table) == [0, 1, 2]


def test_snapshots_and_manifests_are_bounded(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    from curbstone.spark import iceberg_table

    monkeypatch.setattr(iceberg_table, "SNAPSHOTS", 3)
    monkeypatch.setattr(iceberg_table, "UNUSED_S", -1)
    counts = []
    for batch in range(14):
        store(table, batch, [batch])
        update(table)
        counts.append(len(opened(table).snapshots()))
        assert read(table) == list(range(batch + 1))
    assert max(counts) == 6 and counts[-1] >= 3


def test_archives_and_compactions_keep_the_tables_current(
    server: ServerProcess, tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queue(server.url, QUEUE)
    options = {"url": server.url, "queues": QUEUE, "failOnDataLoss": "false"}
    publish(server.url, QUEUE, numbered(10))
    run(tmp_path, options)
    assert not (tmp_path / "iceberg").exists()
    assert iceberg.main([str(tmp_path)]) == 0
    publish(server.url, QUEUE, numbered(10, 10))
    call(server.url, "POST", "/v2/shop/queues/kept/purge")
    publish(server.url, QUEUE, numbered(10, 20))
    run(tmp_path, options, journal=True)
    wanted = [*range(1, 11), *range(21, 31)]
    for reader in ("pyiceberg", "duckdb"):
        assert ask(reader, f"{tmp_path}/iceberg/messages", "seq") == wanted
        assert ask(reader, f"{tmp_path}/iceberg/gaps", "from") == [11]
        events = Table(str(tmp_path), JOURNAL).dataset().to_table().column("position").to_pylist()
        assert ask(reader, f"{tmp_path}/iceberg/journal", "position") == sorted(events) != []
    [done, _] = compact.compact(str(tmp_path))
    assert done.small == 2
    assert ask("duckdb", f"{tmp_path}/iceberg/messages", "seq") == wanted
    monkeypatch.setattr(iceberg, "missing_packages", lambda names: names)
    with pytest.raises(PipelineError, match=r"pyiceberg not installed; pip install 'curbstone\[iceberg\]'"):
        run(tmp_path, options)


def test_random_kills_of_an_archive_keep_its_rows(server: ServerProcess, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    make_queue(server.url, QUEUE)
    program = (
        "import sys\n"
        "from curbstone.spark import archive, iceberg\n"
        "iceberg.EVERY_S = 0\n"
        "sys.exit(archive.main(sys.argv[1:]))"
    )
    lake = tmp_path / "lake"
    (lake / "iceberg").mkdir(parents=True)
    words = ("--server", server.url, "--lake", str(lake), "--every", "0", "--max-per-batch", "50")
    for start in range(0, 900, 300):
        running = jobs.start("-c", program, QUEUE, *words, also=PACKAGES)
        seen = jobs.batches(lake)
        publish(server.url, QUEUE, numbered(300, start))
        wanted = seen + dice.randrange(1, 5)
        jobs.wait_until(lambda wanted=wanted: jobs.batches(lake) >= wanted, running)  # type: ignore[misc]
        time.sleep(dice.random() / 10)
        jobs.kill(running)
        table = Table(str(lake), MESSAGES)
        if Path(folder_of(table), "metadata", "version-hint.text").exists():
            found = read(table)
            assert found == list(range(1, len(found) + 1)), "a version has whole batches"
    jobs.run(jobs.start("-c", program, QUEUE, *words, "--once", also=PACKAGES))
    assert read(Table(str(lake), MESSAGES)) == list(range(1, 901))


def test_missing_lake_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert iceberg.main([str(tmp_path / "nowhere")]) == 1
    assert "there is no lake at" in capsys.readouterr().err
