"""Mounts a `Volume` with FUSE, and obeys commands on stdin: run by the system's Python, which has python3-pyfuse3.

    mount.py DIRECTORY

Commands, each answered by a line on stdout:

    cut SEED      lose any part of what was not synced; the process using the files has ended   "cut FILES ENTRIES"
    cut all       lose all of it                                                                "cut FILES ENTRIES"
    stop N SEED   stop the N-th write from now in the middle: it and later ones hang            "armed", "stopped" later
    fail          let what hangs fail, so that the process, which was killed, can end           "failed"
    end           unmount
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from random import Random
from typing import Any

import pyfuse3
import trio
from volatile import ROOT, SECTOR, Directory, File, Volume

Context = Any


class Mount(pyfuse3.Operations):  # type: ignore[misc]  # it has no types
    """The volume as a file system. No cache of the kernel's is used, so that a cut has nothing to invalidate."""

    def __init__(self) -> None:
        super().__init__()
        self.volume = Volume()
        self.left = 0
        """How many writes until one is stopped; 0 for never."""
        self.rng = Random(0)
        self.is_stopped = False
        self.may_fail = trio.Event()

    async def _hang(self) -> None:
        await self.may_fail.wait()
        raise pyfuse3.FUSEError(errno.EIO)

    async def lookup(self, parent: int, name: bytes, _context: Context = None) -> Any:
        return self._attributes(_or_errno(self.volume.find, parent, os.fsdecode(name)))

    async def getattr(self, inode: int, _context: Context = None) -> Any:
        return self._attributes(inode)

    async def setattr(self, inode: int, attributes: Any, fields: Any, _handle: int | None, _context: Context) -> Any:
        if fields.update_size:
            _or_errno(self.volume.file, inode).resize(attributes.st_size)
        return self._attributes(inode)

    async def opendir(self, inode: int, _context: Context) -> int:
        return inode

    async def readdir(self, handle: int, start: int, token: Any) -> None:
        entries = list(_or_errno(self.volume.directory, handle).entries.items())
        for index, (name, inode) in enumerate(entries[start:], start):
            if not pyfuse3.readdir_reply(token, os.fsencode(name), self._attributes(inode), index + 1):
                break

    async def create(self, parent: int, name: bytes, _mode: int, _flags: int, _context: Context) -> Any:
        inode = _or_errno(self.volume.make, parent, os.fsdecode(name), File())
        return self._opened(inode), self._attributes(inode)

    async def mkdir(self, parent: int, name: bytes, _mode: int, _context: Context) -> Any:
        return self._attributes(_or_errno(self.volume.make, parent, os.fsdecode(name), Directory()))

    async def open(self, inode: int, flags: int, _context: Context) -> Any:
        file = _or_errno(self.volume.file, inode)
        if flags & os.O_TRUNC:
            file.resize(0)
        return self._opened(inode)

    async def read(self, handle: int, offset: int, size: int) -> bytes:
        return bytes(self.volume.file(handle).data[offset : offset + size])

    async def write(self, handle: int, offset: int, data: bytes) -> int:
        file = self.volume.file(handle)
        data = bytes(data)
        if self.left:
            self.left -= 1
            if not self.left:
                self.is_stopped = True
                sectors = -(-len(data) // SECTOR)
                file.write(offset, data[: self.rng.randrange(sectors + 1) * SECTOR])
                print("stopped", flush=True)
        if self.is_stopped:
            await self._hang()
        file.write(offset, data)
        return len(data)

    async def fsync(self, handle: int, _only_data: bool) -> None:
        if self.is_stopped:
            await self._hang()
        self.volume.file(handle).sync()

    async def fsyncdir(self, handle: int, _only_data: bool) -> None:
        if self.is_stopped:
            await self._hang()
        self.volume.sync_directory(handle)

    async def unlink(self, parent: int, name: bytes, _context: Context) -> None:
        _or_errno(self.volume.remove, parent, os.fsdecode(name))

    rmdir = unlink

    async def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, _context: Context
    ) -> None:
        if flags:
            raise pyfuse3.FUSEError(errno.EINVAL)
        _or_errno(self.volume.rename, parent, os.fsdecode(name), new_parent, os.fsdecode(new_name))

    async def link(self, inode: int, parent: int, name: bytes, _context: Context) -> Any:
        _or_errno(self.volume.link, inode, parent, os.fsdecode(name))
        return self._attributes(inode)

    async def statfs(self, _context: Context) -> Any:
        figures = pyfuse3.StatvfsData()
        figures.f_bsize = figures.f_frsize = 4096
        figures.f_blocks, figures.f_bfree, figures.f_bavail = 1 << 20, 1 << 19, 1 << 19
        figures.f_files, figures.f_ffree, figures.f_favail = 1 << 20, 1 << 19, 1 << 19
        figures.f_namemax = 255
        return figures

    async def flush(self, _handle: int) -> None:
        """Do nothing: close() syncs nothing."""

    async def release(self, _handle: int) -> None:
        """Do nothing: a file without names is forgotten at the next cut."""

    releasedir = release

    async def forget(self, _inodes: Any) -> None:
        """Do nothing, likewise."""

    def _opened(self, inode: int) -> Any:
        return pyfuse3.FileInfo(fh=inode, direct_io=True)

    def _attributes(self, inode: int) -> Any:
        found = self.volume.inodes.get(inode)
        if found is None:
            raise pyfuse3.FUSEError(errno.ENOENT)
        is_file = isinstance(found, File)
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.st_mode = (stat.S_IFREG | 0o600) if is_file else (stat.S_IFDIR | 0o700)
        entry.st_nlink = max(1, self.volume.links(inode)) if is_file else 2
        entry.st_size = len(found.data) if isinstance(found, File) else 0
        entry.st_blksize, entry.st_blocks = 4096, -(-entry.st_size // 512)
        entry.st_uid, entry.st_gid = os.getuid(), os.getgid()
        entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = time.time_ns()
        entry.entry_timeout = entry.attr_timeout = 0
        return entry


def _or_errno(call: Any, *args: Any) -> Any:
    """Call a method of the volume; its errors become those of the system call."""
    try:
        return call(*args)
    except KeyError:
        raise pyfuse3.FUSEError(errno.ENOENT) from None
    except FileNotFoundError:
        raise pyfuse3.FUSEError(errno.ENOENT) from None
    except FileExistsError:
        raise pyfuse3.FUSEError(errno.EEXIST) from None
    except IsADirectoryError:
        raise pyfuse3.FUSEError(errno.EISDIR) from None
    except NotADirectoryError:
        raise pyfuse3.FUSEError(errno.ENOTDIR) from None
    except OSError as error:
        raise pyfuse3.FUSEError(error.errno or errno.EIO) from None


async def carry_out(mount: Mount) -> None:
    """Carry out the commands on stdin until `end`, or the end of the file."""
    async for line in trio.lowlevel.FdStream(os.dup(0)):
        for command in line.decode().splitlines():
            match command.split():
                case ["cut", seed]:
                    mount.volume.cut(Random(int(seed)) if seed != "all" else None)
                    mount.left, mount.is_stopped, mount.may_fail = 0, False, trio.Event()
                    print(f"cut {mount.volume.files_hurt} {mount.volume.entries_lost}", flush=True)
                case ["stop", number, seed]:
                    mount.left, mount.rng = int(number), Random(int(seed))
                    print("armed", flush=True)
                case ["fail"]:
                    mount.may_fail.set()
                    print("failed", flush=True)
                case ["end"]:
                    pyfuse3.terminate()
                    return
    pyfuse3.terminate()


async def serve(mount: Mount) -> None:
    """Serve the file system until a command ends it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(carry_out, mount)
        await pyfuse3.main()
        nursery.cancel_scope.cancel()


def main() -> None:
    mount = Mount()
    assert pyfuse3.ROOT_INODE == ROOT
    pyfuse3.init(mount, sys.argv[1], {*pyfuse3.default_options, "fsname=volatile"})
    print("mounted", flush=True)
    try:
        trio.run(serve, mount)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    main()
