"""The figures of the report, from events that are known to the last one. Needs neither Java nor a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from curbstone.spark.columns import JOURNAL, MESSAGES
from curbstone.spark.figures import Minute, gather, minutes, range_s
from curbstone.spark.parts import PartWriter, stored_schema
from curbstone.spark.sql import database
from curbstone.spark.table import Table
from tests.spark.test_lake import MORNING, add, store

START = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
PLACE = {"project": "shop", "queue": "a", "epoch": "e", "group": "", "tries": 0, "due": None, "bytes": 0}


def archive(lake: Path, *events: dict[str, Any], batch: int = 0) -> None:
    """Store events; each has a position of its own unless it says one."""
    rows = [PLACE | {"position": place, "count": 1} | event for place, event in enumerate(events)]
    table = Table(str(lake), JOURNAL)
    writer = PartWriter(table.uri, JOURNAL)
    writer.add(pa.RecordBatch.from_pylist(rows, schema=stored_schema(JOURNAL)))
    add(table, writer.close(), batch)


def figures(lake: Path, **limits: Any) -> list[Minute]:
    with database() as base:
        gather(base, server=None, queues=(), lake=str(lake))
        return minutes(base, **limits)


def event(name: str, seq: int, at_s: float, **more: Any) -> dict[str, Any]:
    return {"event": name, "seq": seq, "time": START + timedelta(seconds=at_s), **more}


def test_report_has_counts_latencies_and_backlog_per_minute(tmp_path: Path) -> None:
    archive(
        tmp_path,
        *[event("published", seq, seq, bytes=100) for seq in range(1, 11)],
        event("settled", 1, 31, count=4),  # after 30, 29, 28 and 27 s
        event("released", 5, 40),
        event("dead", 5, 70),
        event("expired", 6, 80, count=2),
        event("purged", 8, 125, count=3),
    )
    first, second, third = figures(tmp_path)
    assert first == Minute("shop", "a", "", START, 10, 1000, 4, 1, 0, 0, 0, 0, 28_500.0, 29_850.0, 29_970.0, 6)
    assert (second.rejected, second.expired, second.backlog, second.p50_ms) == (1, 2, 3, None)
    assert (third.published, third.purged, third.backlog) == (0, 3, 0)
    assert figures(tmp_path, since_ms=int(second.minute.timestamp() * 1000) + 5000) == [second, third]
    assert figures(tmp_path, until_ms=int(second.minute.timestamp() * 1000)) == [first]
    assert figures(tmp_path, queues=["shop/b"]) == []


def test_a_message_counts_once_for_each_group_that_reads_it(tmp_path: Path) -> None:
    archive(
        tmp_path,
        event("published", 1, 0, bytes=5),
        event("published", 2, 0, bytes=7, group="audit"),  # for that group alone
        event("settled", 1, 1, group="audit", count=2),
        event("settled", 1, 2, group="mail"),
    )
    found = {row.group: (row.published, row.bytes, row.settled, row.backlog) for row in figures(tmp_path)}
    assert found == {"": (1, 5, 0, 1), "audit": (2, 12, 2, 0), "mail": (1, 5, 1, 0)}


def test_age_of_messages_at_the_start_of_a_group_is_no_latency(tmp_path: Path) -> None:
    """The start of an archive looked like an incident: worst p99 89.8 s."""
    archive(
        tmp_path,
        *[event("published", seq, seq) for seq in range(1, 4)],
        event("settled", 1, 90, group="archive", count=3),
        event("published", 4, 91),
        event("settled", 4, 93, group="archive"),
        event("settled", 1, 94, count=1),
    )
    found = {row.group: row.p99_ms for row in figures(tmp_path) if row.settled}
    assert found == {"archive": 2000.0, "": 93_000.0}


def test_figures_can_cover_seconds_or_hours(tmp_path: Path) -> None:
    archive(tmp_path, *[event("published", seq, 4 * seq, bytes=1) for seq in range(1, 6)], event("settled", 1, 22))
    for step_s, published in ((10, [2, 2, 1]), (3600, [5])):
        rows = figures(tmp_path, step_s=step_s)
        assert [row.published for row in rows] == published
        assert rows[-1].minute == START + timedelta(seconds=20 if step_s == 10 else 0)
        assert (rows[-1].settled, rows[-1].backlog) == (1, 4)
    with database() as base:
        gather(base, server=None, queues=(), lake=str(tmp_path))
        assert range_s(base) == 18.0
        assert range_s(base, queues=["shop/b"]) == 0.0


def test_event_in_two_batches_counts_once(tmp_path: Path) -> None:
    for batch in range(2):
        archive(tmp_path, event("published", 1, 0, bytes=5), event("settled", 1, 1), batch=batch)
    [row] = figures(tmp_path)
    assert (row.published, row.settled, row.p50_ms) == (1, 1, 1000.0)


def test_figures_before_the_journal_are_taken_from_the_messages(tmp_path: Path) -> None:
    store(Table(str(tmp_path), MESSAGES), 0, range(1, 3))
    place = {"queue": "a:b"}
    late = MORNING + timedelta(seconds=10)
    archive(
        *(tmp_path, {"event": "settled", "seq": 1, "time": late, **place}),
        {"event": "published", "seq": 2, "time": MORNING + timedelta(seconds=1), "bytes": 6, **place},
    )
    before, after = figures(tmp_path)
    assert (before.published, before.bytes, before.backlog) == (1, 6, 1)
    assert (after.published, after.settled, after.p50_ms, after.backlog) == (1, 1, 10_000.0, 1)
