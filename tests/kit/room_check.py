"""Recomputes the account of the room in a queue's log, and compares it with the one kept incrementally."""

from __future__ import annotations

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.facts.kinds import KINDS
from curbstone.core.engine.log.room import RETRY_BYTES


def check_room(queue: LocalQueue) -> None:
    """Raise AssertionError where the account is wrong."""
    room, log = queue.log.room, queue.log
    groups = queue.index.groups.values()
    unlogged = pending = 0
    for group in groups:
        pending += group.pending
        unlogged += group.pending - sum(known.is_record_head for known in group.tracked.values())
    notes = sum(KINDS[number].room * len(known) for number, known in queue.facts._known.items())
    assert (room.pending, room.notes_bytes, room.kept) == (pending, notes, RETRY_BYTES * unlogged + notes)
    if not log.segments:
        return
    sealed = log.segments[:-1]
    held = room.aside_bytes + sum(segment.size for segment in sealed) + log.active.end
    largest = max(segment.end for segment in log.segments)
    assert room.held == held
    assert room.free == room.cap + room.excess - room.meta_bytes - held
    assert room.left == room.free - room.to_clean(largest)
    assert room.reserved >= 0
