"""The moves of a message between queues, as a dead letter and by a redrive, from the logs of both queues.

The headers of a dead letter name the queue where it died. A redrive leaves no header: it is a transaction over both
queues, and their logs have its number. Queues that the caller may not peek at are left out.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from curbstone.access.errors import NotAllowed
from curbstone.access.rights import Right
from curbstone.core import headers
from curbstone.core.errors import BadRequest, Gone, NoSuchQueue
from curbstone.core.names import parse_queue_name
from curbstone.core.positions import Trace, Trail
from curbstone.gateway.http.callbacks import answer

if TYPE_CHECKING:
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.core.port import Queue

Place = dict[str, Any]
"""A queue, and the message's id in it if known; for a death also its reason, tries, time and error."""

READS_MAX = 64
"""The most reads, of a few segments each, of one search; the rest of a larger log is not searched."""

_DEAD = "x-dead-"
_NUMBERS = ("time", "tries")


class Moves:
    """The moves of one message."""

    def __init__(self, access: AuthorizedBroker, queue: Queue, seq: int) -> None:
        self._access = access
        self._queue = queue
        self._seq = seq

    async def find(self, live_headers: bytes | None) -> tuple[Place | None, Place | None]:
        """Return the message's previous place, and where a redrive put it. `live_headers` is None if it is gone."""
        own = await _traces(self._queue, Trail(seqs=frozenset([self._seq])))
        published = next((trace for trace in own if not trace.is_moved), None)
        moved = next((trace for trace in own if trace.is_moved), None)
        block = live_headers if live_headers is not None else published.headers if published else b""
        death = _death(block)
        target = self._queue_of_text(str(death["queue"])) if death is not None else None
        to = await self._across(self._queue, target, moved.tx, self._seq) if target and moved else None
        if death is None and published is not None and published.tx:
            source = self._queue_of_text(self._queue.options.dead_letter)
            if source is not None:
                return await self._across(source, self._queue, published.tx, self._seq, is_back=True), to
        return death, to

    async def dead_letters(self, message_id: str) -> list[Place]:
        """Return the dead letters of the message in order, each with its place and the facts in its headers."""
        target = self._queue_of_text(self._queue.options.dead_letter)
        if target is None:
            return []
        found = await _traces(target, Trail(line=headers.encode([(f"{_DEAD}id", message_id)])))
        by_seq = {trace.seq: _death(trace.headers) or {} for trace in found}
        return [death | {"to": _place(target, seq)} for seq, death in by_seq.items()]

    async def _across(self, source: Queue, target: Queue, tx: int, seq: int, *, is_back: bool = False) -> Place | None:
        """Return the other end of a redrive of `seq` in `source`, or with `is_back` of `seq` in `target`."""
        moved = sorted({trace.seq for trace in await _traces(source, Trail(tx=tx)) if trace.is_moved})
        arrived = sorted({trace.seq for trace in await _traces(target, Trail(tx=tx)) if not trace.is_moved})
        if not moved or not arrived:
            return None
        if len(moved) != len(arrived):  # the others were moved to other queues, which their headers name
            dead_letters = await _traces(source, Trail(seqs=frozenset(moved)))
            here = {each.seq for each in dead_letters if (_death(each.headers) or {}).get("queue") == str(target.name)}
            moved = [each for each in moved if each in here]
        ends = dict(zip(arrived, moved, strict=False) if is_back else zip(moved, arrived, strict=False))
        place = source if is_back else target
        return _place(place, ends[seq]) if len(moved) == len(arrived) and seq in ends else {"queue": str(place.name)}

    def _queue_of_text(self, name: str) -> Queue | None:
        if not name:
            return None
        try:
            return self._access.queue(parse_queue_name(name), Right.PEEK)
        except (BadRequest, NoSuchQueue, NotAllowed):
            return None


async def _traces(queue: Queue, trail: Trail) -> list[Trace]:
    reading = queue.reading
    found: list[Trace] = []
    position = reading.events_start
    for _ in range(READS_MAX):
        try:
            _, some, position = await answer(partial(reading.traces, position, trail))
        except Gone:  # the log was cleaned meanwhile
            position = reading.events_start
            continue
        found += some
        if position >= reading.events_end:
            break
    return found


def _place(queue: Queue, seq: int) -> Place:
    return {"queue": str(queue.name), "id": queue.message_id(seq)}


def _death(block: bytes) -> Place | None:
    """Return the death in the headers of a dead letter; None for another message."""
    dead = {name.removeprefix(_DEAD): value for name, value in headers.decode(block) if name.startswith(_DEAD)}
    if "id" not in dead or "queue" not in dead:
        return None
    return {name: int(value) if name in _NUMBERS else value for name, value in dead.items()}
