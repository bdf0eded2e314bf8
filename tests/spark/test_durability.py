"""What is synced, and when, so that a power cut loses nothing of a lake that was acked."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from curbstone.spark import calls, compact, delta_log
from curbstone.spark.failure import PipelineError
from curbstone.spark.gaps import gaps_of
from curbstone.spark.table import Table
from tests.kit.server import ServerProcess
from tests.spark import jobs
from tests.spark.kit import make_queue, numbered, publish
from tests.spark.test_archive import QUEUE, run


@pytest.fixture
def options(server: ServerProcess) -> dict[str, str]:
    make_queue(server.url, QUEUE)
    return {"url": server.url, "queues": QUEUE, "failOnDataLoss": "false"}


def synced_paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by the path of each file or folder that is synced."""
    sync, paths = os.fsync, []

    def synced(descriptor: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    return paths


def test_compaction_is_synced_before_later_acks(
    server: ServerProcess, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit could be lost while the next one was synced, so that the log had a hole."""
    for start in (0, 10):
        publish(server.url, QUEUE, numbered(10, start))
        run(tmp_path, options)
    table = DeltaTable(tmp_path / "messages")
    table.optimize.compact()
    [merged] = table.file_uris()
    publish(server.url, QUEUE, numbered(10, 20))
    paths = synced_paths(monkeypatch)
    run(tmp_path, options)
    assert {merged, f"{tmp_path}/messages/_delta_log/{2:020d}.json"} <= set(paths)
    del paths[:]
    publish(server.url, QUEUE, numbered(10, 30))
    run(tmp_path, options)
    assert merged not in paths


def test_compact_syncs_new_files_before_removing_old_ones(
    server: ServerProcess, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in (0, 10):
        publish(server.url, QUEUE, numbered(10, start))
        run(tmp_path, options)
    paths, seen = synced_paths(monkeypatch), []
    vacuum = DeltaTable.vacuum

    def looked(table: DeltaTable, *args: Any, **more: Any) -> Any:
        seen.extend(paths)
        return vacuum(table, *args, **more)

    monkeypatch.setattr(DeltaTable, "vacuum", looked)
    compact.compact(str(tmp_path))
    assert {*DeltaTable(tmp_path / "messages").file_uris(), f"{tmp_path}/messages/_delta_log/{2:020d}.json"} <= set(
        seen
    )
    assert any(path.endswith(".checkpoint.parquet") for path in paths)


def test_restart_syncs_commits_before_acking(
    server: ServerProcess, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was killed between commit and sync had synced nothing, and the next one acked it."""
    publish(server.url, QUEUE, numbered(10))

    def killed(*_args: object) -> None:
        raise PipelineError("killed before the sync")

    with monkeypatch.context() as patch:
        patch.setattr(Table, "sync", killed)
        with pytest.raises(PipelineError, match="killed"):
            run(tmp_path, options)
    paths = synced_paths(monkeypatch)
    run(tmp_path, options)
    assert f"{tmp_path}/messages/_delta_log/{0:020d}.json" in paths
    assert jobs.bodies(tmp_path) == numbered(10)


@pytest.mark.parametrize("damage", ["commit", "file", "checkpoint"])
def test_compaction_damaged_by_a_power_cut_is_quarantined(
    server: ServerProcess, options: dict[str, str], tmp_path: Path, damage: str
) -> None:
    for start in (0, 10):
        publish(server.url, QUEUE, numbered(10, start))
        run(tmp_path, options)
    table = DeltaTable(tmp_path / "messages")
    table.optimize.compact()
    [merged] = table.file_uris()
    log = tmp_path / "messages" / "_delta_log"
    commit = log / f"{2:020d}.json"
    if damage == "checkpoint":
        table.create_checkpoint()
        (log / "_last_checkpoint").write_text("")
    else:
        broken = commit if damage == "commit" else Path(merged)
        broken.write_bytes(broken.read_bytes()[:-2])
    publish(server.url, QUEUE, numbered(10, 20))
    run(tmp_path, options)
    assert jobs.bodies(tmp_path) == numbered(30)
    assert gaps_of(str(tmp_path)) == []
    assert commit.with_name(f"{commit.name}.torn").exists() == (damage != "checkpoint")


def test_power_cut_at_any_ack_keeps_acked_messages(
    server: ServerProcess, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each ack the lake is copied as a power cut would leave it: what was not synced is cut off or missing."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    lake, synced = tmp_path / "lake", dict[str, tuple[int, int]]()
    cuts: list[tuple[Path, int]] = []
    fsync, acks = os.fsync, calls.acks

    def state_of(path: str | Path) -> tuple[int, int]:
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns

    def noted(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        synced[path] = state_of(path)
        fsync(descriptor)

    def cut(client: Any, group: str, done: Any, reader: str) -> Any:
        if up_to := done[QUEUE][0]:
            copy = tmp_path / f"cut-{len(cuts)}"
            shutil.copytree(lake, copy)
            for path in [path for path in copy.rglob("*") if path.is_file()]:
                original = lake / path.relative_to(copy)
                if synced.get(str(original)) == state_of(original):
                    continue
                if dice.random() < 0.5:
                    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
                else:
                    path.unlink()
            cuts.append((copy, up_to))
        return acks(client, group, done, reader)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(calls, "acks", cut)
    commit = Table.commit

    def beside_a_compaction(table: Table, *args: Any) -> None:
        if table.exists and dice.random() < 0.5:
            table.open().optimize.compact()
        if table.exists and dice.random() < 0.3:
            table.open().create_checkpoint()
        commit(table, *args)

    monkeypatch.setattr(Table, "commit", beside_a_compaction)
    for start in range(0, 100, 10):
        publish(server.url, QUEUE, numbered(10, start))
        run(lake, {**options, "maxOffsetsPerTrigger": "5"})
    assert len(cuts) >= 20
    for copy, up_to in cuts:
        uri = str(copy / "messages")
        delta_log.repair(uri)
        seqs = DeltaTable(uri).to_pyarrow_table(columns=["seq"]).column("seq").to_pylist()
        assert len(set(seqs)) == len(seqs) and set(range(1, up_to + 1)) <= set(seqs), f"{copy}: acked up to {up_to}"
