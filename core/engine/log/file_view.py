"""Reads files that may have unreadable parts. Those read as zeros, and `unreadable` lists where they are."""

from __future__ import annotations

import errno
from contextlib import closing

from curbstone.core.disk import Disk, File

WINDOW_BYTES = 2 * 1024 * 1024
PAGE_BYTES = 4096

Range = tuple[int, int]
"""The first byte, and the one behind the last."""


def read_around(file: File, offset: int, size: int) -> tuple[bytes, list[Range]]:
    """Return up to `size` bytes from `offset`, fewer at the end of the file, and which of them could not be read.

    One bad sector makes the whole read fail; then it is repeated page by page. Raise OSError for anything but EIO.
    """
    try:
        return file.read(offset, size), []
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    end = min(offset + size, file.size())
    parts = []
    bad: list[Range] = []
    while offset < end:
        following = min(offset - offset % PAGE_BYTES + PAGE_BYTES, end)
        try:
            part = file.read(offset, following - offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            part = bytes(following - offset)
            if bad and bad[-1][1] == offset:
                bad[-1] = (bad[-1][0], following)
            else:
                bad.append((offset, following))
        parts.append(part)
        offset = following
    return b"".join(parts), bad


def read_file(disk: Disk, path: str, most: int = 0) -> tuple[bytes, list[Range]]:
    """Return a file, or its first `most` bytes if that is not 0, and which of them could not be read; raise OSError."""
    with closing(disk.open(path)) as file:
        return read_around(file, 0, most or file.size())


class Window:
    """A moving view of a file, so that a large segment is never in memory whole."""

    def __init__(self, file: File, limit: int) -> None:
        self._file = file
        self._limit = limit
        self.start = 0
        self.data = b""
        self.unreadable: list[Range] = []

    def load(self, offset: int, size: int) -> bool:
        """Load the `size` bytes at `offset` into `data`; return whether there are so many before the limit."""
        if offset + size > self._limit:
            return False
        if offset < self.start or offset + size > self.start + len(self.data):
            self.data, bad = read_around(self._file, offset, min(max(size, WINDOW_BYTES), self._limit - offset))
            self.unreadable += [found for found in bad if found not in self.unreadable]
            self.start = offset
        return offset + size <= self.start + len(self.data)
