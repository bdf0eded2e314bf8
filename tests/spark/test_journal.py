"""The journal as a stream: a page is fetched once, where it is planned, and again only after a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from curbstone.spark.journal_stream import JournalStreamReader
from curbstone.spark.options import read_options
from curbstone.spark.schemas import JOURNAL
from curbstone.spark.source_types import ReadMaxRows
from tests.kit.server import ServerProcess
from tests.spark.kit import make_queue, numbered, publish

QUEUE = "shop/orders"
COLUMNS = tuple((field.name, field.nullable) for field in JOURNAL.fields)


@pytest.fixture
def stocked(server: ServerProcess) -> ServerProcess:
    make_queue(server.url, QUEUE)
    publish(server.url, QUEUE, numbered(50))
    return server


@pytest.fixture
def new_reader(stocked: ServerProcess) -> Iterator[Callable[[], JournalStreamReader]]:
    """Make readers, as each start of a query does."""
    options = {"url": stocked.url, "queue": QUEUE, "mode": "journal", "retryTimeout": "0", "pollWait": "0"}
    with ExitStack() as stack:

        def make() -> JournalStreamReader:
            journal = JournalStreamReader(read_options(options, stream=True), COLUMNS)
            stack.callback(journal.stop)
            return journal

        yield make


def rows(journal: JournalStreamReader, part: Any) -> list[dict[str, Any]]:
    return [row for batch in journal.read(part) for row in batch.to_pylist()]


def test_task_reads_the_planned_page_without_the_server(
    stocked: ServerProcess, new_reader: Callable[[], JournalStreamReader]
) -> None:
    journal = new_reader()
    start = journal.initialOffset()
    end = journal.latestOffset(start, journal.getDefaultReadLimit())
    (part,) = journal.partitions(start, end)
    stocked.kill()
    found = rows(journal, part)
    assert [row["seq"] for row in found if row["event"] == "published"] == list(range(1, 51))
    assert {row["queue"] for row in found} == {QUEUE} and all(len(row["epoch"]) == 12 for row in found)


def test_task_requests_the_same_page_after_a_restart(
    stocked: ServerProcess, new_reader: Callable[[], JournalStreamReader]
) -> None:
    journal = new_reader()
    start = journal.initialOffset()
    end = journal.latestOffset(start, journal.getDefaultReadLimit())
    planned = rows(journal, journal.partitions(start, end)[0])
    restarted = new_reader()
    publish(stocked.url, QUEUE, numbered(10, 50))
    (part,) = restarted.partitions(start, end)
    assert rows(restarted, part) == planned


def test_batch_query_stops_at_the_journal_end_of_its_start(
    stocked: ServerProcess, new_reader: Callable[[], JournalStreamReader]
) -> None:
    journal = new_reader()
    journal.prepareForTriggerAvailableNow()
    at, seqs = journal.initialOffset(), []
    while (end := journal.latestOffset(at, ReadMaxRows(20))) != at:
        seqs += [row["seq"] for part in journal.partitions(at, end) for row in rows(journal, part)]
        publish(stocked.url, QUEUE, numbered(20, 50 + len(seqs)))
        at = end
    assert seqs[:50] == list(range(1, 51)) and len(seqs) < 70


def test_no_new_events_plan_no_task(new_reader: Callable[[], JournalStreamReader]) -> None:
    journal = new_reader()
    start = journal.initialOffset()
    end = journal.latestOffset(start, journal.getDefaultReadLimit())
    assert journal.latestOffset(end, journal.getDefaultReadLimit()) == end
    assert journal.partitions(end, end) == []
