"""The history of a server on disk: its stream and copies of everything, from which any moment can be restored.

::

    history.json                                       the format
    NUMBER-LIFE-START.open                             the part that is being written
    NUMBER-LIFE-START-END-FIRST-LAST-CONTENT.part      a part that is complete

A part has frames, compressed by zlib: of one life, from one position of its stream to another. FIRST and LAST are the
server's wall clock there, in milliseconds. CONTENT is `stream`, or says that a copy of everything begins in the part
(`begin`), ends at its end (`end`), or both (`base`). Parts follow each other without a hole if they are of the same
life and each begins where the one before ends.

The part that is being written has no end. Whoever reads it takes the frames that are there; each has a checksum.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from curbstone.backup.files import BackupError
from curbstone.core.disk import Disk, File, file_bytes, file_contents, replace_file
from curbstone.standby.frames import BadFrame, Decoder, Frame, Kind, encode

FORMAT = 1
INDEX = "history.json"
OPEN, PART, REPAIRED = ".open", ".part", ".repaired"
PART_BYTES_MAX = 64 * 1024 * 1024
PIECE_BYTES = 256 * 1024
TORN_BYTES = 16 * 1024

_LEVEL = 1
_CONTENTS = {(False, False): "stream", (True, False): "begin", (False, True): "end", (True, True): "base"}
_NAME = re.compile(r"(\d{8})-([0-9a-f]{16})-(\d{1,19})-(\d{1,19})-(\d{1,15})-(\d{1,15})-(stream|begin|end|base)\.part")
_OPEN_NAME = re.compile(r"(\d{8})-([0-9a-f]{16})-(\d{1,19})\.open")


@dataclass
class Part:
    """A part of the history."""

    number: int
    life: int
    start: int
    """The position before its first frame."""
    end: int
    """The position behind its last frame."""
    first_ms: int
    last_ms: int
    begins: bool = False
    """Whether a copy of everything begins with its first frame."""
    ends: bool = False
    """Whether a copy of everything ends with its last frame."""
    is_open: bool = False
    """Whether it is being written, or was when the process ended."""
    size: int = 0
    """Its bytes on disk."""

    @classmethod
    def new(cls, number: int, life: int, start: int, time_ms: int) -> Part:
        """Return a part that has no frames yet."""
        return cls(number, life, start, start, time_ms, time_ms, is_open=True)

    @property
    def name(self) -> str:
        """The name of its file."""
        head = f"{self.number:08d}-{self.life:016x}-{self.start}"
        if self.is_open:
            return head + OPEN
        return f"{head}-{self.end}-{self.first_ms}-{self.last_ms}-{_CONTENTS[self.begins, self.ends]}{PART}"

    def add(self, frame: Frame) -> None:
        """Count a frame."""
        self.end = frame.end
        self.begins |= frame.kind is Kind.COPY_BEGIN
        self.ends |= frame.kind is Kind.COPY_END
        if (now_ms := time_of(frame)) is not None:
            self.first_ms = self.first_ms or now_ms
            self.last_ms = now_ms

    def follows(self, before: Part) -> bool:
        """Return whether nothing is missing between this part and the one before it."""
        return self.life == before.life and self.start == before.end


def time_of(frame: Frame) -> int | None:
    """Return the server's wall clock that a frame has, if it has one."""
    if frame.kind is Kind.BEGIN:
        return frame.b
    return frame.a if frame.kind is Kind.TIME else None


def parts_of(disk: Disk) -> list[Part]:
    """Return all parts, the oldest first. Raise BackupError if there is no history."""
    try:
        facts = json.loads(file_contents(disk, INDEX))
        number = int(facts["format"])
    except FileNotFoundError:
        raise BackupError(f"it has no {INDEX}, so it is no history") from None
    except (ValueError, KeyError, TypeError):
        raise BackupError(f"its {INDEX} is not understood") from None
    if number > FORMAT:
        raise BackupError(f"it has format {number}, which is newer than this version reads")
    found = []
    for name in sorted(disk.list_dir("")):
        if match := _NAME.fullmatch(name):
            start, end, first_ms, last_ms = map(int, match.groups()[2:6])
            begins, ends = next(key for key, word in _CONTENTS.items() if word == match[7])
            part = Part(int(match[1]), int(match[2], 16), start, end, first_ms, last_ms, begins, ends)
            part.size = file_bytes(disk, name)
            found.append(part)
    done = {part.number for part in found}
    for name in sorted(disk.list_dir("")):
        match = _OPEN_NAME.fullmatch(name)
        if match and int(match[1]) not in done:
            part = Part.new(int(match[1]), int(match[2], 16), int(match[3]), 0)
            for frame in frames_of(disk, part):
                part.add(frame)
            part.size = file_bytes(disk, name)
            found.append(part)
    return sorted(found, key=lambda part: part.number)


def frames_of(disk: Disk, part: Part) -> Iterator[Frame]:
    """Yield the frames of a part: of one that is open those that are there. Raise BackupError if it is damaged."""
    decoder = Decoder(part.start)
    file = disk.open(part.name)
    try:
        for piece in _torn(file) if part.is_open else _whole(file):
            yield from decoder.feed(piece)
    except (zlib.error, BadFrame) as error:
        if not part.is_open:
            raise BackupError(f"{part.name} is damaged: {error}") from None
        return
    finally:
        file.close()
    if not part.is_open and decoder.position != part.end:
        raise BackupError(f"{part.name} is damaged: it ends at {decoder.position}")


def _whole(file: File) -> Iterator[bytes]:
    """Yield what a file that is complete has, unpacked. Raise zlib.error."""
    unpacked = zlib.decompressobj()
    at = 0
    while not unpacked.eof:
        data = file.read(at, PIECE_BYTES)
        if not data:
            raise zlib.error("it ends before its end")
        at += len(data)
        yield from _inflated(unpacked, data)


def _torn(file: File) -> Iterator[bytes]:
    """Yield what a file has, unpacked, up to where it ends or is torn."""
    unpacked = zlib.decompressobj()
    at = 0
    while data := file.read(at, TORN_BYTES):
        at += len(data)
        before = unpacked.copy()
        try:
            yield b"".join(_inflated(unpacked, data))
        except zlib.error:  # which has taken what is good in these data, too
            for byte in data:
                with suppress(zlib.error):
                    yield before.decompress(bytes([byte]))
                    continue
                return


def _inflated(unpacked: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    is_more = True
    while is_more:
        piece = unpacked.decompress(data, PIECE_BYTES)
        yield piece
        data = unpacked.unconsumed_tail
        is_more = bool(data) or len(piece) == PIECE_BYTES  # it may hold back some without any input


def base_of(parts: list[Part], at_ms: int | None) -> tuple[int, int] | None:
    """Return the indexes of the first and last part of the newest base that ends at a moment or before, or None."""
    for last in range(len(parts) - 1, -1, -1):
        if parts[last].ends and (at_ms is None or parts[last].last_ms <= at_ms):
            first = last
            while not parts[first].begins and first > 0 and parts[first].follows(parts[first - 1]):
                first -= 1
            if parts[first].begins:
                return first, last
    return None


class PartWriter:
    """Writes one part. Every method may raise OSError; then what is written is still good up to somewhere."""

    def __init__(self, disk: Disk, part: Part, suffix: str = OPEN) -> None:
        self.part = part
        self._disk = disk
        self._path = part.name.removesuffix(OPEN) + suffix
        self._packing = zlib.compressobj(_LEVEL)
        self._file: File = disk.open(self._path, create=True)
        self._pieces: list[bytes] = []
        self._bytes = 0

    def add(self, frame: Frame) -> None:
        """Add a frame; `flush` writes it."""
        self.part.add(frame)
        for piece in encode(frame.kind, frame.path, frame.a, frame.b, [frame.payload], frame.flag):
            self._put(self._packing.compress(piece))
        if self._bytes > PIECE_BYTES:
            self._write()

    def _put(self, data: bytes) -> None:
        self._pieces.append(data)
        self._bytes += len(data)

    def flush(self) -> None:
        """Write what was added, so that it survives the end of this process."""
        self._put(self._packing.flush(zlib.Z_SYNC_FLUSH))
        self._write()

    def _write(self) -> None:
        self._file.write(self.part.size, [b"".join(self._pieces)])
        self.part.size += self._bytes
        self._pieces, self._bytes = [], 0

    def sync(self) -> None:
        """Make what was flushed durable."""
        self._file.sync()

    def finish(self) -> None:
        """Complete the part, durably, and give it its name."""
        self._put(self._packing.flush())
        self._write()
        self._file.sync()
        self._file.close()
        self.part.is_open = False
        self._disk.rename(self._path, self.part.name)
        self._disk.sync_dir("")

    def close(self) -> None:
        """Leave it as it is."""
        self._file.close()


class History:
    """A history that is being written. One process at a time has it: the one whose disk has the lock."""

    def __init__(self, disk: Disk) -> None:
        """Complete what an earlier process has left. Blocks. Raise BackupError or OSError."""
        self.disk = disk
        names = disk.list_dir("")
        if INDEX not in names:
            foreign = [name for name in names if name != "lock" and not name.startswith(f"{INDEX}.")]
            if foreign:
                raise BackupError(f"it is not empty, and no history: it has {foreign[0]}")
            replace_file(disk, INDEX, json.dumps({"format": FORMAT}).encode() + b"\n").close()
        for name in names:
            if name.endswith(REPAIRED):
                disk.remove(name)
        self.parts = parts_of(disk)
        self._complete()

    def _complete(self) -> None:
        for part in [part for part in self.parts if part.is_open]:
            name = part.name
            if part.end == part.start and not part.ends:  # nothing that anybody could use
                self.parts.remove(part)
                self.disk.remove(name)
                continue
            writer = PartWriter(self.disk, Part.new(part.number, part.life, part.start, 0), REPAIRED)
            try:
                for frame in frames_of(self.disk, part):
                    writer.add(frame)
                writer.finish()
            finally:
                writer.close()
            self.parts[self.parts.index(part)] = writer.part
            self.disk.remove(name)
        left = {part.name for part in self.parts}
        for name in self.disk.list_dir(""):
            if _OPEN_NAME.fullmatch(name) and name not in left:
                self.disk.remove(name)

    def begin(self, life: int, start: int, time_ms: int) -> PartWriter:
        """Begin another part."""
        number = self.parts[-1].number + 1 if self.parts else 1
        return PartWriter(self.disk, Part.new(number, life, start, time_ms))

    def finished(self, part: Part) -> None:
        """Note a part that is complete."""
        self.parts.append(part)

    @property
    def base(self) -> Part | None:
        """The last part of the newest base from which nothing is missing up to the end; None if there is none."""
        after: Part | None = None
        for part in reversed(self.parts):
            if after is not None and not after.follows(part):
                return None
            if part.ends:
                return part
            after = part
        return None

    def forget(self, before_ms: int) -> int:
        """Remove the parts that are not needed to restore any moment from this one on; return how many."""
        found = base_of(self.parts, before_ms)
        gone = self.parts[: found[0]] if found is not None else []
        for part in gone:
            with suppress(FileNotFoundError):
                self.disk.remove(part.name)
        del self.parts[: len(gone)]
        return len(gone)
