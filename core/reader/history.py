"""The journal of a queue: what happened to its messages. It is read from the log, so nothing is written just for it.

A position is a segment's number and an offset in it, as one integer that grows along the log. Within a batch
the offset grows by one with each event, so that a page may end anywhere. The journal reaches as
far back as there are segments. What the cleaner copies, and repeats with its copies, is no event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Generic, TypeVar

from curbstone.core.disk import Disk
from curbstone.core.engine.log.commit import Segment
from curbstone.core.engine.log.file_view import Window
from curbstone.core.engine.log.format import (
    BATCH_BYTES,
    ENTRY,
    ENTRY_BYTES,
    SEGMENT_BYTES,
    Flag,
    Reason,
    decode_batch_header,
    decode_groups,
    decode_settled,
    decode_tries,
)
from curbstone.core.engine.log.log import Log
from curbstone.core.engine.log.scan import Scan
from curbstone.core.engine.log.stored_batch import StoredBatch, batch_at
from curbstone.core.engine.parts import Parts
from curbstone.core.errors import Gone, Unavailable, client_text
from curbstone.core.positions import PUBLISHED, RELEASED, Event, ListDone, ReadRequest

OFFSET_BITS = 40  # no segment is larger: a cap ends at 2**44 bytes, and a segment has at most a sixteenth of it
EVENTS_AT_ONCE = 1024

T = TypeVar("T")

SETTLED: dict[int, int] = {
    Reason.ACK: 3,
    Reason.MOVED: 3,
    Reason.REJECT: 4,
    Reason.MAX_TRIES: 5,
    Reason.EXPIRE: 6,
    Reason.PURGE: 7,
    Reason.SKIPPED: 8,
    Reason.REPLACED: 9,
}


def start_of(log: Log) -> int:
    """Return the position of the oldest event that there may be."""
    return position_of(log.segments[0].number, SEGMENT_BYTES)


def end_of(log: Log) -> int:
    """Return the position behind the last commit."""
    return position_of(log.active.number, log.active.end)


class Reading(Generic[T]):
    """The reading of one page of the log, from a position on: `on_done(error, result, position to continue at)`.

    `read` gets the segments, and the offset in the first one, on a worker thread.
    """

    def __init__(
        self,
        parts: Parts,
        position: int,
        read: Callable[[list[Segment], int], tuple[list[T], int]],
        on_done: ListDone[T],
    ) -> None:
        self._state = parts.state
        self._log = parts.log
        self._position = position
        self._read = read
        self._on_done = on_done

    def attempt(self) -> None:
        """Read the log as it is now; if a segment that was read is dropped meanwhile, begin again.

        Raise Gone, with the `first` position that there is, if the log does not reach back so far or the queue was made
        anew.
        """
        state, log = self._state, self._log
        position = self._position or start_of(log)
        number, offset = position >> OFFSET_BITS, position & ((1 << OFFSET_BITS) - 1)
        segments = [segment.snapshot() for segment in log.segments if segment.number >= number]
        if number < log.segments[0].number or not segments or position > end_of(log):
            raise Gone(f"the journal has nothing at {position}", first=start_of(log), epoch=state.uid)
        if segments[0].number > number:  # no segment has this number, because its creation failed
            offset = SEGMENT_BYTES

        done = partial(self._done, segments[0].number)
        state.host.submit(lambda: self._read(segments, offset), done)

    def _done(self, first: int, result: tuple[list[T], int] | None, error: BaseException | None) -> None:
        """Return the page; or begin again if a segment was dropped meanwhile, of which `first` was the first."""
        state, log = self._state, self._log
        if result is None and log.retry_after_drop(state.host, partial(self._done, first, result, error)):
            return
        ended = state.ended() if result is None else None
        if ended is not None:  # its files are gone, or will be
            self._on_done(ended, [], 0)
        elif first < log.segments[0].number:
            try:
                self.attempt()
            except Gone as gone:
                self._on_done(gone, [], 0)
        elif result is None:
            assert error is not None
            state.report(f"its log can't be read: {error}")
            self._on_done(Unavailable(f"queue {state.name} can't be read: {client_text(error)}"), [], 0)
        else:
            self._on_done(None, *result)


def position_of(number: int, offset: int) -> int:
    return number << OFFSET_BITS | offset


# --- on a worker thread


def read_events(
    disk: Disk, asked: ReadRequest, render: Callable[[list[Event]], bytes], segments: list[Segment], offset: int
) -> tuple[list[bytes], int]:
    """Return what `render` returned for the events, some of them at a time, and the position to continue at."""
    pieces: list[bytes] = []
    count, room = asked.limit, asked.bytes_max
    for segment in segments:
        start = _batch_start(disk, segment, offset)
        for batch in Scan(disk, segment, 0, is_active=True, start=start).batches():
            base = position_of(segment.number, batch.offset)
            events = islice(_events_of(batch, base), max(offset - batch.offset, 0), None)
            offset = 0
            while some := list(islice(events, min(EVENTS_AT_ONCE, count) or 1)):
                if not count or room <= 0:
                    return pieces, some[0].position
                pieces.append(render(some))
                count -= len(some)
                room -= len(pieces[-1])
        offset = SEGMENT_BYTES
    return pieces, position_of(segments[-1].number, segments[-1].end)


def _batch_start(disk: Disk, segment: Segment, offset: int) -> int:
    """Return where the batch begins in which `offset` lies."""
    with closing(disk.open(segment.path)) as file:
        window = Window(file, segment.end)
        start = SEGMENT_BYTES
        if _is_batch(window, offset, segment.salt):
            return offset
        while start < offset and window.load(start, BATCH_BYTES):
            header = decode_batch_header(window.data, start - window.start)
            if header is None or start + header.length > offset:
                break
            start += header.length
        return start


def _is_batch(window: Window, offset: int, salt: int) -> bool:
    header = decode_batch_header(window.data, offset - window.start) if window.load(offset, BATCH_BYTES) else None
    if header is None or not window.load(offset, header.length):
        return False
    return batch_at(window.data, offset - window.start, salt) is not None


def _events_of(batch: StoredBatch, position: int) -> Iterator[Event]:
    """Yield the events of a batch, in the order in which a reader wants them."""
    header = batch.header
    number = 0
    if not header.flags & Flag.COPY:
        for number, (seq, timestamp_ms, body_bytes, groups) in enumerate(_published(batch), 1):
            yield Event(position + number - 1, PUBLISHED, seq, 1, timestamp_ms, 0, groups, body_bytes)
    for group, first, span, tries, due_ms in decode_tries(
        batch.data, batch.releases_at, batch.settles_at, with_state=False
    ):
        yield Event(position + number, RELEASED, first, span, header.time_ms, tries, group, due_ms)
        number += 1
    for group, reason, first, span in decode_settled(batch.data, batch.settles_at, batch.notes_at):
        kind = SETTLED.get(reason)
        if kind is not None:
            yield Event(position + number, kind, first, span, header.time_ms, 0, group, 0)
            number += 1


def _published(batch: StoredBatch) -> Iterator[tuple[int, int, int, str]]:
    """Yield (seq, publish time, bytes of the body, groups named) of the messages of a batch."""
    offset = batch.messages_at
    first_seq = batch.header.first_seq
    for _ in range(batch.header.messages):
        size, delta, timestamp_ms, headers_bytes, _flags, extras_bytes = ENTRY.unpack_from(batch.data, offset)
        groups = ",".join(decode_groups(batch.data, offset + ENTRY_BYTES, extras_bytes)) if extras_bytes else ""
        yield first_seq + delta, timestamp_ms, size - ENTRY_BYTES - headers_bytes - extras_bytes, groups
        offset += size
