"""A filter on any column finds its rows, with every reader of a lake, whoever wrote the files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from curbstone.spark import compact, parts
from curbstone.spark.client import Address, Secret
from curbstone.spark.columns import JOURNAL, MESSAGES, MOMENT
from curbstone.spark.parts import PartWriter, in_project_and_queue, stored_schema
from curbstone.spark.replay import Filter, replay
from curbstone.spark.sql import Sql
from curbstone.spark.table import Table
from tests.spark.test_lake import add

NIGHT = datetime(2026, 11, 22, 23, 59, 59, 123_456, tzinfo=UTC)
NESTED = {"headers", "groups"}
PACKAGES = Path(sys.prefix) / "spark-frames"
PROGRAM = Path(__file__).with_name("frame_filters.py")


def messages() -> pa.RecordBatch:
    """Four messages of two days. Some values are null, and one is longer than what the log keeps of a text."""
    columns: dict[str, Any] = {
        "queue": ["shop/a", "shop/a", "shop/b", "shop/b"],
        "epoch": ["e1", "e1", "e2", "e2"],
        "seq": [1, 2, 7, 8],
        "message_id": ["e1-1", "e1-2", "e2-7", "e2-8"],
        "timestamp": pa.array([NIGHT + timedelta(seconds=n) for n in range(4)], pa.timestamp("us", "UTC")),
        "content_type": ["text/plain", None, "x" * 300, "image/png"],
        "headers": pa.array([[("a", "b")]] * 4, pa.map_(pa.string(), pa.string())),
        "body": [b"a", b"", b"\xff", b"d"],
        "tries": pa.array([0, 0, 3, 0], pa.int32()),
        "expires": pa.array([None, NIGHT, None, NIGHT], pa.timestamp("us", "UTC")),
        "groups": pa.array([None] * 4, pa.list_(pa.string())),
        "key": ["k", None, "k2", None],
    }
    return pa.RecordBatch.from_pydict(columns)


def events() -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "queue": ["shop/a"] * 3,
        "epoch": ["e1"] * 3,
        "position": [10, 20, 30],
        "event": ["published", "released", "settled"],
        "seq": [1, 1, 1],
        "count": [1, 1, 1],
        "time": pa.array([NIGHT + timedelta(seconds=n) for n in range(3)], pa.timestamp("us", "UTC")),
        "group": [None, "", "audit"],
        "tries": pa.array([None, 1, None], pa.int32()),
        "due": pa.array([None, NIGHT, None], pa.timestamp("us", "UTC")),
        "bytes": pa.array([5, None, None], pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


ROWS = {MESSAGES: messages, JOURNAL: events}
CASES = [
    (table, column)
    for table in ROWS
    for column in stored_schema(table).names
    if column not in NESTED and (table, column) != (JOURNAL, "project")
]


def fill(lake: Path) -> None:
    for name, rows in ROWS.items():
        table = Table(str(lake), name)
        writer = PartWriter(table.uri, name)
        writer.add(in_project_and_queue(rows()))
        add(table, writer.close(), 0)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("lakes") / "lake"
    fill(made)
    return made


@pytest.fixture(scope="module")
def old_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake as release 0.1.0 wrote it: the log has statistics of four columns, and no counts of nulls."""
    made = tmp_path_factory.mktemp("lakes") / "old"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts._Part, "_stats", _few_statistics)
        fill(made)
    return made


def _few_statistics(part: parts._Part) -> str:
    kept = ("project", "queue", "seq", *MOMENT.values())
    ends = [
        {name: parts._in_log(part.bounds[name][end], up=bool(end)) for name in kept if name in part.bounds}
        for end in (0, 1)
    ]
    return json.dumps({"numRecords": part.rows, "minValues": ends[0], "maxValues": ends[1], "nullCount": {}})


def expected(table: str, column: str) -> dict[Any, list[int]]:
    """Return, by each value of the column, the places of its rows."""
    found: dict[Any, list[int]] = {}
    for row in in_project_and_queue(ROWS[table]()).to_pylist():
        place = row["seq"] if table == MESSAGES else row["position"]
        found.setdefault(row[column], []).append(place)
    return found


def check(table: str, column: str, places_where: Callable[[Any], list[int]]) -> None:
    for value, places in expected(table, column).items():
        assert sorted(places_where(value)) == places, f"{column} = {value!r}"


def literal(value: Any) -> str:
    if isinstance(value, datetime):
        return f"TIMESTAMPTZ '{value.isoformat()}'"
    if isinstance(value, bytes):
        return "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'::BLOB"
    return f"'{value}'" if isinstance(value, str) else str(value)


def condition(column: str, value: Any) -> str:
    return f'"{column}" IS NULL' if value is None else f'"{column}" = {literal(value)}'


def place_of(table: str) -> str:
    return "seq" if table == MESSAGES else "position"


def by_sql(database: Sql, table: str, column: str) -> None:
    def places(value: Any) -> list[int]:
        _names, rows = database.run(f"SELECT {place_of(table)} FROM {table} WHERE {condition(column, value)}")
        return [row[0] for row in rows]

    check(table, column, places)


def by_arrow(data: Any, table: str, column: str) -> None:
    def places(value: Any) -> list[int]:
        field = pc.field(column)
        chosen = field.is_null() if value is None else field == pa.scalar(value, data.schema.field(column).type)
        found: list[int] = data.to_table(filter=chosen).column(place_of(table)).to_pylist()
        return found

    check(table, column, places)


@pytest.fixture(scope="module")
def databases(lake: Path, old_lake: Path) -> Iterator[tuple[Sql, Sql]]:
    with Sql(lake=str(lake)) as database, Sql(lake=str(old_lake)) as old:
        yield database, old


@pytest.mark.parametrize(("table", "column"), CASES)
def test_filters_in_sql(databases: tuple[Sql, Sql], table: str, column: str) -> None:
    for database in databases:
        by_sql(database, table, column)


@pytest.mark.parametrize("column", [column for table, column in CASES if table == MESSAGES])
def test_filters_in_replay(lake: Path, old_lake: Path, column: str) -> None:
    nowhere = Address("http://127.0.0.1:9", Secret(""))
    for place in (lake, old_lake):
        for value, places in expected(MESSAGES, column).items():
            wanted = Filter(where=condition(column, value))
            assert replay(str(place), "again", nowhere, wanted, dry_run=True).messages == len(places)


@pytest.mark.parametrize(("table", "column"), CASES)
def test_filters_in_pyarrow(lake: Path, table: str, column: str) -> None:
    by_arrow(Table(str(lake), table).open().to_pyarrow_dataset(), table, column)


@pytest.mark.parametrize(("table", "column"), CASES)
def test_filters_in_duckdb(lake: Path, table: str, column: str) -> None:
    with duckdb.connect() as base:
        base.register("stored", Table(str(lake), table).open().to_pyarrow_dataset())

        def places(value: Any) -> list[int]:
            query = f"SELECT {place_of(table)} FROM stored WHERE {condition(column, value)}"
            return [row[0] for row in base.execute(query).fetchall()]

        check(table, column, places)


@pytest.mark.parametrize(("table", "column"), CASES)
def test_filters_in_deltalake(lake: Path, table: str, column: str) -> None:
    opened = Table(str(lake), table).open()

    def places(value: Any) -> list[int]:
        if value is None:
            return expected(table, column)[None]  # such filters can't ask for null
        found = opened.to_pyarrow_table(filters=[(column, "=", value)])
        return list(found.column(place_of(table)).to_pylist())

    check(table, column, places)


@pytest.fixture(scope="module")
def frames() -> Iterator[Callable[..., list[int]]]:
    """Ask a program that has Polars and pandas."""
    if not PACKAGES.is_dir() and os.environ.get("CURBSTONE_REQUIRE_SPARK") != "1":
        pytest.skip("Polars and pandas are missing; `make spark-deps` installs them")
    running = subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        env=os.environ | {"PYTHONPATH": str(PACKAGES)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stdin and running.stdout

    def ask(reader: str, table: Table, column: str, value: Any) -> list[int]:
        assert running.stdin and running.stdout
        text = value.hex() if isinstance(value, bytes) else str(value)
        question = [reader, table.uri, place_of(table.name), column, type(value).__name__, text]
        print(json.dumps(question), file=running.stdin, flush=True)
        answer: list[int] = json.loads(running.stdout.readline())
        return answer

    yield ask
    running.communicate(timeout=60)


@pytest.mark.parametrize("reader", ["polars", "pandas"])
@pytest.mark.parametrize(("table", "column"), CASES)
def test_filters_in_polars_and_pandas(
    frames: Callable[..., list[int]], lake: Path, table: str, column: str, reader: str
) -> None:
    def places(value: Any) -> list[int]:
        if value is None and reader == "pandas":
            return expected(table, column)[None]  # such filters can't ask for null
        return frames(reader, Table(str(lake), table), column, value)

    check(table, column, places)


def test_compact_adds_statistics_to_unmerged_files(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts._Part, "_stats", _few_statistics)
        fill(tmp_path)
    before = Table(str(tmp_path), MESSAGES).open().to_pyarrow_dataset()
    assert before.to_table(filter=pc.field("epoch") == "e1").num_rows == 0, "other readers do not find the rows"
    done = {one.table: one for one in compact.compact(str(tmp_path))}
    assert (done[MESSAGES].small, done[MESSAGES].completed) == (0, 2)
    data = {table: Table(str(tmp_path), table).open().to_pyarrow_dataset() for table in ROWS}
    with Sql(lake=str(tmp_path)) as database:
        for table, column in CASES:
            by_arrow(data[table], table, column)
            by_sql(database, table, column)
    again = {one.table: one for one in compact.compact(str(tmp_path))}
    assert (again[MESSAGES].completed, again[JOURNAL].completed) == (0, 0)


def test_files_are_still_skipped(lake: Path, old_lake: Path) -> None:
    for place in (lake, old_lake):
        data = Table(str(place), MESSAGES).dataset()
        assert len(list(data.get_fragments())) == 2
        assert len(list(data.get_fragments(filter=pc.field("seq") > 2))) == 1
        late = pa.scalar(NIGHT + timedelta(seconds=2), pa.timestamp("us", "UTC"))
        assert len(list(data.get_fragments(filter=pc.field("timestamp") > late))) == 1
