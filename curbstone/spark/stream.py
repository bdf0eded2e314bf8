"""Reading as a stream: exactly once, by the checkpoint of the query. The acks of the group only free room in the log.

An offset has the place in each queue and the ranges of its batch: see `places`. This module depends on the behaviour of
Spark (4.3):

- Spark calls `latestOffset(start)` after every batch, also without new data and after a restart, when `start` is in the
  commit log. So everything below `start` is acked there; acking in `commit` alone would miss the last batch.
- Spark calls `initialOffset` twice for a new query, and does not store the result, so the group on the server does.
- `stop` does not mean the end of the query, so nothing is acked or deleted there.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from curbstone.spark import calls, gaps
from curbstone.spark.batch import first_queues, queues_of
from curbstone.spark.client import Client
from curbstone.spark.columns import Columns
from curbstone.spark.failure import GroupInUse, PipelineError, Refused
from curbstone.spark.gaps import Gap, data_loss
from curbstone.spark.options import EARLIEST, GROUP, ReadOptions
from curbstone.spark.options import Place as Start
from curbstone.spark.places import (
    End,
    Offset,
    Place,
    is_news,
    left,
    parts,
    place,
    planned,
    rows_up_to,
    shares,
    with_gap,
)
from curbstone.spark.reading import Range, Task, read_messages, split
from curbstone.spark.source_types import DataSourceStreamReader, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow as pa

SHORT_WAIT_S = 0.1
PATTERN_AGE_S = 5.0
CONTINUE_ADVICE = "set failOnDataLoss=false to continue behind it"

log = logging.getLogger("curbstone.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads messages as a stream. One object lives as long as the query; copies of it run `read` on executors."""

    def __init__(self, options: ReadOptions, columns: Columns, reader: str = "") -> None:
        """`reader` is the name that distinguishes readers of one group; if empty, a new one is created."""
        self._options = options
        self._columns = columns
        self._server = Client(options.address)
        self._reader = reader or uuid.uuid4().hex
        self._initial: Offset | None = None
        self._target: dict[str, int] | None = None
        self._seen: Offset | None = None
        self._acked: dict[str, tuple[int, str]] = {}
        self._counted: dict[str, tuple[Place, Place]] = {}
        """By queue, the last acked place, unchanged, and with the messages that count as lost but were read."""
        self.stored: Callable[[str, str, int, int], int] | None = None
        """Counts the stored messages of a queue and epoch in a range of seqs."""
        self._unread: dict[str, int] = {}
        """The starts of batches that are repeated although another reader has received their messages."""
        self._queues: tuple[str, ...] = ()
        self._queues_at = 0.0
        self._batch_at = time.monotonic()

    # --- called by Spark on the driver

    def initialOffset(self) -> Offset:
        if self._initial is None:
            options = self._options
            starts = {queue: options.start.of(queue) if options.start else GROUP for queue in self._first_names()}
            self._initial = {queue: self._begin(queue, start, options.start_ms) for queue, start in starts.items()}
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        # In a new query, initialOffset declares the group later; `next` does not depend on the group.
        names = self._names()
        there = calls.offsets_of(self._server, dict.fromkeys(names, 0))
        self._target = {queue: there[queue].next if queue in there else 0 for queue in names}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        begun, ends = self._follow(self._ack(start), start)
        known = {queue: end.next for queue, end in ends.items()}
        self._seen = {queue: {**left(at), "next": max(at["next"], known.get(queue, 0))} for queue, at in begun.items()}
        if self._target is not None:
            for queue, end in ends.items():
                self._target.setdefault(queue, end.next)
        rows = rows_up_to(begun, ends, self._target)
        if not is_news(start, begun, rows):
            return start
        if self._is_too_little(start, begun, rows):
            time.sleep(self._options.poll_wait_s)  # because Spark would call again immediately
            return start
        self._batch_at = time.monotonic()
        if isinstance(limit, ReadMaxRows):
            rows = shares(rows, limit.max_rows)
        return {queue: planned(at, rows[queue]) if queue in rows else at for queue, at in begun.items()}

    def _is_too_little(self, start: Offset, begun: Offset, rows: dict[str, int]) -> bool:
        """Return whether the batch can wait for more rows, because it has few and nothing else is new."""
        options = self._options
        if self._target is not None or sum(rows.values()) >= options.per_trigger_min or is_news(start, begun, {}):
            return False
        return time.monotonic() - self._batch_at < options.trigger_delay_s

    def reportLatestOffset(self) -> Offset | None:
        return self._seen

    def partitions(self, start: Offset, end: Offset) -> Sequence[Task]:
        strict, ranges = self._options.fail_on_loss, []
        for queue, epoch, begin, high in parts(start, end):
            low = self._joined(queue)[0]["next"] if begin is None else begin
            ranges.append(Range(queue, epoch, low, max(low, high), strict=strict, tolerates_deletion=not strict))
        self._claim(ranges)
        return split(ranges, self._options)

    def commit(self, end: Offset) -> None:
        self._ack(end)

    def stop(self) -> None:
        self._server.close()

    # --- called by Spark on executors

    def read(self, partition: Task) -> Iterator[pa.RecordBatch]:
        return read_messages(partition, self._options, self._columns)

    # --- the start

    def _begin(self, queue: str, start: Start, start_ms: int | None) -> Place:
        """Return where to begin in a new queue. An existing group continues at its position."""
        options = self._options
        if not options.group:
            now = calls.offsets(self._server, queue, timestamp_ms=start_ms)
            first = now.at if start_ms is not None else now.first
            if isinstance(start, int):
                if start < now.first and options.fail_on_loss:
                    why = "no longer in the queue; start later, or set failOnDataLoss=false"
                    raise data_loss(queue, "", start, now.first, why)
                first = max(start, now.first)
            return place(first, now.epoch)
        wanted: object = EARLIEST if start == GROUP else start
        if start_ms is not None:
            wanted = {"timestamp": start_ms}
        found = calls.declare_group(self._server, queue, options.group, wanted)
        begun = place(found.position, found.epoch, found.floor, found.lost)
        if not found.lost or options.fail_on_loss:
            return begun
        gap = Gap(queue, found.epoch, 1, found.floor, found.lost, found.lost, gaps.EARLIER)
        return self._after_gap(begun, gap)

    def _joined(self, queue: str, *, is_another: bool = False) -> tuple[Place, End]:
        """Return where to begin in a queue that joins a query, and where the queue ends.

        It begins at the group's position, or else at its beginning. A start of `latest`, or at a time, would skip
        messages from before the query found the queue. A place set for this queue applies, but not to `another` queue
        that was created under its name.
        """
        places = self._options.start.of_queues if self._options.start and not is_another else {}
        begun = self._begin(queue, places.get(queue, GROUP), None)
        return begun, _end(self._ask(queue, after=begun["next"]))

    def _first_names(self) -> tuple[str, ...]:
        self._queues, self._queues_at = first_queues(self._server, self._options), time.monotonic()
        return self._queues

    def _names(self) -> tuple[str, ...]:
        """Return the names of the queues. Those of a pattern are refreshed from time to time."""
        if self._target is not None:
            return tuple(self._target)
        if not self._queues or (self._options.pattern and time.monotonic() - self._queues_at > PATTERN_AGE_S):
            self._queues = queues_of(self._server, self._options)
            self._queues_at = time.monotonic()
        return self._queues

    # --- the end

    def _follow(self, places: Offset, start: Offset) -> tuple[Offset, dict[str, End]]:
        """Return the places where reading continues, and the ends of the queues that are read now.

        Wait up to `pollWait` for new data, so that Spark does not spin. A queue that is no longer selected keeps its
        place. A deleted queue of a pattern is forgotten after the batch that records the deletion.
        """
        begun = {queue: at for queue, at in places.items() if not (at.get("gone") and self._options.pattern)}
        followed = [queue for queue in begun if self._options.reads(queue)]
        ends: dict[str, End] = {}
        joining = [queue for queue in self._names() if queue not in begun]
        for queue in joining:
            self._join(queue, begun, ends)
        wait_s = self._options.poll_wait_s if self._target is None and not ends else 0.0
        there = {queue: places[queue]["next"] for queue in followed if not places[queue].get("gone")}
        back = calls.offsets_of(self._server, dict.fromkeys([queue for queue in followed if queue not in there], 0))
        found = self._poll_offsets(there, wait_s if not back else 0.0)
        for queue in followed:
            at = places[queue]
            if queue in there:
                begun[queue], ends[queue] = self._place_and_end(queue, at, found.get(queue))
            elif queue in back:
                begun[queue], ends[queue] = self._joined(queue, is_another=True)
            else:
                ends[queue] = _nothing(at)
        if not there and not is_news(start, begun, rows_up_to(begun, ends, None)):
            time.sleep(wait_s)
        return begun, ends

    def _poll_offsets(self, after: Mapping[str, int], wait_s: float) -> dict[str, calls.Offsets]:
        """Return the offsets of the queues that exist; wait until one of them has a message at its seq or later."""
        options = self._options
        projects = {calls.project_of(queue) for queue in after}
        each_s = wait_s if len(projects) < 2 else min(wait_s, SHORT_WAIT_S / len(projects))
        give_up = time.monotonic() + wait_s
        while True:
            found = calls.offsets_of(
                self._server, after, group=options.group, wait_s=each_s, size_max=options.bytes_per_trigger
            )
            has_news = len(found) < len(after) or any(now.next > after[queue] for queue, now in found.items())
            if has_news or len(projects) < 2 or time.monotonic() >= give_up:
                return found

    def _join(self, queue: str, begun: Offset, ends: dict[str, End]) -> None:
        try:
            begun[queue], ends[queue] = self._joined(queue)
        except Refused as refused:  # a queue of the pattern may have been deleted since
            if refused.status != calls.NOT_FOUND or not self._options.pattern:
                raise

    def _place_and_end(self, queue: str, at: Place, now: calls.Offsets | None) -> tuple[Place, End]:
        """Return where reading continues in a queue with these offsets, and where the queue ends. Raise DataLoss."""
        if now is None:
            return self._missing(queue, at)
        return self._recreated(queue, at) if now.epoch != at["epoch"] else (self._checked(queue, at, now), _end(now))

    def _ask(self, queue: str, *, after: int = 0) -> calls.Offsets:
        options = self._options
        return calls.offsets(self._server, queue, group=options.group, after=after, size_max=options.bytes_per_trigger)

    def _ends_without_group(self, queue: str) -> calls.Offsets | None:
        """Return the offsets of a queue regardless of groups, or None if it does not exist."""
        try:
            return calls.offsets(self._server, queue)
        except Refused as refused:
            if refused.status != calls.NOT_FOUND:
                raise
            return None

    # --- losses

    def _missing(self, queue: str, at: Place) -> tuple[Place, End]:
        """Continue after the deletion of the queue or its group."""
        now = self._ends_without_group(queue)
        if now is None:
            return {**self._after_gap(at, self._gap(queue, at, gaps.DELETED)), "gone": True}, _nothing(at)
        if now.epoch != at["epoch"]:
            return self._recreated(queue, at)
        gap = self._gap(queue, at, gaps.GROUP_DELETED)
        self._after_gap(at, gap)
        found = calls.declare_group(self._server, queue, self._options.group, at["next"])
        begun = place(max(at["next"], found.position), found.epoch, found.floor, found.lost)
        return with_gap(begun, gap), _end(self._ask(queue, after=begun["next"]))

    def _recreated(self, queue: str, at: Place) -> tuple[Place, End]:
        """Continue at the beginning of a new queue with the same name."""
        gap = self._gap(queue, at, gaps.RECREATED)
        self._after_gap(at, gap)
        begun, end = self._joined(queue, is_another=True)
        return with_gap(begun, gap), end

    def _gap(self, queue: str, at: Place, why: str) -> Gap:
        """Return a gap from a place on, of at least as many messages as were once seen after it."""
        seen = (self._seen or {}).get(queue, at)
        at_least = max(0, seen["next"] - at["next"]) if seen["epoch"] == at["epoch"] else 0
        return Gap(queue, at["epoch"], at["next"], None, None, at_least, why)

    def _after_gap(self, at: Place, gap: Gap) -> Place:
        """Return the place after a gap, or raise DataLoss if the options say so."""
        if self._options.fail_on_loss:
            raise gap.error(self._options.group, CONTINUE_ADVICE)
        log.warning("curbstone: group %s: %s", self._options.group or "none", gap)
        return with_gap(at, gap)

    def _checked(self, queue: str, at: Place, end: calls.Offsets) -> Place:
        """Return where reading continues in the same queue: at its place, or after a loss. Raise DataLoss."""
        options = self._options
        if not options.group:
            if at["next"] >= end.first or not options.fail_on_loss:
                return {**at, "next": max(at["next"], end.first)}
            why = "settled by consumers, or expired; a groupId keeps them, failOnDataLoss=false skips them"
            raise data_loss(queue, "", at["next"], end.first, why)
        if end.floor <= at.get("floor", 0):
            return at
        found = calls.group(self._server, queue, options.group)
        behind = {**at, "next": max(at["next"], end.floor), "floor": end.floor, "lost": found.lost}
        unsure = behind.pop("unsure", 0)
        lost = found.lost - at.get("lost", 0)
        low = at["next"] if at["next"] < end.floor else at.get("floor", 0)
        gap = Gap(queue, end.epoch, low, end.floor, None if unsure else lost, max(0, lost - unsure), gaps.GIVEN_UP)
        if lost <= 0 or (options.fail_on_loss and end.floor <= at["next"]):
            return behind  # the batch that should have read them reported the loss
        return self._after_gap(behind, gap)

    # --- the ack

    def _ack(self, offset: Offset) -> Offset:
        """Ack the finished batches. Return where reading continues: there, or after another reader's acks.

        Raise GroupInUse. Failed acks are repeated later.
        """
        places = {queue: left(at) for queue, at in offset.items()}
        done = {
            queue: (at["next"] - 1, at["epoch"])
            for queue, at in places.items()
            if self._options.reads(queue) and not at.get("gone") and at["next"] > 1
        }
        others = self._send_acks(done, offset)
        for queue, (before, counted) in self._counted.items():
            if places.get(queue) == before:
                places[queue] = counted
        for queue, other in others.items():
            at = places[queue]
            low = self._unread.pop(queue, at["next"])
            gap = Gap(queue, at["epoch"], low, other + 1, None, 0, gaps.OTHER_READER)
            places[queue] = self._after_gap({**at, "next": other + 1}, gap)
        return places

    def _claim(self, ranges: Sequence[Range]) -> None:
        """Raise GroupInUse if another reader received the messages of the first batch of this process."""
        begins = {one.queue: (one.low - 1, one.epoch) for one in ranges if one.queue not in self._acked}
        for queue in self._send_acks(begins, {}):
            self._unread[queue] = begins[queue][0] + 1

    def _send_acks(self, done: Mapping[str, tuple[int, str]], offset: Offset) -> dict[str, int]:
        """Send acks that the server lacks. Return the last acked seqs of another reader, by queue.

        `offset` has the places that are acked.
        """
        news = {queue: up_to for queue, up_to in done.items() if self._acked.get(queue) != up_to}
        if not news or not self._options.group:
            return {}
        others: dict[str, int] = {}
        try:
            results = calls.acks(self._server, self._options.group, news, self._reader)
        except PipelineError as error:
            log.warning("curbstone: acks of %d queues failed: %s", len(news), error)
            return {}
        for queue, refused in results.items():
            if isinstance(refused, calls.Group):
                if queue in offset:
                    self._count(queue, offset[queue], refused)
                self._acked[queue] = news[queue]
            elif not isinstance(refused, GroupInUse):
                log.warning("curbstone: %s: the ack of %d failed: %s", queue, news[queue][0], refused)
            elif self._options.fail_on_loss or refused.acked is None:
                raise refused
            else:
                others[queue] = refused.acked
        return others

    def _count(self, queue: str, at: Place, group: calls.Group) -> None:
        """Note the messages of the last batch that count as lost for the group although they were read.

        These are messages that were purged, or dropped for room, before they were acked. If this process stores them,
        their number is known; otherwise it is between none and `unsure`.
        """
        self._counted.pop(queue, None)
        low, high = at["from"] if "from" in at else at["next"], min(group.floor, at["next"])
        lost = group.lost - at.get("lost", 0)
        was_acked_before = queue not in self._acked and lost <= group.floor - at["next"]
        if lost <= 0 or low >= high or was_acked_before:
            return
        if self.stored is None:
            of_these = {"unsure": min(lost, high - low)}
        else:
            of_these = {"lost": at.get("lost", 0) + self.stored(queue, at["epoch"], low, high)}
        self._counted[queue] = left(at), left(at) | of_these


def _end(found: calls.Offsets) -> End:
    return End(found.next, found.until, found.size, found.size_max)


def _nothing(at: Place) -> End:
    return End(at["next"], at["next"], 0, 0)
