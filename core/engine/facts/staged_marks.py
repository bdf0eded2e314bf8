"""How many messages of each staged transaction are in a queue's log, noted in the log itself.

A batch that holds messages of a transaction also holds a note of how many of them are in this log now. The two are on
disk together or not at all, so after a crash the transaction goes on behind that number. If the segment with the last
note is dropped before the transaction is finished, the note is written again.
"""

from __future__ import annotations

import struct
from collections.abc import Set
from typing import NamedTuple

from curbstone.core.engine.log.format import Note, encode_note
from curbstone.core.engine.log.publish import WholePublish
from curbstone.core.engine.log.room import Room

MARK_NOTE_BYTES = 32

_MARK = struct.Struct("<QQ")  # number of the transaction, messages


class _Known(NamedTuple):
    messages: int
    segment: int


class StagedMarks:
    """The marks of one queue."""

    __slots__ = ("_known", "_room")

    def __init__(self, room: Room) -> None:
        self._room = room
        self._known: dict[int, _Known] = {}

    def count(self, number: int) -> int:
        """Return how many messages of a transaction are in the log."""
        known = self._known.get(number)
        return known.messages if known else 0

    def to_log(self, publish: WholePublish | None, below: int) -> dict[int, int]:
        """Return the marks to note in a batch: that of its publish, and those noted in segments below `below`.

        These segments are dropped with the batch.
        """
        marks = {number: known.messages for number, known in self._known.items() if known.segment < below}
        if publish is not None and publish.mark is not None:
            marks[publish.mark.number] = publish.mark.messages
        return marks

    def add(self, number: int, count: int, segment: int) -> None:
        """Remember how many messages of a transaction the log has, according to a note in that segment."""
        if number not in self._known:
            self._room.notes(MARK_NOTE_BYTES)
        self._known[number] = _Known(max(count, self.count(number)), segment)

    def recover(self, payload: bytes, segment: int) -> None:
        """Take in a note that recovery has read."""
        number, count = _MARK.unpack(payload)
        self.add(number, count, segment)

    @staticmethod
    def encode(number: int, count: int) -> bytes:
        """Return the note of a transaction."""
        return encode_note(Note.STAGED, _MARK.pack(number, count))

    def forget(self, number: int) -> None:
        """Forget a transaction that is finished; that it is must be on disk."""
        if self._known.pop(number, None) is not None:
            self._room.notes(-MARK_NOTE_BYTES)

    def keep_only(self, numbers: Set[int]) -> None:
        """Forget all transactions but these. Recovery also finds notes of finished ones."""
        for number in self._known.keys() - numbers:
            self.forget(number)
