"""Writes the parts in redo files to their segments again, before any queue is recovered.

A power cut may have taken bytes that were written to segments and not synced there; the redo files have them. Each part
names its segment's file and the salt of that file. If the file is gone, or has been reused, the part is not needed
any more.

A redo file is removed when all of it is in the segments. If it is damaged, or a segment can't be opened, written or
synced, it is renamed instead: no later start replays it, because its queues may have written at the same places since.
`core.wal.kept` and `curbstone repair` say what becomes of it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field

from curbstone.core.disk import OF_ONE_FILE, Disk
from curbstone.core.engine.log.commit import ASIDE_SUFFIX, SEGMENT_SUFFIX, segment_path
from curbstone.core.engine.log.file_view import read_around, read_file
from curbstone.core.engine.log.format import SEGMENT_BYTES, SegmentHeader, UnknownFormat, decode_segment_header
from curbstone.core.errors import DataDirectoryError
from curbstone.core.wal.redo_format import REDO_PREFIX, Redo, decode

logger = logging.getLogger("curbstone.core")

_NAME = re.compile(re.escape(REDO_PREFIX) + r"([0-9]+)(\.[a-z]+)?")


@dataclass
class RedoContents:
    """What one redo file says, compared with the segments that are there."""

    name: str
    parts: dict[str, list[Redo]] = field(default_factory=dict)
    """By path, the parts for the present life of a segment."""
    homeless: list[Redo] = field(default_factory=list)
    """Parts for segments that are damaged, or missing though they should be there."""
    gone: list[Redo] = field(default_factory=list)
    """Parts for segments that are not there and may have been dropped."""
    denied: list[str] = field(default_factory=list)
    """What of it, or which segment, can't be read now; that may be different another time."""
    damage: list[str] = field(default_factory=list)
    """What else keeps it from being replayed completely."""
    notes: list[str] = field(default_factory=list)
    """What does not check and may be the work of a crash, or costs nothing."""


def redo_names(disk: Disk, suffix: str = "") -> list[str]:
    """Return the names of the redo files, in order; with a `suffix`, of those that end in it."""
    matches = [(name, _NAME.fullmatch(name)) for name in disk.list_dir("")]
    return sorted(name for name, match in matches if match is not None and (match[2] or "") == suffix)


def kept_redo_names(disk: Disk) -> list[str]:
    """Return the names of the redo files that a start could not replay completely."""
    return redo_names(disk, ASIDE_SUFFIX)


def read_redo(disk: Disk, name: str) -> RedoContents:
    """Return the contents of a redo file; raise DataDirectoryError for a newer format, of the file or of a segment."""
    contents = RedoContents(name)
    try:
        data, unreadable = read_file(disk, name)
    except OSError as error:
        if error.errno not in OF_ONE_FILE:
            raise
        contents.denied.append(f"it can't be read: {error.strerror}")
        return contents
    contents.denied += [f"bytes {start} to {end} can't be read" for start, end in unreadable]
    try:
        decoded = decode(data)
    except UnknownFormat as error:
        raise DataDirectoryError(f"{name}: {error}") from None
    contents.damage += decoded.damage
    contents.notes += decoded.notes
    by_path: dict[str, list[Redo]] = {}
    for redo in decoded.parts:
        by_path.setdefault(segment_path(f"queues/{redo.part.uid:012x}", redo.part.number), []).append(redo)
    for path, parts in by_path.items():
        _find_places(disk, path, parts, contents)
    return contents


def replay_redo(disk: Disk) -> dict[str, str]:
    """Write all parts to their segments and sync those, then remove the redo files or set them aside. Blocking.

    Return the segments that could not be written or synced, with the reasons.
    """
    failed: dict[str, str] = {}
    for name in redo_names(disk, ".new"):  # a crash came while it was made
        _remove(disk, name)
    files = [read_redo(disk, name) for name in redo_names(disk)]
    for path in sorted({path for contents in files for path in contents.parts}):
        concerned = [contents for contents in files if path in contents.parts]
        try:
            write_parts(disk, path, [redo for contents in concerned for redo in contents.parts[path]])
        except OSError as error:
            if error.errno not in OF_ONE_FILE:
                raise
            failed[path] = f"{path} can't be written: {error.strerror}"
            for contents in concerned:
                contents.denied.append(failed[path])
    for contents in files:
        for text in contents.notes:
            logger.warning("%s: %s", contents.name, text)
        if contents.denied or contents.damage:
            _set_aside(disk, contents)
        else:
            _remove(disk, contents.name)
    if files:
        disk.sync_dir("")
    return failed


def write_parts(disk: Disk, path: str, parts: Iterable[Redo]) -> None:
    with closing(disk.open(path)) as file:
        for redo in parts:
            file.write(redo.part.offset, [redo.data])
        file.sync()


def overlaid(data: bytes, offset: int, parts: Sequence[Redo]) -> bytes:
    """Return `data`, which was read at `offset` of a segment, as it would be if the parts were written there."""
    for redo in parts:
        start, end = max(redo.part.offset, offset), min(redo.part.offset + redo.part.size, offset + len(data))
        if start < end:
            newer = redo.data[start - redo.part.offset : end - redo.part.offset]
            data = data[: start - offset] + newer + data[end - offset :]
    return data


def _set_aside(disk: Disk, contents: RedoContents) -> None:
    """Rename a redo file so that no start replays it. Until that is durable, nothing else may be written."""
    name = contents.name
    there = set(disk.list_dir(""))
    numbers = iter(range(int(name.removeprefix(REDO_PREFIX)), 1 << 62))
    kept = next(kept for number in numbers if (kept := f"{REDO_PREFIX}{number}{ASIDE_SUFFIX}") not in there)
    for text in [*contents.denied, *contents.damage]:
        logger.error("damaged: %s: %s", name, text)
    try:
        disk.rename(name, kept)
    except OSError as error:
        raise DataDirectoryError(
            f"{name} could not be replayed completely, and can't be renamed to {kept}: {error.strerror}."
            " Move it away: a later start would write it over newer messages"
        ) from error
    logger.error("damaged: %s was not replayed completely; it is kept as %s, see curbstone repair", name, kept)


def _remove(disk: Disk, name: str) -> None:
    try:
        disk.remove(name)
    except OSError as error:  # all of it is in the segments, so the next start may well replay it again
        logger.error("%s can't be removed: %s", name, error)


def _find_places(disk: Disk, path: str, parts: list[Redo], contents: RedoContents) -> None:
    """Add the parts that belong to the present life of a segment, and note those that can't be written to it."""
    try:
        found = _look(disk, path)
    except OSError as error:
        if error.errno not in OF_ONE_FILE:
            raise
        contents.denied.append(f"{path} can't be opened: {error.strerror}")
        return
    if found is None and _is_lost(disk, path):
        contents.damage.append(f"{path} is missing")
        contents.homeless += parts
        return
    if found is None:
        contents.gone += parts
        return
    header, size = found
    if header is None:
        contents.damage.append(f"{path}: its header does not check, so {len(parts)} commits can't be written to it")
        contents.homeless += parts
        return
    for redo in parts:
        part = redo.part
        if (part.uid, part.number, part.salt) != (header.uid, header.number, header.salt):
            continue
        end = part.offset + part.size
        sealed_at = _sealed_at(disk, path, part.number) if end > size else None
        if end <= size or (part.offset == size and sealed_at is None):
            # In the second case its commit failed, the segment was cut, and a crash came before the next one was there.
            contents.parts.setdefault(path, []).append(redo)
            size = max(size, end)
        elif sealed_at is None or sealed_at >= end:
            contents.damage.append(f"{path}: bytes {size} to {end} are missing")
            contents.homeless.append(redo)


def _look(disk: Disk, path: str) -> tuple[SegmentHeader | None, int] | None:
    """Return the header and the size of a segment, or None if it is gone. Raise OSError for a link."""
    try:
        disk.list_dir(path.rpartition("/")[0])
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return decode_segment_header(read_around(file, 0, SEGMENT_BYTES)[0]), file.size()
    except UnknownFormat as error:
        raise DataDirectoryError(f"{path}: {error}") from error
    finally:
        file.close()


def _is_lost(disk: Disk, path: str) -> bool:
    """Return whether a segment that is not there can't have been dropped, because no later one is there."""
    directory, _, name = path.rpartition("/")
    try:
        names = disk.list_dir(directory)
    except FileNotFoundError:
        return False
    return next(_later(names, int(name.removesuffix(SEGMENT_SUFFIX))), None) is None


def _sealed_at(disk: Disk, path: str, number: int) -> int | None:
    """Return where the next segment says that this one ends, or None if none says that.

    If a commit failed, this is where it was to begin.
    """
    directory = path.rpartition("/")[0]
    for name in _later(disk.list_dir(directory), number):
        with suppress(OSError):
            found = _look(disk, f"{directory}/{name}")
            if found is not None and found[0] is not None and found[0].previous == number:
                return found[0].previous_end
    return None


def _later(names: list[str], number: int) -> Iterator[str]:
    """Yield the names of the segments behind segment `number`, in order."""
    for name in sorted(names):
        text = name.removesuffix(SEGMENT_SUFFIX)
        if text != name and text.isdigit() and int(text) > number:
            yield name
