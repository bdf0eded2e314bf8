"""The history of a server: its stream and full copies of it, from which any moment can be restored.

::

    history.json                                       the format
    NUMBER-LIFE-START.open                             the part that is being written
    NUMBER-LIFE-START-END-FIRST-LAST-CONTENT.part      a complete part

A part has zlib-compressed frames of one life, from the position START of the stream to END. FIRST and LAST are the
server's wall clock at these positions, in milliseconds. CONTENT is `stream`, or if a full copy begins at the start of
the part `begin`, if one ends at its end `end`, and for both `base`. Two parts are contiguous if they are of the same
life and the second one begins where the first one ends.

The end of the part that is being written is not known. A reader takes its complete frames, each of which has a
checksum. In an object store there is no such part: a part is one object, which is written when it is complete.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from curbstone.backup.files import BackupError
from curbstone.standby.frames import BadFrame, Decoder, Frame, Kind, encode
from curbstone.standby.part_store import PartStore, Readable

FORMAT = 1
INDEX = "history.json"
OPEN, PART, REPAIRED = ".open", ".part", ".repaired"
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
    """The position after its last frame."""
    first_ms: int
    last_ms: int
    begins: bool = False
    """Whether a full copy begins with its first frame."""
    ends: bool = False
    """Whether a full copy ends with its last frame."""
    is_open: bool = False
    """Whether it is being written, or was when the process ended."""
    size: int = 0
    """Its stored size in bytes."""

    @classmethod
    def new(cls, number: int, life: int, start: int, time_ms: int) -> Part:
        """Return a part without frames."""
        return cls(number, life, start, start, time_ms, time_ms, is_open=True)

    @property
    def name(self) -> str:
        """The file name."""
        head = f"{self.number:08d}-{self.life:016x}-{self.start}"
        if self.is_open:
            return head + OPEN
        return f"{head}-{self.end}-{self.first_ms}-{self.last_ms}-{_CONTENTS[self.begins, self.ends]}{PART}"

    def add(self, frame: Frame) -> None:
        """Update the part by a frame that is appended to it."""
        self.end = frame.end
        self.begins |= frame.kind is Kind.COPY_BEGIN
        self.ends |= frame.kind is Kind.COPY_END
        if (now_ms := time_of(frame)) is not None:
            self.first_ms = self.first_ms or now_ms
            self.last_ms = now_ms

    def follows(self, before: Part) -> bool:
        """Return whether this part is contiguous with the one before it."""
        return self.life == before.life and self.start == before.end


def time_of(frame: Frame) -> int | None:
    """Return the server's wall clock in a frame, if it has one."""
    if frame.kind is Kind.BEGIN:
        return frame.b
    return frame.a if frame.kind is Kind.TIME else None


def parts_of(store: PartStore) -> list[Part]:
    """Return all parts, the oldest first. Raise BackupError if there is no history."""
    names = store.names()
    if INDEX not in names:
        raise BackupError(f"it has no {INDEX}, so it is not a history")
    _check_index(store)
    return _parts(store, names)


def _check_index(store: PartStore) -> None:
    """Raise BackupError if the format is another one, and FileNotFoundError if there is no index."""
    try:
        number = int(json.loads(b"".join(store.read(INDEX, PIECE_BYTES)))["format"])
    except (ValueError, KeyError, TypeError):
        raise BackupError(f"its {INDEX} is damaged") from None
    if number > FORMAT:
        raise BackupError(f"it has format {number}, which is newer than this version supports")


def _parts(store: PartStore, names: Sequence[str]) -> list[Part]:
    found = []
    for name in sorted(names):
        if match := _NAME.fullmatch(name):
            start, end, first_ms, last_ms = map(int, match.groups()[2:6])
            begins, ends = next(key for key, word in _CONTENTS.items() if word == match[7])
            part = Part(int(match[1]), int(match[2], 16), start, end, first_ms, last_ms, begins, ends)
            part.size = store.size(name)
            found.append(part)
    done = {part.number for part in found}
    for name in sorted(names):
        match = _OPEN_NAME.fullmatch(name)
        if match and int(match[1]) not in done:
            part = Part.new(int(match[1]), int(match[2], 16), int(match[3]), 0)
            for frame in frames_of(store, part):
                part.add(frame)
            part.size = store.size(name)
            found.append(part)
    return chain_of(sorted(found, key=lambda part: (part.number, part.end)))


def chain_of(parts: list[Part]) -> list[Part]:
    """Return these parts without those that were stored late, when they had already been recorded again."""
    ending: dict[tuple[int, int], int] = {}
    before: list[int] = []
    for index, part in enumerate(parts):
        before.append(ending.get((part.life, part.start), index - 1))
        ending[part.life, part.end] = index
    found: list[Part] = []
    index = len(parts) - 1
    while index >= 0:
        found.append(parts[index])
        index = before[index]
    return found[::-1]


def frames_of(store: Readable, part: Part) -> Iterator[Frame]:
    """Yield the frames of a part, or the complete frames of an open one. Raise BackupError if it is damaged."""
    decoder = Decoder(part.start)
    try:
        for piece in _torn(store, part.name) if part.is_open else _whole(store, part.name):
            yield from decoder.feed(piece)
    except (zlib.error, BadFrame) as error:
        if not part.is_open:
            raise BackupError(f"{part.name} is damaged: {error}") from None
        return
    if not part.is_open and decoder.position != part.end:
        raise BackupError(f"{part.name} is damaged: it ends at {decoder.position}")


def _whole(store: Readable, name: str) -> Iterator[bytes]:
    """Yield the contents of a complete part, decompressed. Raise zlib.error."""
    unpacked = zlib.decompressobj()
    for data in store.read(name, PIECE_BYTES):
        yield from _inflated(unpacked, data)
        if unpacked.eof:
            return
    raise zlib.error("it is truncated")


def _torn(store: Readable, name: str) -> Iterator[bytes]:
    """Yield the contents of a part, decompressed, up to where it ends or is torn."""
    unpacked = zlib.decompressobj()
    for data in store.read(name, TORN_BYTES):
        before = unpacked.copy()
        try:
            yield b"".join(_inflated(unpacked, data))
        except zlib.error:  # the call has also consumed the valid beginning of the data
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
        is_more = bool(data) or len(piece) == PIECE_BYTES  # there may be output without further input


def base_of(parts: list[Part], at_ms: int | None) -> tuple[int, int] | None:
    """Return the indexes of the first and the last part of the newest base that ends by a moment, or None."""
    for last in range(len(parts) - 1, -1, -1):
        if parts[last].ends and (at_ms is None or parts[last].last_ms <= at_ms):
            first = last
            while not parts[first].begins and first > 0 and parts[first].follows(parts[first - 1]):
                first -= 1
            if parts[first].begins:
                return first, last
    return None


class PartWriter:
    """Writes one part. Every method may raise OSError; frames that were written before stay readable."""

    def __init__(self, store: PartStore, part: Part, suffix: str = OPEN) -> None:
        self.part = part
        self._grows = store.grows
        self._packing = zlib.compressobj(_LEVEL)
        self._file = store.begin(part.name.removesuffix(OPEN) + suffix)
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
        """Write the added frames if the store `grows`, so that they survive the end of this process."""
        if self._grows:
            self._put(self._packing.flush(zlib.Z_SYNC_FLUSH))
            self._write()

    def _write(self) -> None:
        self._file.write(b"".join(self._pieces))
        self.part.size += self._bytes
        self._pieces, self._bytes = [], 0

    def sync(self) -> None:
        """Make the flushed frames durable."""
        self._file.sync()

    def finish(self) -> None:
        """Complete the part durably under its final name."""
        self._put(self._packing.flush())
        self._write()
        self.part.is_open = False
        self._file.finish(self.part.name)

    def close(self) -> None:
        """Close the file of an incomplete part."""
        self._file.close()


class History:
    """A history that is being written, by one process at a time."""

    def __init__(self, store: PartStore) -> None:
        """Complete the parts of an earlier process. Blocks. Raise BackupError, OSError, or DataDirectoryError.

        DataDirectoryError: another process has begun to write to the history.
        """
        self.store = store
        try:
            _check_index(store)
        except FileNotFoundError:
            foreign = [name for name in store.names() if name != "lock" and not name.startswith(f"{INDEX}.")]
            if foreign:
                raise BackupError(f"it is not empty and not a history: it has {foreign[0]}") from None
        store.claim(INDEX, {"format": FORMAT})
        names = store.names()
        store.remove([name for name in names if name.endswith(REPAIRED)])
        self.parts = _parts(store, names)
        self._complete(names)

    def _complete(self, names: list[str]) -> None:
        for part in [part for part in self.parts if part.is_open]:
            if part.end == part.start and not part.ends:  # it has no frames
                self.parts.remove(part)
                continue
            writer = PartWriter(self.store, Part.new(part.number, part.life, part.start, 0), REPAIRED)
            try:
                for frame in frames_of(self.store, part):
                    writer.add(frame)
                writer.finish()
            finally:
                writer.close()
            self.parts[self.parts.index(part)] = writer.part
        needed = {part.name for part in self.parts}
        parts = [name for name in names if _NAME.fullmatch(name) or _OPEN_NAME.fullmatch(name)]
        self.store.remove([name for name in parts if name not in needed])

    def begin(self, life: int, start: int, time_ms: int) -> PartWriter:
        """Begin a new part."""
        number = self.parts[-1].number + 1 if self.parts else 1
        return PartWriter(self.store, Part.new(number, life, start, time_ms))

    def finished(self, part: Part) -> None:
        """Add a complete part."""
        self.parts.append(part)

    @property
    def base(self) -> Part | None:
        """The last part of the newest base, if the history is contiguous from there to its end; else None."""
        after: Part | None = None
        for part in reversed(self.parts):
            if after is not None and not after.follows(part):
                return None
            if part.ends:
                return part
            after = part
        return None

    def forget(self, before_ms: int) -> int:
        """Remove the parts that are not needed to restore moments from `before_ms` on; return how many."""
        found = base_of(self.parts, before_ms)
        gone = self.parts[: found[0]] if found is not None else []
        self.store.remove([part.name for part in gone])
        del self.parts[: len(gone)]
        return len(gone)
