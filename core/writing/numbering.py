"""The numbered publishes of one batch: what of them is stored already, and what came too early.

That is looked at when the batch is made, so in the order of the log, where all that came before is on disk, was
refused, or is in this very batch. Repeats are answered at once where what they repeat is on disk; what is in this batch
is not yet, so they wait for the next. Refusals wait, too, where answers to what came before are still to come.
"""

from __future__ import annotations

from enum import Enum

from curbstone.core.errors import NumberGap
from curbstone.core.log.publish import Publish
from curbstone.core.notes.producers import PRODUCER_NOTE_BYTES, Producers
from curbstone.core.state import QueueState
from curbstone.core.values import LastNumber, Numbered
from curbstone.core.writing.outbox import Outbox


class Verdict(Enum):
    """What is to be done with a numbered publish."""

    WRITE = "write"
    ANSWERED = "answered"
    LATER = "later"


class Numbering:
    """See the module's docstring."""

    def __init__(self, state: QueueState, producers: Producers, outbox: Outbox) -> None:
        self._state = state
        self._producers = producers
        self._outbox = outbox
        self.coming: dict[bytes, LastNumber] = {}
        """The last numbers with which the batch leaves its producers."""

    def look(self, publish: Publish, numbered: Numbered, *, is_first: bool) -> Verdict:
        """Answer what is not to be written of the publish that waits first, and take it out where nothing is left.

        `is_first`: nobody who came before waits for the batch.
        """
        coming = self.coming.get(numbered.producer)
        known = coming or self._producers.last(numbered.producer)
        last = 0 if known is None else known.number  # else what was refused would pass for a repeat once more is stored
        host, count = self._state.host, len(publish.messages) - publish.next
        numbered = numbered.behind(publish.next)
        if numbered.first <= last:
            if coming is not None:
                return Verdict.LATER
            repeats = min(last - numbered.first + 1, count)
            publish.next += repeats
            if repeats == count:
                self._outbox.publishes.popleft()
            host.tell(publish.on_done, None, 0, repeats)
            return Verdict.WRITE if repeats < count else Verdict.ANSWERED
        if numbered.after <= last:
            return Verdict.WRITE
        if not is_first:
            return Verdict.LATER
        self._outbox.publishes.popleft()
        host.tell(publish.on_done, NumberGap(last + 1), 0, count)
        return Verdict.ANSWERED

    def note_bytes(self, numbered: Numbered) -> int:
        """Return how much longer the notes of the batch get with a publish."""
        return 0 if numbered.producer in self.coming else PRODUCER_NOTE_BYTES

    def taken(self, publish: Publish, numbered: Numbered, seq: int) -> None:
        """What of a publish is before its `next` goes into the batch; `seq` is that of the last of its messages."""
        number = numbered.first + publish.next - 1
        self.coming[numbered.producer] = LastNumber(number, seq, self._state.host.now_ms())
