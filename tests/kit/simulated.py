"""A world made of memory: clock, turns and a disk that tears, forgets and fails, all from one seed.

The fault model of the disk. What may be lost in a crash, and nothing else:

- A write that was not synced: each of its 512-byte sectors on its own is there or not, in any
  combination; a lost sector in a grown file reads as zeros. A truncation likewise happened or not.
- A name that was created, renamed or removed and whose directory was not synced: the last few such
  changes of a directory are undone, or any of them.
- A sync may fail with EIO. Then some of what it should have written is durable and some is not, the
  file still reads as if all were, and the next sync succeeds without writing the lost part.
- A write may fail with ENOSPC when the disk is full; part of it may be done.
- A change of a name, or a truncation, may fail with EIO, and may have been made all the same.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any

from curbstone.core.durable_write import DurableWrite
from tests.kit.inode import MOST_BYTES, Inode, Names, put

SECTOR = 512


class Crash(BaseException):
    """The machine stops here."""


class SimFile:
    """An open file of the simulated disk."""

    def __init__(self, disk: SimDisk, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._open = True
        self.has_failed = False
        """Whether all later syncs fail, too, because one has: see `SimWrite`."""

    def read(self, offset: int, size: int) -> bytes:
        assert self._open
        return bytes(self._inode.cache[offset : offset + size])

    def write(self, offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        assert self._open, "write to a closed file"
        data = b"".join(buffers)
        self._disk.tick()
        fits = self._disk.room_for(self._inode, offset + len(data))
        if not fits:
            data = data[: self._disk.rng.randrange(len(data) + 1)]
            if not self._disk.room_for(self._inode, offset + len(data)):
                data = b""
        if data and self._inode.write(offset, data):
            self._disk.check_cap(self._inode)
        if not fits:
            raise OSError(errno.ENOSPC, "No space left on device")

    def sync(self) -> None:
        assert self._open
        self._disk.tick()
        inode = self._inode
        if self.has_failed:
            raise OSError(errno.EIO, "Input/output error")
        if self._disk.sync_fails():
            self._disk.tear(inode)
            raise OSError(errno.EIO, "Input/output error")
        inode.make_durable()

    def durable_write(self, offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> SimWrite | None:
        """See `core.durable_write`; every now and then it is not possible."""
        return None if self.has_failed or self._disk.ops % 2 else SimWrite(self, offset, buffers)

    def truncate(self, size: int) -> None:
        assert self._open
        self._disk.tick()
        self._disk.change(lambda: self._inode.truncate(size))

    def size(self) -> int:
        return len(self._inode.cache)

    def close(self) -> None:
        self._open = False


class SimWrite(DurableWrite):
    """A write and its sync that a host may make in place of a job."""

    __slots__ = ("_file",)

    def __init__(self, file: SimFile, offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        super().__init__(-1, offset, buffers, lambda *_: None)  # `end` is never called: the file records the failure
        self._file = file

    def run(self, job: Callable[[], Any]) -> Any:
        """Make them; if that fails, run the job, as a host does."""
        try:
            self._file.write(self.offset, self.buffers)
        except OSError:
            return job()
        try:
            self._file.sync()
        except OSError:
            self._file.has_failed = True
            return job()
        return None


class SimDisk:
    """See the module's docstring."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.names = {}
        self.durable_names = {}
        self.dirs: set[str] = {""}
        self.durable_dirs: set[str] = {""}
        self.changes: list[tuple[str, str, Inode | None]] = []
        self.capacity = 1 << 60
        self.caps: Callable[[str], int | None] = lambda _directory: None
        self.over_cap: list[str] = []
        self.crash_in = -1
        self.eio_chance = 0.0
        self.doubt_chance = 0.0
        """How often a change of a name, or a truncation, fails and leaves open whether it was made."""
        self.hides_loss = False
        """Whether a sync has failed since the last power cut: what is read may not be on the platter."""
        self.ops = 0

    @property
    def names(self) -> dict[str, Inode]:
        """What there is, as the process sees it."""
        return self._names

    @names.setter
    def names(self, files: dict[str, Inode]) -> None:
        self._names = Names(files)

    @property
    def durable_names(self) -> dict[str, Inode]:
        """What a power cut leaves."""
        return self._durable_names

    @durable_names.setter
    def durable_names(self, files: dict[str, Inode]) -> None:
        self._durable_names = Names(files)

    # --- faults

    def tick(self) -> None:
        """One more call of the operating system; the crash may be due here."""
        self.ops += 1
        if self.crash_in >= 0:
            self.crash_in -= 1
            if self.crash_in < 0:
                raise Crash

    def sync_fails(self) -> bool:
        fails = self.eio_chance > 0 and self.rng.random() < self.eio_chance
        self.hides_loss |= fails
        return fails

    def change_fails(self) -> bool:
        return self.doubt_chance > 0 and self.rng.random() < self.doubt_chance

    def change(self, make: Callable[[], object], named: tuple[str, str, Inode | None] | None = None) -> None:
        """Make a change, of a name if there is one, that may fail and may be made all the same."""
        fails = self.change_fails()
        if not fails or self.rng.random() < 0.5:
            make()
            self.changes += [named] if named else []
        if fails:
            raise OSError(errno.EIO, "Input/output error")

    def room_for(self, inode: Inode, end: int) -> bool:
        if self.capacity >= 1 << 60:
            return True
        used = sum(len(other.cache) for other in self.names.values() if other is not inode)
        return used + max(end, len(inode.cache)) <= self.capacity

    def tear(self, inode: Inode) -> None:
        """Some of what was not synced is durable, some is not."""
        mood = self.rng.random()
        for offset, data in inode.pending:
            if offset < 0:
                if self.rng.random() < 0.5:
                    del inode.durable[-offset - 1 :]
                continue
            if mood < 0.25:
                continue
            if mood < 0.4:
                put(inode.durable, offset, data)
                continue
            if mood < 0.6:
                put(inode.durable, offset, data[: self.rng.randrange(len(data) + 1)])
                continue
            position = 0
            while position < len(data):
                step = min(SECTOR - (offset + position) % SECTOR, len(data) - position)
                if self.rng.random() < 0.5:
                    put(inode.durable, offset + position, data[position : position + step])
                position += step
            if self.rng.random() < 0.5:
                put(inode.durable, offset + len(data), b"")
        inode.forget_pending()

    def crash(self) -> None:
        """Forget what was not durable; what is left is what a restart finds."""
        self.hides_loss = False
        for inode in {id(i): i for i in [*self.names.values(), *self.durable_names.values()]}.values():
            self.tear(inode)
        keep_prefix = self.rng.random() < 0.7
        cut = self.rng.randrange(len(self.changes) + 1)
        for position, change in enumerate(self.changes):
            if position < cut if keep_prefix else self.rng.random() < 0.5:
                self._apply(change)
        self.changes.clear()
        self.names = {}
        copies: dict[int, Inode] = {}
        there = {p: i for p, i in self.durable_names.items() if p.rpartition("/")[0] in self.durable_dirs}
        self.durable_names = there  # a file is lost with the directory it was made in
        for path, inode in self.durable_names.items():
            copies.setdefault(id(inode), inode.copy_durable())
            self.names[path] = copies[id(inode)]
        self.durable_names = dict(self.names)
        self.dirs = set(self.durable_dirs)
        self.crash_in = -1

    def _apply(self, change: tuple[str, str, Inode | None]) -> None:
        kind, path, inode = change
        if kind == "create" and inode is not None:
            if path.rpartition("/")[0] in self.dirs | self.durable_dirs:  # else its directory was renamed or removed
                self.durable_names[path] = inode
        elif kind == "remove":
            self.durable_names.pop(path, None)
        elif kind == "mkdir":
            self.durable_dirs.add(path)
        elif kind == "rmtree":
            self.durable_dirs = {d for d in self.durable_dirs if d != path and not d.startswith(path + "/")}
            self.durable_names = {p: i for p, i in self.durable_names.items() if not p.startswith(path + "/")}
        elif kind.startswith("rename:"):
            old = kind.removeprefix("rename:")
            if inode is not None:
                if self.durable_names.get(old) is inode:
                    del self.durable_names[old]
                self.durable_names[path] = inode
            elif old in self.durable_dirs:
                self.durable_dirs = {path if d == old else d for d in self.durable_dirs}
                moved = {p: i for p, i in self.durable_names.items() if p.startswith(old + "/")}
                for name, found in moved.items():
                    del self.durable_names[name]
                    self.durable_names[path + name.removeprefix(old)] = found

    def check_cap(self, written: Inode | None = None) -> None:
        """Note each directory that holds more than its cap, or would after a power cut, whatever that undid.

        With `written`, of the directories that this file has a name in. Once a sync has failed, it is unknown what a
        power cut would leave. Directories that a start removes unread are counted as they are now.
        """
        names = [self._names] if self.hides_loss else [self._names, self._durable_names]
        known = [each for there in names for each in there.inside.items()]
        for directory in {path for path, files in known if written is None or written in files.values()}:
            cap = self.caps(directory)
            if cap is None:
                continue
            only_now = self.hides_loss or directory.endswith(".gone")
            places = [self._names] if only_now else names
            held = set().union(*[there.inside[directory].values() for there in places])
            size = sum(len(inode.cache) for inode in held) if only_now else sum(map(MOST_BYTES, held))
            if size > cap:
                self.over_cap.append(f"{directory} holds up to {size} bytes after a power cut, its cap is {cap}")

    # --- the port

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self.tick()
        if create:
            if path in self.names:
                raise FileExistsError(path)
            inode = Inode()
            self.change(lambda: self.names.update({path: inode}), ("create", path, inode))
        elif path in self.dirs:
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        elif path not in self.names:
            raise FileNotFoundError(path)
        return SimFile(self, self.names[path])

    def open_lasting(self, path: str, *, create: bool = False) -> SimFile:
        return self.open(path, create=create)

    def list_dir(self, path: str) -> list[str]:
        prefix = path + "/" if path else ""
        if path not in self.dirs:
            raise FileNotFoundError(path)
        found = {p.removeprefix(prefix).partition("/")[0] for p in self.names if p.startswith(prefix)}
        found |= {d.removeprefix(prefix).partition("/")[0] for d in self.dirs if d.startswith(prefix) and d != path}
        return sorted(found - {""})

    def make_dir(self, path: str) -> None:
        self.tick()
        if path in self.dirs:
            raise FileExistsError(path)
        self.change(lambda: self.dirs.add(path), ("mkdir", path, None))

    def rename(self, old: str, new: str) -> None:
        self.tick()
        if old not in self.names and old not in self.dirs:
            raise FileNotFoundError(old)
        self.change(lambda: self._rename(old, new))

    def _rename(self, old: str, new: str) -> None:
        inode = self.names.pop(old, None)
        if inode is not None:
            self.names[new] = inode
        else:
            self.dirs = {new if d == old else d for d in self.dirs}
            for path in [p for p in self.names if p.startswith(old + "/")]:
                self.names[new + path.removeprefix(old)] = self.names.pop(path)
        self.changes.append((f"rename:{old}", new, inode))

    def remove(self, path: str) -> None:
        self.tick()
        if path not in self.names:
            raise FileNotFoundError(path)
        self.change(lambda: self.names.pop(path), ("remove", path, None))

    def remove_tree(self, path: str) -> None:
        self.tick()
        self.change(lambda: self._remove_tree(path))

    def _remove_tree(self, path: str) -> None:
        self.dirs = {d for d in self.dirs if d != path and not d.startswith(path + "/")}
        self.names = {p: i for p, i in self.names.items() if not p.startswith(path + "/")}
        self.changes.append(("rmtree", path, None))

    def sync_all(self, path: str) -> bool:
        self.tick()
        if self.rng.random() < 0.3:
            return False  # not every system can
        for inode in {id(i): i for i in self.names.values()}.values():
            if self.sync_fails():
                self.tear(inode)
                raise OSError(errno.EIO, "Input/output error")
            inode.make_durable()
        for change in self.changes:
            self._apply(change)
        self.changes = []
        return True

    def sync_dir(self, path: str) -> None:
        self.tick()
        if self.sync_fails():
            raise OSError(errno.EIO, "Input/output error")
        rest = []
        for change in self.changes:
            if change[1].rpartition("/")[0] == path:
                self._apply(change)
            else:
                rest.append(change)
        self.changes = rest

    def close(self) -> None:
        pass


class SimTimer:
    """A pending call."""

    def __init__(self, fn: Callable[[], object]) -> None:
        self.fn: Callable[[], object] | None = fn

    def cancel(self) -> None:
        self.fn = None


class SimHost:
    """A clock, turns and jobs that advance only when a test calls them."""

    def __init__(self, rng: Random, wall_ms: int) -> None:
        self.rng = rng
        self._now_ms = wall_ms
        self.wall_offset_ms = 0
        self.soon: list[Callable[[], object]] = []
        self.timers: list[tuple[int, int, SimTimer]] = []
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []
        self.ended: list[Callable[[], object]] = []
        """Called with jobs that have run."""
        self._count = 0
        self.threads = 1 << 60
        """How many jobs may be under way at a time: they begin in order, and end in any."""

    def now_ms(self) -> int:
        return self._now_ms

    def now_us(self) -> int:
        return self._now_ms * 1000

    def wall_ms(self) -> int:
        return self._now_ms + self.wall_offset_ms

    def call_soon(self, fn: Callable[[], object]) -> object:
        self.soon.append(fn)
        return None

    def call_later(self, delay_ms: int, fn: Callable[[], object]) -> SimTimer:
        timer = SimTimer(fn)
        self._count += 1
        heappush(self.timers, (self._now_ms + max(delay_ms, 0), self._count, timer))
        return timer

    def submit(
        self,
        job: Callable[[], Any],
        done: Callable[[Any, BaseException | None], None],
        begin: Callable[[], DurableWrite | None] | None = None,
    ) -> None:
        write = begin() if begin is not None else None
        self.jobs.append((partial(write.run, job) if isinstance(write, SimWrite) else job, done))

    def turn(self) -> bool:
        """Run what `call_soon` gathered, and tell of the jobs that have run; False if there was nothing.

        Jobs run on several threads: which of them has seen what the others did says nothing of who is heard first.
        """
        soon, self.soon = self.soon, []
        ended, self.ended = self.ended, []
        self.rng.shuffle(ended)
        for fn in [*soon, *ended]:
            fn()
        return bool(soon or ended)

    def work(self) -> bool:
        """Run one job, any of those that are under way; False if there is none."""
        if not self.jobs:
            return False
        job, done = self.jobs.pop(self.rng.randrange(min(len(self.jobs), self.threads)))
        result: Any = None
        error: BaseException | None = None
        try:
            result = job()
        except Exception as caught:
            error = caught
        self.ended.append(partial(done, result, error))
        return True

    def pass_time(self, most_ms: int) -> None:
        """Let up to `most_ms` pass, and what is due happen."""
        end = self._now_ms + most_ms
        while self.timers and self.timers[0][0] <= end:
            due, _, timer = heappop(self.timers)
            self._now_ms = max(self._now_ms, due)
            if timer.fn is not None:
                timer.fn()
        self._now_ms = end

    def jump(self, ms: int) -> None:
        """Let time pass without anything happening, as when the process is stopped."""
        self._now_ms += ms

    def settle(self) -> None:
        """Continue until nothing is left to do but wait for time to pass."""
        while self.turn() or self.work():
            pass
