"""Numbered producers: a message that one sends twice is stored once, also after a restart.

A producer numbers its messages. Its last number is a note in the batch that holds the message with that number, so the
two are on disk together or not at all. When the segment with the note is dropped, the note is written again. A producer
is forgotten when it has been idle for `IDLE_MS`; and if there are too many, those that have been idle longest are.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import NamedTuple

from curbstone.core.engine.log.format import Note, encode_note
from curbstone.core.engine.log.room import Room
from curbstone.core.engine.state import QueueState
from curbstone.core.values import DIGEST_BYTES, LastNumber

IDLE_MS = 7 * 24 * 3600 * 1000
PRODUCERS_MAX = 100_000
CAP_BYTES_PER_PRODUCER = 4096
PRODUCER_NOTE_BYTES = 48

_LAST = struct.Struct(f"<{DIGEST_BYTES}sQQQ")


class _Known(NamedTuple):
    last: LastNumber
    segment: int
    """The segment with the note of it."""


class Producers:
    """The producers of one queue, in the order in which they last published."""

    __slots__ = ("_is_sorted", "_known", "_room", "_state")

    def __init__(self, state: QueueState, room: Room) -> None:
        self._state = state
        self._room = room
        # An OrderedDict, because finding the first item of a dict gets slower with each one removed from its front.
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._is_sorted = True

    def last(self, producer: bytes) -> LastNumber | None:
        """Return the last number of a producer that is on disk, or None if the producer is not known."""
        known = self._known.get(producer)
        if known is None or known.last.time_ms + IDLE_MS <= self._state.host.now_ms():
            return None
        return known.last

    def to_log(self, published: dict[bytes, LastNumber], below: int) -> dict[bytes, LastNumber]:
        """Return the numbers to note in a batch: the `published` ones, and those noted in segments below `below`.

        These segments are dropped with the batch.
        """
        if not below or not self._known:
            return published
        self._forget()
        return {key: known.last for key, known in self._known.items() if known.segment < below} | published

    def add(self, producer: bytes, last: LastNumber, segment: int) -> None:
        """Remember the last number of a producer, which the log has a note of in that segment."""
        before = self._known.get(producer)
        if before is None:
            self._room.notes(PRODUCER_NOTE_BYTES)
        elif before.last != last:
            del self._known[producer]
        self._known[producer] = _Known(last, segment)
        if before is None:
            self._forget()

    def recover(self, payload: bytes, segment: int) -> None:
        """Take in a note that recovery has read."""
        producer, *last = _LAST.unpack(payload)
        if producer not in self._known:
            self._room.notes(PRODUCER_NOTE_BYTES)
        self._known[producer] = _Known(LastNumber(*last), segment)
        self._is_sorted = False  # notes that were written again are not in the order of publishing

    def _forget(self) -> None:
        """Forget the producers that have been idle too long, and the oldest if there are too many."""
        if not self._is_sorted:
            self._known = OrderedDict(sorted(self._known.items(), key=lambda item: item[1].last.time_ms))
            self._is_sorted = True
        most = min(PRODUCERS_MAX, self._state.options.cap // CAP_BYTES_PER_PRODUCER)
        oldest_ms = self._state.host.now_ms() - IDLE_MS
        while self._known:
            known = next(iter(self._known.values()))
            if len(self._known) <= most and known.last.time_ms > oldest_ms:
                break
            self._known.popitem(last=False)
            self._room.notes(-PRODUCER_NOTE_BYTES)

    @staticmethod
    def encode(producer: bytes, last: LastNumber) -> bytes:
        """Return the note of a producer."""
        return encode_note(Note.PRODUCER, _LAST.pack(producer, *last))
