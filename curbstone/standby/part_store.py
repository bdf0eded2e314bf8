"""Stores of the parts of a history: a directory, or an object store (`object_parts`)."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol, Self

from curbstone.core.disk import Disk, file_bytes, replace_file

READERS = 16
"""How many parts of an object store are read at once."""
AHEAD_BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of parts that are read ahead."""


class WrongStore(OSError):
    """The store does not exist, or refuses the credentials."""


class PartFile(Protocol):
    """A part that is being written. Every method may raise OSError."""

    def write(self, data: bytes) -> None:
        """Append data."""

    def sync(self) -> None:
        """Make what was written durable if the store `grows`."""

    def finish(self, name: str) -> None:
        """Make the part durable under its final name, and close it."""

    def close(self) -> None:
        """Close an incomplete part."""


class Readable(Protocol):
    """Parts that can be read."""

    def read(self, name: str, piece_bytes: int) -> Iterator[bytes]:
        """Yield the contents, in pieces of at most `piece_bytes` if the store `grows`.

        Raise FileNotFoundError if there is no part of this name, or another OSError.
        """


class PartStore(Readable, Protocol):
    """Named parts, without directories. Every method may raise OSError."""

    part_bytes_max: int
    sync_ms: int
    """For how long received frames may be in memory only."""
    grows: bool
    """Whether a part is in the store while it is being written, so that it survives a crash of the process. Otherwise
    it is stored when it is complete, after `sync_ms` at the latest."""

    def claim(self, name: str, facts: Mapping[str, object]) -> None:
        """Create the index `name` with these facts, before anything else is written."""

    def names(self) -> list[str]:
        """Return all names, in any order."""

    def size(self, name: str) -> int:
        """Return the size in bytes of a name that `names` has returned."""

    def begin(self, name: str) -> PartFile:
        """Begin an incomplete part named `name`."""

    def remove(self, names: Sequence[str]) -> None:
        """Remove parts; names that do not exist are ignored."""


class ReadAhead:
    """A context manager that reads parts of a store ahead, several at once, because each call to a store takes long.

    One thread calls `read`, for each name in turn.
    """

    def __init__(self, store: Readable, sizes: Mapping[str, int]) -> None:
        """`sizes` has the names of the parts in the order in which they will be read, with their sizes."""
        self._store = store
        self._left = deque(sizes)
        self._sizes = sizes
        self._under_way: dict[str, Future[bytes]] = {}
        self._threads = ThreadPoolExecutor(READERS, "curbstone-read")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def read(self, name: str, _piece_bytes: int) -> Iterator[bytes]:
        """Yield the contents. Raise OSError."""
        self._begin()
        yield self._under_way.pop(name).result()

    def _begin(self) -> None:
        """Start to read as many parts as may be in memory, but at least one."""
        ahead_bytes = sum(self._sizes[name] for name in self._under_way)
        while self._left and (not self._under_way or self._may_begin(ahead_bytes)):
            name = self._left.popleft()
            ahead_bytes += self._sizes[name]
            self._under_way[name] = self._threads.submit(self._contents, name)

    def _may_begin(self, ahead_bytes: int) -> bool:
        is_room = ahead_bytes + self._sizes[self._left[0]] <= AHEAD_BYTES_MAX
        return is_room and len(self._under_way) < READERS

    def _contents(self, name: str) -> bytes:
        return b"".join(self._store.read(name, AHEAD_BYTES_MAX))


class DirectoryParts:
    """Implements `PartStore` in a directory, which its `Disk` locks against other processes."""

    part_bytes_max = 64 * 1024 * 1024
    sync_ms = 1000
    grows = True

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def claim(self, name: str, facts: Mapping[str, object]) -> None:
        """See `PartStore`."""
        if name not in self.names():
            replace_file(self._disk, name, json.dumps(facts).encode() + b"\n").close()

    def names(self) -> list[str]:
        """See `PartStore`."""
        return self._disk.list_dir("")

    def size(self, name: str) -> int:
        """See `PartStore`."""
        return file_bytes(self._disk, name)

    def read(self, name: str, piece_bytes: int) -> Iterator[bytes]:
        """See `PartStore`."""
        file = self._disk.open(name)
        try:
            at = 0
            while data := file.read(at, piece_bytes):
                at += len(data)
                yield data
        finally:
            file.close()

    def begin(self, name: str) -> _File:
        """See `PartStore`."""
        return _File(self._disk, name)

    def remove(self, names: Sequence[str]) -> None:
        """See `PartStore`."""
        for name in names:
            with suppress(FileNotFoundError):
                self._disk.remove(name)


class _File:
    """Implements `PartFile`."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._file = disk.open(path, create=True)
        self._bytes = 0

    def write(self, data: bytes) -> None:
        self._file.write(self._bytes, [data])
        self._bytes += len(data)

    def sync(self) -> None:
        self._file.sync()

    def finish(self, name: str) -> None:
        self._file.sync()
        self._file.close()
        self._disk.rename(self._path, name)
        self._disk.sync_dir("")

    def close(self) -> None:
        self._file.close()
