"""The bytes of a segment file. Pure: no file, no clock.

A segment is a header of `SEGMENT_BYTES`, followed by batches, end to end. Behind the last batch there are
zeros, or bytes of an earlier life of the file. Numbers are little-endian. ::

    segment header   magic "CURBSEG1", format, salt, queue uid, number, number and end of the segment
                     before it, log start (oldest segment there must be), next seq, next batch number,
                     last transaction applied, crc
                     (stored twice, because without the salt no batch can be checked)
    batch            crc, magic, length, flags, number, time, first seq, delivered, transaction,
                     count, bytes of releases, settles and notes;
                     then message entries, releases, settles, notes
    message entry    length, seq - first seq, timestamp, length of headers, level (4 bits), whether it
                     has a name (1 bit), is of a batch (1 bit; the other 10 are 0), length of extras;
                     then extras (expiry, groups), header block, body

A batch's CRC covers everything after the CRC itself. It starts from the segment's salt, which is random, so
that neither bytes of an earlier life of a recycled file nor a message body that looks like a batch can pass
for one. A release says that seqs are ready again, from what time on, and how often they were tried. A settle
says that seqs are done, and why. Both name a group and hold runs of seqs. Notes are facts about the log itself.

Format 2 has the same bytes as format 1, but after a power cut a segment of format 2 may lack batches that only a redo
file has (see `core.wal.redo_file`). A program for format 1 would miss them, so it has to refuse the
segment.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import chain
from typing import NamedTuple
from zlib import crc32

from curbstone.core.message import Message
from curbstone.core.orders import BATCHED, NAMED, OF_FLAGS, changed

FORMAT = 2
FORMAT_WITHOUT_REDO = 1
SEGMENT_MAGIC = b"CURBSEG1"
BATCH_MAGIC = 0x48544342  # "BCTH" on disk
BATCH_MAGIC_BYTES = BATCH_MAGIC.to_bytes(4, "little")

_SEGMENT = struct.Struct("<8sII8QI")
SEGMENT_BYTES = 2 * _SEGMENT.size
_BATCH = struct.Struct("<IIIH2x5Q4I")
ALONE_BYTES_MIN = 64 * 1024
"""A part at least this large is written as a buffer of its own, without a copy: many queues may share the body."""
ALONE_PARTS_MAX = 64
"""If a batch has more parts than this, they are small on average, and joining all of them is fastest."""
BATCH_BYTES = _BATCH.size
ENTRY = struct.Struct("<IIQIHH")
ENTRY_BYTES = ENTRY.size
_SIZE_AND_DELTA = struct.Struct("<II")  # how an entry begins
LEVEL_BITS = 15
_FLAG_BITS = LEVEL_BITS | NAMED | BATCHED
_LEVELS = bytes(orders.level if orders is not None else 0 for orders in OF_FLAGS[:NAMED])
"""The level for each number in an entry; a number unknown to this version counts as the default."""
_EXTRAS = struct.Struct("<Q")
_LIST = struct.Struct("<BBHI")  # reason (of releases: 1 for state), length of the group's name, 0, number of runs
_SETTLED = struct.Struct("<QI")  # first seq, count
_ENDED = 255  # stands for a reason, in the journal of transactions only
_SETTLED_AT_ONCE = 64
_SETTLED_MANY = struct.Struct("<" + "QI" * _SETTLED_AT_ONCE)
_RELEASED = struct.Struct("<QIIQ")  # first seq, count, tries, due (engine time in ms, 0 for now)
_NOTE = struct.Struct("<BI")


class Flag(IntEnum):
    """Bits of a batch's flags."""

    EXTRAS = 1  # some message has an expiry or names groups
    COPY = 2  # messages copied forward by the cleaner: their seqs have gaps
    LEVELS = 4  # some message has another priority than the default
    BATCHED = 8  # some message is of a batch


class Reason(IntEnum):
    """Why a message was settled."""

    COPIED = 0  # it was settled earlier; this is repeated because its message was copied forward
    ACK = 1
    REJECT = 2
    MAX_TRIES = 3
    EXPIRE = 4
    PURGE = 5
    SKIPPED = 6  # given up for a group that may be overtaken when the cap is reached
    ABSENT = 7  # the group was declared later, and does not see it
    MOVED = 8  # a redrive put it into another queue
    REPLACED = 9  # by a newer message of its name; never in the journal of transactions: 0.2.0 refuses 9 there

    @property
    def is_done(self) -> bool:
        """Whether it counts as acked."""
        return self in (Reason.ACK, Reason.MOVED)


class Note(IntEnum):
    """Kinds of notes. Those with a row in `core.engine.facts.kinds` are facts; it has the contents of all."""

    LOG_START = 1  # the oldest segment there must be
    DELIVERED = 2  # a named group's delivered mark
    KEY = 3  # an idempotency key, and what was published under it
    STAGED = 4  # how many messages of a staged transaction are in this log
    LOSS = 5  # what a declared group has lost: how far, and how much
    ACKED = 6  # up to where a declared group was acked
    PRODUCER = 7  # the last number of a producer
    RANK = 8  # the delivered mark of a level in a group; that of the default level is another note
    NAME = 10  # the message that has a unique name
    BATCH = 11  # how many messages of a batch were stored, and how many have ended
    BATCH_SETTLED = 12  # by how much the latter has risen: no fact, because the next note of the batch has it
    FILLER = 255  # says nothing: a repair puts it in the place of damaged bytes


class SegmentHeader(NamedTuple):
    """What a segment says of itself and of the log before it."""

    salt: int
    uid: int
    number: int
    previous: int
    previous_end: int
    log_start: int
    next_seq: int
    next_batch: int
    tx: int
    format: int = FORMAT


class BatchHeader(NamedTuple):
    """The head of a batch; `delivered` is the last seq that was delivered in the unnamed group."""

    length: int
    flags: int
    number: int
    time_ms: int
    first_seq: int
    delivered: int
    tx: int
    messages: int
    releases_bytes: int
    settles_bytes: int
    notes_bytes: int

    @property
    def messages_bytes(self) -> int:
        return self.length - BATCH_BYTES - self.releases_bytes - self.settles_bytes - self.notes_bytes


class Settled(NamedTuple):
    """Seqs `first` to `first + span - 1` were settled in `group`."""

    group: str
    reason: int
    first: int
    span: int


class TriesRecord(NamedTuple):
    """Seqs `first` to `first + span - 1` are ready again in `group` from `due_ms` on, after `tries` deliveries.

    The cleaner repeats such records for messages to which nothing has happened since; see `encode_tries`.
    """

    group: str
    first: int
    span: int
    tries: int
    due_ms: int


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the first `SEGMENT_BYTES` of a segment file."""
    packed = _SEGMENT.pack(SEGMENT_MAGIC, header.format, *header[:-1], 0)[:-4]
    return (packed + crc32(packed).to_bytes(4, "little")) * 2


def decode_segment_header(data: bytes) -> SegmentHeader | None:
    """Return the header, or None if neither copy is valid; raise UnknownFormat for a newer format."""
    if len(data) < SEGMENT_BYTES:
        return None
    for offset in (0, _SEGMENT.size):
        magic, version, *numbers, crc = _SEGMENT.unpack_from(data, offset)
        if magic == SEGMENT_MAGIC and crc32(data[offset : offset + _SEGMENT.size - 4]) == crc:
            if version not in (FORMAT_WITHOUT_REDO, FORMAT):
                raise UnknownFormat("log", version, FORMAT)
            return SegmentHeader._make([*numbers, version])
    return None


class UnknownFormat(Exception):
    """The file was written by a newer version of this program."""

    def __init__(self, kind: str, version: int, newest: int) -> None:
        super().__init__(f"{kind} format {version} is newer than {newest}, the newest this version reads")


def entry_bytes(message: Message) -> int:
    size = ENTRY_BYTES + len(message.headers) + len(message.body)
    orders = message.orders
    if message.expires_ms or (orders is not None and orders.groups):
        return size + len(encode_extras(message))
    return size


def encode_extras(message: Message) -> bytes:
    """Return the extras of an entry: the expiry, and the groups entitled."""
    groups = message.groups
    if not message.expires_ms and not groups:
        return b""
    return _EXTRAS.pack(message.expires_ms) + ",".join(groups).encode()


def encode_entries(messages: Iterable[Message], first_seq: int, parts: list[bytes]) -> int:
    """Append the entries of `messages` to `parts`; return the batch flags for what some of them have."""
    seen = 0
    any_extras = False
    pack = ENTRY.pack
    for message in messages:
        headers = message.headers
        body = message.body
        orders = message.orders
        flags = 0
        if orders is not None:
            flags = orders.flags
            seen |= flags
        size = ENTRY_BYTES + len(headers) + len(body)
        if message.expires_ms or (orders is not None and orders.groups):
            any_extras = True
            extras = encode_extras(message)
            size += len(extras)
            parts.append(pack(size, message.seq - first_seq, message.timestamp_ms, len(headers), flags, len(extras)))
            parts.append(extras)
        else:
            parts.append(pack(size, message.seq - first_seq, message.timestamp_ms, len(headers), flags, 0))
        parts.append(headers)
        parts.append(body)
    batch_flags = Flag.BATCHED if seen & BATCHED else 0
    return batch_flags | (Flag.EXTRAS if any_extras else 0) | (Flag.LEVELS if seen & LEVEL_BITS else 0)


def decode_entries(data: bytes, offset: int, count: int, first_seq: int) -> list[Message]:
    """Return the `count` messages whose entries start at `offset`."""
    unpack = ENTRY.unpack_from
    messages = []
    for _ in range(count):
        size, delta, timestamp_ms, headers_bytes, flags, extras_bytes = unpack(data, offset)
        start = offset + ENTRY_BYTES + extras_bytes
        body = start + headers_bytes
        offset += size
        message = Message(data[body:offset], data[start:body])
        message.seq = first_seq + delta
        message.timestamp_ms = timestamp_ms
        if flags or extras_bytes:
            message.orders = OF_FLAGS[flags & _FLAG_BITS]
            if extras_bytes:
                _take_extras(message, data, start - extras_bytes, extras_bytes)
        messages.append(message)
    return messages


def decode_some(data: bytes, offset: int, header: BatchHeader, first: int, digits: str) -> list[Message]:
    """Return messages of a batch, whose entries start at `offset`: those with a 1 at seq - `first` in `digits`."""
    found: list[Message] = []
    size_and_delta = _SIZE_AND_DELTA.unpack_from
    shift = header.first_seq - first
    end = len(digits)
    for _ in range(header.messages):
        size, delta = size_and_delta(data, offset)
        place = delta + shift
        if 0 <= place < end and digits[place] == "1":
            found += decode_entries(data, offset, 1, header.first_seq)
        offset += size
    return found


def decode_levels(data: bytes, offset: int, count: int) -> bytes:
    """Return the level of each of the `count` messages whose entries start at `offset`."""
    levels = bytearray(count)
    for index in range(count):
        size, _, _, _, level, _ = ENTRY.unpack_from(data, offset)
        levels[index] = _LEVELS[level & LEVEL_BITS]
        offset += size
    return bytes(levels)


def _take_extras(message: Message, data: bytes, offset: int, size: int) -> None:
    (message.expires_ms,) = _EXTRAS.unpack_from(data, offset)
    if groups := decode_groups(data, offset, size):
        message.orders = changed(message.orders, groups=groups)


def decode_groups(data: bytes, offset: int, size: int) -> tuple[str, ...]:
    names = data[offset + _EXTRAS.size : offset + size].decode()
    return tuple(names.split(",")) if names else ()


def time_of(data: bytes, offset: int) -> int:
    """Return when the message whose entry is at `offset` was published."""
    timestamp_ms: int = ENTRY.unpack_from(data, offset)[2]
    return timestamp_ms


def decode_seqs(data: bytes | memoryview, offset: int, count: int, first_seq: int) -> Iterator[tuple[int, int]]:
    """Yield (seq, bytes of the entry) of the entries at `offset`, without decoding the rest."""
    for _ in range(count):
        size, delta, *_ = ENTRY.unpack_from(data, offset)
        yield first_seq + delta, size
        offset += size


def encode_batch(
    salt: int,
    header: BatchHeader,
    parts: Sequence[bytes],
) -> list[bytes]:
    """Return the batch as buffers to be written one after the other; `parts` is everything behind the header."""
    head = _BATCH.pack(0, BATCH_MAGIC, *header)[4:]
    few_and_large = len(parts) <= ALONE_PARTS_MAX and header.length >= ALONE_BYTES_MIN
    buffers = _gathered([head, *parts]) if few_and_large else [b"".join([head, *parts])]
    crc = salt
    for buffer in buffers:
        crc = crc32(buffer, crc)
    return [crc.to_bytes(4, "little"), *buffers]


def _gathered(parts: Sequence[bytes]) -> list[bytes]:
    """Return the parts as few buffers: small ones are joined, large ones, which others may share, are not copied."""
    buffers: list[bytes] = []
    small: list[bytes] = []
    for part in parts:
        if len(part) < ALONE_BYTES_MIN:
            small.append(part)
            continue
        buffers += (b"".join(small), part)
        small = []
    return [*buffers, b"".join(small)]


def encode_filler(salt: int, number: int, size: int) -> bytes | None:
    """Return a batch of `size` bytes that says nothing, or None if no batch has that size."""
    payload = size - BATCH_BYTES - _NOTE.size
    if payload < 0 and size != BATCH_BYTES:
        return None
    note = encode_note(Note.FILLER, bytes(payload)) if payload >= 0 else b""
    return b"".join(encode_batch(salt, BatchHeader(size, 0, number, 0, 0, 0, 0, 0, 0, 0, len(note)), [note]))


def decode_batch_header(data: bytes, offset: int) -> BatchHeader | None:
    """Return the header at `offset` if it looks like one; its CRC is not checked."""
    if len(data) - offset < BATCH_BYTES:
        return None
    _, magic, length, flags, *rest = _BATCH.unpack_from(data, offset)
    if magic != BATCH_MAGIC:
        return None
    header = BatchHeader(length, flags, *rest)
    if header.messages_bytes < 0 or header.messages * ENTRY_BYTES > header.messages_bytes:
        return None
    return header


def may_be_batch(data: bytes, offset: int, number: int) -> bool:
    """Return whether the damaged bytes at `offset` may have been batch `number` or a later one.

    Batches of an earlier life of the file have lower numbers. One wrong field can hide the magic or the number, but
    not both, so either is enough.
    """
    _, magic, _, _, found, *_ = _BATCH.unpack_from(data, offset)
    return bool(found == number or (magic == BATCH_MAGIC and found > number))


def batch_is_whole(data: bytes, offset: int, length: int, salt: int) -> bool:
    """Return whether all `length` bytes at `offset` are there and match the CRC that they begin with."""
    if offset + length > len(data):
        return False
    view = memoryview(data)
    return crc32(view[offset + 4 : offset + length], salt) == int.from_bytes(view[offset : offset + 4], "little")


def runs_of(seqs: list[int]) -> list[tuple[int, int]]:
    """Return the (first, count) runs of consecutive numbers in `seqs`, which is sorted in place."""
    seqs.sort()
    if seqs[-1] - seqs[0] + 1 == len(seqs):
        return [(seqs[0], len(seqs))]
    runs = []
    first = previous = seqs[0]
    for seq in seqs:
        if seq > previous + 1:
            runs.append((first, previous - first + 1))
            first = seq
        previous = seq
    runs.append((first, previous - first + 1))
    return runs


def encode_settled(group: str, reason: int, runs: Sequence[tuple[int, int]]) -> bytes:
    name = group.encode()
    parts = [_LIST.pack(reason, len(name), 0, len(runs)), name]
    many = len(runs) // _SETTLED_AT_ONCE * _SETTLED_AT_ONCE  # acks of many priorities are scattered
    for start in range(0, many, _SETTLED_AT_ONCE):
        parts.append(_SETTLED_MANY.pack(*chain.from_iterable(runs[start : start + _SETTLED_AT_ONCE])))
    parts += [_SETTLED.pack(first, count) for first, count in runs[many:]]
    return b"".join(parts)


def decode_settled(data: bytes, offset: int, end: int) -> Iterator[Settled]:
    """Yield what the settle lists between `offset` and `end` say."""
    while offset < end:
        reason, name_bytes, _, count = _LIST.unpack_from(data, offset)
        offset += _LIST.size
        group = data[offset : offset + name_bytes].decode()
        offset += name_bytes
        for first, length in _SETTLED.iter_unpack(data[offset : offset + count * _SETTLED.size]):
            yield Settled(group, reason, first, length)
        offset += count * _SETTLED.size


def encode_batch_end(key: bytes) -> bytes:
    """Return a settle list of no messages, which says that a batch has ended. Programs without batches skip it."""
    name = key.hex().encode()
    return _LIST.pack(_ENDED, len(name), 0, 0) + name


def decode_batch_ends(data: bytes, offset: int, end: int) -> Iterator[bytes]:
    """Yield the keys of the batches that have ended, from the settle lists between `offset` and `end`."""
    while offset < end:
        reason, name_bytes, _, count = _LIST.unpack_from(data, offset)
        offset += _LIST.size
        if reason == _ENDED:
            yield bytes.fromhex(data[offset : offset + name_bytes].decode())
        offset += name_bytes + count * _SETTLED.size


def encode_tries(released: Sequence[TriesRecord], *, state: bool = False) -> bytes:
    """Return release lists of these records, one list for each stretch of records of the same group.

    With `state` the lists repeat what is known. Otherwise they say what has just happened.
    """
    parts = []
    start = 0
    while start < len(released):
        group = released[start].group
        end = start
        while end < len(released) and released[end].group == group:
            end += 1
        name = group.encode()
        parts.append(_LIST.pack(state, len(name), 0, end - start) + name)
        parts.extend([_RELEASED.pack(*item[1:]) for item in released[start:end]])
        start = end
    return b"".join(parts)


def decode_tries(data: bytes, offset: int, end: int, *, with_state: bool = True) -> Iterator[TriesRecord]:
    """Yield what the release lists between `offset` and `end` say, without lists of `state` if not `with_state`."""
    while offset < end:
        is_state, name_bytes, _, count = _LIST.unpack_from(data, offset)
        offset += _LIST.size
        group = data[offset : offset + name_bytes].decode()
        offset += name_bytes
        if with_state or not is_state:
            for values in _RELEASED.iter_unpack(data[offset : offset + count * _RELEASED.size]):
                yield TriesRecord(group, *values)
        offset += count * _RELEASED.size


def tries_bytes_of(group: str, count: int) -> int:
    """Return the most bytes that `count` releases in `group` take."""
    return _LIST.size + len(group.encode()) + count * _RELEASED.size


def settled_bytes(group: str, runs: int) -> int:
    """Return the bytes that a settle list of `runs` runs in `group` takes."""
    return _LIST.size + len(group.encode()) + runs * _SETTLED.size


def encode_note(kind: Note, payload: bytes) -> bytes:
    return _NOTE.pack(kind, len(payload)) + payload


def encode_notes(kind: Note, payloads: Collection[bytes]) -> bytes:
    """Return notes of one kind."""
    sizes = {*map(len, payloads)}
    if len(sizes) == 1:  # so for most kinds; there may be thousands in a batch
        return _NOTE.pack(kind, *sizes).join([b"", *payloads])
    return b"".join([encode_note(kind, payload) for payload in payloads])


def encode_log_start(number: int) -> bytes:
    return encode_note(Note.LOG_START, number.to_bytes(8, "little"))


def decode_notes(data: bytes, offset: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (kind, payload) of the notes, also for kinds unknown to this version."""
    while offset < end:
        kind, size = _NOTE.unpack_from(data, offset)
        offset += _NOTE.size
        yield kind, data[offset : offset + size]
        offset += size


def decode_log_start(payload: bytes) -> int:
    return int.from_bytes(payload[:8], "little")
