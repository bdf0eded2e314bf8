"""Reads the batches of one segment file in order, also if the file is damaged."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing

from curbstone.core.disk import Disk, File
from curbstone.core.engine.log.commit import Segment
from curbstone.core.engine.log.file_view import Window
from curbstone.core.engine.log.format import (
    BATCH_BYTES,
    BATCH_MAGIC_BYTES,
    SEGMENT_BYTES,
    decode_batch_header,
    may_be_batch,
)
from curbstone.core.engine.log.stored_batch import StoredBatch, batch_at


class Scan:
    """Reads the batches of one segment in order, and collects what is damaged."""

    def __init__(
        self, disk: Disk, segment: Segment, last_batch: int, *, is_active: bool, start: int = SEGMENT_BYTES
    ) -> None:
        self._disk = disk
        self._start = start
        self._segment = segment
        self._is_active = is_active
        self.last_batch = last_batch
        self.end = SEGMENT_BYTES
        """Where the last good batch ends."""
        self.damage: list[str] = []
        self.holes: list[tuple[int, int]] = []
        """The damaged stretches: the first byte of each, and the first byte behind it."""
        self.torn_bytes = 0

    def batches(self) -> Iterator[StoredBatch]:
        """Yield the good batches."""
        with closing(self._disk.open(self._segment.path)) as file:
            yield from self.batches_in(file)

    def batches_in(self, file: File) -> Iterator[StoredBatch]:
        """Yield the good batches of the segment, which is open as `file`."""
        window = Window(file, self._segment.end)
        try:
            yield from self._batches(window)
        finally:
            for start, end in window.unreadable:
                self._damaged(start, end, "can't be read: the disk reports an error")

    def _batches(self, window: Window) -> Iterator[StoredBatch]:
        offset = self._start
        while offset < self._segment.end:
            batch = self._batch_at(window, offset)
            is_next = batch is not None and batch.header.number == self.last_batch + 1
            if batch is None or not (is_next or offset == self._start > SEGMENT_BYTES):
                yield from self._in_order(window, offset)
                return
            yield self._passed(batch)
            offset = self.end

    def _passed(self, batch: StoredBatch) -> StoredBatch:
        self.last_batch = batch.header.number
        self.end = batch.offset + batch.header.length
        return batch

    def _in_order(self, window: Window, offset: int) -> Iterator[StoredBatch]:
        """Yield the good batches from `offset` on, if the batch that should be there is not.

        If a disk wrote a block to the wrong place, a good batch can turn up too early, in front of batches with lower
        numbers. To take it at once would lose those. So all good batches are looked up first, and the longest
        sequence of them with rising numbers is taken.
        """
        found: list[tuple[int, int]] = []
        at = offset - 1
        while (batch := self._next_good(window, at)) is not None:
            found.append((batch.header.number, batch.offset))
            at = batch.offset + batch.header.length - 1
        end = offset
        for _, place in most_in_order(found):
            if end < place:
                self._damaged(end, place)
            good = self._batch_at(window, place)
            assert good is not None
            yield self._passed(good)
            end = self.end
        self._tail(window, end)

    def _batch_at(self, window: Window, offset: int) -> StoredBatch | None:
        if not window.load(offset, BATCH_BYTES):
            return None
        header = decode_batch_header(window.data, offset - window.start)
        if header is None or header.number <= self.last_batch or offset + header.length > self._segment.end:
            return None
        if not window.load(offset, header.length):
            return None
        return batch_at(window.data, offset - window.start, self._segment.salt, offset)

    def _next_good(self, window: Window, offset: int) -> StoredBatch | None:
        """Return the first good batch that begins behind `offset`: find its magic, then check its CRC."""
        offset += 1
        while window.load(offset, BATCH_BYTES):
            found = window.data.find(BATCH_MAGIC_BYTES, offset - window.start + 4)
            if found < 0:
                offset = window.start + len(window.data) - len(BATCH_MAGIC_BYTES) - 3
                if not window.load(offset, BATCH_BYTES) or window.start != offset:
                    return None
                continue
            offset = window.start + found - 4
            batch = self._batch_at(window, offset)
            if batch is not None:
                return batch
            offset += 1
        return None

    def _tail(self, window: Window, offset: int) -> None:
        """Judge the bytes from `offset` on, where no good batch follows.

        In the active segment they are a torn last commit or have not been used yet. In any other they are damage.
        """
        if not self._is_active:
            if offset < self._segment.end:
                self._damaged(offset, self._segment.end)
        elif window.load(offset, BATCH_BYTES) and may_be_batch(window.data, offset - window.start, self.last_batch + 1):
            header = decode_batch_header(window.data, offset - window.start)
            self.torn_bytes = min(header.length if header else BATCH_BYTES, self._segment.end - offset)

    def _damaged(self, start: int, end: int, what: str = "do not check") -> None:
        self.damage.append(f"{self._segment.path}: bytes {start} to {end} {what}")
        self.holes.append((start, end))
        self._segment.damaged = True


def most_in_order(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest part of `found` whose numbers rise. These are (number, place); the places rise anyway."""
    tops: list[int] = []  # for each length, the index at which the sequence with the lowest last number ends
    before: list[int] = []  # for each index, the one before it in its sequence, or -1
    for index, (number, _) in enumerate(found):
        length = bisect_left(tops, number, key=lambda top: found[top][0])
        before.append(tops[length - 1] if length else -1)
        tops[length : length + 1] = [index]
    chosen: list[tuple[int, int]] = []
    index = tops[-1] if tops else -1
    while index >= 0:
        chosen.append(found[index])
        index = before[index]
    return chosen[::-1]
