"""How much a queue still takes, in numbers for people who look at it: nothing is admitted or refused by these."""

from __future__ import annotations

from curbstone.core.engine.commit.publishes import NOTES_BYTES
from curbstone.core.engine.compaction.cleaner import Cleaner
from curbstone.core.engine.log.format import BATCH_BYTES, ENTRY_BYTES
from curbstone.core.engine.log.room import RELEASE_BYTES
from curbstone.core.engine.parts import Parts
from curbstone.core.engine.write_queue import EXPIRY_BYTES
from curbstone.core.values import Space


def space_of(parts: Parts, cleaner: Cleaner, *, disk_is_full: bool) -> Space:
    state, room = parts.state, parts.log.room
    refused = state.refusals.last_minute(state.host.now_ms()) if state.refusals is not None else 0
    available = 0 if disk_is_full or state.publish_refusal() is not None else _largest_message(parts, cleaner)
    return Space(room.kept_free + room.meta_bytes - state.meta_bytes, available, refused)


def _largest_message(parts: Parts, cleaner: Cleaner) -> int:
    """Return the bytes of the largest body, without headers, that is accepted now, perhaps after cleaning."""
    state, room, index = parts.state, parts.log.room, parts.index
    size = room.largest_now(BATCH_BYTES + NOTES_BYTES)
    live = index.runs.bytes_live
    if state.options.drops_oldest:  # what nobody holds gives way
        held = sum([len(group.in_flight) for group in index.groups.values()])
        live = live * held // max(room.pending, 1)
    if state.options.drops_oldest or cleaner.may_help_publish:
        size = max(size, room.largest_compacted(live + room.tries_bytes) - room.reserved)
    groups = 1 + len(state.meta.groups)
    return max(0, min(size - ENTRY_BYTES - EXPIRY_BYTES - RELEASE_BYTES * groups, state.options.max_message_size))
