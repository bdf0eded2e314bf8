"""The numbered publishes of one batch: what of them is stored already, and what came too early.

That is looked at when the batch is made, so in the order of the log, where all that came before is on disk, was
refused, or is in this very batch.
"""

from __future__ import annotations

from typing import NamedTuple

from curbstone.core.errors import NumberGap
from curbstone.core.notes.producers import PRODUCER_NOTE_BYTES, Producers
from curbstone.core.values import LastNumber, Numbered


class Found(NamedTuple):
    """What is known of the next messages of a producer."""

    repeats: int
    """So many of them are stored."""
    gap: NumberGap | None
    """Why none of them is taken."""
    is_certain: bool
    """Whether that is so whatever becomes of the batch."""


class Numbering:
    """See the module's docstring."""

    __slots__ = ("_producers", "coming")

    def __init__(self, producers: Producers, coming: dict[bytes, LastNumber]) -> None:
        self._producers = producers
        self.coming = coming
        """The last numbers with which the batch leaves its producers."""

    def look(self, numbered: Numbered, count: int) -> Found:
        """Return what is known of a producer's next `count` messages."""
        coming = self.coming.get(numbered.producer)
        known = coming or self._producers.last(numbered.producer)
        last = 0 if known is None else known.number  # else what was refused would pass for a repeat once more is stored
        repeats = max(0, min(last - numbered.first + 1, count))
        gap = NumberGap(last + 1) if not repeats and numbered.after > last else None
        return Found(repeats, gap, coming is None)

    def note_bytes(self, numbered: Numbered) -> int:
        """Return how much longer the notes of the batch get with a publish."""
        return 0 if numbered.producer in self.coming else PRODUCER_NOTE_BYTES

    def taken(self, producer: bytes, last: LastNumber) -> None:
        """A message goes into the batch, as the last of its producer."""
        self.coming[producer] = last
