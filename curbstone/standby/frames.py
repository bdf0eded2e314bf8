"""The encoding of the stream: one frame for each call that has changed a data directory.

::

    frame    length (4), CRC-32 of all that follows (4), kind (1), flag (1), length of the path (2), a (8), b (8),
             path, payload

All numbers are little-endian, and the length is that of the whole frame. A position is a number of bytes in the stream
of one life, that is, of one run of a server. Frames of a copy are for one receiver only, and do not count.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from curbstone.backup.files import BackupError, checked_path

PAYLOAD_BYTES_MAX = 1024 * 1024
"""A longer write becomes several frames."""
FRAME_BYTES_MAX = PAYLOAD_BYTES_MAX + 1024

_HEAD = struct.Struct("<IIBBHQQ")
_LENGTH_AND_CRC = struct.Struct("<II")
_TIME = struct.Struct("<Q")
_CRC_AT = _LENGTH_AND_CRC.size

ATTACHED_BYTES = _HEAD.size + _TIME.size


class Kind(IntEnum):
    """The kind of a frame."""

    WRITE = 1
    """Bytes of a file from offset `a` on, followed by `b` zeros."""
    BEGIN = 2
    """Sync number `a` has begun; the flag is a `Sync`, and `b` the wall clock in milliseconds."""
    END = 3
    """Sync number `a` has ended, whether it succeeded or not."""
    TRUNCATE = 4
    """A file has `a` bytes."""
    CREATE = 5
    """A file is new and empty."""
    MKDIR = 6
    RENAME = 7
    """The payload is the new path."""
    REMOVE = 8
    RMTREE = 9
    TIME = 10
    """The wall clock is `a`, in milliseconds."""
    STATE = 11
    """The flag is an `InSync`: whether the receiver has everything that is confirmed from here on. `a` says after how
    many milliseconds without it the server confirms alone; 0 for never."""
    COPY_BEGIN = 20
    """A full copy begins."""
    COPY_NAME = 21
    """A directory, or with the flag 1 a file of `a` bytes."""
    COPY_LISTED = 22
    """All names were listed; the receiver removes all others."""
    COPY_DATA = 23
    """Bytes of a file from offset `a` on, followed by `b` zeros."""
    COPY_END = 24
    ATTACHED = 25
    """The first frame of a connection: `a` is the life, and `b` the position at which the stream starts. The flag is a
    sum of `RESUMED`, `OUT_OF_SYNC` and `CONFIRMS_WAIT`. The payload is the server's wall clock: see `Attached`."""
    TAKE_OVER = 26
    """The server has handed over, and the receiver has everything: it takes over."""


RESUMED, OUT_OF_SYNC, CONFIRMS_WAIT = 1, 2, 4
"""Flags of ATTACHED: the stream starts at the requested position; the receiver is not in sync; confirms wait for the
receiver."""


class InSync(IntEnum):
    """Whether a receiver has everything that was confirmed."""

    NO = 0
    IN_MEMORY = 1
    """Yes, as long as its machine runs: the server confirms before it syncs."""
    ON_DISK = 2
    HANDED_OVER = 3
    """Yes, and the server has handed over to it."""


class Sync(IntEnum):
    """What a sync makes durable."""

    FILE = 0
    DIRECTORY = 1
    EVERYTHING = 2


class BadFrame(ValueError):
    """The bytes are not a stream, or are damaged."""


class Frame(NamedTuple):
    """A decoded frame."""

    kind: Kind
    flag: int
    a: int
    b: int
    path: str
    payload: bytes
    start: int
    """The position before it."""
    end: int
    """The position after it."""

    @property
    def is_counted(self) -> bool:
        """Whether it is part of the stream, not of a copy."""
        return self.kind < Kind.COPY_BEGIN


def encode(
    kind: Kind, path: str = "", a: int = 0, b: int = 0, payload: Sequence[bytes] = (), flag: int = 0
) -> list[bytes]:
    """Encode a frame, in pieces."""
    name = path.encode()
    length = _HEAD.size + len(name) + sum(map(len, payload))
    head = _HEAD.pack(length, 0, kind, flag, len(name), a, b)[_CRC_AT:] + name
    crc = zlib.crc32(head)
    for piece in payload:
        crc = zlib.crc32(piece, crc)
    return [_LENGTH_AND_CRC.pack(length, crc) + head, *payload]


class Attached(NamedTuple):
    """The first frame of a connection."""

    life: int
    position: int
    is_resumed: bool
    """Whether the stream starts at the requested position."""
    time_ms: int
    is_out_of_sync: bool = False
    """Whether the receiver is not in sync, whatever its state says."""
    confirms_wait: bool = False
    """Whether confirms wait for the receiver."""

    def encode(self) -> bytes:
        """Encode the frame, as `ATTACHED_BYTES` bytes."""
        flag = RESUMED * self.is_resumed + OUT_OF_SYNC * self.is_out_of_sync + CONFIRMS_WAIT * self.confirms_wait
        return b"".join(encode(Kind.ATTACHED, "", self.life, self.position, [_TIME.pack(self.time_ms)], flag))

    @classmethod
    def decode(cls, data: bytes) -> Attached:
        """Decode the frame. Raise BadFrame."""
        frame = next(Decoder(0).feed(data), None)
        if frame is None or frame.kind is not Kind.ATTACHED or len(frame.payload) != _TIME.size:
            raise BadFrame("the stream does not start with ATTACHED")
        time_ms = _TIME.unpack(frame.payload)[0]
        is_resumed, is_out_of_sync, confirms_wait = (
            bool(frame.flag & each) for each in (RESUMED, OUT_OF_SYNC, CONFIRMS_WAIT)
        )
        return cls(frame.a, frame.b, is_resumed, time_ms, is_out_of_sync, confirms_wait)


class Decoder:
    """Decodes frames from a stream of bytes."""

    def __init__(self, position: int) -> None:
        """`position` is the position of the first byte."""
        self.position = position
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add bytes; yield the frames that they complete. Raise BadFrame."""
        self._buffer += data
        at = 0
        try:
            while len(self._buffer) - at >= _HEAD.size:
                frame, length = self._decode(at)
                if frame is None:
                    break
                at += length
                self.position = frame.end
                yield frame
        finally:
            del self._buffer[:at]

    def _decode(self, at: int) -> tuple[Frame | None, int]:
        length, crc, number, flag, name_bytes, a, b = _HEAD.unpack_from(self._buffer, at)
        if not _HEAD.size + name_bytes <= length <= FRAME_BYTES_MAX:
            raise BadFrame(f"a frame at {self.position} has a length of {length} bytes")
        if len(self._buffer) - at < length:
            return None, 0
        with memoryview(self._buffer) as view:
            frame_bytes = bytes(view[at : at + length])
        if zlib.crc32(memoryview(frame_bytes)[_CRC_AT:]) != crc:
            raise BadFrame(f"the frame at {self.position} does not match its checksum")
        try:
            kind = Kind(number)
        except ValueError:
            what = f"the frame at {self.position} is of kind {number}"
            raise BadFrame(f"{what}, unknown to this version: use the same version on both sides") from None
        path = _path(frame_bytes[_HEAD.size : _HEAD.size + name_bytes])
        payload = frame_bytes[_HEAD.size + name_bytes :]
        start = self.position
        end = start + length if kind < Kind.COPY_BEGIN else start
        return Frame(kind, flag, a, b, path, payload, start, end), length


def new_path(frame: Frame) -> str:
    """Return the new path of a RENAME. Raise BadFrame."""
    return _path(frame.payload)


def _path(name: bytes) -> str:
    if not name:  # the data directory itself
        return ""
    try:
        return checked_path(name.decode())
    except (BackupError, UnicodeDecodeError) as error:
        raise BadFrame(f"the stream is damaged: {error}") from None
