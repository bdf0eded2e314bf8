"""The bytes of the file `journal`: transactions over several queues, each with a part for every queue.

Pure: no file, no clock. The file is records, end to end. What follows the last one is stale or was never synced.
Numbers are little-endian. ::

    record   crc, length of the parts, number of the transaction, count of parts; then the parts
    part     uid of the queue, count and length of its messages, count of the timed ones, length of releases and
             settles; then the entries, delay and time to live of the timed messages, releases, settles, among which
             a list of no messages says that a batch of messages has ended

A record's crc covers everything after the crc itself. Numbers rise from record to record, so a lower number shows that
a record was left behind by an earlier use of the file. Unlike the records of a redo file these are *logical*: the
messages of a part get their seqs when its queue writes it. `docs/shared-sync.md` says why.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

from curbstone.core.engine.facts.tallies import SETTLED_NOTE_BYTES
from curbstone.core.engine.log.format import (
    BATCH_BYTES,
    Settled,
    TriesRecord,
    decode_batch_ends,
    decode_entries,
    decode_settled,
    decode_tries,
    encode_batch_end,
    encode_entries,
    encode_settled,
    encode_tries,
    entry_bytes,
    runs_of,
)
from curbstone.core.engine.write_queue import Release, Settle
from curbstone.core.message import Message
from curbstone.core.orders import changed

_RECORD = struct.Struct("<IIQI")
_PART = struct.Struct("<QIIIII")
_TIMED = struct.Struct("<IQQ")  # place of the message, its delay and ttl in ms


class Recorded(NamedTuple):
    """A part as it is read back."""

    tx: int
    uid: int
    messages: list[Message]
    settled: list[Settled]
    released: list[TriesRecord]
    ended_batch: bytes
    """The key of a batch that ends in its queue; empty if there is none."""
    data: bytes
    """The part as it was encoded."""

    @property
    def log_bytes(self) -> int:
        """About how many bytes it takes in its queue's log, rather too many than too few."""
        records = len(self.messages) + len(self.settled) + len(self.released)
        settled = sum([each.span for each in self.settled])
        return BATCH_BYTES + sum(map(entry_bytes, self.messages)) + 64 * records + SETTLED_NOTE_BYTES * settled


def encode_part(
    uid: int, messages: list[Message], settles: Sequence[Settle], releases: Sequence[Release], batch: bytes = b""
) -> bytes:
    """Return the part of a transaction for one queue. The messages' seqs are set to their places in it."""
    entries: list[bytes] = []
    for number, message in enumerate(messages):
        message.seq = number
    encode_entries(messages, 0, entries)
    entries_bytes = sum(map(len, entries))
    timed = [
        _TIMED.pack(place, orders.delay_ms, orders.ttl_ms)
        for place, message in enumerate(messages)
        if (orders := message.orders) is not None and (orders.delay_ms or orders.ttl_ms)
    ]
    released = encode_tries([record for release in releases for record in release.records])
    settled = b"".join(
        encode_settled(each.group, each.reason, runs_of([d.message.seq for d in each.deliveries])) for each in settles
    )
    settled += encode_batch_end(batch) if batch else b""
    head = _PART.pack(uid, len(messages), entries_bytes, len(timed), len(released), len(settled))
    return b"".join([head, *entries, *timed, released, settled])


def encode_record(tx: int, parts: Iterable[bytes]) -> bytes:
    """Return a transaction of these parts."""
    parts = list(parts)
    body = b"".join(parts)
    head = _RECORD.pack(0, len(body), tx, len(parts))[4:]
    return crc32(body, crc32(head)).to_bytes(4, "little") + head + body


def record_bytes(parts: Iterable[bytes]) -> int:
    return _RECORD.size + sum(map(len, parts))


class DamagedRecord(NamedTuple):
    """A record that does not check though a later one does."""

    start: int
    end: int
    tx: int
    """The number of its transaction."""


class Contents(NamedTuple):
    """What the file has."""

    parts: list[Recorded]
    end: int
    """Where the last whole record ends."""
    unsound: list[DamagedRecord]
    """Their transactions are lost, or were never confirmed."""


def decode_records(data: bytes) -> Contents:
    """Return the parts of all whole records.

    Behind the last of them may be what was never synced, and what an earlier use of the file has left. A record that
    does not check is unsound if the next one does: it is damaged, or both were in one write that a power cut has torn.
    The next one is looked for only where the head of the unsound one says: a message could hold the bytes of a record.
    The first record is not taken for unsound, because its head may be that of an earlier use, which a write that was
    never synced left there.
    """
    found = Contents([], 0, [])
    offset = last_tx = end = 0
    while offset + _RECORD.size <= len(data):
        _, size, tx, parts = _RECORD.unpack_from(data, offset)
        following = offset + _RECORD.size + size
        if tx <= last_tx or following > len(data):
            break
        if _checks(data, offset, following):
            at = offset + _RECORD.size
            for _ in range(parts):
                found.parts.append(_decode_part(data, at, tx))
                at += len(found.parts[-1].data)
            end, last_tx = following, tx
        elif _is_record_behind(data, following, tx):
            if last_tx:
                found.unsound.append(DamagedRecord(offset, following, tx))
        else:
            break
        offset = following
    return found._replace(end=end)


def _checks(data: bytes, offset: int, end: int) -> bool:
    return crc32(memoryview(data)[offset + 4 : end]) == int.from_bytes(data[offset : offset + 4], "little")


def _is_record_behind(data: bytes, offset: int, tx: int) -> bool:
    """Return whether a whole record of a later transaction than `tx` begins there."""
    if offset + _RECORD.size > len(data):
        return False
    _, size, later, _ = _RECORD.unpack_from(data, offset)
    end = offset + _RECORD.size + size
    return later > tx and end <= len(data) and _checks(data, offset, end)


def _decode_part(data: bytes, start: int, tx: int) -> Recorded:
    uid, count, messages_bytes, timed, tries_bytes_of, settles_bytes = _PART.unpack_from(data, start)
    offset = start + _PART.size
    messages = decode_entries(data, offset, count, 0)
    offset += messages_bytes
    for place, delay_ms, ttl_ms in _TIMED.iter_unpack(data[offset : offset + timed * _TIMED.size]):
        message = messages[place]
        message.orders = changed(message.orders, delay_ms=delay_ms, ttl_ms=ttl_ms)
    offset += timed * _TIMED.size
    released = list(decode_tries(data, offset, offset + tries_bytes_of))
    offset += tries_bytes_of
    end = offset + settles_bytes
    batch = next(decode_batch_ends(data, offset, end), b"")
    return Recorded(tx, uid, messages, list(decode_settled(data, offset, end)), released, batch, data[start:end])
