"""Idempotency keys: a publish that is repeated under the same key is stored once, also after a restart.

A key is remembered for `WINDOW_MS` with the digest of what was published under it. It is written as a
note in the very batch that holds the messages, so the two are on disk together or not at all; when the
segment with the note is dropped, the note is written again as long as it counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from curbstone.core.errors import CurbstoneError, KeyReused, QueueFull
from curbstone.core.log.format import Note, encode_note
from curbstone.core.log.publish import Publish
from curbstone.core.log.room import Room
from curbstone.core.state import QueueState
from curbstone.core.values import DIGEST_BYTES, IdempotencyKey, Published

WINDOW_MS = 5 * 60 * 1000
KEYS_MAX = 100_000
CAP_BYTES_PER_KEY = 1024
KEY_NOTE_BYTES = 64

_KEY = struct.Struct(f"<QQI{DIGEST_BYTES}s{DIGEST_BYTES}s")


class Known(NamedTuple):
    """What was published under a key; `segment` holds its note."""

    expires_ms: int
    first_seq: int
    span: int
    digest: bytes
    segment: int


class Keys:
    """The keys of one queue."""

    __slots__ = ("_known", "_room", "_state", "_under_way")

    def __init__(self, state: QueueState, room: Room) -> None:
        self._state = state
        self._room = room
        self._known: dict[bytes, Known] = {}
        self._under_way: dict[bytes, tuple[bytes, list[Published]]] = {}

    def begin(self, publish: Publish, key: IdempotencyKey) -> bool:
        """Return whether a publish is to be written.

        Else it is answered as the first publish under the key was, is or will be; with KeyReused for other content.
        """
        self._prune()
        hashed, digest = key.hashed, key.digest
        known = self._known.get(hashed)
        under_way = self._under_way.get(hashed)
        earlier = known.digest if known else under_way[0] if under_way else digest
        on_done = publish.on_done
        refusal: CurbstoneError | None = None
        if earlier != digest:
            refusal = KeyReused("the idempotency key was used for other content in the last 5 minutes")
        elif under_way is not None:
            under_way[1].append(on_done)
            return False
        elif known is not None:
            first, count = known.first_seq, known.span
            self._state.host.call_soon(lambda: on_done(None, first, count))
            return False
        elif len(self._known) + len(self._under_way) >= self._most:
            refusal = QueueFull(f"more than {self._most} idempotency keys in 5 minutes")
        if refusal is not None:
            count = len(publish.messages)
            self._state.host.call_soon(lambda: on_done(refusal, 0, count))
            return False
        waiting = [on_done]
        self._under_way[hashed] = (digest, waiting)

        def done(error: CurbstoneError | None, first_seq: int, count: int) -> None:
            self._under_way.pop(hashed, None)
            for answer in waiting:
                answer(error, first_seq, count)

        publish.on_done = done
        publish.key = (hashed, digest)
        return True

    @property
    def _most(self) -> int:
        return min(KEYS_MAX, self._state.options.cap // CAP_BYTES_PER_KEY)

    def _prune(self) -> None:
        """Forget what has expired; the oldest come first."""
        now_ms = self._state.host.now_ms()
        for hashed, known in list(self._known.items())[:16]:
            if known.expires_ms > now_ms:
                break
            del self._known[hashed]
            self._room.notes(-KEY_NOTE_BYTES)

    def to_log(self, publishes: Iterable[Publish], first_seq: int, below: int) -> dict[bytes, Known]:
        """Return the keys of the publishes in a batch, and those whose segment, under `below`, goes."""
        said = {}
        for publish in publishes:
            if publish.key is not None:
                hashed, digest = publish.key
                expires_ms = self._state.host.now_ms() + WINDOW_MS
                said[hashed] = Known(expires_ms, first_seq, len(publish.messages), digest, 0)
        if below and self._known:
            now_ms = self._state.host.now_ms()
            again = {h: k for h, k in self._known.items() if k.segment < below and k.expires_ms > now_ms}
            return again | said
        return said

    def add(self, hashed: bytes, known: Known) -> None:
        """The log knows of a key."""
        if hashed not in self._known:
            self._room.notes(KEY_NOTE_BYTES)
        self._known[hashed] = known

    def recover(self, payload: bytes, segment: int) -> None:
        """Take a note in."""
        expires_ms, first_seq, count, hashed, digest = _KEY.unpack(payload)
        self.add(hashed, Known(expires_ms, first_seq, count, digest, segment))

    @staticmethod
    def encode(hashed: bytes, known: Known) -> bytes:
        """Return the note of a key."""
        return encode_note(Note.KEY, _KEY.pack(known.expires_ms, known.first_seq, known.span, hashed, known.digest))
