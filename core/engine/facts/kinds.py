"""The kinds of facts, one row for each: where the key is in a fact's bytes, how long it is kept, what room it takes.

The bytes of a fact are the payload of its note in the log. Numbers are little-endian. ::

    DELIVERED   seq (8), name of the group
    KEY         end in ms (8), first seq (8), messages (4), hash of the key (16), digest of the content (16)
    STAGED      number of the transaction (8), messages (8)
    LOSS        floor (8), messages (8), name of the group
    ACKED       seq (8), name of the group
    PRODUCER    producer (16), number (8), seq (8), time in ms (8)
    RANK        seq (8), level (1), name of the group
    NAME        seq (8), 1 if the name is free after the first delivery (1), since when in ms (8), hash of the name (16)
    BATCH       hash of the id (16), first seq (8), begun and changed in ms (8 each), size, how many were stored, and
                how many have ended in each way (4 each), length of the id (1), id, queue for the report

A new kind needs a number in `Note`, a row in `KINDS`, and functions that make and read its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from curbstone.core.batches import End, Tally
from curbstone.core.engine.log.format import Note
from curbstone.core.values import DIGEST_BYTES, LastNumber

PRODUCER_IDLE_MS = 7 * 24 * 3600 * 1000
"""A producer that has stored nothing for so long is forgotten."""

_DEDUP = struct.Struct(f"<QQI{DIGEST_BYTES}s{DIGEST_BYTES}s")
_STAGED = struct.Struct("<QQ")
_LOSS = struct.Struct("<QQ")
_PRODUCER = struct.Struct(f"<{DIGEST_BYTES}sQQQ")
_NAME = struct.Struct(f"<QBQ{DIGEST_BYTES}s")
_TALLY = struct.Struct(f"<{DIGEST_BYTES}sQQQ8IB")
_ENDED = struct.Struct(f"<{DIGEST_BYTES}sBIQ")


class Kind(NamedTuple):
    """How facts of one kind are kept."""

    key: slice
    """Where the key is in the bytes."""
    room: int = 0
    """Bytes of the cap that are kept for each fact, because it is written again when its segment is dropped."""
    end_ms: Callable[[bytes], int] | None = None
    """`end_ms(value)` returns the engine time when the fact is forgotten. None if other code decides that."""
    most: int = 0
    """The most facts in a queue, and..."""
    cap_bytes: int = 1
    """... there is only one for so many bytes of its cap."""
    makes_way: bool = False
    """If there are too many: whether the one that ends first is forgotten."""
    is_withdrawn: bool = False
    """Whether the log must say so when a fact is forgotten: a fact with the same key, and zeros in front of it."""

    def key_of(self, value: bytes) -> bytes:
        """Return the key in a fact's bytes. It is here because compiled code can't take a slice object as an index."""
        return value[self.key]

    def nothing(self, key: bytes) -> bytes:
        """Return the value that withdraws a fact."""
        return bytes(self.key.start) + key


def _dedup_end_ms(value: bytes) -> int:
    return int.from_bytes(value[:8], "little")


def _producer_end_ms(value: bytes) -> int:
    return int.from_bytes(value[-8:], "little") + PRODUCER_IDLE_MS


KINDS: dict[int, Kind] = {
    Note.DELIVERED: Kind(slice(8, None)),
    Note.KEY: Kind(slice(20, 36), room=64, end_ms=_dedup_end_ms, most=100_000, cap_bytes=1024),
    Note.STAGED: Kind(slice(0, 8), room=32),
    Note.LOSS: Kind(slice(16, None), is_withdrawn=True),
    Note.ACKED: Kind(slice(8, None), is_withdrawn=True),
    Note.PRODUCER: Kind(slice(0, 16), room=48, end_ms=_producer_end_ms, most=100_000, cap_bytes=4096, makes_way=True),
    Note.RANK: Kind(slice(8, None)),
    Note.NAME: Kind(slice(17, 33), room=40, most=200_000, cap_bytes=128),
    Note.BATCH: Kind(slice(0, 16), room=408, most=10_000, cap_bytes=4096, is_withdrawn=True),
}


# --- what was delivered, and what was acked


def encode_seq(group: str, seq: int) -> bytes:
    """Return the fact, DELIVERED or ACKED, that has this seq for a group."""
    return seq.to_bytes(8, "little") + group.encode()


def decode_seq(value: bytes | None) -> int:
    return int.from_bytes(value[:8], "little") if value else 0


def encode_rank(group: str, level: int, seq: int) -> bytes:
    """Return the fact, RANK, that has this seq for a level of a group."""
    return seq.to_bytes(8, "little") + rank_key(group, level)


def rank_key(group: str, level: int) -> bytes:
    return bytes([level]) + group.encode()


def decode_rank(value: bytes) -> tuple[str, int, int]:
    return value[9:].decode(), value[8], int.from_bytes(value[:8], "little")


# --- idempotency keys


class Dedup(NamedTuple):
    """What was published under an idempotency key."""

    end_ms: int
    first_seq: int
    span: int
    hashed: bytes
    digest: bytes

    def encode(self) -> bytes:
        return _DEDUP.pack(*self)


def decode_dedup(value: bytes) -> Dedup:
    return Dedup(*_DEDUP.unpack(value))


# --- staged transactions


def encode_staged(number: int, messages: int) -> bytes:
    return _STAGED.pack(number, messages)


def staged_key(number: int) -> bytes:
    return number.to_bytes(8, "little")


def decode_staged(value: bytes | None) -> int:
    """Return how many messages of a staged transaction the log has; without a fact, none."""
    return int.from_bytes(value[8:], "little") if value else 0


# --- losses of declared groups


class Loss(NamedTuple):
    """How many messages a group has lost in its life; the last of them is below the seq `floor`."""

    floor: int = 0
    lost: int = 0


def encode_loss(group: str, loss: Loss) -> bytes:
    return _LOSS.pack(*loss) + group.encode()


def decode_loss(value: bytes | None) -> Loss:
    return Loss(*_LOSS.unpack_from(value)) if value else Loss()


# --- numbered producers


def encode_producer(producer: bytes, last: LastNumber) -> bytes:
    return _PRODUCER.pack(producer, *last)


def decode_producer(value: bytes | None) -> LastNumber | None:
    """Return the last number of a producer, None if it is not known."""
    return LastNumber(*_PRODUCER.unpack(value)[1:]) if value else None


# --- unique names


encode_named = _NAME.pack
"""Return, for (seq, until_delivered, since_ms, hashed), the fact that the message with this seq has a name, and since
when it or those it has replaced had it."""


def since_of(value: bytes) -> int:
    """Return the engine time since when messages that were replaced, one by the next, had a name."""
    return int.from_bytes(value[9:17], "little")


def seq_of(value: bytes) -> int:
    return int.from_bytes(value[:8], "little")


def is_until_delivered(value: bytes) -> bool:
    """Return whether a name is free as soon as its message was delivered once."""
    return value[8] != 0


# --- batches


def encode_tally(key: bytes, tally: Tally) -> bytes:
    batch, counts = tally.id.encode(), (tally.size, tally.stored, *tally.ended)
    head = _TALLY.pack(key, tally.first, tally.begun_ms, tally.changed_ms, *counts, len(batch))
    return head + batch + tally.to.encode()


def decode_tally(value: bytes) -> Tally:
    _, first, begun_ms, changed_ms, size, stored, *ended, id_bytes = _TALLY.unpack_from(value)
    end = _TALLY.size + id_bytes
    batch, to = value[_TALLY.size : end].decode(), value[end:].decode()
    return Tally(batch, to, size, first, begun_ms, changed_ms, stored, tuple(ended))


def encode_ended(key: bytes, end: End, count: int, now_ms: int) -> bytes:
    """Return the bytes of a note that so many more messages of a batch have ended. It is not a fact."""
    return _ENDED.pack(key, end, count, now_ms)


def decode_ended(value: bytes) -> tuple[bytes, End, int, int]:
    """Return the key of the batch, how many messages have ended and how, and the engine time."""
    key, end, count, now_ms = _ENDED.unpack(value)
    return key, End(end), count, now_ms
