"""How the files of a lake are laid out: by queue, and sorted."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyarrow import parquet

from curbstone.spark import compact
from curbstone.spark.archive import archive
from curbstone.spark.columns import MESSAGES
from curbstone.spark.failure import PipelineError
from curbstone.spark.sql import Sql
from curbstone.spark.table import Table
from tests.kit.server import ServerProcess
from tests.spark.kit import make_queue, numbered, publish
from tests.spark.test_lake import store

QUEUES = ("shop/a:b", "shop/other")


def test_lake_partitioned_by_queue_is_readable_and_keeps_its_layout(server: ServerProcess, tmp_path: Path) -> None:
    for queue in QUEUES:
        make_queue(server.url, queue)
        publish(server.url, queue, numbered(10))
    options = {"url": server.url, "queues": ",".join(QUEUES)}
    archive(None, str(tmp_path), options, once=True, by_queue=True, journal=True)
    publish(server.url, QUEUES[0], numbered(5, 10))
    archive(None, str(tmp_path), options, once=True)
    for name in ("messages", "journal"):
        assert DeltaTable(tmp_path / name).metadata().partition_columns == ["queue", "date"]
    table = Table(str(tmp_path), MESSAGES)
    assert len(list(table.dataset().get_fragments(filter=pc.field("queue") == "other"))) == 1
    for _ in range(2):
        seen = DeltaTable(table.uri).to_pyarrow_table(columns=["queue", "seq"])
        assert sorted(seen.column("queue").to_pylist()) == ["a:b"] * 15 + ["other"] * 10
        assert sum(parquet.ParquetFile(path).metadata.num_rows for path in table.files()) == 25
        with Sql(lake=str(tmp_path)) as database:
            for queue, count in (("a:b", 15), ("other", 10)):
                assert list(database.run(f"SELECT count(*) FROM messages WHERE queue = '{queue}'")[1]) == [[count]]
        compact.compact(str(tmp_path))
    assert archive(None, str(tmp_path), options, once=True).messages == 0
    assert not list(tmp_path.rglob("*.torn")), "all files are found whole, whatever their paths"
    other = tmp_path / "by day"
    store(Table(str(other), MESSAGES), 0, range(2))
    with pytest.raises(PipelineError, match="is partitioned by date; only a new lake can be partitioned by queue"):
        archive(None, str(other), options, once=True, by_queue=True)


def test_compact_sorts_days_that_have_new_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(str(tmp_path), MESSAGES)
    for batch, seqs in enumerate(([5, 3], [4, 1])):
        store(table, batch, seqs)
    assert compact.main([str(tmp_path), "--sort-by", "seq"]) == 0
    files = [parquet.read_table(path, columns=["seq"]).column("seq").to_pylist() for path in table.files()]
    assert sorted(files) == [[1, 3], [4, 5]]
    version = DeltaTable(table.uri).version()
    assert compact.main([str(tmp_path), "--sort-by", "seq"]) == 0
    assert DeltaTable(table.uri).version() == version, "nothing was added since"
    assert compact.main([str(tmp_path), "--sort-by", "price"]) == 1
    assert "can't sort by 'price'; there are: body, content_type, epoch" in capsys.readouterr().err
