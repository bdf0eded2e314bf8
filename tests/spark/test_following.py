"""Queues that come, go and are made anew under a stream, and groups that others have read. Needs no Java."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from curbstone.spark.failure import DataLoss, GroupInUse, PipelineError
from curbstone.spark.gaps import gaps_in
from curbstone.spark.journal_stream import JournalStreamReader
from curbstone.spark.options import read_options
from curbstone.spark.schemas import JOURNAL, MESSAGES
from curbstone.spark.stream import StreamReader
from tests.kit.server import ServerProcess
from tests.spark.kit import call, group_of, make_queue, numbered, publish

A, B = "shop/a", "shop/b"


QUERIES: list[Query] = []


class Query:
    """Calls a reader as Spark does, with a checkpoint of its own that a new start continues from."""

    def __init__(self, server: ServerProcess, **options: object) -> None:
        self.url = server.url
        self.options = {"project": "shop", "groupId": "lake", "retryTimeout": "0", "pollWait": "0"}
        self.options |= {name: str(value) for name, value in options.items()}
        self.offsets: list[Any] = []
        self.committed = 0
        self.rows: list[str] = []
        self.reader: Any = None
        QUERIES.append(self)

    def start(self, **options: object) -> None:
        """A new process of the query."""
        self.options |= {name: str(value) for name, value in options.items()}
        known = read_options({"url": self.url, **self.options}, stream=True)
        kind, schema = (StreamReader, MESSAGES) if known.mode == "messages" else (JournalStreamReader, JOURNAL)
        self.stop()
        self.reader = kind(known, tuple((field.name, field.nullable) for field in schema.fields))

    def stop(self) -> None:
        if self.reader is not None:
            self.reader.stop()

    def plan(self) -> bool:
        """Write the end of the next batch into the checkpoint; False where there is nothing new."""
        begin = self.offsets[-1] if self.offsets else self.reader.initialOffset()
        end = self.reader.latestOffset(begin, self.reader.getDefaultReadLimit())
        if end != begin:
            self.offsets.append(end)
        return bool(end != begin)

    def run_batch(self) -> None:
        """Read what is planned and not committed."""
        begin = self.offsets[-2] if len(self.offsets) > 1 else self.reader.initialOffset()
        for part in self.reader.partitions(begin, self.offsets[-1]):
            for batch in self.reader.read(part):
                self.rows += [f"{row['queue']} {row['seq']}" for row in batch.to_pylist()]
        self.committed = len(self.offsets)

    def run(self, **options: object) -> list[int]:
        """Start, and take what there is; return how many rows each new batch has."""
        self.start(**options)
        if self.committed < len(self.offsets):
            self.run_batch()
        ends = [len(self.rows)]
        while self.plan():
            self.run_batch()
            ends.append(len(self.rows))
        return [after - before for before, after in pairwise(ends)]

    def gaps(self) -> list[tuple[str, int, int | None, int | None, int]]:
        found = [gap for offset in self.offsets for gap in gaps_in(offset)]
        return [(gap.queue, gap.low, gap.high, gap.lost, gap.at_least) for gap in found]


def rows(queue: str, first: int, last: int) -> list[str]:
    return [f"{queue} {seq}" for seq in range(first, last + 1)]


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """End all queries of a test."""
    yield
    while QUERIES:
        QUERIES.pop().stop()


@pytest.fixture
def stocked(server: ServerProcess) -> ServerProcess:
    for queue in (A, B):
        make_queue(server.url, queue)
        publish(server.url, queue, numbered(70))
    return server


def delete(server: ServerProcess, queue: str) -> None:
    project, _, name = queue.partition("/")
    call(server.url, "DELETE", f"/v2/{project}/queues/{name}")


@pytest.mark.parametrize("later", [{"queues": "a,b"}, {"queues": "", "queuePattern": "a|b"}])
@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_queue_added_to_a_checkpoint_is_read_from_its_beginning(
    stocked: ServerProcess, later: dict[str, str], start: str
) -> None:
    """It was acked and not read: 70 of 70 messages were gone."""
    query = Query(stocked, queues="a", startingOffsets="earliest")
    query.run()
    query.run(startingOffsets=start, **later)
    assert query.rows == rows(A, 1, 70) + rows(B, 1, 70)
    assert group_of(stocked.url, B, "lake")["position"] == 71
    assert query.gaps() == []


def test_batch_with_an_added_queue_is_the_same_after_a_kill(stocked: ServerProcess) -> None:
    query = Query(stocked, queues="a")
    query.run()
    query.start(queues="a,b")
    assert query.plan()
    assert group_of(stocked.url, B, "lake")["position"] == 1, "nothing is acked that was not committed"
    query.run()
    assert query.rows == rows(A, 1, 70) + rows(B, 1, 70)


def test_added_queue_starts_at_its_group_or_the_given_position(stocked: ServerProcess) -> None:
    call(stocked.url, "PUT", "/v2/shop/queues/b/groups/lake", {"start": 31})
    query = Query(stocked, queues="a")
    query.run()
    query.run(queues="a,b")
    assert query.rows == rows(A, 1, 70) + rows(B, 31, 70)
    other = Query(stocked, queues="a", groupId="other")
    other.run()
    other.run(queues="a,b", startingOffsets='{"b": 61}')
    assert other.rows == rows(A, 1, 70) + rows(B, 61, 70)


def test_temporarily_excluded_queue_misses_nothing(stocked: ServerProcess) -> None:
    query = Query(stocked, queues="a,b")
    query.run()
    publish(stocked.url, B, numbered(5))
    query.run(queues="a")
    assert len(query.rows) == 140
    query.run(queues="a,b")
    assert query.rows[140:] == rows(B, 71, 75)


def test_unknown_queue_is_an_error(stocked: ServerProcess) -> None:
    query = Query(stocked, queues="a")
    query.run()
    with pytest.raises(PipelineError, match="shop/none"):
        query.run(queues="a,none")
    with pytest.raises(PipelineError, match=r"startingOffsets: no such queue: shop/none"):
        Query(stocked, queuePattern=".*", groupId="g", startingOffsets='{"none": 5}').run()


@pytest.mark.parametrize("how", [{"queues": "a"}, {"queues": "a,b"}, {"queuePattern": "a|b"}])
@pytest.mark.parametrize("declared_again", [False, True])
def test_recreated_queue_is_read_completely_and_the_loss_reported(
    stocked: ServerProcess, how: dict[str, str], declared_again: bool
) -> None:
    """It was stuck, as the new queue had no such group; and with one declared by hand `lost` was 0."""
    query = Query(stocked, **how)
    query.run()
    before = len(query.rows)
    delete(stocked, A)
    make_queue(stocked.url, A)
    publish(stocked.url, A, numbered(20))
    if declared_again:
        call(stocked.url, "PUT", "/v2/shop/queues/a/groups/lake")
    with pytest.raises(DataLoss, match=r"group=lake missing=\[71,…\): the queue was deleted and created again"):
        query.run()
    query.run(failOnDataLoss=False)
    assert query.rows[before:] == rows(A, 1, 20)
    assert query.gaps() == [(A, 71, None, None, 0)]


def test_given_position_does_not_apply_to_a_recreated_queue(stocked: ServerProcess) -> None:
    query = Query(stocked, queues="a", startingOffsets='{"a": 61}', failOnDataLoss=False)
    query.run()
    delete(stocked, A)
    make_queue(stocked.url, A)
    publish(stocked.url, A, numbered(5))
    query.run()
    assert query.rows == rows(A, 61, 70) + rows(A, 1, 5)


def test_query_waits_for_its_only_deleted_queue(stocked: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    query = Query(stocked, queues="a", failOnDataLoss=False)
    query.run()
    delete(stocked, A)
    query.run(pollWait=0.25)
    monkeypatch.setattr("curbstone.spark.stream.time.sleep", waits.append)
    assert not query.plan()
    assert waits == [0.25], "Spark asks again at once"


def test_loss_is_at_least_what_was_seen_and_not_read(stocked: ServerProcess) -> None:
    query = Query(stocked, queues="a", maxOffsetsPerTrigger=20, failOnDataLoss=False)
    query.start()
    assert query.plan()
    query.run_batch()
    delete(stocked, A)
    make_queue(stocked.url, A)
    publish(stocked.url, A, numbered(5))
    while query.plan():
        query.run_batch()
    assert query.rows == rows(A, 1, 20) + rows(A, 1, 5)
    assert query.gaps() == [(A, 21, None, None, 50)]


@pytest.mark.parametrize("how", [{"queues": "a,b"}, {"queuePattern": "a|b"}])
def test_other_queues_continue_when_one_is_deleted(stocked: ServerProcess, how: dict[str, str]) -> None:
    """It ended the query, with failOnDataLoss=false too."""
    query = Query(stocked, **how)
    query.run()
    delete(stocked, A)
    publish(stocked.url, B, numbered(3))
    with pytest.raises(DataLoss, match=r"queue=shop/a group=lake missing=\[71,…\): the queue was deleted, "):
        query.plan()
    for _ in range(2):
        query.run(failOnDataLoss=False)
    assert query.rows[140:] == rows(B, 71, 73)
    assert query.gaps() == [(A, 71, None, None, 0)]
    make_queue(stocked.url, A)
    publish(stocked.url, A, numbered(2))
    query.run()
    assert query.rows[143:] == rows(A, 1, 2)
    assert len(query.gaps()) == 1


def test_queue_deleted_before_its_batch_is_read_does_not_end_the_query(stocked: ServerProcess) -> None:
    query = Query(stocked, queues="a,b", failOnDataLoss=False)
    query.start()
    assert query.plan()
    delete(stocked, A)
    query.run_batch()
    assert query.rows == rows(B, 1, 70)
    assert query.plan()
    assert query.gaps() == [(A, 71, None, None, 0)]


def test_deleted_group_is_a_gap(stocked: ServerProcess) -> None:
    query = Query(stocked, queues="a")
    query.run()
    call(stocked.url, "DELETE", "/v2/shop/queues/a/groups/lake")
    publish(stocked.url, A, numbered(5))
    with pytest.raises(DataLoss, match="the group was deleted"):
        query.run()
    query.run(failOnDataLoss=False)
    assert query.rows[70:] == rows(A, 71, 75)
    assert query.gaps() == [(A, 71, None, None, 0)]


@pytest.mark.parametrize("is_committed", [True, False])
def test_old_checkpoint_is_warned_of_another_reader(stocked: ServerProcess, is_committed: bool, tmp_path: Path) -> None:
    """The ids of readers were all the server knew, in memory: 200 of 300 rows, and no gap."""
    with ServerProcess(tmp_path / "data") as own:
        make_queue(own.url, A)
        publish(own.url, A, numbered(100))
        old = Query(own, queues="a")
        old.start()
        assert old.plan()
        if is_committed:
            old.run_batch()
        first = [] if not is_committed else rows(A, 1, 100)
        current = Query(own, queues="a")
        current.offsets, current.committed = list(old.offsets), old.committed
        current.run()
        publish(own.url, A, numbered(100))
        current.run()
        own.restart(same_ports=True)
        publish(own.url, A, numbered(100))
        with pytest.raises(GroupInUse, match="another reader of group lake is done up to 200"):
            old.run()
        old.run(failOnDataLoss=False)
        assert old.rows == first + rows(A, 201, 300)
        assert old.gaps() == [(A, 101 if is_committed else 1, 201, None, 0)]
    shutil.rmtree(tmp_path / "data")


@pytest.mark.parametrize("queues", ["a", "a,b"])
def test_batch_is_limited_by_bytes(stocked: ServerProcess, queues: str) -> None:
    for queue in queues.split(","):
        publish(stocked.url, f"shop/{queue}", ["x" * 3000] * 200)
    query = Query(stocked, queues=queues, maxBytesPerTrigger=200_000)
    sizes = query.run()
    assert sorted(query.rows) == sorted([row for queue in queues.split(",") for row in rows(f"shop/{queue}", 1, 270)])
    assert max(sizes) < 150, "70 small ones, and then about 64 of each batch"


def test_journal_covers_added_and_recreated_queues(stocked: ServerProcess) -> None:
    query = Query(stocked, queues="a", mode="journal", groupId="")
    query.run()
    query.run(queues="a,b")
    assert query.rows == rows(A, 1, 70) + rows(B, 1, 70)
    delete(stocked, A)
    with pytest.raises(DataLoss, match="the queue was deleted"):
        query.run()
    query.run(failOnDataLoss=False)
    make_queue(stocked.url, A)
    publish(stocked.url, A, numbered(3))
    query.run()
    assert query.rows[140:] == rows(A, 1, 3)


def test_batch_waits_for_enough_messages_within_a_timeout(server: ServerProcess) -> None:
    query = Query(server)
    make_queue(server.url, A)
    publish(server.url, A, numbered(5))
    query.start(queues=A, minOffsetsPerTrigger=10, maxTriggerDelay="1h")
    assert not query.plan()
    publish(server.url, A, numbered(5, 5))
    assert query.plan()
    query.run_batch()
    assert query.rows == rows(A, 1, 10)
    publish(server.url, A, numbered(1, 10))
    assert not query.plan()
    query.start(maxTriggerDelay=0)
    assert query.plan()
    query.run_batch()
    assert query.rows == rows(A, 1, 11)


def test_query_from_latest_misses_nothing_after_its_start(stocked: ServerProcess) -> None:
    query = Query(stocked, queues="a", startingOffsets="latest")
    query.start()
    assert not query.plan()
    publish(stocked.url, A, numbered(20))
    query.run()
    assert query.rows == rows(A, 71, 90)


def test_a_second_query_of_the_same_group_ends_the_first(stocked: ServerProcess) -> None:
    first, second = Query(stocked, queues="a"), Query(stocked, queues="a", failOnDataLoss=False)
    first.run()
    publish(stocked.url, A, numbered(10))
    second.run()
    publish(stocked.url, A, numbered(10))
    assert first.plan()
    first.run_batch()
    with pytest.raises(GroupInUse, match="group=lake: another reader has taken over"):
        first.plan()
    second.run()
    assert second.rows[-20:] == rows(A, 71, 90)


def test_several_queues_share_a_batch(stocked: ServerProcess) -> None:
    query = Query(stocked, queues="a,b", maxOffsetsPerTrigger=70)
    sizes = query.run()
    assert sizes == [70, 70]
    assert sorted(query.rows) == sorted(rows(A, 1, 70) + rows(B, 1, 70))


def test_lost_messages_end_a_query_unless_it_may_continue(server: ServerProcess) -> None:
    make_queue(server.url, A, cap="512KiB")
    publish(server.url, A, ["first"])
    query = Query(server, queues="a")
    query.run()
    call(server.url, "PUT", "/v2/shop/queues/a/groups/lake", {"on_full": "skip"})
    for start in range(0, 6000, 100):
        publish(server.url, A, [f"{body} {'x' * 200}" for body in numbered(100, start)])
        path = "/v2/shop/queues/a/messages"
        leased = call(server.url, "POST", f"{path}/lease", {"count": 100, "seconds": 60})["messages"]
        call(server.url, "POST", f"{path}/ack", {"ackIds": [message["ackId"] for message in leased]})
    group = group_of(server.url, A, "lake")
    lost, floor = group["lost"], group["floor"]
    assert lost > 0
    with pytest.raises(DataLoss, match=rf"DATA_LOSS queue={A} group=lake missing=\[2,{floor}\)"):
        query.run()
    query.run(failOnDataLoss=False)
    assert query.rows == rows(A, 1, 1) + rows(A, lost + 2, 6001)
    assert query.gaps() == [(A, 2, floor, lost, lost)]
