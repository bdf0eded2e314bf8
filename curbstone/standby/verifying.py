"""Compares the sealed segments of a copy with those of its server, while the copy follows.

A segment is sealed when its queue has a later one. From then on it is only read, until it is removed. The standby sends
the digests of its blocks, a few at a time, and the server sends the blocks that differ in the stream. It reads and adds
each block under the lock of the stream, so the block is right at its place there, whatever has changed meanwhile. It
does not send segments that are damaged on the server, because they would replace what may be the only good copy.

A segment that is not on the standby, but in the chain of its queue, was dropped or is missing. If the server has it, it
is missing, and is sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from curbstone.core.disk import Disk, File
from curbstone.core.engine.directories import QUEUES
from curbstone.core.engine.log.commit import SEGMENT_SUFFIX, segment_path
from curbstone.core.engine.log.scan import Scan
from curbstone.core.engine.recovery.chain import Chain, find_chain
from curbstone.core.errors import CurbstoneError
from curbstone.standby.copying import BLOCK_BYTES, digest, tree
from curbstone.standby.frames import Kind
from curbstone.standby.scope import is_shipped
from curbstone.standby.stream import Stream

_SEGMENT = re.compile(rf"{QUEUES}/[^/]+/\d+{re.escape(SEGMENT_SUFFIX)}")

BLOCKS_AT_ONCE = 16
BYTES_S = 16 * 1024 * 1024
"""How much is read in a second, on each side."""


class Compared(NamedTuple):
    """The result of a comparison of some blocks of a file."""

    size: int
    """The size of the server's file; 0 if it has none."""
    sent: int
    """How many blocks differ or are missing, and are sent."""
    damage: str
    """The damage because of which blocks that differ are not sent; "" if there is none."""


class Receiver(Protocol):
    """Adds frames for one follower; `stream.Cursor` implements it."""

    def add_own(self, kind: Kind, path: str, a: int, *, payload: Sequence[bytes]) -> None:
        """Add a frame that no other receiver gets."""


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
    """Compare blocks of a file, from number `first` on, with digests, and send the blocks that differ.

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
        chain = _chain(disk, folder)
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


def gaps(disk: Disk) -> Iterator[tuple[str, int]]:
    """Yield the directory and the number of each segment whose successor is there, but which was dropped or is missing.

    Of several in a row, yield the last one.
    """
    for folder in dict.fromkeys([path.rpartition("/")[0] for path in tree(disk)[1] if is_segment(path)]):
        with suppress(FileNotFoundError):  # the queue was deleted, or a segment dropped, meanwhile
            for number in _chain(disk, folder).missing:
                yield folder, number


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
        """`ask` has the server compare blocks of a file. `note(path, read_bytes, result)` is called for each result.

        `forget_cache(path)` makes the system read a file from the disk and not from the page cache.
        """
        self._disk = disk
        self._ask = ask
        self._pause = pause
        self._note = note
        self._forget_cache = forget_cache

    def run(self) -> None:
        """Compare. Blocks; raise what `ask` and `pause` raise, OSError, or CurbstoneError for an unknown format."""
        for path in sealed(self._disk):
            self._compare(path)
        for folder, number in gaps(self._disk):
            while number and not self._exists(path := segment_path(folder, number)) and self._compare(path):
                number -= 1

    def _compare(self, path: str) -> bool:
        """Compare a file, which need not exist; return whether the server has it."""
        with suppress(FileNotFoundError):
            self._forget_cache(path)
        first, blocks = 0, 1
        while first < blocks:
            data = self._read(path, first)
            found = self._ask(path, first, [digest(each) for each in data])
            read_bytes = sum(map(len, data))
            self._note(path, read_bytes, found)
            blocks = blocks_of(found.size)
            first += BLOCKS_AT_ONCE
            self._pause(max(read_bytes, found.sent * BLOCK_BYTES, BLOCK_BYTES) / BYTES_S)
        return blocks > 0

    def _read(self, path: str, first: int) -> list[bytes]:
        """Return the blocks of a file from number `first` on; none if there is no such file."""
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return []
        try:
            return [_block(file, n) for n in range(first, min(first + BLOCKS_AT_ONCE, blocks_of(file.size())))]
        finally:
            file.close()

    def _exists(self, path: str) -> bool:
        try:
            self._disk.open(path).close()
        except FileNotFoundError:
            return False
        return True


def blocks_of(size: int) -> int:
    """Return how many blocks a file of this size has."""
    return -(-size // BLOCK_BYTES)


def _chain(disk: Disk, folder: str) -> Chain:
    """Return the chain of segments in the directory of a queue, whose name begins with the queue's id."""
    return find_chain(disk, folder, int(folder.rpartition("/")[2][:12], 16))


def _block(file: File, number: int) -> bytes:
    return file.read(number * BLOCK_BYTES, BLOCK_BYTES)


def _at(known: Sequence[bytes], index: int) -> bytes:
    return known[index] if index < len(known) else b""
