"""Finds out which files in a queue's directory are the log.

Besides the log, a crash can leave: a torn batch at the end of the newest segment, whose commit was not confirmed (it is
not taken, and the next commit overwrites it); the file of a segment whose creation was not finished; and files of
dropped segments whose removal was undone. Only the files on the chain from the newest segment back to the start of the
log are the log. The others are returned as `trash`. So is a file with the header of another segment, if a crash can
have left it; otherwise it is kept, because nothing else explains it. Anything else that does not match its checksum is
damage: it is reported with the bytes concerned, and reading continues behind it. docs/engine.md ("What a crash can
leave") has the whole list, including redo files and directories.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from curbstone.core.disk import Disk
from curbstone.core.engine.log.commit import Segment, segment_path
from curbstone.core.engine.log.file_view import read_around, read_file
from curbstone.core.engine.log.format import (
    ENTRY_BYTES,
    FORMAT,
    SEGMENT_BYTES,
    SegmentHeader,
    UnknownFormat,
    decode_segment_header,
)
from curbstone.core.engine.log.scan import Scan
from curbstone.core.engine.recovery.salvage import find_salt, next_seq_hint
from curbstone.core.errors import DataDirectoryError

HEADLESS_BYTES_MAX = 16 * 1024 * 1024
"""How much of a segment is read to reconstruct its damaged header."""

_NAME = re.compile(r"(\d{10,20})\.seg")


class Stray(NamedTuple):
    """A file with the valid header of another segment."""

    path: str
    number: int
    """Its number by its name."""
    of_header: int
    """Its number by its header."""
    is_own: bool
    """Whether the header is one of this queue."""
    next_seq: int
    """The seq behind all of this queue's messages that seem to be in it."""


@dataclass
class Chain:
    """The files of a log, oldest first, and what is wrong with the directory."""

    segments: list[tuple[Segment, SegmentHeader | None]] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    trash: list[str] = field(default_factory=list)
    """Files that are no part of the log, and that are not needed."""
    aside: list[str] = field(default_factory=list)
    """Files that may have been the newest segments and can't be read. They are kept, but are no part of the log."""
    damage: list[tuple[int, str]] = field(default_factory=list)
    """What is damaged: the number of the segment, and a text for operators."""
    names: list[str] = field(default_factory=list)
    """All names in the directory, in order."""
    newest_number: int = 0
    next_seq: int = 1
    """A seq above those of all messages that seem to be in the files of `aside`."""
    hidden: int = 0
    """How many more messages may be in those files."""
    strays: list[Stray] = field(default_factory=list)
    """Files with the header of another segment; `sort_out` decides about them."""

    def sort_out(self, log_start: int) -> list[str]:
        """Make each stray `trash` or `aside`, now that the start of the log is known; return what is damaged.

        A crash can undo the renaming of a recycled file, or its new header. Either way, a dropped segment had one of
        the two numbers, and nothing in the file was confirmed since.
        """
        damage = []
        for stray in self.strays:
            if stray.is_own and min(stray.number, stray.of_header) < log_start:
                self.trash.append(stray.path)
                continue
            self.aside.append(stray.path)
            self.next_seq = max(self.next_seq, stray.next_seq)
            whose = f"of segment {stray.of_header}" if stray.is_own else "of another queue"
            damage.append(f"{stray.path} has the header {whose}; it is set aside")
        return damage


class _Headers:
    """The segment files of a directory and their headers. A lost header is written again if it is certain."""

    def __init__(self, disk: Disk, directory: str, uid: int, names: list[str]) -> None:
        self._disk = disk
        self._directory = directory
        self._uid = uid
        self.sizes: dict[int, int] = {}
        self.found: dict[int, SegmentHeader | None] = {}
        self.remade: set[int] = set()
        self.aside: dict[int, int] = {}
        """Segments that hold something but can't be read, each with the seq behind the messages it seems to hold."""
        self.hidden = 0
        """How many messages may be in those of them that show no seq at all."""
        self.strays: dict[int, Stray] = {}
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
        return segment_path(self._directory, number)

    def below(self, number: int) -> int:
        """Return the number of the file before this one, or 0."""
        return max((other for other in self.found if other < number), default=0)

    def _read(self, number: int) -> tuple[SegmentHeader | None, bool]:
        """Return the header of a segment, if the file has it, and whether the file has no valid header at all."""
        file = self._disk.open(self.path(number))
        try:
            header = decode_segment_header(read_around(file, 0, SEGMENT_BYTES)[0])
            self.sizes[number] = file.size()
        except UnknownFormat as error:
            raise DataDirectoryError(f"{self.path(number)}: {error}") from error
        finally:
            file.close()
        if header is None:
            return None, True
        if (header.uid, header.number) != (self._uid, number):
            self.strays[number] = self._stray(number, header)
            return None, False
        return header, False

    def _stray(self, number: int, header: SegmentHeader) -> Stray:
        is_own = header.uid == self._uid
        return Stray(
            *(self.path(number), number, header.number, is_own),
            next_seq_hint(read_file(self._disk, self.path(number), HEADLESS_BYTES_MAX)[0]) if is_own else 1,
        )

    def _remake(self, number: int) -> None:
        """Make a lost header again: the salt from the batches, the link to the segment before from the files' names.

        If that fails and the file holds something, it is set aside. A file without a header can also be left by a
        creation that a crash has undone. Then its header is zeros, or nothing is behind it, and it is not set aside.
        """
        data, unreadable = read_file(self._disk, self.path(number), HEADLESS_BYTES_MAX)
        before = self.below(number)
        last_batch = self._last_batch(before)
        salt = find_salt(data, last_batch)
        if salt is not None:
            numbers = (number, before, self.sizes[before] if before else 0, 1, 1, last_batch + 1, 0)
            self.found[number] = SegmentHeader(salt, self._uid, *numbers)
            self.remade.add(number)
        elif unreadable or (any(data[:SEGMENT_BYTES]) and any(data[SEGMENT_BYTES:])):
            self.aside[number] = next_seq_hint(data)
            if self.aside[number] == 1:  # no seq can be seen: count as many as fit, so that none is used twice
                self.hidden += self.sizes[number] // ENTRY_BYTES

    def _last_batch(self, number: int) -> int:
        """Return the number of the last good batch of a segment, or 0 if that can't be known."""
        header = self.found.get(number)
        if header is None:
            return 0
        size = self.sizes[number]
        scan = Scan(self._disk, Segment(number, self.path(number), header.salt, size, size), 0, is_active=True)
        for _ in scan.batches():
            pass
        return scan.last_batch


def find_chain(disk: Disk, directory: str, uid: int) -> Chain:
    """Return the chain of segments in a directory, which may be empty; raise DataDirectoryError for a newer format."""
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
        size = files.sizes[number]
        salt = header.salt if header else 0
        segment = Segment(number, files.path(number), salt, size if end is None else min(end, size), size)
        segment.is_redoable = header is not None and header.format >= FORMAT and number not in files.remade
        if end is not None and size < end:
            segment.damaged = True
            chain.damage.append((number, f"{segment.path}: bytes {size} to {end} are missing"))
        chain.segments.insert(0, (segment, header))
        if header is None:  # the link to the segment before is lost with the header; take the next lower number
            number, end = files.below(number), None
        else:
            if number in files.remade:
                segment.damaged = True
                gap = f"; which segments lay between it and segment {header.previous} is not known"
                hidden = gap if 0 < header.previous < number - 1 else ""
                text = f"{segment.path}: its header does not check; its commits do, and are read{hidden}"
                chain.damage.append((number, text))
            number, end = header.previous, header.previous_end
            if number < header.log_start:
                break
    kept = {segment.number for segment, _ in chain.segments}
    for number, next_seq in files.aside.items():
        if number not in kept:
            chain.aside.append(files.path(number))
            chain.next_seq = max(chain.next_seq, next_seq)
            chain.hidden = files.hidden
            text = f"{files.path(number)}: its header does not check, none of it can be read; it is set aside"
            chain.damage.append((number, text))
    chain.strays = [stray for number, stray in files.strays.items() if number not in kept]
    chain.trash = [files.path(n) for n in headers if n not in kept and n not in files.aside and n not in files.strays]
    return chain


def holds_something(disk: Disk, directory: str, uid: int) -> bool:
    """Return whether a queue's directory holds, or may have held, a commit. Then it must not be removed unasked."""
    chain = find_chain(disk, directory, uid)
    if chain.damage or chain.missing or chain.strays or len(chain.segments) > 1:
        return True
    for segment, _ in chain.segments:
        scan = Scan(disk, segment, 0, is_active=True)
        if next(scan.batches(), None) is not None or scan.torn_bytes:
            return True
    return False


def last_commit_ms(disk: Disk, directory: str, uid: int) -> int:
    """Return the wall-clock time of the newest commit that can be read in a directory, or 0 if there is none."""
    for segment, header in reversed(find_chain(disk, directory, uid).segments):
        scan = Scan(disk, segment, 0, is_active=True)
        times = [batch.header.time_ms for batch in scan.batches()] if header is not None else []
        if times:
            return times[-1]
    return 0
