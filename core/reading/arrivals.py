"""When messages came, and waiting for more of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from curbstone.core.errors import NoSuchQueue
from curbstone.core.pending.runs import Run, seqs_of
from curbstone.core.positions import Found, Waited

if TYPE_CHECKING:
    from curbstone.core.queue import Queue


def find_time(queue: Queue, timestamp_ms: int, on_done: Found) -> None:
    """Tell the first live seq that was published at `timestamp_ms` or later, else `next`; in a later turn.

    Where the wall clock was set back the first run of messages that begins late enough decides.
    """
    before: Run | None = None
    after: Run | None = None
    for run in queue.pending.runs:
        if run.time_ms >= timestamp_ms:
            after = run
            break
        before = run
    behind = queue.reading.next if after is None else _first_live(after)
    if before is None:
        queue.host.call_soon(lambda: on_done(None, behind))
        return
    place = before
    was_cached = place.messages is not None

    def look() -> None:
        if place.messages is None and place.live():  # it was moved meanwhile
            find_time(queue, timestamp_ms, on_done)
            return
        found = _first_since(place, timestamp_ms)
        if not was_cached:
            queue.pending.reader.forget(place)
        on_done(None, behind if found is None else found)

    if was_cached:
        queue.host.call_soon(look)
    else:
        queue.pending.reader.load(place, look)


def _first_since(run: Run, timestamp_ms: int) -> int | None:
    for seq in seqs_of(run.first, run.live()):
        message = run.messages[seq - run.first] if run.messages else None
        if message is not None and message.timestamp_ms >= timestamp_ms:
            return seq
    return None


def _first_live(run: Run) -> int:
    live = run.live()
    return run.first + (live & -live).bit_length() - 1 if live else run.first


class Wait:
    """Calls back once: when `has_come` says so, when the time is up, or when the queue ends."""

    def __init__(self, queue: Queue, has_come: Callable[[], bool], wait_ms: int, on_done: Waited) -> None:
        self._queue = queue
        self._has_come = has_come
        self._on_done: Waited | None = on_done
        self._unwatch = queue.watch(self._look)
        self._timer = queue.host.call_later(wait_ms, self._end)
        queue.host.call_soon(self._look)

    def _look(self) -> None:
        if self._queue.is_closed or self._has_come():
            self._end()

    def _end(self) -> None:
        on_done = self._on_done
        if on_done is None:
            return
        self.cancel()
        on_done(NoSuchQueue(f"no such queue: {self._queue.name}") if self._queue.is_closed else None)

    def cancel(self) -> bool:
        """Nobody waits for the answer any more; False where it has come."""
        was_waiting = self._on_done is not None
        self._on_done = None
        self._unwatch()
        self._timer.cancel()
        return was_waiting
