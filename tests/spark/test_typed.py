"""Typed columns: members of JSON bodies as columns of the lake."""

from __future__ import annotations

import json
import time
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from curbstone.spark import calls, typed
from curbstone.spark.archive import archive
from curbstone.spark.client import Client
from curbstone.spark.compact import compact
from curbstone.spark.failure import PipelineError
from curbstone.spark.options import address_of
from curbstone.spark.sql import Sql
from curbstone.spark.typed import Column, parse
from tests.kit.server import ServerProcess
from tests.spark.kit import call, make_queue, publish

QUEUE = "shop/kept"


@pytest.fixture
def options(server: ServerProcess) -> dict[str, str]:
    make_queue(server.url, QUEUE)
    return {"url": server.url, "queues": QUEUE, "failOnDataLoss": "false"}


def rows(lake: Path, *columns: str) -> list[dict[str, Any]]:
    table = DeltaTable(lake / "messages").to_pyarrow_table(columns=["seq", *columns])
    return [{name: row[name] for name in columns} for row in table.sort_by("seq").to_pylist()]


def test_json_members_become_columns_and_mismatches_are_rescued(
    server: ServerProcess, options: dict[str, str], tmp_path: Path
) -> None:
    bodies: list[Any] = [
        {
            "id": 1,
            "price": 2.5,
            "paid": True,
            "user": {"lang": "de"},
            "at": "2026-11-22T01:02:03+01:00",
            "day": "2026-11-22",
        },
        {"id": "one", "price": None, "more": [1, 2], "user": "nobody"},
        {"id": 2.0, "price": 1 << 60, "user": {"lang": 7}, "paid": 0, "at": "soon", "day": 1},
    ]
    publish(server.url, QUEUE, [*map(json.dumps, bodies), "no JSON", "[1]", "{broken"])
    columns = "id BIGINT, price DOUBLE, paid BOOLEAN, lang VARCHAR FROM $.user.lang, at TIMESTAMP, day DATE, user JSON"
    archive(None, str(tmp_path), options, once=True, columns=columns)
    found = rows(tmp_path, "id", "price", "paid", "lang", "at", "day", "user", "_rescued")
    assert found[0] == {
        **{"id": 1, "price": 2.5, "paid": True, "lang": "de", "at": datetime(2026, 11, 22, 0, 2, 3, tzinfo=UTC)},
        **{"day": date(2026, 11, 22), "user": '{"lang":"de"}', "_rescued": None},
    }
    assert json.loads(found[1].pop("_rescued")) == {"id": "one", "more": [1, 2]}
    assert found[1] == {**dict.fromkeys(("id", "price", "paid", "lang", "at", "day")), "user": '"nobody"'}
    assert json.loads(found[2].pop("_rescued")) == {"lang": 7, "paid": 0, "at": "soon", "day": 1}
    assert (found[2]["id"], found[2]["price"]) == (2, float(1 << 60))
    assert [set(row.values()) for row in found[3:]] == [{None}] * 3
    with Sql(lake=str(tmp_path)) as database:
        assert list(database.run("SELECT id, body FROM messages WHERE id = 2 AND day IS NULL")[1]) == [
            [2, json.dumps(bodies[2]).encode()]
        ]


def test_columns_are_added_later_and_filters_find_old_and_new_rows(
    server: ServerProcess, options: dict[str, str], tmp_path: Path
) -> None:
    for number, columns in enumerate(("", "id BIGINT", "id BIGINT, lang VARCHAR", "")):
        publish(server.url, QUEUE, [json.dumps({"id": number, "lang": f"l{number}"})])
        archive(None, str(tmp_path), options, once=True, columns=columns)
    expected = [
        *({"id": None, "lang": None, "_rescued": None}, {"id": 1, "lang": None, "_rescued": '{"lang":"l1"}'}),
        *({"id": 2, "lang": "l2", "_rescued": None}, {"id": None, "lang": None, "_rescued": None}),
    ]
    assert rows(tmp_path, "id", "lang", "_rescued") == expected
    compact(str(tmp_path))
    assert rows(tmp_path, "id", "lang", "_rescued") == expected
    with Sql(lake=str(tmp_path)) as database:
        for condition, count in (("lang = 'l2'", 1), ("id IS NULL", 2), ("id > 0", 2)):
            assert list(database.run(f"SELECT count(*) FROM messages WHERE {condition}")[1]) == [[count]]
    with pytest.raises(PipelineError, match="--columns: id is int64 in the lake, not string; give the new one another"):
        archive(None, str(tmp_path), options, once=True, columns="id VARCHAR")


def test_columns_follow_a_json_schema(
    server: ServerProcess, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server needs the extra `schema` to check bodies, so only what it says of the queue is replaced here."""
    schema: dict[str, Any] = {"properties": {"id": {"type": "integer"}, "seq": {"type": "integer"}}}
    monkeypatch.setattr(calls, "schema_of", lambda _client, _queue: schema)
    publish(server.url, QUEUE, ['{"id": 1, "at": "2026-11-22T00:00:00Z", "seq": 9}'])
    archive(None, str(tmp_path), options, once=True, columns="schema")
    schema["properties"] |= {
        "id": {"type": "string"},
        "at": {"type": ["string", "null"], "format": "date-time"},
        "x": {"anyOf": []},
    }
    publish(server.url, QUEUE, ['{"id": "two", "at": "2026-11-22T00:00:00Z", "x": [1]}'])
    archive(None, str(tmp_path), options, once=True, columns="schema")
    found = rows(tmp_path, "id", "at", "x", "_rescued")
    assert found[0] == {"id": 1, "at": None, "x": None, "_rescued": '{"at":"2026-11-22T00:00:00Z","seq":9}'}
    assert found[1] == {
        **{"id": None, "at": datetime(2026, 11, 22, tzinfo=UTC), "x": "[1]", "_rescued": '{"id":"two"}'},
    }


def test_queue_schema_is_fetched(server: ServerProcess, options: dict[str, str]) -> None:
    client = Client(address_of(options["url"], ""))
    try:
        assert typed.of_queues(client, [QUEUE, "shop/none"]) == {}
        assert "schema" in call(server.url, "GET", "/v2/shop/queues/kept")["options"]
    finally:
        client.close()


def test_columns_are_validated_before_reading() -> None:
    assert parse("a INT , b text FROM $.x.y[0]") == (
        Column("a", "BIGINT", ("a",)),
        Column("b", "VARCHAR", ("x", "y", 0)),
    )
    for text, line in (
        ("a", "'a' is not NAME TYPE or NAME TYPE FROM"),
        ("a MONEY", "a: unknown type MONEY; the types are BIGINT, DOUBLE"),
        ("seq BIGINT", "the name seq is taken"),
        ("a INT, a INT", "the name a is taken"),
        ("a INT FROM a.b", "bad path 'a.b'"),
        ("a INT FROM $", "bad path"),
        ("a INT FROM $..b", "bad path"),
    ):
        with pytest.raises(PipelineError, match=line.replace("$", r"\$")):
            parse(text)


def test_typed_columns_cost_little(capsys: pytest.CaptureFixture[str]) -> None:
    """A row with three columns takes a few microseconds; this prints how many."""
    import pyarrow as pa

    bodies = [json.dumps({"id": n, "lang": "de", "user": {"age": n % 90}, "x": 1}).encode() for n in range(20_000)]
    columns = parse("id BIGINT, lang VARCHAR, age BIGINT FROM $.user.age")
    stored = {field.name: field for field in typed.fields(columns)}
    batch = pa.RecordBatch.from_pydict({"body": bodies})
    began = time.process_time()
    found = typed.added(batch, columns, stored)
    print(f"{(time.process_time() - began) * 1e6 / len(bodies):.1f} us of CPU a row")
    assert found.column("age")[7].as_py() == 7 and found.column("_rescued")[7].as_py() == '{"x":1}'
