"""How far a reader gets with so many bytes. Nothing is read for it: the index knows the bytes of runs of messages."""

from __future__ import annotations

from curbstone.core.engine.index.runs import Runs
from curbstone.core.positions import Stretch


def stretch(runs: Runs, end: int, group: str, first: int, bytes_max: int) -> Stretch:
    """Return how far `bytes_max` reach from the seq `first` on: over whole runs, or over a part of the first run.

    Only messages that are pending in the group and below `end` count. A part of a run is an estimate, of at least one
    message.
    """
    size, until = 0, first
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
    return Stretch(max(first, end), size)
