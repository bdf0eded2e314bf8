"""A lake in an object store, here moto's, which has a folder of its own: see install.sh."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from curbstone.spark import compact, iceberg
from curbstone.spark.archive import archive
from curbstone.spark.client import Address, Secret
from curbstone.spark.columns import JOURNAL, MESSAGES
from curbstone.spark.failure import PipelineError
from curbstone.spark.gaps import Gap, gaps_of, record, remove_after
from curbstone.spark.replay import Filter, replay
from curbstone.spark.report import report
from curbstone.spark.table import Table
from tests.kit.object_store import object_store
from tests.kit.server import ServerProcess
from tests.spark.kit import make_queue, numbered, publish, take_all
from tests.spark.test_lake import seqs_of, store, written
from tests.spark.test_sql import run

ICEBERG = Path(sys.prefix) / "spark-iceberg"
BUCKET = "lakes"


@pytest.fixture(scope="module")
def settings() -> Iterator[dict[str, str]]:
    """What says where the store is and who asks, as docs/data-lake.md has it."""
    with object_store(BUCKET) as found:
        yield found


@pytest.fixture
def lake(settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{request.node.name}"


def test_object_store_archive_keeps_each_message_once_for_all_jobs(
    server: ServerProcess, lake: str, tmp_path: Path
) -> None:
    for queue in ("shop/in", "shop/again"):
        make_queue(server.url, queue)
    publish(server.url, "shop/in", numbered(300))
    options = {"url": server.url, "queues": "shop/in"}

    def run_once() -> int:
        return archive(None, lake, options, once=True, journal=True).messages

    assert run_once() == 300
    publish(server.url, "shop/in", numbered(10, 300))
    assert run_once() == 10
    assert seqs_of(Table(lake, MESSAGES)) == list(range(1, 311))
    code, out, err = run("SELECT count(*) AS n FROM messages", "--lake", lake, "--format", "json")
    assert (code, json.loads(out)) == (0, {"n": 310}), err
    minutes = report(tmp_path / "report", lake_path=lake)
    assert sum(one.published for one in minutes if not one.group) == 310 and Table(lake, JOURNAL).exists
    address = Address(server.url, Secret(""), retry_s=1)
    for is_repeated in (False, True):
        done = replay(lake, "of-a-store", address, Filter(where="seq > 300"), into="shop/again")
        assert (done.messages, done.repeated) == (10, is_repeated)
    assert take_all(server.url, "shop/again") == numbered(10, 300)


def test_concurrent_second_writer_is_refused(lake: str) -> None:
    table = Table(lake, MESSAGES)
    store(table, 0, range(3))
    known = table.transactions()
    table.commit(written(table, range(3, 5)), {"run": 1}, known)
    with pytest.raises(PipelineError, match="another archive has stored these messages"):
        table.commit(written(table, range(3, 5)), {"run": 1}, known)
    assert seqs_of(table) == list(range(5))


def test_object_store_lake_is_compacted_and_keeps_gaps(lake: str) -> None:
    table = Table(lake, MESSAGES)
    for batch in range(4):
        store(table, batch, [batch])
    [done] = compact.compact(lake)
    assert (done.small, done.large) == (4, 1) and seqs_of(table) == [0, 1, 2, 3]
    gap = Gap("shop/a:b", "e", 2, 9, None, 4, "the queue was deleted")
    for number in (1, 2):
        record(lake, [(number, gap)])
    remove_after(lake, {gap.queue: 1})
    assert gaps_of(lake) == [gap]


def test_object_store_lake_has_iceberg_tables(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not ICEBERG.is_dir() and os.environ.get("CURBSTONE_REQUIRE_SPARK") != "1":
        pytest.skip("pyiceberg is missing; `make spark-deps` installs it")
    monkeypatch.setattr(sys, "path", [*sys.path, str(ICEBERG)])
    from pyiceberg.table import StaticTable

    table = Table(lake, MESSAGES)
    for batch in range(2):
        store(table, batch, range(3 * batch, 3 * batch + 3))
        assert iceberg.main([lake]) == 0
    compact.compact(lake)
    where = {"s3.endpoint": os.environ["AWS_ENDPOINT_URL"], "s3.region": os.environ["AWS_REGION"]}
    found = StaticTable.from_metadata(f"{lake}/iceberg/messages", where)
    assert sorted(found.scan().to_arrow().column("seq").to_pylist()) == list(range(6))
    assert len(found.snapshots()) == 3
