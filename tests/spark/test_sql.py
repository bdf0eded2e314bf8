"""`curbstone sql` over a lake and a running server."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow
import pytest

import curbstone.sql
from curbstone.exit_codes import FAILED, WRONG
from curbstone.spark import sql as spark_sql
from curbstone.spark.columns import MESSAGES
from curbstone.spark.failure import PipelineError
from curbstone.spark.sql import Sql
from curbstone.spark.table import Table
from tests.kit import commands
from tests.kit.server import ServerProcess, clean_environment
from tests.spark.kit import make_queue, numbered, publish
from tests.spark.test_lake import store


def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    done = commands.curbstone("sql", *arguments, cwd=Path.cwd(), stdin=stdin.encode())
    return done.code, done.out, done.err


def test_archived_and_queued_messages_are_queried_together(server: ServerProcess, tmp_path: Path) -> None:
    for queue in ("shop/a:b", "shop/other"):
        make_queue(server.url, queue)
    publish(server.url, "shop/a:b", numbered(1200), **{"x-msg-x-lang": "de"})
    publish(server.url, "shop/other", numbered(3))
    table = Table(str(tmp_path), MESSAGES)
    store(table, 0, range(5))
    store(table, 1, range(5, 7))
    asked = ("--server", server.url, "--lake", str(tmp_path), "--project", "shop", "--format", "json")
    both = "SELECT queue, count(*) AS n FROM (FROM messages UNION ALL BY NAME FROM queued) GROUP BY ALL ORDER BY 1"
    code, out, err = run(both, *asked)
    assert (code, err) == (0, "")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"queue": "a:b", "n": 1207},
        {"queue": "other", "n": 3},
    ]
    one = "SELECT project, seq, headers['lang'] AS lang, headers, body FROM queued ORDER BY seq LIMIT 1"
    assert json.loads(run(one, *asked, "--queue", "shop/a:b")[1]) == {
        **{"project": "shop", "seq": 1, "lang": "de"},
        **{"headers": {"lang": "de"}, "body": "message 00000000"},
    }
    assert json.loads(run("SELECT count(*) AS n FROM messages", *asked, "--as-of", "0")[1]) == {"n": 5}
    counts = run("-", "--server", server.url, "--project", "shop", stdin="SELECT queue, rdy FROM queues ORDER BY rdy")
    assert counts[1].split() == ["queue", "rdy", "other", "3", "a:b", "1,200"]
    code, out, _ = run("SELECT queue, rdy FROM queues ORDER BY rdy", *asked[:2], "--project", "shop", "--chart")
    assert code == 0 and out.splitlines()[-1].count("█") == 40
    code, out, _ = run("SELECT body, timestamp, NULL AS nothing FROM messages ORDER BY seq", *asked[:-1], "csv")
    assert list(csv.reader(io.StringIO(out)))[:2] == [
        ["body", "timestamp", "nothing"],
        ["body 0", "2026-11-22T23:59:59.123456+00:00", ""],
    ]


def test_the_tables_are_shown(server: ServerProcess, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    store(Table(str(lake), MESSAGES), 0, range(2))
    asked = ("--server", server.url, "--lake", str(lake), "--format", "csv")
    for query in ("SHOW TABLES", " show all tables ; "):
        assert [line.split(",")[0] for line in run(query, *asked)[1].splitlines()] == [
            *("name", "messages", "gaps", "queues", "queued"),
        ]
    code, _, err = run("SHOW TABLES", "--lake", str(tmp_path / "none"))
    assert code == FAILED and "there are no messages in the lake" in err


def test_reading_a_lake_before_its_creation_is_refused(tmp_path: Path) -> None:
    """It was read as its first version, with all rows of that."""
    store(Table(str(tmp_path), MESSAGES), 0, range(2))
    now = datetime.now(UTC)
    asked = ("SELECT count(*) AS n FROM messages", "--lake", str(tmp_path), "--format", "csv", "--as-of")
    code, out, err = run(*asked, "2020-01-01T00:00:00Z")
    assert (code, out) == (FAILED, "") and "has nothing as of 2020-01-01T00:00:00Z: it begins at 20" in err
    assert run(*asked, (now + timedelta(hours=1)).isoformat())[1] == "n\n2\n"


def test_a_notebook_has_the_same_tables(server: ServerProcess, tmp_path: Path) -> None:
    make_queue(server.url, "shop/a:b")
    publish(server.url, "shop/a:b", numbered(3), **{"x-msg-x-lang": "de"})
    lake = tmp_path / "lake"
    store(Table(str(lake), MESSAGES), 0, range(5))
    store(Table(str(lake), MESSAGES), 1, range(5, 7))
    with curbstone.sql.connect(lake, server=server.url, queues=["shop/a:b"]) as base:
        tables = [row[0] for row in base.sql("SHOW TABLES").fetchall()]
        assert tables == ["gaps", "messages", "queued", "queues"]
        assert base.sql("SELECT count(*) FROM messages WHERE seq > 1").fetchall() == [(5,)]
        assert base.sql("SELECT DISTINCT headers['lang'] FROM queued").fetchall() == [("de",)]
        base.sql(f"COPY messages TO '{tmp_path}/messages.parquet'")
    with curbstone.sql.connect(lake, as_of=0) as base:
        assert base.sql("SELECT count(*) FROM messages").fetchall() == [(5,)]
    with pytest.raises(PipelineError, match="there are no messages in the lake"):
        curbstone.sql.connect(tmp_path / "none")


def test_the_module_for_notebooks_is_light() -> None:
    code = "import sys, curbstone.sql; print([m for m in ('duckdb', 'pyarrow', 'deltalake') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean_environment())
    assert found.stdout == "[]\n"


def test_gaps_are_a_table(tmp_path: Path) -> None:
    store(Table(str(tmp_path), MESSAGES), 0, range(2))
    assert run("SELECT count(*) AS n FROM gaps", "--lake", str(tmp_path), "--format", "csv")[1] == "n\n0\n"
    (tmp_path / "_gaps").mkdir()
    gap = {"queue": "shop/a", "epoch": "e", "from": 3, "to": 9, "lost": 6, "at_least": 6, "why": "purged", "run": "r"}
    (tmp_path / "_gaps" / "one.json").write_text(json.dumps(gap))
    assert run('SELECT queue, lost, "from" FROM gaps', "--lake", str(tmp_path), "--format", "csv")[1] == (
        "queue,lost,from\nshop/a,6,3\n"
    )


@pytest.mark.parametrize(
    "query",
    [
        "COPY (SELECT 1) TO '{}/new.csv'",
        "ATTACH '{}/new.db'",
        "EXPORT DATABASE '{}/new'",
        "SELECT * FROM read_text('{}/secret')",
        "SELECT * FROM glob('{}/*')",
        "SELECT count(*) FROM '{}/secret.csv'",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET temp_directory = '{}/new'",
        "SET log_query_path = '{}/new'",
        "SELECT * FROM rows",
    ],
)
def test_a_query_changes_nothing_and_reads_no_file(tmp_path: Path, query: str) -> None:
    """A pasted query could write any file, and read any."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    rows = pyarrow.table({"a": [1]})
    with Sql() as database, pytest.raises(PipelineError, match="SQL: ") as refused:
        database.run(query.format(tmp_path))
    assert rows.num_rows == 1 and "\n" not in str(refused.value)
    assert {path.name for path in tmp_path.iterdir()} == {"secret", "secret.csv"}


def test_with_an_option_a_query_writes_files(tmp_path: Path) -> None:
    store(Table(str(tmp_path / "lake"), MESSAGES), 0, range(5))
    query = f"COPY (SELECT seq, body FROM messages ORDER BY seq) TO '{tmp_path}/out.csv'"
    code, out, err = run(query, "--lake", str(tmp_path / "lake"))
    assert (code, out) == (FAILED, "") and "--allow-files lets a query read and write files" in err
    assert not (tmp_path / "out.csv").exists()
    assert run(query, "--lake", str(tmp_path / "lake"), "--allow-files")[0] == 0
    assert (tmp_path / "out.csv").read_text().splitlines()[:2] == ["seq,body", "0,body 0"]


def test_queries_beyond_memory_spill_to_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_sql, "MEMORY", "40MB")
    with Sql() as database:
        database.run("CREATE TEMP TABLE many AS SELECT md5(range::VARCHAR) AS text, range AS n FROM range(1500000)")
        _, rows = database.run("SELECT n, text FROM many ORDER BY text LIMIT 1 OFFSET 1499999")
        [(number, text)] = rows
    assert text == hashlib.md5(str(number).encode()).hexdigest() and text.startswith("fffff")


def test_errors_are_one_line(server: ServerProcess, tmp_path: Path) -> None:
    for arguments, code, line in (
        (["SELEC 1"], FAILED, "SQL: Parser Error"),
        (["SELECT * FROM messages"], FAILED, "table messages is in a lake: name it with --lake"),
        (["SELECT * FROM messages", "--lake", str(tmp_path)], FAILED, "there are no messages in the lake"),
        (["SELECT * FROM queued", "--queue", "none", "--server", server.url], FAILED, "no such queue: default/none"),
        (["SELECT 'a'", "--chart"], WRONG, "--chart needs a number in the last column"),
        (["SELECT 1", "--format", "xml"], WRONG, "xml"),
    ):
        found, out, err = run(*arguments)
        assert (found, out) == (code, ""), err
        assert line in err and err.count("\n") == 1, err
