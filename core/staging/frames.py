"""Messages of a staged transaction, as bytes: frames that hold message entries like those of the log.

A frame is for one queue. `core.frames` has its form; this is kind 2. An entry has the message's place in the frame
instead of the seq, and the delay in ms instead of the timestamp. Its extras are the ttl in ms (8 bytes) and the names
of groups, separated by commas.

Frames are checked piece by piece as they arrive, and stored unchanged. They are read back when they are committed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from curbstone.core.engine.log.format import ENTRY, ENTRY_BYTES, decode_entries
from curbstone.core.errors import BadRequest, MessageTooLarge
from curbstone.core.frames import FRAME, KIND_STAGED
from curbstone.core.message import Message
from curbstone.core.names import group_name
from curbstone.core.values import TTL_MS_MAX

HEADERS_BYTES_MAX = 32 * 1024
NAME_BYTES_MAX = 200
DELAY_MS_MAX = 10 * 365 * 86_400_000
_GOOD_BLOCKS_MAX = 1000
_TTL = struct.Struct("<Q")
_TEXT = rb"[^\\\n\r:\0]*(?:\\[nrc\\][^\\\n\r:\0]*)*"
_BLOCK = re.compile(rb"(?:(?!:)%b:%b\n)*" % (_TEXT, _TEXT))


@dataclass(slots=True)
class QueueShare:
    """How much of a part, or of a whole transaction, is for one queue."""

    count: int = 0
    size: int = 0
    """Bytes of the entries."""
    largest: int = 0
    """Bytes of the largest entry."""
    longest: int = 0
    """Bytes of the longest body."""
    delayed: int = 0
    """How many messages have a delay."""

    def add(self, other: QueueShare) -> None:
        """Add the numbers of another share to this one."""
        self.count += other.count
        self.size += other.size
        self.largest = max(self.largest, other.largest)
        self.longest = max(self.longest, other.longest)
        self.delayed += other.delayed


class FrameCheck:
    """Checks frames that arrive in pieces, and counts what is in them."""

    def __init__(self, body_bytes_max: Callable[[str], int], ttl_ms_max: int = TTL_MS_MAX) -> None:
        self._body_bytes_max = body_bytes_max
        """Returns the limit of a queue, given its name; raises if there is no such queue."""
        self._ttl_ms_max = ttl_ms_max
        self.shares: dict[str, QueueShare] = {}
        self._limits: dict[str, int] = {}
        self._rest = b""
        """The first bytes of an entry or head that is not complete yet; `_pieces` are those that came behind them."""
        self._pieces: list[bytes] = []
        self._waiting = 0
        self._needed = 0
        self._name = ""
        self._place = self._count = 0
        self._frame_left = 0
        self._good_blocks: set[bytes] = {b""}
        self._good_extras: set[bytes] = set()

    @property
    def is_whole(self) -> bool:
        """Whether everything that came so far is complete frames."""
        return not self._rest and self._place == self._count

    @property
    def messages(self) -> int:
        return sum(share.count for share in self.shares.values())

    def feed(self, data: bytes) -> None:
        """Check a piece; raise BadRequest, MessageTooLarge, or what `body_bytes_max` raises."""
        if self._rest:
            self._pieces.append(data)
            self._waiting += len(data)
            if len(self._rest) + self._waiting < self._needed:
                return  # a large message is joined only once, when all of it is there
            data = b"".join([self._rest, *self._pieces])
            self._pieces.clear()
            self._waiting = 0
        self._needed = 0
        at = 0
        while True:
            after = self._begin(data, at) if self._place == self._count else self._entries(data, at)
            if after == at:
                break
            at = after
        self._rest = data[at:]

    def _begin(self, data: bytes, at: int) -> int:
        """Read a frame's head and return where its entries begin, or `at` if the head is not complete yet."""
        if len(data) - at < FRAME.size:
            return at
        name_bytes: int
        size, kind, zero, name_bytes, first, count, mask, tries = FRAME.unpack_from(data, at)
        if kind != KIND_STAGED or zero or first or mask or tries:
            raise BadRequest("bad frame: its kind must be 2, and what is reserved 0")
        if not 0 < name_bytes <= NAME_BYTES_MAX:
            raise BadRequest(f"bad frame: a queue's name has 1 to {NAME_BYTES_MAX} bytes")
        start = at + FRAME.size
        if len(data) - start < name_bytes:
            return at
        left = size - (FRAME.size - 4) - name_bytes
        if not count or left < count * ENTRY_BYTES:
            raise BadRequest("bad frame: its bytes don't hold the number of entries in its head")
        try:
            self._name = data[start : start + name_bytes].decode()
        except UnicodeDecodeError:
            raise BadRequest("bad frame: a queue's name is not UTF-8") from None
        if self._name not in self._limits:
            self._limits[self._name] = self._body_bytes_max(self._name)
            self.shares[self._name] = QueueShare()
        self._frame_left = left
        self._place, self._count = 0, count
        return start + name_bytes

    def _entries(self, data: bytes, at: int) -> int:
        """Check the entries that are complete; return where they end."""
        share = self.shares[self._name]
        limit = self._limits[self._name]
        place, count, left, largest, longest = self._place, self._count, self._frame_left, share.largest, share.longest
        good = self._good_blocks
        start, end = at, len(data)
        unpack = ENTRY.unpack_from
        while place < count and end - at >= ENTRY_BYTES:
            size, delta, delay_ms, headers_bytes, flags, extras_bytes = unpack(data, at)
            body_bytes = size - ENTRY_BYTES - headers_bytes - extras_bytes
            if body_bytes < 0 or delta != place or flags or size > left:
                raise BadRequest(f"bad entry {place} of a frame for queue {self._name}: see the format")
            if body_bytes > limit:
                raise MessageTooLarge(f"a message for queue {self._name} is larger than {limit} bytes")
            if headers_bytes > HEADERS_BYTES_MAX or delay_ms > DELAY_MS_MAX:
                raise BadRequest(f"bad entry {place} of a frame: its headers or its delay are too large")
            if end - at < size:
                self._needed = size
                break
            if extras_bytes:
                extras = data[at + ENTRY_BYTES : at + ENTRY_BYTES + extras_bytes]
                if extras not in self._good_extras:
                    self._check_extras(extras)
            if headers_bytes:
                block = data[at + ENTRY_BYTES + extras_bytes : at + ENTRY_BYTES + extras_bytes + headers_bytes]
                if block not in good:
                    self._check_block(block)
            if delay_ms:
                share.delayed += 1
            if size > largest:
                largest = size
            if body_bytes > longest:
                longest = body_bytes
            at += size
            left -= size
            place += 1
        if place == count and left:
            raise BadRequest("bad frame: there is something behind its last entry")
        share.count += place - self._place
        share.size += at - start
        share.largest, share.longest = largest, longest
        self._place, self._frame_left = place, left
        return at

    def _check_extras(self, extras: bytes) -> None:
        """Raise BadRequest for a ttl or groups that a message can't have."""
        if len(extras) < _TTL.size:
            raise BadRequest("bad extras of an entry: 8 bytes for the ttl, then names of groups with commas between")
        (ttl_ms,) = _TTL.unpack_from(extras)
        if ttl_ms > self._ttl_ms_max:
            raise BadRequest(f"bad ttl {ttl_ms} ms: at most {self._ttl_ms_max}")
        for name in extras[_TTL.size :].decode("utf-8", "replace").split(",") if len(extras) > _TTL.size else ():
            if name:
                group_name(name)
        if len(self._good_extras) < _GOOD_BLOCKS_MAX:
            self._good_extras.add(extras)

    def _check_block(self, block: bytes) -> None:
        """Raise BadRequest for a header block that no protocol adapter would store."""
        if not _BLOCK.fullmatch(block):
            raise BadRequest("bad headers: they must be lines name:value with the escapes of STOMP 1.2")
        if block.startswith(b"x-dead-") or b"\nx-dead-" in block:
            raise BadRequest("bad headers: names with x-dead- are the server's")
        try:
            block.decode()
        except UnicodeDecodeError:
            raise BadRequest("bad headers: they must be UTF-8") from None
        if len(self._good_blocks) < _GOOD_BLOCKS_MAX:
            self._good_blocks.add(block)


class FrameMessages(NamedTuple):
    """Messages of one frame as they are read back, with delays in `timestamp_ms` and ttls in `expires_ms`."""

    name: str
    messages: list[Message]
    size: int
    """Bytes of their entries."""


class FrameReader:
    """Reads checked frames back, from pieces that may be cut anywhere."""

    def __init__(self) -> None:
        self._name = ""
        self._left = 0

    def read(self, data: bytes) -> tuple[list[FrameMessages], int]:
        """Return the complete messages at the start of `data`, in order, and how many bytes were used for them.

        The next call must begin with the bytes that were not used.
        """
        found: list[FrameMessages] = []
        at = 0
        while True:
            if not self._left:
                if len(data) - at < FRAME.size:
                    return found, at
                _size, _kind, _zero, name_bytes, _first, count, _mask, _tries = FRAME.unpack_from(data, at)
                start = at + FRAME.size
                if len(data) - start < name_bytes:
                    return found, at
                self._name = data[start : start + name_bytes].decode()
                self._left = count
                at = start + name_bytes
            count, end = _whole_entries(data, at, self._left)
            if not count:
                return found, at
            found.append(FrameMessages(self._name, decode_entries(data, at, count, 0), end - at))
            self._left -= count
            at = end


def _whole_entries(data: bytes, at: int, most: int) -> tuple[int, int]:
    """Return how many entries from `at` on, up to `most`, are complete, and where they end."""
    count = 0
    unpack = ENTRY.unpack_from
    while count < most and len(data) - at >= ENTRY_BYTES:
        size = unpack(data, at)[0]
        if len(data) - at < size:
            break
        at += size
        count += 1
    return count, at
