"""The files of one staged transaction, its parts and the marker of its commit: their bytes, and reading them back.

A part holds frames, and at its end a summary of them. It is called `t.<version>` while it arrives, and is renamed
to `p.<version>.<part>` when all of it is on disk. If two files have the same part, the higher version counts. ::

    part     frames, then JSON, then bytes of the JSON (4), its CRC (4), magic (8)

The marker lists how much is for which queue, and what the files of the parts must hold. It is in its file twice, so
that one wrong bit or one bad sector costs nothing. ::

    marker   copy, copy
    copy     JSON, line feed, CRC of the JSON as 8 hex digits, line feed

The first release wrote the marker once, with only the name and the bytes of each part; that is read, too. A part that a
user has staged names the user, so that it counts for the same user after a restart.
"""

from __future__ import annotations

import json
import re
import struct
from contextlib import closing, suppress
from dataclasses import astuple
from typing import NamedTuple
from zlib import crc32

from curbstone.core.disk import NO_SPACE, Disk
from curbstone.core.engine.log import file_view
from curbstone.core.engine.log.file_view import read_around
from curbstone.core.errors import CurbstoneError, QueueFull, StagedDamaged, Unavailable, client_text
from curbstone.core.staging.frames import QueueShare
from curbstone.core.staging.identity import Series
from curbstone.core.values import NOBODY

ROOT = "staging"
"""The directory of all staged transactions."""
MARKER = "commit"

_READ_BYTES = 1024 * 1024
_FACTS_BYTES_MAX = 64 * 1024 * 1024
_PART_FILE = re.compile(r"p\.[0-9]+\.(.+)", re.DOTALL)
_PART_END = struct.Struct("<II8s")
_MAGIC = b"CURBPART"
_COPY_END_BYTES = len("\n00000000\n")


class PartFile(NamedTuple):
    """A file of frames in a transaction's directory, and what must be in it."""

    name: str
    size: int
    """Bytes of the frames."""
    crc: int | None = None
    """CRC of the frames; None if the first release wrote the marker."""
    messages: int | None = None


class Part(NamedTuple):
    """A part that is on disk."""

    name: str
    file: str
    """The file's name in the transaction's directory."""
    messages: int
    size: int
    """Bytes of its frames."""
    crc: int
    """CRC of its frames."""
    time_ms: int
    """Wall clock when it was staged."""
    shares: dict[str, QueueShare]
    project: str = ""
    """Empty if the first release staged it."""
    owner: str = NOBODY
    """The user who staged it, or NOBODY; an earlier release did not note the user."""
    is_damaged: bool = False
    """Whether the end of the file can't be read. Then only its name and its length are known."""

    def encode(self) -> bytes:
        """Return the end of the file."""
        shares = {name: astuple(share) for name, share in self.shares.items()}
        facts = {"messages": self.messages, "bytes": self.size, "crc": self.crc, "time": self.time_ms}
        staged_by = {"project": self.project} | ({"owner": self.owner} if self.owner else {})
        text = json.dumps({**facts, **staged_by, "queues": shares}, separators=(",", ":")).encode()
        return text + _PART_END.pack(len(text), crc32(text), _MAGIC)

    @property
    def frames(self) -> PartFile:
        """Its frames, as a marker names them."""
        return PartFile(self.file, self.size, self.crc, self.messages)

    @property
    def version(self) -> int:
        """The version in the file's name. Of the files of one part, the highest counts."""
        return int(self.file.split(".", 2)[1])


def part_file(version: int, name: str) -> str:
    return f"p.{version}.{name}"


def incoming_file(version: int) -> str:
    return f"t.{version}"


class Marker(NamedTuple):
    """The record that a transaction was committed."""

    number: int
    """A random number, under which the queues' logs note how much of the transaction they have."""
    project: str
    identifier: str
    time_ms: int
    """Wall-clock time of the commit. Delays count from then on."""
    files: list[PartFile]
    queues: dict[str, tuple[str, QueueShare]]
    """By name of the queue, its uid, and how much is for it."""
    series: Series | None = None

    @property
    def messages(self) -> int:
        """How many messages there are in all."""
        return sum(share.count for _, share in self.queues.values())

    def encode(self) -> bytes:
        queues = {name: [uid, *astuple(share)] for name, (uid, share) in self.queues.items()}
        series = [(self.series.hashed.hex(), *self.series[1:])] if self.series else []
        line = json.dumps([*self[:5], queues, *series], separators=(",", ":")).encode()
        return 2 * (line + b"\n%08x\n" % crc32(line))


def decode_marker(data: bytes) -> Marker | None:
    """Return the marker from the first good copy in its file, or None if none is good."""
    half = len(data) // 2
    for copy in (data[:half], data[half:], data):
        line, end = copy[:-_COPY_END_BYTES], copy[-_COPY_END_BYTES:]
        if line and end == b"\n%08x\n" % crc32(line):
            with suppress(ValueError, TypeError, IndexError, AttributeError):  # another kind of file can check, too
                return _decode_line(line)
    return None


def _decode_line(line: bytes) -> Marker:
    number, project, identifier, time_ms, files, queues, *rest = json.loads(line)
    series = Series(bytes.fromhex(rest[0][0]), *rest[0][1:]) if rest else None
    shares = {name: (uid, QueueShare(*numbers)) for name, (uid, *numbers) in queues.items()}
    return Marker(number, project, identifier, time_ms, [PartFile(*file) for file in files], shares, series)


# --- on the disk; everything below is blocking


def read_file(disk: Disk, path: str) -> tuple[bytes, int] | None:
    """Return the contents of a file and how many places of it can't be read (zeros there), or None if it is missing."""
    try:
        data, unreadable = file_view.read_file(disk, path)
    except FileNotFoundError:
        return None
    return data, len(unreadable)


class FoundParts(NamedTuple):
    """The part files of a transaction's directory."""

    parts: dict[str, Part]
    """By name, the newest file of each part."""
    needless: list[str]
    """Files that are not needed: earlier versions of parts, and parts that did not arrive completely."""


def find_parts(disk: Disk, directory: str) -> FoundParts:
    """Return the part files in a transaction's directory, with what their ends say."""
    parts: dict[str, Part] = {}
    needless = []
    for name in sorted(disk.list_dir(directory)):
        if name == MARKER:
            continue
        if not _PART_FILE.fullmatch(name):
            needless.append(name)
            continue
        part = load_part(disk, directory, name)
        earlier = parts.get(part.name)
        if earlier is None or earlier.version < part.version:
            parts[part.name] = part
            if earlier is not None:
                needless.append(earlier.file)
        else:
            needless.append(name)
    return FoundParts(parts, needless)


def load_part(disk: Disk, directory: str, file_name: str) -> Part:
    """Return a part as the end of its file describes it, or marked as damaged."""
    with closing(disk.open(f"{directory}/{file_name}")) as file:
        file_bytes = file.size()
        at = max(file_bytes - _PART_END.size, 0)
        end, _ = read_around(file, at, _PART_END.size)
        size, crc, magic = _PART_END.unpack(end) if len(end) == _PART_END.size else (0, 0, b"")
        text = read_around(file, at - size, size)[0] if size <= min(at, _FACTS_BYTES_MAX) else b""
    name = file_name.split(".", 2)[2]
    if magic == _MAGIC and size == len(text) and crc32(text) == crc:
        facts = json.loads(text)
        if facts["bytes"] + size + _PART_END.size == file_bytes:
            shares = {queue: QueueShare(*numbers) for queue, numbers in facts["queues"].items()}
            numbers = (facts["messages"], facts["bytes"], facts["crc"], facts["time"])
            return Part(name, file_name, *numbers, shares, facts.get("project", ""), facts.get("owner", NOBODY))
    return Part(name, file_name, 0, file_bytes, 0, 0, {}, is_damaged=True)


def check_part(disk: Disk, directory: str, part: PartFile) -> None:
    """Read the frames of a part back; raise StagedDamaged if they are not those that were staged."""
    path = f"{directory}/{part.name}"
    try:
        file = disk.open(path)
    except FileNotFoundError:
        raise StagedDamaged(f"{path} is missing") from None
    with closing(file):
        crc = at = 0
        while at < part.size:
            data, unreadable = read_around(file, at, min(_READ_BYTES, part.size - at))
            if not data or unreadable:
                break
            crc = crc32(data, crc)
            at += len(data)
    if at < part.size:
        raise StagedDamaged(f"{path} is damaged: {part.size} bytes were staged, {at} can be read")
    if part.crc is not None and crc != part.crc:
        raise StagedDamaged(f"{path} is damaged: its checksum does not match")


def disk_error(error: BaseException) -> CurbstoneError:
    """Return the error for a client staged_by staged data could not be written or read back."""
    if isinstance(error, CurbstoneError):
        return error
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return QueueFull("no space left on the disk")
    return Unavailable(f"what is staged can't be written: {client_text(error)}")
