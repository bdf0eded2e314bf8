"""Redo files that a start could not replay completely, and what the logs lack of them.

A part in such a file may still fit: written to its place, it continues the log, or fills a damaged stretch, and nothing
that is there is lost. The next commit of its queue would take that place. So a queue for which parts fit is not served
until `curbstone repair` has written them. A part whose place is taken is never written there; repair saves its
messages elsewhere.
"""

from __future__ import annotations

import logging
from contextlib import closing, suppress
from dataclasses import dataclass, field

from curbstone.core.disk import Disk, File, file_bytes
from curbstone.core.engine.log.commit import ASIDE_SUFFIX, SEGMENT_SUFFIX, segment_path
from curbstone.core.engine.log.scan import Scan
from curbstone.core.engine.recovery.chain import find_chain
from curbstone.core.stats import Commits
from curbstone.core.wal.redo_format import REDO_PREFIX, Redo
from curbstone.core.wal.replay import RedoContents, kept_redo_names, overlaid, read_redo, redo_names, replay_redo

logger = logging.getLogger("curbstone.core")


@dataclass
class KeptRedo:
    """One redo file that was set aside."""

    contents: RedoContents
    size: int = 0
    fitting: dict[str, list[Redo]] = field(default_factory=dict)
    """By path of the segment, the parts that its log lacks and that can still be written there."""
    others: list[Redo] = field(default_factory=list)
    """The parts that the logs lack and that can't be written to them any more."""

    def __str__(self) -> str:
        fitting = sum(map(len, self.fitting.values()))
        text = f"{self.contents.name}: a redo file that was not replayed completely, kept for repair"
        if fitting or self.others:
            lacking = fitting + len(self.others)
            text += f"; {lacking} commits in it are not in the logs, {fitting} of them can be written there"
        return "; ".join([text, *self.contents.denied, *self.contents.damage])


@dataclass
class KeptFiles:
    """All redo files that were set aside."""

    texts: list[str] = field(default_factory=list)
    """What operators read about each."""
    bytes: int = 0
    lacking: dict[str, str] = field(default_factory=dict)
    """By directory below `queues/`, why its queue can't be served."""
    highest: int = 0
    """The highest number of a redo file that could not be removed. New ones get higher numbers."""


def find_kept(disk: Disk) -> KeptFiles:
    """Look at all redo files that were set aside. Blocking."""
    found = KeptFiles()
    for name in kept_redo_names(disk):
        kept = read_kept(disk, name)
        found.texts.append(str(kept))
        found.bytes += kept.size
        for path in kept.fitting:
            text = f"{path} lacks commits that {name} has"
            found.lacking[path.split("/")[1]] = text
    return found


def recover_redo(disk: Disk, commits: Commits) -> KeptFiles:
    """Replay all redo files at a start, then report and count those that are or were set aside. Blocking."""
    failed = replay_redo(disk)
    found = find_kept(disk)
    found.lacking |= {path.split("/")[1]: text for path, text in failed.items()}
    found.highest = max([int(name.removeprefix(REDO_PREFIX)) for name in redo_names(disk)], default=0)
    commits.redo_bytes_kept = found.bytes
    for text in found.texts:
        logger.error("damaged: %s", text)
    return found


def read_kept(disk: Disk, name: str) -> KeptRedo:
    """Return what a redo file says that was set aside, compared with the logs."""
    kept = KeptRedo(read_redo(disk, name))
    contents = kept.contents
    with suppress(OSError):  # it may be a directory or a link
        kept.size = file_bytes(disk, name)
    for path, parts in contents.parts.items():
        absent = _absent(disk, path, parts)
        if absent and _fits(disk, path, absent):
            kept.fitting[path] = absent
        else:
            kept.others += absent
    kept.others += contents.homeless
    kept.others += [redo for redo in contents.gone if _was_set_aside(disk, redo)]
    return kept


def _absent(disk: Disk, path: str, parts: list[Redo]) -> list[Redo]:
    """Return the parts whose bytes are not at their place."""
    with closing(disk.open(path)) as file:
        return [redo for redo in parts if file.read(redo.part.offset, redo.part.size) != redo.data]


def _fits(disk: Disk, path: str, parts: list[Redo]) -> bool:
    """Return whether a log would gain all these parts and lose nothing if they were written to this segment."""
    directory = path.rpartition("/")[0]
    chain = find_chain(disk, directory, parts[0].part.uid)
    for segment, header in chain.segments:
        if segment.path != path or header is None:
            continue
        is_newest = segment is chain.segments[-1][0]
        before, after = [Scan(disk, segment.snapshot(), header.next_batch - 1, is_active=is_newest) for _ in range(2)]
        with closing(disk.open(path)) as file:
            there, then = [
                {batch.offset: (batch.header, batch.data[batch.at : batch.at + 4]) for batch in scan.batches_in(each)}
                for scan, each in ((before, file), (after, _OverlayFile(file, parts)))
            ]
        gains = {redo.part.offset for redo in parts} <= set(then) - set(there)
        return gains and there.items() <= then.items() and len(after.damage) <= len(before.damage)
    return False


def _was_set_aside(disk: Disk, redo: Redo) -> bool:
    path = segment_path(f"queues/{redo.part.uid:012x}", redo.part.number)
    directory, _, name = path.rpartition("/")
    try:
        return name.removesuffix(SEGMENT_SUFFIX) + ASIDE_SUFFIX in disk.list_dir(directory)
    except OSError:
        return False


class _OverlayFile:
    """A segment that is read as if some parts were written to it. Implements `core.disk.File`; nothing writes to it."""

    def __init__(self, file: File, parts: list[Redo]) -> None:
        self._file = file
        self._parts = parts
        self.write, self.sync, self.truncate = file.write, file.sync, file.truncate
        self.size, self.close = file.size, file.close

    def read(self, offset: int, size: int) -> bytes:
        return overlaid(self._file.read(offset, size), offset, self._parts)
