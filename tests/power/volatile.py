"""Files and directories with a volatile cache, in memory: a power cut keeps what was synced, and any part of the rest.

The rules are those of POSIX, and weaker than what ext4 does:

- The contents of a file are durable after an fsync of the file. Of each write that was not synced, any of its sectors
  may be there after a cut: none, some, or all. Sectors of later writes may be there without those of earlier ones.
- An entry of a directory (made, renamed, removed) is durable after an fsync of that directory, not of the file. Entries
  that were not synced are there up to some point, in the order in which they changed. A rename is there or not.

Knows no FUSE and no clock; `random.Random` says what a cut leaves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

SECTOR = 512
ROOT = 1


@dataclass
class Write:
    """A write that was not synced."""

    offset: int
    data: bytes


@dataclass
class Resize:
    """A change of a file's size that was not synced."""

    size: int


@dataclass
class File:
    """A file: what readers see, what is durable, and what happened since."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    unsynced: list[Write | Resize] = field(default_factory=list)

    def write(self, offset: int, data: bytes) -> None:
        _put(self.data, offset, data)
        self.unsynced.append(Write(offset, data))

    def resize(self, size: int) -> None:
        """Cut the file off, or extend it with zeros, in the cache."""
        _resize(self.data, size)
        self.unsynced.append(Resize(size))

    def sync(self) -> None:
        if self.unsynced:
            self.durable = bytes(self.data)
            self.unsynced.clear()

    def cut(self, rng: Random | None) -> bool:
        """Lose the cache; return whether something was lost."""
        if not self.unsynced:
            return False
        after = bytearray(self.durable)
        kept = rng.choice((0.0, 0.5, 0.9, 1.0)) if rng else 0.0
        for change in self.unsynced:
            if isinstance(change, Resize):
                if kept and rng and rng.random() < kept:
                    _resize(after, change.size)
                continue
            for start in range(0, len(change.data), SECTOR):
                if kept and rng and rng.random() < kept:
                    _put(after, change.offset + start, change.data[start : start + SECTOR])
        is_changed = after != self.data
        self.data, self.durable = after, bytes(after)
        self.unsynced.clear()
        return is_changed


@dataclass
class Directory:
    """A directory: its entries as inode numbers, and as they are on the disk."""

    entries: dict[str, int] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)


Change = tuple[int, str, int | None]
"""An entry of a directory now stands for an inode, or for none."""


class Volume:
    """All files and directories, by inode number."""

    def __init__(self) -> None:
        self.inodes: dict[int, File | Directory] = {ROOT: Directory()}
        self.files_hurt = 0
        """Files of which a cut lost something."""
        self.entries_lost = 0
        self._next = ROOT + 1
        self._unsynced: list[list[Change]] = []
        """Changes of entries in order; those of one operation are there together or not at all."""

    def file(self, inode: int) -> File:
        found = self.inodes[inode]
        if isinstance(found, Directory):
            raise IsADirectoryError
        return found

    def directory(self, inode: int) -> Directory:
        found = self.inodes[inode]
        if isinstance(found, File):
            raise NotADirectoryError
        return found

    def find(self, parent: int, name: str) -> int:
        """Return the inode of an entry; raise FileNotFoundError."""
        found = self.directory(parent).entries.get(name)
        if found is None:
            raise FileNotFoundError
        return found

    def make(self, parent: int, name: str, new: File | Directory) -> int:
        """Make a file or a directory and return its inode; raise FileExistsError."""
        if name in self.directory(parent).entries:
            raise FileExistsError
        inode, self._next = self._next, self._next + 1
        self.inodes[inode] = new
        self._change([(parent, name, inode)])
        return inode

    def link(self, inode: int, parent: int, name: str) -> None:
        """Give a file another name; raise FileExistsError."""
        if name in self.directory(parent).entries:
            raise FileExistsError
        self._change([(parent, name, inode)])

    def remove(self, parent: int, name: str) -> None:
        """Remove an entry; raise FileNotFoundError, or OSError for a directory that is not empty."""
        found = self.inodes[self.find(parent, name)]
        if isinstance(found, Directory) and found.entries:
            raise OSError(39, "not empty")
        self._change([(parent, name, None)])

    def rename(self, parent: int, name: str, new_parent: int, new_name: str) -> None:
        """Rename an entry, in place of what has the new name."""
        inode = self.find(parent, name)
        self._change([(parent, name, None), (new_parent, new_name, inode)])

    def sync_directory(self, inode: int) -> None:
        """Make the entries of a directory durable."""
        left = []
        for operation in self._unsynced:
            if any(parent == inode for parent, _, _ in operation):
                self._make_durable(operation)
            else:
                left.append(operation)
        self._unsynced = left

    def cut(self, rng: Random | None) -> None:
        """Cut the power: lose any part of what was not synced, or all of it without `rng`."""
        kept = rng.randrange(len(self._unsynced) + 1) if rng else 0
        for operation in self._unsynced[:kept]:
            self._make_durable(operation)
        self.entries_lost += len(self._unsynced) - kept
        self._unsynced = []
        for found in self.inodes.values():
            if isinstance(found, File):
                self.files_hurt += found.cut(rng)
            else:
                found.entries = dict(found.durable)
        reachable = set(self._reachable(ROOT))
        self.inodes = {inode: found for inode, found in self.inodes.items() if inode in reachable}

    def links(self, inode: int) -> int:
        """Return how many names a file has."""
        directories = [found for found in self.inodes.values() if isinstance(found, Directory)]
        return sum(value == inode for each in directories for value in each.entries.values())

    def _reachable(self, inode: int) -> Iterable[int]:
        yield inode
        found = self.inodes[inode]
        if isinstance(found, Directory):
            for child in found.entries.values():
                yield from self._reachable(child)

    def _change(self, operation: list[Change]) -> None:
        for parent, name, inode in operation:
            entries = self.directory(parent).entries
            if inode is None:
                del entries[name]
            else:
                entries[name] = inode
        self._unsynced.append(operation)

    def _make_durable(self, operation: list[Change]) -> None:
        for parent, name, inode in operation:
            directory = self.inodes.get(parent)
            assert isinstance(directory, Directory)
            if inode is None:
                directory.durable.pop(name, None)
            else:
                directory.durable[name] = inode


def _put(data: bytearray, offset: int, piece: bytes) -> None:
    if offset > len(data):
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(piece)] = piece


def _resize(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))
