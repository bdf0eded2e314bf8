"""Compares the sealed segments of a copy with those of its server, while the copy follows.

A segment is sealed when its queue has a later one. From then on it is only read, until it is removed. The standby sends
the digests of its blocks, a few at a time. The server sends those that differ in the stream: each is read and added
under the lock of the stream, so it is right at its place there, whatever has changed meanwhile. What the server itself
can't read without damage is not sent, because it would replace what may be the only good copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from curbstone.core.disk import Disk, File
from curbstone.core.engine.directories import QUEUES
from curbstone.core.engine.log.commit import SEGMENT_SUFFIX
from curbstone.core.engine.log.scan import Scan
from curbstone.core.engine.recovery.chain import find_chain
from curbstone.core.errors import CurbstoneError
from curbstone.standby.copying import BLOCK_BYTES, digest, tree
from curbstone.standby.frames import Kind
from curbstone.standby.scope import is_shipped
from curbstone.standby.stream import Stream

_SEGMENT = re.compile(rf"{QUEUES}/[^/]+/\d+{re.escape(SEGMENT_SUFFIX)}")

BLOCKS_AT_ONCE = 16
BYTES_S = 16 * 1024 * 1024
"""So much is read in a second, on both sides."""


class Compared(NamedTuple):
    """What a comparison of some blocks of a file has shown."""

    size: int
    """The size of the server's file; 0 if it has none."""
    sent: int
    """How many blocks differ, and are sent again."""
    damage: str
    """Why none is sent although some differ; "" if that is not so."""


class Receiver(Protocol):
    """Where blocks are added for one follower: `stream.Cursor`."""

    def add_own(self, kind: Kind, path: str, a: int, *, payload: Sequence[bytes]) -> None:
        """Give it a frame that is for no other receiver."""


def sealed(disk: Disk) -> list[str]:
    """Return the paths of the sealed segments."""
    newest: dict[str, str] = {}
    found = []
    for path in sorted(tree(disk)[1], key=lambda path: (len(path), path)):
        if is_segment(path):
            folder = path.rpartition("/")[0]
            if folder in newest:
                found.append(newest[folder])
            newest[folder] = path
    return found


def is_segment(path: str) -> bool:
    """Return whether a path is that of a segment in the stream."""
    return _SEGMENT.fullmatch(path) is not None and is_shipped(path)


def compare(stream: Stream, disk: Disk, to: Receiver, path: str, first: int, known: Sequence[bytes]) -> Compared:
    """Compare blocks of a file, from number `first` on, with their digests, and send those that differ.

    Blocks. Raise OSError.
    """
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return Compared(0, 0, "")
    try:
        size = file.size()
        numbers = range(first, min(first + BLOCKS_AT_ONCE, blocks_of(size)))
        differ = [number for number in numbers if digest(_block(file, number)) != _at(known, number - first)]
    finally:
        file.close()
    if differ and (damage := damage_of(disk, path)):
        return Compared(size, 0, damage)
    return Compared(size, sum(send_block(stream, disk, to, path, number) for number in differ), "")


def send_block(stream: Stream, disk: Disk, to: Receiver, path: str, number: int) -> bool:
    """Send a block of a file in the stream; return False if the file is gone. Blocks. Raise OSError."""
    with stream.lock:
        try:
            file = disk.open(path)
        except FileNotFoundError:  # it was removed meanwhile
            return False
        try:
            data = _block(file, number)
        finally:
            file.close()
        to.add_own(Kind.COPY_DATA, path, number * BLOCK_BYTES, payload=[data])
        return True


def damage_of(disk: Disk, path: str) -> str:
    """Return what is wrong with a sealed segment by its checksums, or ""."""
    folder, _, name = path.rpartition("/")
    try:
        chain = find_chain(disk, folder, int(folder.rpartition("/")[2][:12], 16))
        for segment, _ in chain.segments:
            if segment.path == path:
                scan = Scan(disk, segment, 0, is_active=False)
                for _ in scan.batches():
                    pass
                of_headers = [text for number, text in chain.damage if number == segment.number]
                return next(iter([*of_headers, *scan.damage]), "")
    except (OSError, ValueError, CurbstoneError) as error:
        return f"{path} can't be checked: {error}"
    return f"{name} is not part of the log in {folder}"


class Verification:
    """One comparison of all sealed segments of a copy."""

    def __init__(
        self,
        disk: Disk,
        ask: Callable[[str, int, list[bytes]], Compared],
        pause: Callable[[float], object],
        note: Callable[[str, int, Compared], None],
        forget_cache: Callable[[str], None] = lambda _path: None,
    ) -> None:
        """`ask` has the server compare some blocks of a file, `note` is called with each result and what was read.

        `forget_cache` is called with a path before it is read, so that it is read from the disk and not from memory.
        """
        self._disk = disk
        self._ask = ask
        self._pause = pause
        self._note = note
        self._forget_cache = forget_cache

    def run(self) -> None:
        """Compare. Blocks; raise what `ask` and `pause` raise, or OSError."""
        for path in sealed(self._disk):
            with suppress(FileNotFoundError):  # it was removed meanwhile
                self._compare(path)

    def _compare(self, path: str) -> None:
        self._forget_cache(path)
        first, blocks = 0, 1
        while first < blocks:
            file = self._disk.open(path)
            try:
                numbers = range(first, min(first + BLOCKS_AT_ONCE, blocks_of(file.size())))
                data = [_block(file, number) for number in numbers]
            finally:
                file.close()
            found = self._ask(path, first, [digest(each) for each in data])
            read_bytes = sum(map(len, data))
            self._note(path, read_bytes, found)
            blocks = blocks_of(found.size)
            first += BLOCKS_AT_ONCE
            self._pause(read_bytes / BYTES_S)


def blocks_of(size: int) -> int:
    """Return how many blocks a file of this size has."""
    return -(-size // BLOCK_BYTES)


def _block(file: File, number: int) -> bytes:
    return file.read(number * BLOCK_BYTES, BLOCK_BYTES)


def _at(known: Sequence[bytes], index: int) -> bytes:
    return known[index] if index < len(known) else b""
