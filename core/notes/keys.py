"""Idempotency keys: a publish that is repeated under the same key is stored once, also after a restart.

A key is remembered for `WINDOW_MS` with the digest of what was published under it. It is written as a
note in the very batch that holds the messages, so the two are on disk together or not at all; when the
segment with the note is dropped, the note is written again as long as it counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from curbstone.core.errors import CurbstoneError, KeyReused, QueueFull
from curbstone.core.log.format import Note, encode_note
from curbstone.core.log.publish import Publish
from curbstone.core.values import DIGEST_BYTES, IdempotencyKey, Published

if TYPE_CHECKING:
    from curbstone.core.queue import Queue

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

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._room = queue.log.room
        self._known: dict[bytes, Known] = {}
        self._under_way: dict[bytes, tuple[bytes, list[Published]]] = {}

    def publish(self, publish: Publish, key: IdempotencyKey) -> None:
        """Publish, or answer as the first publish under the key was answered; KeyReused for other content."""
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
            return
        elif known is not None:
            first, count = known.first_seq, known.span
            self._queue.host.call_soon(lambda: on_done(None, first, count))
            return
        elif len(self._known) + len(self._under_way) >= self._most:
            refusal = QueueFull(f"more than {self._most} idempotency keys in 5 minutes")
        if refusal is not None:
            count = len(publish.messages)
            self._queue.host.call_soon(lambda: on_done(refusal, 0, count))
            return
        waiting = [on_done]
        self._under_way[hashed] = (digest, waiting)

        def done(error: CurbstoneError | None, first_seq: int, count: int) -> None:
            self._under_way.pop(hashed, None)
            for answer in waiting:
                answer(error, first_seq, count)

        publish.on_done = done
        publish.key = (hashed, digest)
        self._queue.writer.publish(publish)

    @property
    def _most(self) -> int:
        return min(KEYS_MAX, self._queue.options.cap // CAP_BYTES_PER_KEY)

    def _prune(self) -> None:
        """Forget what has expired; the oldest come first."""
        now_ms = self._queue.host.now_ms()
        for hashed, known in list(self._known.items())[:16]:
            if known.expires_ms > now_ms:
                break
            del self._known[hashed]
            self._room.notes(-KEY_NOTE_BYTES)

    def notes(self, publishes: Iterable[Publish], first_seq: int, below: int) -> bytes:
        """Return the notes of the keyed publishes in a batch, and of keys whose segment, under `below`, goes."""
        now_ms = self._queue.host.now_ms()
        notes = []
        for publish in publishes:
            if publish.key is not None:
                hashed, digest = publish.key
                notes.append(_encode(hashed, Known(now_ms + WINDOW_MS, first_seq, len(publish.messages), digest, 0)))
        if below:
            kept = [(h, k) for h, k in self._known.items() if k.segment < below and k.expires_ms > now_ms]
            notes += [_encode(hashed, known) for hashed, known in kept]
        return b"".join(notes)

    def recover(self, payload: bytes, segment: int) -> None:
        """Take a note in, from recovery or from a batch that is on disk now."""
        expires_ms, first_seq, count, hashed, digest = _KEY.unpack(payload)
        if hashed not in self._known:
            self._room.notes(KEY_NOTE_BYTES)
        self._known[hashed] = Known(expires_ms, first_seq, count, digest, segment)


def _encode(hashed: bytes, known: Known) -> bytes:
    return encode_note(Note.KEY, _KEY.pack(known.expires_ms, known.first_seq, known.span, hashed, known.digest))
