"""Restores a data directory from a history, as of a moment.

The newest base before the moment is restored, and then the stream up to the last sync that had begun by then. So with
`--sync always` the result has everything that was confirmed by then, and nothing that was written later. With the other
sync modes, the stream has a time only once a second.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

from curbstone.backup.files import BackupError
from curbstone.backup.receive import PARTIAL, Unpacked, private_files
from curbstone.core.disk import OsDisk
from curbstone.core.engine.directories import QUEUES
from curbstone.standby.applying import Applier
from curbstone.standby.copying import tree
from curbstone.standby.frames import BadFrame, Frame, Kind
from curbstone.standby.history import Part, base_of, frames_of, parts_of, time_of
from curbstone.standby.part_store import PartStore, Readable, ReadAhead
from curbstone.standby.scope import STATE_DIR
from curbstone.standby.state_files import StateFiles

FILES_MAX = 500
FRAMES_AT_ONCE = 1000


class Stretch(NamedTuple):
    """A period in which every moment can be restored."""

    from_ms: int
    to_ms: int
    bases: int
    size: int
    """Its stored size in bytes."""


class Base(NamedTuple):
    """The full copy from which a moment is restored."""

    life: int
    start: int
    """The position before its first frame."""
    last_ms: int


class Verified(NamedTuple):
    """What could be restored."""

    at: str
    changes: int


class Progress(Protocol):
    """Shows the progress of long work; `cli.output.progress` implements it."""

    def __call__(self, text: str, total: int | None, /) -> AbstractContextManager[Callable[[int], None]]:
        """Begin, and yield a function to call with the number of items that were just done."""


class _SyncAtEnd:
    """Skips the syncs of the stream, because everything is synced at the end. Implements `applying.Syncs`."""

    def start(self, _job: Callable[[], None], done: Callable[[OSError | None], None]) -> Callable[[], None]:
        done(None)
        return lambda: None


def stretches(history: PartStore) -> list[Stretch]:
    """Return the periods that can be restored, oldest first. Raise BackupError if there is no history."""
    found: list[Stretch] = []
    before: Part | None = None
    is_usable = False
    for part in parts_of(history):
        is_usable &= before is not None and part.follows(before)
        if is_usable:
            last = found[-1]
            found[-1] = Stretch(last.from_ms, part.last_ms, last.bases + part.ends, last.size + part.size)
        elif part.ends:
            found.append(Stretch(part.last_ms, part.last_ms, 1, part.size))
            is_usable = True
        before = part
    return found


@contextmanager
def _not_shown(_text: str, _total: int | None) -> Iterator[Callable[[int], None]]:
    yield lambda _count: None


@contextmanager
def unpacked_at(
    history: PartStore, at_ms: int | None, beside: Path, progress: Progress = _not_shown
) -> Iterator[Unpacked]:
    """Yield the data directory as it was at a moment, or at the latest one, in a directory next to `beside`.

    The caller may change or move it. Raise BackupError if the history does not cover the moment.
    """
    work = beside.with_name(beside.name + PARTIAL)
    shutil.rmtree(work, ignore_errors=True)
    with private_files():
        work.mkdir(parents=True)
        try:
            data = work / "data"
            reached_ms = _restore(history, at_ms, data, progress)
            yield Unpacked(data, _facts(data, reached_ms))
        finally:
            shutil.rmtree(work, ignore_errors=True)


def verify(history: PartStore, at_ms: int | None, progress: Progress = _not_shown) -> Verified:
    """Read and check everything that is needed to restore a moment, or the latest one.

    Raise BackupError if it is damaged, or if the history does not cover the moment.
    """
    with _reading(history, at_ms, progress) as (base, frames):
        count, reached_ms = 0, base.last_ms
        for frame in frames:
            count += 1
            reached_ms = max(reached_ms, frame.a if frame.kind is Kind.TIME else 0)
    return Verified(shown(reached_ms), count)


def _restore(history: PartStore, at_ms: int | None, data: Path, progress: Progress) -> int:
    """Restore to a new directory; return the time of the last change in it."""
    disk = OsDisk(data, FILES_MAX)
    try:
        with _reading(history, at_ms, progress) as (base, frames):
            files = StateFiles(disk, b"")
            applier = Applier(disk, _SyncAtEnd(), files)
            applier.begin(base.life, base.start)
            try:
                while some := list(islice(frames, FRAMES_AT_ONCE)):
                    applier.apply_frames(some)
            except BadFrame as error:
                raise BackupError(str(error)) from None
            reached_ms = max(applier.time_ms, base.last_ms)
        applier.close()
        applier.promote()
        disk.remove_tree(STATE_DIR)
        disk.sync_dir("")
    finally:
        disk.close()
    (data / "lock").unlink()
    return reached_ms


@contextmanager
def _reading(history: PartStore, at_ms: int | None, progress: Progress) -> Iterator[tuple[Base, Iterator[Frame]]]:
    """Yield the base from which a moment is restored, and the frames from its beginning up to the moment."""
    parts = parts_of(history)
    found = base_of(parts, at_ms)
    if found is None:
        raise BackupError(f"it has no base {f'from {shown(at_ms)} or before' if at_ms is not None else 'yet'}")
    first, last = found
    base = Base(parts[first].life, parts[first].start, parts[last].last_ms)
    behind = range(last + 1, len(parts))
    end = next((index for index in behind if at_ms is not None and parts[index].last_ms > at_ms), len(parts))
    needed = parts[first : end + 1]  # the moment is in the last one, at the latest
    store: AbstractContextManager[Readable]
    store = nullcontext(history) if history.grows else ReadAhead(history, {each.name: each.size for each in needed})
    with store as readable, progress("Reading the history", len(needed)) as done:
        yield base, _frames(readable, parts, first, last, at_ms, done)


def _frames(
    history: Readable, parts: list[Part], first: int, last: int, at_ms: int | None, done: Callable[[int], None]
) -> Iterator[Frame]:
    """Yield the frames of a base, and those after it up to a moment; count the parts that are `done`."""
    assert parts[first].begins and parts[last].ends
    for part in parts[first : last + 1]:
        yield from frames_of(history, part)
        done(1)
    before = parts[last]
    undated: list[Frame] = []
    for part in parts[last + 1 :]:
        if not part.follows(before):
            break
        before = part
        for frame in frames_of(history, part):
            now_ms = time_of(frame)
            if at_ms is not None and now_ms is not None and now_ms > at_ms:
                return
            if frame.is_counted:  # all others are of a later base
                undated.append(frame)
            if now_ms is not None or at_ms is None:
                yield from undated
                undated.clear()
        done(1)
    if at_ms is not None and at_ms > before.last_ms:
        index = parts.index(before) + 1
        if index == len(parts):
            raise BackupError(f"it ends at {shown(before.last_ms)}, before {shown(at_ms)}")
        later = next((part for part in parts[index:] if part.ends), None)
        gap = f"after {shown(before.last_ms)}" + (f" until {shown(later.last_ms)}" if later is not None else "")
        raise BackupError(f"it has a gap {gap}, which includes {shown(at_ms)}")


def _facts(data: Path, reached_ms: int) -> dict[str, object]:
    disk = OsDisk(data, is_shared=True)
    folders, files = tree(disk)
    queues = [folder for folder in folders if folder.startswith(f"{QUEUES}/")]
    return {"at": shown(reached_ms), "queues": len(queues), "files": len(files), "bytes": sum(files.values())}


def shown(time_ms: int) -> str:
    """Format a moment."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
