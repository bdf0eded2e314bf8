"""The broker's journal: what makes a transaction over several queues whole.

A record holds, for each queue, the messages and settles of the transaction. Once it is synced the
transaction has happened: each queue then writes its part as a batch that carries the record's number,
and after a crash the parts that are not in their queue's log yet are written again. A queue's log knows
the highest number it has, so nothing is done twice. When no part is outstanding the file starts anew.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple
from zlib import crc32

from curbstone.core.disk import Disk, File
from curbstone.core.format import Settled, decode_entries, decode_settled, encode_entries, encode_settled, runs_of
from curbstone.core.host import Host
from curbstone.core.message import Message

_RECORD = struct.Struct("<IIQI")  # crc, bytes of the parts, number, parts
_PART = struct.Struct("<QIIII")  # uid, messages, bytes of their entries, timed messages, bytes of the settles
_TIMED = struct.Struct("<IQQ")  # place of the message, its delay and ttl in ms
JOURNAL_BYTES_MAX = 64 * 1024 * 1024
_NAME = "journal"


class Part(NamedTuple):
    """What a transaction does to one queue."""

    uid: int
    messages: list[Message]
    settles: list[tuple[str, int, list[int]]]
    """(group, reason, seqs)"""


class Recorded(NamedTuple):
    """A part as it is read back."""

    tx: int
    uid: int
    messages: list[Message]
    settled: list[Settled]


class Journal:
    """The file `journal` of a data directory; opened blocking, written by jobs."""

    def __init__(self, host: Host, disk: Disk) -> None:
        self._host = host
        self._disk = disk
        self._file: File | None = None
        self._end = 0
        self._outstanding = 0
        self._waiting: list[tuple[bytes, int, Callable[[BaseException | None], None]]] = []
        self._busy = False
        self._failed = False
        self.next_tx = 1

    def recover(self) -> list[Recorded]:
        """Return all parts of all whole records; blocking."""
        try:
            file = self._disk.open(_NAME)
        except FileNotFoundError:
            return []
        try:
            data = file.read(0, file.size())
        finally:
            file.close()
        recorded: list[Recorded] = []
        self._end = _decode(data, recorded)
        self.next_tx = max((part.tx for part in recorded), default=0) + 1
        return recorded

    def write(self, parts: list[Part], on_done: Callable[[int, BaseException | None], None]) -> None:
        """Record a transaction; `on_done(number, error)` when it is synced. It counts as outstanding from then on."""
        tx = self.next_tx
        self.next_tx += 1
        body = b"".join(map(_encode_part, parts))
        head = _RECORD.pack(0, len(body), tx, len(parts))[4:]
        record = crc32(body, crc32(head)).to_bytes(4, "little") + head + body
        self._outstanding += len(parts)

        def done(error: BaseException | None) -> None:
            if error is not None:
                self._outstanding -= len(parts)
            on_done(tx, error)

        self._waiting.append((record, len(parts), done))
        self._flush()

    def replaying(self) -> None:
        """A part that was read back is being written again: until that is done its record must stay."""
        self._outstanding += 1

    def part_done(self) -> None:
        """A part is in its queue's log."""
        self._outstanding -= 1

    def _flush(self) -> None:
        if self._busy or not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        data = b"".join(record for record, _, _ in waiting)
        earlier = self._outstanding - sum(parts for _, parts, _ in waiting)
        offset = self._end if earlier else 0
        refusal = self._refusal(offset + len(data), earlier)
        if refusal is not None:
            for _, _, done in waiting:
                self._host.call_soon(partial(done, refusal))
            return
        anew = self._failed
        self._busy = True

        def job() -> None:
            if self._file is None or anew:
                self._file = self._open(anew)
            self._file.write(offset, [data])
            self._file.sync()

        def finished(_: object, error: BaseException | None) -> None:
            self._busy = False
            self._failed = error is not None
            if error is None:
                self._end = offset + len(data)
            for _record, _parts, done in waiting:
                done(error)
            self._flush()

        self._host.submit(job, finished)

    def _refusal(self, end: int, earlier: int) -> OSError | None:
        """A file whose sync failed is replaced, but only when nothing in it is needed any more."""
        if self._failed and earlier:
            return OSError("the journal can't be written, and earlier transactions are not finished")
        if end > JOURNAL_BYTES_MAX:
            return OSError("too many transactions over several queues are under way")
        return None

    def _open(self, anew: bool) -> File:
        if self._file is not None:
            self._file.close()
            self._file = None
        if anew:
            with suppress(FileNotFoundError):
                self._disk.remove(_NAME)
        with suppress(FileExistsError):
            self._disk.open(_NAME, create=True).close()
            self._disk.sync_dir("")
        return self._disk.open(_NAME)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _encode_part(part: Part) -> bytes:
    entries: list[bytes] = []
    for number, message in enumerate(part.messages):
        message.seq = number
    encode_entries(part.messages, 0, entries)
    messages = b"".join(entries)
    settles = b"".join(encode_settled(group, reason, runs_of(list(seqs))) for group, reason, seqs in part.settles)
    timed = [_TIMED.pack(n, m.delay_ms, m.ttl_ms) for n, m in enumerate(part.messages) if m.delay_ms or m.ttl_ms]
    head = _PART.pack(part.uid, len(part.messages), len(messages), len(timed), len(settles))
    return head + messages + b"".join(timed) + settles


def _decode(data: bytes, recorded: list[Recorded]) -> int:
    """Append the parts of all whole records; return where these end."""
    offset = 0
    last_tx = 0
    while offset + _RECORD.size <= len(data):
        crc, size, tx, parts = _RECORD.unpack_from(data, offset)
        end = offset + _RECORD.size + size
        if end > len(data) or crc32(memoryview(data)[offset + 4 : end]) != crc or tx <= last_tx:
            break  # the rest is of an earlier round, or was never synced
        last_tx = tx
        offset += _RECORD.size
        for _ in range(parts):
            part, offset = _decode_part(data, offset, tx)
            recorded.append(part)
    return offset


def _decode_part(data: bytes, offset: int, tx: int) -> tuple[Recorded, int]:
    uid, count, messages_bytes, timed, settles_bytes = _PART.unpack_from(data, offset)
    offset += _PART.size
    messages = decode_entries(data, offset, count, 0)
    offset += messages_bytes
    for place, delay_ms, ttl_ms in _TIMED.iter_unpack(data[offset : offset + timed * _TIMED.size]):
        messages[place].delay_ms, messages[place].ttl_ms = delay_ms, ttl_ms
    offset += timed * _TIMED.size
    settled = list(decode_settled(data, offset, offset + settles_bytes))
    return Recorded(tx, uid, messages, settled), offset + settles_bytes
