"""A part of a staged transaction: a file of frames, with what is in them said at its end.

It is written under another name while it comes in, a piece at a time, and gets its own once it is all on
disk; a part that replaces another is a file with a higher number. ::

    file   frames, then JSON, then bytes of the JSON (4), its CRC (4), magic (8)
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import astuple
from typing import NamedTuple
from zlib import crc32

from curbstone.core.disk import Disk
from curbstone.core.errors import CurbstoneError, MessageTooLarge, QueueFull, StagedDamaged, Unavailable, told
from curbstone.core.log.commit import NO_SPACE
from curbstone.core.log.window import read_around
from curbstone.core.staging.frames import Share
from curbstone.core.staging.marker import PartFile
from curbstone.core.values import PART_BYTES_MAX

WRITE_BYTES = 512 * 1024
READ_BYTES = 1024 * 1024

_END = struct.Struct("<II8s")
_MAGIC = b"CURBPART"
PART_PREFIX = "p."
FRESH_PREFIX = "t."
END_BYTES_MAX = 64 * 1024 * 1024
_FILE = re.compile(r"p\.[0-9]+\.(.+)", re.DOTALL)


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
    shares: dict[str, Share]
    project: str = ""
    """Empty where the first release staged it."""
    is_damaged: bool = False
    """Whether the end of the file can't be read: then only its name and its length are known."""

    def encode(self) -> bytes:
        """Return the end of the file."""
        shares = {name: astuple(share) for name, share in self.shares.items()}
        facts: dict[str, object] = {
            "messages": self.messages,
            "bytes": self.size,
            "crc": self.crc,
            "time": self.time_ms,
        }
        facts |= {"project": self.project, "queues": shares}
        text = json.dumps(facts, separators=(",", ":")).encode()
        return text + _END.pack(len(text), crc32(text), _MAGIC)

    @property
    def frames(self) -> PartFile:
        """Its frames, as a marker names them."""
        return PartFile(self.file, self.size, self.crc, self.messages)

    @property
    def version(self) -> int:
        """The number of the file: the highest of a name counts."""
        return int(self.file.split(".", 2)[1])


def part_file(version: int, name: str) -> str:
    """Return the file's name of a part."""
    return f"{PART_PREFIX}{version}.{name}"


def decode_end(file_name: str, text: bytes, end: bytes, file_bytes: int) -> Part:
    """Return what the last bytes of a part's file say: `text`, and what is behind it."""
    name = _FILE.fullmatch(file_name)
    assert name is not None
    size, crc, magic = _END.unpack(end) if len(end) == _END.size else (0, 0, b"")
    if magic == _MAGIC and size == len(text) and crc32(text) == crc:
        facts = json.loads(text)
        if facts["bytes"] + size + _END.size == file_bytes:
            shares = {queue: Share(*numbers) for queue, numbers in facts["queues"].items()}
            numbers = (facts["messages"], facts["bytes"], facts["crc"], facts["time"])
            return Part(name[1], file_name, *numbers, shares, facts.get("project", ""))
    return Part(name[1], file_name, 0, file_bytes, 0, 0, {}, is_damaged=True)


def is_part_file(file_name: str) -> bool:
    """Return whether a file of a transaction's directory is a part."""
    return _FILE.fullmatch(file_name) is not None


def load_part(disk: Disk, directory: str, file_name: str) -> Part:
    """Return what the end of a part's file says; blocking."""
    file = disk.open(f"{directory}/{file_name}")
    try:
        file_bytes = file.size()
        at = max(file_bytes - _END.size, 0)
        end, _ = read_around(file, at, _END.size)
        size = _END.unpack(end)[0] if len(end) == _END.size else 0
        text = read_around(file, at - size, size)[0] if size <= min(at, END_BYTES_MAX) else b""
    finally:
        file.close()
    return decode_end(file_name, text, end, file_bytes)


def check_part(disk: Disk, directory: str, part: PartFile) -> None:
    """Read the frames of a part back; raise StagedDamaged where they are not what was staged. Blocking."""
    path = f"{directory}/{part.name}"
    try:
        file = disk.open(path)
    except FileNotFoundError:
        raise StagedDamaged(f"{path} is missing") from None
    try:
        crc = at = 0
        while at < part.size:
            data, unreadable = read_around(file, at, min(READ_BYTES, part.size - at))
            if not data or unreadable:
                break
            crc = crc32(data, crc)
            at += len(data)
    finally:
        file.close()
    if at < part.size:
        raise StagedDamaged(f"{path} is damaged: {part.size} bytes were staged, {at} can be read")
    if part.crc is not None and crc != part.crc:
        raise StagedDamaged(f"{path} is damaged: its checksum does not match")


def part_too_large() -> CurbstoneError:
    """Return what to say of a part above the limit."""
    return MessageTooLarge(f"a part has at most {PART_BYTES_MAX} bytes")


def disk_error(error: BaseException) -> CurbstoneError:
    """Return what is told of a write that failed, or of what could not be read back."""
    if isinstance(error, CurbstoneError):
        return error
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return QueueFull("no space left on the disk")
    return Unavailable(f"what is staged can't be written: {told(error)}")
