"""The numbered publishes of one batch: which messages are stored already, and which come after a gap.

This is checked when the batch is made, in the order of the log: everything earlier is on disk, refused, or in the same
batch.
"""

from __future__ import annotations

from typing import NamedTuple

from curbstone.core.engine.facts.facts import Facts
from curbstone.core.engine.facts.kinds import KINDS
from curbstone.core.engine.log.format import Note
from curbstone.core.engine.write_queue import Publish
from curbstone.core.errors import NumberGap
from curbstone.core.values import LastNumber, Numbered


class Found(NamedTuple):
    """What is known of the next messages of a producer."""

    repeats: int
    """How many of them, from the first on, are already stored."""
    gap: NumberGap | None
    """The error that refuses them if numbers before theirs are missing."""
    is_certain: bool
    """Whether this holds even if the commit of this batch fails."""


class SequenceCheck:
    __slots__ = ("_facts", "coming")

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self.coming: dict[bytes, LastNumber] = {}
        """The last number of each producer after this batch."""

    def look(self, numbered: Numbered, count: int) -> Found:
        """Return what is known of a producer's next `count` messages."""
        coming = self.coming.get(numbered.producer)
        known = coming or self._facts.last_number(numbered.producer)
        # An unknown producer begins at 0. If it could begin with any number, refused messages before that number would
        # later count as repeats.
        last = 0 if known is None else known.number
        repeats = max(0, min(last - numbered.first + 1, count))
        gap = NumberGap(last + 1) if not repeats and numbered.after > last else None
        return Found(repeats, gap, coming is None)

    def note_bytes(self, numbered: Numbered) -> int:
        """Return how many bytes a publish adds to the notes of the batch."""
        return 0 if numbered.producer in self.coming else KINDS[Note.PRODUCER].room

    def taken(self, publish: Publish, now_ms: int) -> None:
        """Note the last number of a publish whose messages before `next` are in the batch or left out."""
        if publish.numbered is not None:
            last = publish.numbered.behind(publish.next).after
            self.coming[publish.numbered.producer] = LastNumber(last, publish.messages[publish.next - 1].seq, now_ms)
