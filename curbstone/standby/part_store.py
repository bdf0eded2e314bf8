"""Where the parts of a history are: in a directory, or in an object store (`object_parts`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from curbstone.core.disk import Disk, file_bytes, replace_file


class WrongStore(OSError):
    """There is no such store, or it refuses these credentials."""


class PartFile(Protocol):
    """A part that is being written. Every method may raise OSError."""

    def write(self, data: bytes) -> None:
        """Append."""

    def sync(self) -> None:
        """Make what was written durable, where the store `grows`."""

    def finish(self, name: str) -> None:
        """Make all of it durable under its final name, and close it."""

    def close(self) -> None:
        """Leave it as it is."""


class PartStore(Protocol):
    """A flat place of named parts. Every method may raise OSError."""

    part_bytes_max: int
    sync_ms: int
    """How long what was received may be in the memory of this machine only."""
    grows: bool
    """Whether a part that is being written is in the store, and so outlives the process that writes it. If not, it is
    stored at once when it is complete, at the latest after `sync_ms`."""

    def claim(self, name: str, facts: Mapping[str, object]) -> None:
        """Have the file `name` with these facts, before anything else is written."""

    def names(self) -> list[str]:
        """Return what there is, in no order."""

    def size(self, name: str) -> int:
        """Return the bytes of something that `names` has returned."""

    def read(self, name: str, piece_bytes: int) -> Iterator[bytes]:
        """Yield the contents, in pieces of at most so many bytes if it `grows`. Raise FileNotFoundError."""

    def begin(self, name: str) -> PartFile:
        """Begin a part; `name` is that of an incomplete one."""

    def remove(self, names: Sequence[str]) -> None:
        """Remove what is there of these."""


class DirectoryParts:
    """Implements `PartStore` in a directory, which the lock of its disk keeps from other processes."""

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
