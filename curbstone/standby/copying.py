"""A full copy of the data directory as frames, made while it keeps changing.

Each block is read and added to the frames of the receiver under the lock of the stream. So a block is at least as new
as all frames before it, and frames of later changes follow it. Blocks that the receiver already has, by their digests,
are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from curbstone.core.disk import Disk
from curbstone.standby.frames import Kind
from curbstone.standby.scope import is_at_or_below, is_shipped
from curbstone.standby.stream import Cursor, Stream

BLOCK_BYTES = 256 * 1024

T = TypeVar("T")


def tree(disk: Disk) -> tuple[list[str], dict[str, int]]:
    """Return the directories that are replicated, parents first, and the files with their sizes."""
    folders: list[str] = []
    files: dict[str, int] = {}
    todo = [""]
    while todo:
        folder = todo.pop()
        for name in sorted(disk.list_dir(folder)):
            path = f"{folder}/{name}" if folder else name
            if not is_shipped(path):
                continue
            try:
                disk.list_dir(path)
            except (NotADirectoryError, FileNotFoundError):
                with suppress(FileNotFoundError):  # it was removed in the meantime
                    file = disk.open(path)
                    try:
                        files[path] = file.size()
                    finally:
                        file.close()
            else:
                folders.append(path)
                todo.append(path)
    return folders, files


def digest(data: bytes) -> bytes:
    """Return the digest of a block."""
    return hashlib.blake2b(data, digest_size=16).digest()


def digests(disk: Disk) -> dict[str, list[bytes]]:
    """Return the digests of the blocks of all files. Blocks."""
    found: dict[str, list[bytes]] = {}
    for path, size in tree(disk)[1].items():
        file = disk.open(path)
        try:
            found[path] = [digest(file.read(at, BLOCK_BYTES)) for at in range(0, size, BLOCK_BYTES)]
        finally:
            file.close()
    return found


class Copy:
    """A copy for one receiver. `step` is called by one thread; the stream calls `renamed` and `removed`."""

    def __init__(
        self,
        stream: Stream,
        disk: Disk,
        known: Mapping[str, list[bytes]],
        wake: Callable[[bool], None],
        cursor: Cursor | None = None,
    ) -> None:
        """`known` are the digests of the receiver's blocks, by path; equal blocks are left out.

        `cursor` is that of a receiver which is attached already. The copy is added to its queue.
        """
        self._stream = stream
        self._disk = disk
        self._offset = 0
        """The offset of the next block in the first remaining file."""
        self.copied_bytes = self.equal_bytes = 0
        with stream.lock:
            self.cursor: Cursor = stream.begin(wake) if cursor is None else cursor
            folders, files = tree(disk)
            self._left = {path: known.get(path, []) for path in files}
            self.cursor.renamed, self.cursor.removed = self._renamed, self._removed
            self.cursor.add_own(Kind.COPY_BEGIN)
            for path in folders:
                self.cursor.add_own(Kind.COPY_NAME, path)
            for path, size in files.items():
                self.cursor.add_own(Kind.COPY_NAME, path, size, flag=1)
            self.cursor.add_own(Kind.COPY_LISTED)

    def step(self) -> bool:
        """Add the next block; return whether there are more. Blocks; raise OSError."""
        self._warm()
        with self._stream.lock:
            path = next(iter(self._left), None)
            if path is None:
                self._stream.add_time()  # the moment of the copy
                self.cursor.add_own(Kind.COPY_END)
                self.cursor.renamed, self.cursor.removed = lambda _old, _new: None, lambda _path: None
                return False
            data = self._read(path)
            number = self._offset // BLOCK_BYTES
            known = self._left[path]
            if not data:
                pass
            elif number < len(known) and known[number] == digest(data):
                self.equal_bytes += len(data)
            else:
                self.copied_bytes += len(data)
                self.cursor.add_own(Kind.COPY_DATA, path, self._offset, payload=[data])
            self._offset += len(data)
            if len(data) < BLOCK_BYTES:
                del self._left[path]
                self._offset = 0
            return True

    def _warm(self) -> None:
        """Read the next block into the page cache before the lock is taken, because reading may take long."""
        path = next(iter(self._left), None)
        if path is not None:
            with suppress(OSError):
                self._read(path)

    def _read(self, path: str) -> bytes:
        file = self._disk.open(path)
        try:
            return file.read(self._offset, BLOCK_BYTES)
        finally:
            file.close()

    def _renamed(self, old: str, new: str) -> None:
        self._removed(new)
        left: dict[str, list[bytes]] = {}
        for path, known in self._left.items():  # in order: the file that is being copied is the first
            there = new + path.removeprefix(old) if is_at_or_below(path, old) else path
            if is_shipped(there):
                left[there] = known
        self._set_left(left)

    def _removed(self, gone: str) -> None:
        self._set_left({path: known for path, known in self._left.items() if not is_at_or_below(path, gone)})

    def _set_left(self, left: dict[str, list[bytes]]) -> None:
        """Replace the remaining files; the first one may be a different one."""
        before, now = next(iter(self._left.values()), None), next(iter(left.values()), None)
        if now is not before:  # compared by identity: each file has its own list
            self._offset = 0
        self._left = left
