"""Idempotency keys: a publish that is repeated under the same key is stored once, also after a restart.

A key is remembered for the queue's `idempotency_window`, with the digest of what was published under it. It is a note
in the batch that holds the messages, so the two are on disk together or not at all. When the segment with the note is
dropped before the key has expired, the note is written again.
"""

from __future__ import annotations

import struct
from heapq import heappop, heappush
from typing import NamedTuple

from curbstone.core.engine.log.format import Note, encode_note
from curbstone.core.engine.log.publish import WholePublish
from curbstone.core.engine.log.room import Room
from curbstone.core.engine.state import QueueState
from curbstone.core.errors import CurbstoneError, KeyReused, QueueFull
from curbstone.core.values import DIGEST_BYTES, IdempotencyKey

KEYS_MAX = 100_000
CAP_BYTES_PER_KEY = 1024
KEY_NOTE_BYTES = 64
PRUNED_AT_ONCE = 1024

_KEY = struct.Struct(f"<QQI{DIGEST_BYTES}s{DIGEST_BYTES}s")


class Known(NamedTuple):
    """What was published under a key, and the segment that holds the note of it."""

    expires_ms: int
    first_seq: int
    span: int
    digest: bytes
    segment: int


class Keys:
    """The keys of one queue."""

    __slots__ = ("_expiries", "_known", "_room", "_state")

    def __init__(self, state: QueueState, room: Room) -> None:
        self._state = state
        self._room = room
        self._known: dict[bytes, Known] = {}
        self._expiries: list[tuple[int, bytes]] = []
        """A heap with each known key and when it expires. A changed window mixes up the order of publishing."""

    def look(self, key: IdempotencyKey) -> Known | CurbstoneError | None:
        """Return what was published under a key; an error if nothing may be published under it; or None if it is new.

        To be called when it is the publish's turn to be written: all earlier ones are on disk then, or refused.
        """
        now_ms = self._state.host.now_ms()
        self._prune(now_ms)
        known = self._known.get(key.hashed)
        if known is not None and known.expires_ms <= now_ms:
            known = None
        window_s = self._state.options.idempotency_window
        if known is not None and known.digest != key.digest:
            return KeyReused(f"the idempotency key was used for other content in the last {window_s:g} s")
        if known is None and len(self._known) >= self._most:
            return QueueFull(f"more than {self._most} idempotency keys in {window_s:g} s, its idempotency_window")
        return known

    @property
    def _most(self) -> int:
        return min(KEYS_MAX, self._state.options.cap // CAP_BYTES_PER_KEY)

    def _prune(self, now_ms: int) -> None:
        """Forget keys that have expired, a bounded number in one turn."""
        for _ in range(PRUNED_AT_ONCE):
            if not self._expiries or self._expiries[0][0] > now_ms:
                break
            _, hashed = heappop(self._expiries)
            expires_ms = self._known[hashed].expires_ms
            if expires_ms > now_ms:  # it was noted again with another expiry
                heappush(self._expiries, (expires_ms, hashed))
                continue
            del self._known[hashed]
            self._room.notes(-KEY_NOTE_BYTES)

    def to_log(self, publish: WholePublish | None, first_seq: int, below: int) -> dict[bytes, Known]:
        """Return the keys to note in a batch: that of its publish, and those with notes in segments below `below`.

        These segments are dropped with the batch.
        """
        said = {}
        if publish is not None and publish.key is not None:
            window_ms = round(self._state.options.idempotency_window * 1000)
            key, expires_ms = publish.key, self._state.host.now_ms() + window_ms
            said[key.hashed] = Known(expires_ms, first_seq, len(publish.messages), key.digest, 0)
        if below and self._known:
            now_ms = self._state.host.now_ms()
            again = {h: k for h, k in self._known.items() if k.segment < below and k.expires_ms > now_ms}
            return again | said
        return said

    def add(self, hashed: bytes, known: Known) -> None:
        """Remember a key that the log has a note of."""
        if hashed not in self._known:
            self._room.notes(KEY_NOTE_BYTES)
            heappush(self._expiries, (known.expires_ms, hashed))
        self._known[hashed] = known

    def recover(self, payload: bytes, segment: int) -> None:
        """Take in a note that recovery has read."""
        expires_ms, first_seq, count, hashed, digest = _KEY.unpack(payload)
        self.add(hashed, Known(expires_ms, first_seq, count, digest, segment))

    @staticmethod
    def encode(hashed: bytes, known: Known) -> bytes:
        """Return the note of a key."""
        return encode_note(Note.KEY, _KEY.pack(known.expires_ms, known.first_seq, known.span, hashed, known.digest))
