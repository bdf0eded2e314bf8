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

from curbstone.core.disk import Disk, File, replace_file
from curbstone.core.host import Host
from curbstone.core.log.commit import NO_SPACE
from curbstone.core.log.format import (
    BATCH_BYTES,
    Released,
    Settled,
    decode_entries,
    decode_released,
    decode_settled,
    encode_entries,
    encode_released,
    encode_settled,
    entry_bytes,
    runs_of,
)
from curbstone.core.message import Message

_RECORD = struct.Struct("<IIQI")  # crc, bytes of the parts, number, parts
# uid, messages, bytes of their entries, timed messages, bytes of the releases, bytes of the settles
_PART = struct.Struct("<QIIIII")
_TIMED = struct.Struct("<IQQ")  # place of the message, its delay and ttl in ms
JOURNAL_BYTES_MAX = 64 * 1024 * 1024
REPLACE_AGAIN_MS = 1000
_NAME = "journal"


class Part(NamedTuple):
    """What a transaction does to one queue."""

    uid: int
    messages: list[Message]
    settles: list[tuple[str, int, list[int]]]
    """(group, reason, seqs)"""
    released: list[Released]


class Recorded(NamedTuple):
    """A part as it is read back."""

    tx: int
    uid: int
    messages: list[Message]
    settled: list[Settled]
    released: list[Released]
    record: bytes
    """The whole record the part is of."""

    @property
    def log_bytes(self) -> int:
        """About what it takes in its queue's log, rather more than less."""
        records = len(self.messages) + len(self.settled) + len(self.released)
        return BATCH_BYTES + sum(map(entry_bytes, self.messages)) + 64 * records


class _Waiting(NamedTuple):
    """A record on its way to the disk."""

    tx: int
    record: bytes
    parts: int
    on_done: Callable[[BaseException | None], None]


class Journal:
    """The file `journal` of a data directory; opened blocking, written by jobs."""

    def __init__(self, host: Host, disk: Disk) -> None:
        self._host = host
        self._disk = disk
        self._file: File | None = None
        self._end = 0
        self._needed: dict[int, tuple[bytes, int]] = {}
        """Records with parts that are not in their queue's log yet, and how many parts."""
        self._waiting: list[_Waiting] = []
        self._doubtful: list[tuple[_Waiting, BaseException]] = []
        """Records whose sync failed: they may be on disk or not, until the file is replaced."""
        self._busy = False
        self.next_tx = 1

    def recover(self) -> list[Recorded]:
        """Return all parts of all whole records; blocking."""
        try:
            file = self._disk.open(_NAME)
        except FileNotFoundError:
            return []
        try:
            file.sync()  # a process that was killed may have left what only the system's memory has
            data = file.read(0, file.size())
        finally:
            file.close()
        self._disk.sync_dir("")
        recorded: list[Recorded] = []
        self._end = _decode(data, recorded)
        self.next_tx = max((part.tx for part in recorded), default=0) + 1
        return recorded

    def write(self, parts: list[Part], on_done: Callable[[int, BaseException | None], None]) -> None:
        """Record a transaction; `on_done(number, error)` when it is synced, or can't come into effect any more."""
        tx = self.next_tx
        self.next_tx += 1
        body = b"".join(map(_encode_part, parts))
        head = _RECORD.pack(0, len(body), tx, len(parts))[4:]
        record = crc32(body, crc32(head)).to_bytes(4, "little") + head + body
        self._waiting.append(_Waiting(tx, record, len(parts), partial(on_done, tx)))
        self._flush()

    @property
    def path(self) -> str:
        """Its file."""
        return _NAME

    @property
    def needed_until(self) -> int:
        """How many bytes of the file are needed by the next start; 0 where every part is in its queue's log."""
        return self._end if self._needed else 0

    def replaying(self, recorded: Recorded) -> None:
        """A part that was read back is being written again: until that is done its record must stay."""
        record, left = self._needed.get(recorded.tx, (recorded.record, 0))
        self._needed[recorded.tx] = (record, left + 1)

    def part_done(self, tx: int) -> None:
        """A part is in its queue's log."""
        record, left = self._needed.pop(tx)
        if left > 1:
            self._needed[tx] = (record, left - 1)

    @property
    def _needed_bytes(self) -> int:
        return sum(len(record) for record, _ in self._needed.values())

    def _flush(self) -> None:
        if self._busy or self._doubtful or not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        data = b"".join(item.record for item in waiting)
        offset = self._end if self._needed else 0
        if offset + len(data) > JOURNAL_BYTES_MAX:
            if offset and self._needed_bytes + len(data) <= JOURNAL_BYTES_MAX // 2:
                self._waiting = waiting
                self._replace()
                return
            full = OSError("too many transactions over several queues are under way")
            for item in waiting:
                self._host.call_soon(partial(item.on_done, full))
            return
        self._busy = True
        is_undone = False

        def job() -> None:
            nonlocal is_undone
            if self._file is None:
                self._file = self._open()
            try:
                self._file.write(offset, [data])
            except OSError as failure:
                is_undone = failure.errno in NO_SPACE and self._undo(offset)
                raise
            self._file.sync()

        def finished(_: object, error: BaseException | None) -> None:
            self._busy = False
            if is_undone:
                for item in waiting:
                    item.on_done(error)
                self._flush()
                return
            if error is not None:
                self._doubtful = [(item, error) for item in waiting]
                self._replace()
                return
            self._end = offset + len(data)
            for item in waiting:
                self._needed[item.tx] = (item.record, item.parts)
            for item in waiting:
                item.on_done(None)
            self._flush()

        self._host.submit(job, finished)

    def _undo(self, offset: int) -> bool:
        """Leave nothing of what found no room on the disk; return whether that is so."""
        assert self._file is not None
        try:
            self._file.truncate(offset)
            self._file.sync()
        except OSError:
            return False
        self._end = min(self._end, offset)
        return True

    def _replace(self) -> None:
        """Put a file in place that has only what is needed, and not what may or may not be on disk.

        Until that is done nobody is told that a doubtful transaction failed: it would come into effect
        after a crash, when what it did had been done otherwise.
        """
        data = b"".join(record for _, (record, _) in sorted(self._needed.items()))
        self._busy = True

        def job() -> None:
            self._close_file()
            self._file = replace_file(self._disk, _NAME, data)

        def finished(_: object, error: BaseException | None) -> None:
            self._busy = False
            if error is not None:
                self._host.call_later(REPLACE_AGAIN_MS, self._replace)
                return
            self._end = len(data)
            doubtful, self._doubtful = self._doubtful, []
            for item, failure in doubtful:
                item.on_done(failure)
            self._flush()

        self._host.submit(job, finished)

    def _open(self) -> File:
        with suppress(FileExistsError):
            self._disk.open(_NAME, create=True).close()
            self._disk.sync_dir("")
        return self._disk.open(_NAME)

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close the file."""
        self._close_file()


def _encode_part(part: Part) -> bytes:
    entries: list[bytes] = []
    for number, message in enumerate(part.messages):
        message.seq = number
    encode_entries(part.messages, 0, entries)
    messages = b"".join(entries)
    settles = b"".join(encode_settled(group, reason, runs_of(list(seqs))) for group, reason, seqs in part.settles)
    timed = [_TIMED.pack(n, m.delay_ms, m.ttl_ms) for n, m in enumerate(part.messages) if m.delay_ms or m.ttl_ms]
    released = encode_released(part.released)
    head = _PART.pack(part.uid, len(part.messages), len(messages), len(timed), len(released), len(settles))
    return head + messages + b"".join(timed) + released + settles


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
        record = data[offset:end]
        offset += _RECORD.size
        for _ in range(parts):
            part, offset = _decode_part(data, offset, tx, record)
            recorded.append(part)
    return offset


def _decode_part(data: bytes, offset: int, tx: int, record: bytes) -> tuple[Recorded, int]:
    uid, count, messages_bytes, timed, released_bytes, settles_bytes = _PART.unpack_from(data, offset)
    offset += _PART.size
    messages = decode_entries(data, offset, count, 0)
    offset += messages_bytes
    for place, delay_ms, ttl_ms in _TIMED.iter_unpack(data[offset : offset + timed * _TIMED.size]):
        messages[place].delay_ms, messages[place].ttl_ms = delay_ms, ttl_ms
    offset += timed * _TIMED.size
    released = list(decode_released(data, offset, offset + released_bytes))
    offset += released_bytes
    settled = list(decode_settled(data, offset, offset + settles_bytes))
    return Recorded(tx, uid, messages, settled, released, record), offset + settles_bytes
