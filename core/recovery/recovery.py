"""Reading a queue's directory back: which files are the log, and what their batches say.

A crash can leave, besides the log: a torn batch at the end of the newest segment (its commit was not
confirmed: cut off, overwritten by the next), the file of a segment whose creation was not finished,
files of dropped segments whose removal was undone. Only files on the chain from the newest segment
back to the floor are the log; the rest is told as `trash`. Anything else that does not check is
damage: it is told, with the bytes concerned, and what follows it is read on. docs/engine.md ("What a
crash can leave") lists all of it, redo files and directories included.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from curbstone.core.disk import Disk
from curbstone.core.errors import DataDirectoryError
from curbstone.core.log.commit import Segment, segment_path
from curbstone.core.log.format import (
    BATCH_BYTES,
    BATCH_MAGIC_BYTES,
    ENTRY_BYTES,
    FORMAT,
    SEGMENT_BYTES,
    BatchHeader,
    SegmentHeader,
    UnknownFormat,
    batch_is_whole,
    decode_batch_header,
    decode_segment_header,
    may_be_batch,
)
from curbstone.core.log.window import Window, read_around
from curbstone.core.recovery.salvage import find_salt, next_seq_hint

HEADLESS_BYTES_MAX = 16 * 1024 * 1024
"""How much of a segment is looked at for what its header said."""

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
    aside: list[str] = field(default_factory=list)
    """Files that may have been the newest of the log and can't be read: to be kept, and are no part of it."""
    damage: list[tuple[int, str]] = field(default_factory=list)
    """Numbers of segments whose header is damaged, and what is to be said of it."""
    names: list[str] = field(default_factory=list)
    """All names in the directory, in order."""
    newest_number: int = 0
    next_seq: int = 1
    """Behind all that seems to be in the files set aside."""
    hidden: int = 0
    """How many messages may be in those files besides."""


class _Headers:
    """The segment files of a directory and their headers; those that are damaged are made again where that is sure."""

    def __init__(self, disk: Disk, directory: str, uid: int, names: list[str]) -> None:
        self._disk = disk
        self._directory = directory
        self._uid = uid
        self._sizes: dict[int, int] = {}
        self.found: dict[int, SegmentHeader | None] = {}
        self.remade: set[int] = set()
        self.aside: dict[int, int] = {}
        """Those that hold something and can't be read, and the seq behind what they seem to hold."""
        self.hidden = 0
        """How many messages may be in them of which nothing can be seen."""
        headless = []
        for name in names:
            match = _NAME.fullmatch(name)
            if match:
                number = int(match[1])
                header, is_headless = self._read(number)
                self.found[number] = header
                if is_headless:
                    headless.append(number)
        for number in sorted(headless):
            self._remake(number)

    def path(self, number: int) -> str:
        """Return the path of a segment."""
        return segment_path(self._directory, number)

    def below(self, number: int) -> int:
        """Return the number of the file before this one, or 0."""
        return max((other for other in self.found if other < number), default=0)

    def _read(self, number: int) -> tuple[SegmentHeader | None, bool]:
        """Return a header, and whether the file has none, neither its own nor that of an earlier life."""
        file = self._disk.open(self.path(number))
        try:
            header = decode_segment_header(read_around(file, 0, SEGMENT_BYTES)[0])
            self._sizes[number] = file.size()
        except UnknownFormat as error:
            raise DataDirectoryError(f"{self.path(number)}: {error}") from error
        finally:
            file.close()
        # A file renamed for recycling, and the rename undone, has another number than its name says.
        return (header if header and header.uid == self._uid and header.number == number else None), header is None

    def _remake(self, number: int) -> None:
        """Make the header of a segment from its batches, the link to the one before from the names of the files.

        A creation that a crash undid can leave a file without a header too: then its first sector is zeros, or
        nothing is behind it.
        """
        file = self._disk.open(self.path(number))
        try:
            data, unreadable = read_around(file, 0, HEADLESS_BYTES_MAX)
        finally:
            file.close()
        before = self.below(number)
        last_batch = self._last_batch(before)
        salt = find_salt(data, last_batch)
        if salt is not None:
            numbers = (number, before, self.size(before) if before else 0, 1, 1, last_batch + 1, 0)
            self.found[number] = SegmentHeader(salt, self._uid, *numbers)
            self.remade.add(number)
        elif unreadable or (any(data[:SEGMENT_BYTES]) and any(data[SEGMENT_BYTES:])):
            self.aside[number] = next_seq_hint(data)
            if self.aside[number] == 1:  # not even that can be seen; no id is given twice all the same
                self.hidden += self.size(number) // ENTRY_BYTES

    def size(self, number: int) -> int:
        """Return the size of a segment's file."""
        return self._sizes[number]

    def _last_batch(self, number: int) -> int:
        """Return the number of the last good batch of a segment, 0 where that can't be known."""
        header = self.found.get(number)
        if header is None:
            return 0
        size = self.size(number)
        scan = Scan(self._disk, Segment(number, self.path(number), header.salt, size, size), 0, is_active=True)
        for _ in scan.batches():
            pass
        return scan.last_batch


def find_chain(disk: Disk, directory: str, uid: int) -> Chain:
    """Return the chain of segments in a directory; empty if there is none. A newer format is refused."""
    chain = Chain(names=sorted(disk.list_dir(directory)))
    files = _Headers(disk, directory, uid, chain.names)
    headers = files.found
    if not headers:
        return chain
    chain.newest_number = max(headers)
    number = max([number for number, header in headers.items() if header is not None], default=0)
    end: int | None = None
    while number:
        if number not in headers:
            chain.missing.append(number)
            number, end = files.below(number), None
            continue
        header = headers[number]
        size = files.size(number)
        salt = header.salt if header else 0
        segment = Segment(number, files.path(number), salt, size if end is None else min(end, size), size)
        segment.is_redoable = header is not None and header.format >= FORMAT and number not in files.remade
        if end is not None and size < end:
            segment.damaged = True
            chain.damage.append((number, f"{segment.path}: bytes {size} to {end} are missing"))
        chain.segments.insert(0, (segment, header))
        if header is None:  # its header is damaged, and with it the link to the one before
            number, end = files.below(number), None
        else:
            if number in files.remade:
                segment.damaged = True
                gap = f"; which segments lay between it and segment {header.previous} is not known"
                hidden = gap if 0 < header.previous < number - 1 else ""
                text = f"{segment.path}: its header does not check; its commits do, and are read{hidden}"
                chain.damage.append((number, text))
            number, end = header.previous, header.previous_end
            if number < header.floor:
                break
    kept = {segment.number for segment, _ in chain.segments}
    for number, next_seq in files.aside.items():
        if number not in kept:
            chain.aside.append(files.path(number))
            chain.next_seq = max(chain.next_seq, next_seq)
            chain.hidden = files.hidden
            text = f"{files.path(number)}: its header does not check, nothing of it can be read; it is set aside"
            chain.damage.append((number, text))
    chain.trash = [files.path(n) for n in headers if n not in kept and n not in files.aside]
    return chain


def holds_something(disk: Disk, directory: str, uid: int) -> bool:
    """Return whether a queue's directory has, or may have had, a commit in it: then it is never removed unasked."""
    chain = find_chain(disk, directory, uid)
    if chain.damage or chain.missing or len(chain.segments) > 1:
        return True
    for segment, header in chain.segments:
        scan = Scan(disk, segment, 0, is_active=True)
        if header is None or next(scan.batches(), None) is not None or scan.torn_bytes:
            return True
    return False


def last_commit_ms(disk: Disk, directory: str, uid: int) -> int:
    """Return the wall-clock time of the newest commit that can be read in a directory, 0 where there is none."""
    for segment, header in reversed(find_chain(disk, directory, uid).segments):
        scan = Scan(disk, segment, 0, is_active=True)
        times = [batch.header.time_ms for batch in scan.batches()] if header is not None else []
        if times:
            return times[-1]
    return 0


def file_bytes(disk: Disk, path: str) -> int:
    """Return the size of a file."""
    file = disk.open(path)
    try:
        return file.size()
    finally:
        file.close()


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
        self.holes: list[tuple[int, int]] = []
        """The first byte of each damage and the one behind it."""
        self.torn_bytes = 0

    def batches(self) -> Iterator[Batch]:
        """Yield the good batches."""
        file = self._disk.open(self._segment.path)
        window = Window(file, self._segment.end)
        try:
            yield from self._batches(window)
        finally:
            file.close()
            for start, end in window.unreadable:
                self._damaged(start, end, "can't be read: the disk reports an error")

    def _batches(self, window: Window) -> Iterator[Batch]:
        offset = self._start
        while offset < self._segment.end:
            batch = self._batch_at(window, offset)
            is_next = batch is not None and batch.header.number == self.last_batch + 1
            if batch is None or not (is_next or offset == self._start > SEGMENT_BYTES):
                yield from self._in_order(window, offset)
                return
            yield self._passed(batch)
            offset = self.end

    def _passed(self, batch: Batch) -> Batch:
        self.last_batch = batch.header.number
        self.end = batch.offset + batch.header.length
        return batch

    def _in_order(self, window: Window, offset: int) -> Iterator[Batch]:
        """Yield the good batches from `offset` on, where the next in number is not.

        A block that a disk wrote to the wrong place can bring a good batch before its turn: the batches between
        would have lower numbers. So all are looked up first, and the most that are in order are taken.
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
        """Return the first good batch that begins behind `offset`: its magic is looked for, its CRC decides."""
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
            if offset < self._segment.end:
                self._damaged(offset, self._segment.end)
        elif window.have(offset, BATCH_BYTES) and may_be_batch(window.data, offset - window.start, self.last_batch + 1):
            header = decode_batch_header(window.data, offset - window.start)
            self.torn_bytes = min(header.length if header else BATCH_BYTES, self._segment.end - offset)

    def _damaged(self, start: int, end: int, what: str = "do not check") -> None:
        self.damage.append(f"{self._segment.path}: bytes {start} to {end} {what}")
        self.holes.append((start, end))
        self._segment.damaged = True


def most_in_order(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest sequence of (number, place) whose numbers rise; the places do anyway."""
    tops: list[int] = []  # index of the lowest last number of a sequence of each length
    before: list[int] = []
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
