"""Reading a queue's directory back: which files are the log, and what their batches say.

A crash can leave, besides the log: a torn batch at the end of the newest segment (its commit was not
confirmed: cut off, overwritten by the next), the file of a segment whose creation was not finished,
files of dropped segments whose removal was undone. Only files on the chain from the newest segment
back to the floor are the log; the rest is told as `trash`. Anything else that does not check is
damage: it is told, with the bytes concerned, and what follows it is read on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from curbstone.core.disk import Disk, File
from curbstone.core.errors import DataDirectoryError
from curbstone.core.format import (
    BATCH_BYTES,
    BATCH_MAGIC_BYTES,
    SEGMENT_BYTES,
    BatchHeader,
    SegmentHeader,
    UnknownFormat,
    batch_is_whole,
    decode_batch_header,
    decode_segment_header,
)
from curbstone.core.log import ASIDE_SUFFIX, Segment, segment_path

WINDOW_BYTES = 2 * 1024 * 1024

_NAME = re.compile(r"(\d{10,20})\.seg")


class Batch(NamedTuple):
    """A good batch: its header, and the bytes it lies in from `at` on; `offset` is its place in the file."""

    header: BatchHeader
    data: bytes
    at: int
    offset: int

    @property
    def messages_at(self) -> int:
        """Index of the message entries."""
        return self.at + BATCH_BYTES

    @property
    def releases_at(self) -> int:
        """Index of the releases."""
        return self.messages_at + self.header.messages_bytes

    @property
    def settles_at(self) -> int:
        """Index of the settles."""
        return self.releases_at + self.header.releases_bytes

    @property
    def notes_at(self) -> int:
        """Index of the notes."""
        return self.settles_at + self.header.settles_bytes

    @property
    def end_at(self) -> int:
        """Index behind the batch."""
        return self.at + self.header.length


@dataclass
class Chain:
    """The files of a log, oldest first, and what was odd about them."""

    segments: list[tuple[Segment, SegmentHeader | None]] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    trash: list[str] = field(default_factory=list)
    newest_number: int = 0


def find_chain(disk: Disk, directory: str, uid: int) -> Chain:
    """Return the chain of segments in a directory; empty if there is none. A newer format is refused."""
    chain = Chain()
    headers: dict[int, SegmentHeader | None] = {}
    for name in disk.list_dir(directory):
        match = _NAME.fullmatch(name)
        if match:
            headers[int(match[1])] = _read_header(disk, f"{directory}/{name}", uid, int(match[1]))
    if not headers:
        return chain
    chain.newest_number = max(headers)
    good = [number for number, header in headers.items() if header is not None]
    number = max(good, default=0)
    end: int | None = None
    while number:
        header = headers.get(number)
        path = segment_path(directory, number)
        if number not in headers:
            chain.missing.append(number)
            older = max((n for n in headers if n < number), default=0)
            number, end = older, None
            continue
        file = disk.open(path)
        size = file.size()
        file.close()
        segment = Segment(number, path, header.salt if header else 0, size if end is None else min(end, size), size)
        chain.segments.insert(0, (segment, header))
        if header is None:  # its header is damaged, and with it the link to the one before
            number, end = max((n for n in headers if n < number), default=0), None
        else:
            number, end = header.previous, header.previous_end
            if number < header.floor:
                break
    kept = {segment.number for segment, _ in chain.segments}
    chain.trash = [segment_path(directory, number) for number in headers if number not in kept]
    return chain


def _read_header(disk: Disk, path: str, uid: int, number: int) -> SegmentHeader | None:
    file = disk.open(path)
    try:
        header = decode_segment_header(file.read(0, SEGMENT_BYTES))
    except UnknownFormat as error:
        raise DataDirectoryError(f"{path}: {error}") from error
    finally:
        file.close()
    # A file renamed for recycling, and the rename undone, has another number than its name says.
    return header if header and header.uid == uid and header.number == number else None


def aside_bytes(disk: Disk, directory: str) -> int:
    """Return the bytes of the damaged segments that are kept for repair."""
    total = 0
    for name in disk.list_dir(directory):
        if name.endswith(ASIDE_SUFFIX):
            file = disk.open(f"{directory}/{name}")
            total += file.size()
            file.close()
    return total


class Window:
    """A moving view of a file, so that a large segment is never in memory whole."""

    def __init__(self, file: File, limit: int) -> None:
        self._file = file
        self._limit = limit
        self.start = 0
        self.data = b""

    def have(self, offset: int, size: int) -> bool:
        """Make the bytes from `offset` available; return whether there are `size` of them."""
        if offset < self.start or offset + size > self.start + len(self.data):
            self.data = self._file.read(offset, min(max(size, WINDOW_BYTES), self._limit - offset))
            self.start = offset
        return offset + size <= self.start + len(self.data)


class Scan:
    """Reads the batches of one segment in order; tells what does not check."""

    def __init__(
        self, disk: Disk, segment: Segment, last_batch: int, *, is_active: bool, start: int = SEGMENT_BYTES
    ) -> None:
        self._disk = disk
        self._start = start
        self._segment = segment
        self._is_active = is_active
        self.last_batch = last_batch
        self.end = SEGMENT_BYTES
        """Behind the last good batch."""
        self.damage: list[str] = []
        self.torn_bytes = 0

    def batches(self) -> Iterator[Batch]:
        """Yield the good batches."""
        file = self._disk.open(self._segment.path)
        try:
            yield from self._batches(Window(file, self._segment.end))
        finally:
            file.close()

    def _batches(self, window: Window) -> Iterator[Batch]:
        offset = self._start
        limit = self._segment.end
        while offset < limit:
            batch = self._batch_at(window, offset)
            if batch is None:
                following = self._next_good(window, offset)
                if following is None:
                    self._tail(window, offset)
                    return
                self._damaged(offset, following.offset)
                batch = following
            self.last_batch = batch.header.number
            offset = batch.offset + batch.header.length
            self.end = offset
            yield batch

    def _batch_at(self, window: Window, offset: int) -> Batch | None:
        if not window.have(offset, BATCH_BYTES):
            return None
        header = decode_batch_header(window.data, offset - window.start)
        if header is None or header.number <= self.last_batch or offset + header.length > self._segment.end:
            return None
        if not window.have(offset, header.length):
            return None
        index = offset - window.start
        if not batch_is_whole(window.data, index, header.length, self._segment.salt):
            return None
        return Batch(header, window.data, index, offset)

    def _next_good(self, window: Window, offset: int) -> Batch | None:
        """Return the first good batch behind `offset`: its magic is looked for, its CRC decides."""
        offset += 1
        while window.have(offset, BATCH_BYTES):
            found = window.data.find(BATCH_MAGIC_BYTES, offset - window.start + 4)
            if found < 0:
                offset = window.start + len(window.data) - len(BATCH_MAGIC_BYTES) - 3
                if not window.have(offset, BATCH_BYTES) or window.start != offset:
                    return None
                continue
            offset = window.start + found - 4
            batch = self._batch_at(window, offset)
            if batch is not None:
                return batch
            offset += 1
        return None

    def _tail(self, window: Window, offset: int) -> None:
        """Nothing good follows `offset`: a torn last commit, an unused rest, or a damaged end."""
        if not self._is_active:
            self._damaged(offset, self._segment.end)
        elif window.have(offset, BATCH_BYTES):
            header = decode_batch_header(window.data, offset - window.start)
            if header is not None and header.number == self.last_batch + 1:
                self.torn_bytes = min(header.length, self._segment.end - offset)

    def _damaged(self, start: int, end: int) -> None:
        self.damage.append(f"{self._segment.path}: bytes {start} to {end} do not check")
        self._segment.damaged = True
