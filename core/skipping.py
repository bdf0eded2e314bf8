"""Groups that may be overtaken: what they have not read gives way to what is published.

The oldest messages that are pending in such groups alone are given up, up to the end of the segment they
lie in, since only whole segments make room. A group gives up everything from its position to there, so
what it loses is one stretch, and the loss is noted in the log with the settles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from curbstone.core.format import Reason

if TYPE_CHECKING:
    from curbstone.core.queue import Queue
    from curbstone.core.runs import Run


def give_up(queue: Queue, size: int) -> bool:
    """Give up as much as a publish of `size` bytes needs; False, and nothing is changed, where that is not enough."""
    groups = [queue.pending.groups[name] for name in sorted(queue.meta.skips)]
    end = _needed(queue, size, min(group.first_pending(queue.reading.next) for group in groups))
    if not end:
        return False
    for group in groups:
        position = group.first_pending(queue.reading.next)
        if position >= end:
            continue
        lost = queue.pending.clear_below(group, end)
        queue.writer.settled_ranges(group.name, Reason.SKIPPED, [(position, end - position)])
        queue.reading.losses.add(group.name, lost, end)
        queue.wake(group.name)
    queue.changed()
    return True


def _needed(queue: Queue, size: int, first: int) -> int:
    """Return the seq below which giving up makes enough room, or 0 where nothing does."""
    names = queue.meta.skips
    live = queue.pending.runs.bytes_live + queue.pending.state_bytes
    freed = 0
    last: Run | None = None
    run = queue.pending.runs.at_or_after(first)
    while run is not None:
        enough = freed >= size and queue.log.fits_compacted(size, live - freed)
        if enough and last is not None and run.segment is not last.segment:
            break
        freed += _freed(run, names)
        last = run
        run = queue.pending.runs.at_or_after(run.last + 1)
    if last is None or freed < size or not queue.log.fits_compacted(size, live - freed):
        return 0
    return last.last + 1


def _freed(run: Run, names: frozenset[str]) -> int:
    """Return the bytes of the messages that only these groups wait for."""
    live = run.live()
    others = run.bits
    for name, bits in (run.named or {}).items():
        if name not in names:
            others |= bits
    return run.bytes_live * (live & ~others).bit_count() // live.bit_count() if live else 0
