"""Browsing: returns stretches of the log as they lie on disk, with masks that say which messages are wanted.

A page is planned on the engine's thread, from the runs of the index: which stretches, which seqs, what was tried. A
worker thread reads it, whole batches at a time. Nothing is done for each message, except at the ends of a page, in
batches of copies, and if few messages of a batch are wanted. Nothing in the queue changes by it.

If the cleaner has moved a stretch in between, its checksums fail, and the page is planned again. A damaged stretch is
read around; messages of it that can be had from memory are taken from there.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from curbstone.core.disk import Disk, File
from curbstone.core.engine.index.group import Group
from curbstone.core.engine.index.runs import Run, seqs_of
from curbstone.core.engine.log.file_view import read_around
from curbstone.core.engine.log.format import BatchHeader, Flag, decode_seqs, encode_entries
from curbstone.core.engine.log.stored_batch import batches_in
from curbstone.core.engine.parts import Parts
from curbstone.core.errors import Unavailable, client_text
from curbstone.core.message import Message
from curbstone.core.positions import Frame, PageDone, Wanted
from curbstone.core.values import UNNAMED

MASK_BITS_MAX = 64 * 1024
PLACES_MAX = 8192
ATTEMPTS_MAX = 5

T = TypeVar("T")

_SIZE_DELTA = struct.Struct("<II")  # an entry begins with its size, and its seq minus the first of the batch


class _Place(NamedTuple):
    """A stretch of a segment file, and the seqs in it that are wanted: bit i of `mask` stands for `first` + i."""

    path: str
    salt: int
    offset: int
    end: int
    first: int
    mask: int
    tries: dict[int, int]
    kept: list[Message] | None = None
    """The wanted messages, if they are read from memory and not from the disk."""

    @property
    def last(self) -> int:
        """The last seq that is wanted."""
        return self.first + self.mask.bit_length() - 1


class _Plan(NamedTuple):
    places: list[_Place]
    next: int
    """The seq to continue at once all places have been read."""


class Stale(Exception):
    """A stretch is no longer where it was, or is damaged."""

    def __init__(self, text: str, place: _Place) -> None:
        super().__init__(text)
        self.place = place


class Browse(Generic[T]):
    """The reading of one page."""

    def __init__(self, parts: Parts, wanted: Wanted, render: Callable[[list[Frame]], T], on_done: PageDone[T]) -> None:
        """`on_done(error, render(frames), seq to continue at)`. `render` is called on a worker thread.

        Nothing below `wanted.start` may be lost.
        """
        self._parts = parts
        self._wanted = wanted
        self._render = render
        self._on_done = on_done
        self._failed: Counter[int] = Counter()
        """How often a place could not be read, by its first seq."""
        self._from_memory: set[Run] = set()
        """Runs whose place on the disk is damaged."""

    def attempt(self) -> None:
        """Plan the page and read it; try again if the log has changed meanwhile."""
        parts, wanted, render = self._parts, self._wanted, self._render
        plan = _plan(parts, wanted, self._from_memory)
        disk = parts.log.disk

        def job() -> tuple[T, int]:
            frames, cut_at = _read(disk, plan.places, wanted)
            return render(frames), cut_at or plan.next

        parts.state.host.submit(job, self._done)

    # A method and not a function in `attempt`: one that names itself keeps the page in memory until Python looks for
    # cycles.
    def _done(self, result: tuple[T, int] | None, error: BaseException | None) -> None:
        state, log = self._parts.state, self._parts.log
        ended = state.ended()
        if result is not None:
            self._on_done(None, *result)
        elif log.retry_after_drop(state.host, partial(self._done, result, error)):
            return
        elif ended is not None:  # its files are gone, or will be
            self._on_done(ended, None, 0)
        elif isinstance(error, Stale) and self._failed[error.place.first] < ATTEMPTS_MAX:
            self._retry_place(error.place)
        else:
            assert error is not None
            state.report(f"its log can't be read: {error}")
            self._on_done(Unavailable(f"queue {state.name} can't be read: {client_text(error)}"), None, 0)

    def _retry_place(self, place: _Place) -> None:
        """Try again after a place could not be read.

        If that happens twice, the place is damaged. Then its messages are taken from memory; if they are not there, the
        reader of the index loads them first, and so finds out which are left.
        """
        self._failed[place.first] += 1
        is_damaged = self._failed[place.first] > 1
        for run in self._parts.index.runs.between(place.first, place.last + 1) if is_damaged else ():
            if run.messages is None:
                self._parts.index.reader.load(run, self.attempt)
                return
            self._from_memory.add(run)
        self.attempt()


# --- on the engine's thread


def _plan(parts: Parts, wanted: Wanted, from_memory: set[Run]) -> _Plan:
    """Return the stretches to read, about as many as make a page. Runs in `from_memory` are not read from the disk."""
    group = parts.index.group(wanted.group or UNNAMED)
    end = parts.state.committed_end if wanted.end is None else min(wanted.end, parts.state.committed_end)
    places: list[_Place] = []
    seq, count, size = wanted.start, 0, 0
    while count < wanted.limit and size < wanted.bytes_max and len(places) < PLACES_MAX:
        run = parts.index.runs.at_or_after(seq)
        if run is None or run.first >= end:
            return _Plan(places, max(end, wanted.start))
        mask = (run.live() if wanted.group is None else run.pending(wanted.group)) & run.part(seq, end)
        seq = run.last + 1
        if mask:
            count += mask.bit_count()
            size += _add(places, run, mask, _tries(group, run, mask), run in from_memory)
    return _Plan(places, min(seq, end))


def _tries(group: Group, run: Run, mask: int) -> dict[int, int]:
    """Return how often messages of a mask were tried, by seq; messages that were not tried are left out."""
    if any([run.first <= level.recovered for level in group.levels]):
        tried = {seq: group.tries_of(seq) for seq in seqs_of(run.first, mask)}
    elif group.tracked:
        tracked = group.tracked
        tried = {seq: tracked[seq].tries for seq in range(run.first, run.last + 1) if seq in tracked}
    else:
        return {}
    return {seq: tries for seq, tries in tried.items() if tries}


def _add(places: list[_Place], run: Run, mask: int, tries: dict[int, int], from_memory: bool) -> int:
    """Add a run to the places, joined to the last one if it lies in the same stretch; return the bytes added."""
    where = (run.segment.path, run.segment.salt, run.offset, run.end)
    if from_memory and run.messages is not None:
        kept = [run.messages[seq - run.first] for seq in seqs_of(run.first, mask)]
        places.append(_Place(*where, run.first, mask, tries, [message for message in kept if message is not None]))
    elif places and places[-1][:4] == where and places[-1].kept is None and run.last - places[-1].first < MASK_BITS_MAX:
        last = places[-1]
        both = last.mask | mask << (run.first - last.first)
        places[-1] = last._replace(mask=both, tries={**last.tries, **tries})
        return 0
    else:
        places.append(_Place(*where, run.first, mask, tries))
    return run.end - run.offset


# --- on a worker thread


def _read(disk: Disk, places: list[_Place], wanted: Wanted) -> tuple[list[Frame], int]:
    """Return the frames, and the first seq that was left out because the page was full, else 0. Raise Stale."""
    frames: list[Frame] = []
    count, room = wanted.limit, wanted.bytes_max
    files: dict[str, File] = {}
    try:
        for place in places:
            for frame in _frames(disk, files, place):
                whole = _wanted_count(frame)
                if whole <= count and len(frame.entries) <= room:
                    frames.append(frame)
                    count -= whole
                    room -= len(frame.entries)
                    continue
                cut, next_seq = _cut(frame, count, room, at_least_one=not frames)
                return frames + ([cut] if cut else []), next_seq
    finally:
        for file in files.values():
            file.close()
    return frames, 0


def _open(disk: Disk, files: dict[str, File], place: _Place) -> File:
    path = place.path
    file = files.get(path)
    if file is None:
        try:
            file = files[path] = disk.open(path)
        except FileNotFoundError:
            raise Stale(f"{path}: no such file", place) from None
    return file


def _wanted_count(frame: Frame) -> int:
    return frame.span if frame.mask is None else frame.mask.bit_count()


def _frames(disk: Disk, files: dict[str, File], place: _Place) -> Iterable[Frame]:
    if place.kept is None:
        return _frames_of(_open(disk, files, place), place)
    return [_frame_in_memory(place.kept, place.tries)] if place.kept else []


def _frame_in_memory(kept: list[Message], tries: dict[int, int]) -> Frame:
    """Return messages as they would lie in the log."""
    parts: list[bytes] = []
    first_seq = kept[0].seq
    encode_entries(kept, first_seq, parts)
    tried = [(index, tries[message.seq]) for index, message in enumerate(kept) if message.seq in tries]
    return Frame(first_seq, len(kept), None, tried, b"".join(parts))


def _frames_of(file: File, place: _Place) -> Iterator[Frame]:
    """Yield a frame with the wanted messages of each batch of a stretch; raise Stale if some of them are not there."""
    data, _ = read_around(file, place.offset, place.end - place.offset)
    view = memoryview(data)
    end = 0
    is_checked = False
    for batch in batches_in(data, place.salt):
        if batch.at > end and not is_checked:
            _check_rest(data, place, end)
            is_checked = True
        end = batch.end_at
        if batch.header.messages:
            frame = _frame_of(view, batch.messages_at, batch.header, place)
            if frame is not None:
                yield frame
    if end != place.end - place.offset and not is_checked:
        _check_rest(data, place, end)


def _check_rest(data: bytes, place: _Place, bad_at: int) -> None:
    """Raise Stale unless all wanted messages are in good batches: those in others have been given up already."""
    view = memoryview(data)
    batches = [batch for batch in batches_in(data, place.salt) if batch.header.messages]
    frames = [_frame_of(view, batch.messages_at, batch.header, place) for batch in batches]
    if sum(_wanted_count(frame) for frame in frames if frame is not None) < place.mask.bit_count():
        raise Stale(f"{place.path}: bytes from {place.offset + bad_at} on do not check", place)


def _frame_of(view: memoryview, offset: int, header: BatchHeader, place: _Place) -> Frame | None:
    """Return a frame with the wanted messages of a batch whose entries are at `offset`, or None if there are none."""
    count, first_seq = header.messages, header.first_seq
    entries = view[offset : offset + header.messages_bytes]
    if header.flags & Flag.COPY:
        seqs = [seq for seq, _ in decode_seqs(entries, 0, count, first_seq)]
        mask = _mask_of(seqs, place)
    else:
        seqs = None
        shift = first_seq - place.first
        mask = (place.mask >> shift if shift >= 0 else place.mask << -shift) & ((1 << count) - 1)
    if not mask:
        return None
    if place.tries:
        numbered = enumerate(seqs) if seqs is not None else enumerate(range(first_seq, first_seq + count))
        tries = [(i, place.tries[seq]) for i, seq in numbered if seq in place.tries and mask >> i & 1]
    else:
        tries = []
    frame = Frame(first_seq, count, mask, tries, entries)
    low, high = (mask & -mask).bit_length() - 1, mask.bit_length()
    if low or high < count:
        frame = _slice(frame, low, high)
    if frame.mask is not None and frame.mask == (1 << frame.span) - 1:
        return frame._replace(mask=None)
    return frame if 2 * _wanted_count(frame) >= frame.span else _picked(frame)


def _mask_of(seqs: list[int], place: _Place) -> int:
    """Return the mask by index of a copied batch, whose seqs have gaps."""
    mask = 0
    for index, seq in enumerate(seqs):
        if seq >= place.first and place.mask >> (seq - place.first) & 1:
            mask |= 1 << index
    return mask


def _skip(entries: bytes | memoryview, offset: int, count: int) -> int:
    """Return where the entry lies that is `count` entries behind the one at `offset`."""
    size_at = _SIZE_DELTA.unpack_from
    for _ in range(count):
        offset += size_at(entries, offset)[0]
    return offset


def _slice(frame: Frame, low: int, high: int) -> Frame:
    """Return the entries `low` to `high` - 1 of a frame."""
    mask = None if frame.mask is None else (frame.mask & ((1 << high) - 1)) >> low
    tries = [(index - low, tries) for index, tries in frame.tries if low <= index < high]
    start = _skip(frame.entries, 0, low)
    end = _skip(frame.entries, start, high - low) if high < frame.span else len(frame.entries)
    return Frame(frame.first_seq, high - low, mask, tries, memoryview(frame.entries)[start:end])


def _picked(frame: Frame) -> Frame:
    """Return a frame with only the wanted entries of another."""
    assert frame.mask is not None
    view = memoryview(frame.entries)
    parts: list[memoryview] = []
    new: dict[int, int] = {}
    offset = index = 0
    for wanted in seqs_of(0, frame.mask):
        start = _skip(view, offset, wanted - index)
        offset = _skip(view, start, 1)
        index = wanted + 1
        new[wanted] = len(parts)
        parts.append(view[start:offset])
    tries = [(new[index], tries) for index, tries in frame.tries]
    return Frame(frame.first_seq, len(parts), None, tries, b"".join(parts))


def _cut(frame: Frame, count: int, room: int, *, at_least_one: bool) -> tuple[Frame | None, int]:
    """Return the beginning of a frame, at most `count` messages and `room` bytes, and the first seq left out."""
    entries = frame.entries
    offset = index = delta = 0
    for taken, wanted in enumerate(range(frame.span) if frame.mask is None else seqs_of(0, frame.mask)):
        start = _skip(entries, offset, wanted - index)
        size, delta = _SIZE_DELTA.unpack_from(entries, start)
        if taken == count or (start + size > room and (taken or not at_least_one)):
            return (_slice(frame, 0, index) if taken else None), frame.first_seq + delta
        offset, index = start + size, wanted + 1
    return _slice(frame, 0, index), frame.first_seq + delta + 1
