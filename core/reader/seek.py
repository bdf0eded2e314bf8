"""Positions in a queue: by the time of a message, by bytes, and waiting for what follows one."""

from __future__ import annotations

from collections.abc import Callable

from curbstone.core.engine.index.runs import Run, seqs_of
from curbstone.core.engine.parts import Parts
from curbstone.core.positions import Found, Stretch, Waited


def seek_by_time(parts: Parts, timestamp_ms: int, on_done: Found) -> None:
    """Find the first live seq that was published at `timestamp_ms` or later, or else the queue's next seq.

    `on_done(error, seq)` is called in a later turn. If the wall clock was set back, times along the log do not only
    grow: then the first run of messages that begins late enough ends the search.
    """
    state, index = parts.state, parts.index
    before: Run | None = None
    after: Run | None = None
    for run in index.runs:
        if run.time_ms >= timestamp_ms:
            after = run
            break
        before = run
    behind = state.committed_end if after is None else first_live(after)
    if before is None:
        state.host.call_soon(lambda: on_done(None, behind))
        return
    place = before

    def look() -> None:
        refusal = state.ended()
        if refusal is not None:  # the messages of a closed queue are not read any more
            on_done(refusal, 0)
            return
        if place.messages is None and place.live():  # the cleaner moved it meanwhile
            seek_by_time(parts, timestamp_ms, on_done)
            return
        found = _first_since(place, timestamp_ms)
        on_done(None, behind if found is None else found)

    if place.messages is not None:
        state.host.call_soon(look)
    else:
        index.reader.load(place, look, keeps=False)


def _first_since(run: Run, timestamp_ms: int) -> int | None:
    for seq in seqs_of(run.first, run.live()):
        message = run.messages[seq - run.first] if run.messages else None
        if message is not None and message.timestamp_ms >= timestamp_ms:
            return seq
    return None


def first_live(run: Run) -> int:
    """Return the first live seq of a run; its first seq if none is."""
    live = run.live()
    return run.first + (live & -live).bit_length() - 1 if live else run.first


def seek_by_bytes(parts: Parts, group: str, first: int, bytes_max: int) -> Stretch:
    """Return how far `bytes_max` reach from the seq `first` on: over whole runs, or over a part of the first run.

    Only messages that are pending in the group count. A part of a run is an estimate, of at least one
    message. Nothing is read for it: the index has the bytes of runs of messages.
    """
    runs, end = parts.index.runs, parts.state.committed_end
    size, until = 0, first
    for run in runs.between(first, runs.end):
        low = max(first, run.first)
        taken = run.bytes_of(run.pending(group) & run.part(first, run.last + 1))
        if size + taken > bytes_max:
            if size:
                return Stretch(until, size)
            span = run.last + 1 - low
            part = max(1, span * bytes_max // taken)
            return Stretch(low + part, taken * part // span)
        size += taken
        until = run.last + 1
    return Stretch(max(first, end), size)


class Wait:
    """Calls `on_done(error)` once: when `has_come` returns true, when the time is up, or when the queue ends."""

    def __init__(self, parts: Parts, has_come: Callable[[], bool], wait_ms: int, on_done: Waited) -> None:
        self._state = parts.state
        self._has_come = has_come
        self._on_done: Waited | None = on_done
        self._unwatch = parts.wakeups.watch(self._look)
        self._timer = self._state.host.call_later(wait_ms, self._end)
        self._state.host.call_soon(self._look)

    def _look(self) -> None:
        if self._state.is_closed or self._has_come():
            self._end()

    def _end(self) -> None:
        on_done = self._on_done
        if on_done is None:
            return
        self.cancel()
        on_done(self._state.ended())

    def cancel(self) -> bool:
        """Do not call back any more; return False if it was done already."""
        was_waiting = self._on_done is not None
        self._on_done = None
        self._unwatch()
        self._timer.cancel()
        return was_waiting
