"""Writes the parts in redo files to their segments again, before any queue is recovered.

A power cut may have taken bytes that were written to segments and not synced there; the redo files have them. Each part
names its segment's file and the salt of that file. If the file is gone, or is in another life, nobody needs the part
any more.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

from curbstone.core.disk import Disk, File
from curbstone.core.errors import DataDirectoryError
from curbstone.core.log.commit import segment_path
from curbstone.core.log.format import SEGMENT_BYTES, UnknownFormat, decode_segment_header
from curbstone.core.log.redo import REDO_PREFIX, Redo, UnknownRedoFormat, decode
from curbstone.core.log.window import read_around

logger = logging.getLogger("curbstone.core")

_NAME = re.compile(re.escape(REDO_PREFIX) + r"[0-9]+")


def redo_names(disk: Disk) -> list[str]:
    """Return the names of the redo files, in no meaningful order."""
    return sorted(name for name in disk.list_dir("") if _NAME.fullmatch(name))


def read_redo(disk: Disk, damage: list[str]) -> dict[str, list[Redo]]:
    """Return, by path, the parts for segments that are there; raise DataDirectoryError for a newer format.

    Texts about damage in the redo files are added to `damage`.
    """
    found: dict[str, list[Redo]] = {}
    for name in redo_names(disk):
        wrong: list[str] = []
        try:
            for redo in decode(_read(disk, name), wrong):
                path = segment_path(f"queues/{redo.part.uid:012x}", redo.part.number)
                found.setdefault(path, []).append(redo)
        except UnknownRedoFormat as error:
            raise DataDirectoryError(f"{name}: {error}") from None
        damage += [f"{name}: {text}" for text in wrong]
    return {path: wanted for path, parts in found.items() if (wanted := list(_wanted(disk, path, parts)))}


def replay_redo(disk: Disk) -> None:
    """Write all parts to their segments and sync those, then remove the redo files. Blocking."""
    damage: list[str] = []
    names = redo_names(disk)
    for path, parts in sorted(read_redo(disk, damage).items()):
        file = disk.open(path)
        try:
            for redo in parts:
                file.write(redo.part.offset, [redo.data])
            file.sync()
        finally:
            file.close()
    for name in names:
        disk.remove(name)
    if names:
        disk.sync_dir("")
    for text in damage:
        logger.error("damaged: %s", text)


def _wanted(disk: Disk, path: str, parts: list[Redo]) -> Iterator[Redo]:
    """Yield the parts that belong to the present life of a file."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return
    try:
        header = decode_segment_header(read_around(file, 0, SEGMENT_BYTES)[0])
        size = file.size()
    except UnknownFormat:
        return  # the queue is not served, and nothing of it is touched
    finally:
        file.close()
    if header is not None:
        for redo in parts:
            part = redo.part
            is_its = (part.uid, part.number, part.salt) == (header.uid, header.number, header.salt)
            # A confirmed part lies within the file. If a commit failed, the file may have been cut before its part.
            if is_its and part.offset + part.size <= size:
                yield redo


def _read(disk: Disk, name: str) -> bytes:
    file: File = disk.open(name)
    try:
        return read_around(file, 0, file.size())[0]
    finally:
        file.close()
