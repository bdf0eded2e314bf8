"""Files of the simulated disk (`tests.kit.simulated`), and their names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

MOST_BYTES = attrgetter("most_bytes")


class Inode:
    """A file's bytes: as the process reads them, and as they are on the platter."""

    def __init__(self) -> None:
        self.cache = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes]] = []  # (offset, data), or (size, None-like marker) for a truncation
        self.most_bytes = 0
        """The size that it has, or may have after a power cut if that is more."""

    def write(self, offset: int, data: bytes) -> bool:
        """Write to the cache; return whether the file has grown."""
        grows = offset + len(data) > len(self.cache)
        self.pending.append((offset, data))
        put(self.cache, offset, data)
        self.most_bytes = max(self.most_bytes, offset + len(data))
        return grows

    def truncate(self, size: int) -> None:
        del self.cache[size:]
        self.pending.append((-size - 1, b""))
        written = [offset + len(data) for offset, data in self.pending if offset >= 0]
        self.most_bytes = max(len(self.cache), len(self.durable), *written, 0)

    def make_durable(self) -> None:
        for offset, data in self.pending:
            if offset < 0:
                del self.durable[-offset - 1 :]
            else:
                put(self.durable, offset, data)
        self.forget_pending()

    def forget_pending(self) -> None:
        """What was written and not synced is on the platter by now, or never will be."""
        self.pending.clear()
        self.most_bytes = max(len(self.cache), len(self.durable))

    def copy_durable(self) -> Inode:
        inode = Inode()
        inode.durable = bytearray(self.durable)
        inode.cache = bytearray(self.durable)
        inode.most_bytes = len(inode.cache)
        return inode


def put(target: bytearray, offset: int, data: bytes) -> None:
    if len(target) < offset + len(data):
        target.extend(bytes(offset + len(data) - len(target)))
    target[offset : offset + len(data)] = data


class Names(dict[str, Inode]):
    """The files of a disk by their paths; `inside` has them again by the directory that each is in."""

    def __init__(self, files: Mapping[str, Inode]) -> None:
        super().__init__()
        self.inside: defaultdict[str, dict[str, Inode]] = defaultdict(dict)
        self.update(files)

    def __setitem__(self, path: str, inode: Inode) -> None:
        super().__setitem__(path, inode)
        self.inside[path.rpartition("/")[0]][path] = inode

    def __delitem__(self, path: str) -> None:
        super().__delitem__(path)
        del self.inside[path.rpartition("/")[0]][path]

    def pop(self, path: str, *default: Any) -> Any:
        self.inside[path.rpartition("/")[0]].pop(path, None)
        return super().pop(path, *default)

    def update(self, files: Mapping[str, Inode]) -> None:  # type: ignore[override]
        for path, inode in files.items():
            self[path] = inode
