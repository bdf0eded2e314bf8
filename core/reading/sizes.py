"""How far a reader gets with so many bytes, without reading anything: the index knows what runs of messages take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from curbstone.core.positions import Stretch

if TYPE_CHECKING:
    from curbstone.core.queue import Queue


def stretch(queue: Queue, group: str, first: int, bytes_max: int) -> Stretch:
    """Return how far `bytes_max` reach from the seq `first` on: by whole runs of messages, or a part of the first.

    What counts is pending in the group. That of a part of a run is an estimate, and at least one message.
    """
    runs, size, until = queue.pending.runs, 0, first
    run = runs.at_or_after(first)
    while run is not None:
        low = max(first, run.first)
        live = run.live().bit_count()
        taken = run.bytes_live * (run.pending(group) >> (low - run.first)).bit_count() // live if live else 0
        if size + taken > bytes_max:
            if size:
                return Stretch(until, size)
            span = run.last + 1 - low
            part = max(1, span * bytes_max // taken)
            return Stretch(low + part, taken * part // span)
        size += taken
        until = run.last + 1
        run = runs.at_or_after(until)
    return Stretch(max(first, queue.reading.next), size)
