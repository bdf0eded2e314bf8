"""Writes the changes of a queue's `meta` in order, once the queue has been created on disk.

Each change contains all earlier ones, so of the changes that gather during a write only the last is written.
"""

from __future__ import annotations

from functools import partial

from curbstone.core.engine.log.meta import meta_reserve, store_meta
from curbstone.core.engine.parts import Parts
from curbstone.core.errors import CurbstoneError, Unavailable, client_text
from curbstone.core.values import Done


class MetaWriter:
    """Stores the `meta` of a queue, and decides which cap is in force while a change of it is being stored."""

    __slots__ = (
        "_coming_caps", "_data", "_has_failed", "_is_creating", "_parts", "_settles_first", "_stored_cap", "_storing",
        "_waiting", "is_open",
    )  # fmt: skip

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.is_open = False
        self._is_creating = True
        self._waiting: list[Done] = []
        self._storing: list[tuple[int, Done]] = []
        """The changes that are not on disk yet, as (the cap that it sets, its callback)."""
        self._data = b""
        """The bytes of the last change."""
        self._settles_first = False
        self._has_failed = False
        self._stored_cap = parts.state.options.cap
        """The cap in the `meta` on disk; after a failed write, the smallest that may be there."""
        self._coming_caps: dict[int, int] = {}
        """By cap, how many changes that are not on disk yet set it."""

    @property
    def is_behind(self) -> bool:
        """Whether the `meta` on disk may differ from the one in memory."""
        return self._has_failed or bool(self._storing)

    @property
    def is_working(self) -> bool:
        """Whether a job is under way."""
        return bool(self._storing) or self._is_creating

    def opened(self) -> None:
        """The queue is on disk: notify the callers that wait for it."""
        self.is_open = True
        self._is_creating = False
        self._notify(None)
        self._ended()

    def failed(self, error: CurbstoneError) -> None:
        """The queue could not be created: notify the callers that wait for it."""
        self._is_creating = False
        self._notify(error)
        self._ended()

    def _ended(self) -> None:
        """Run a turn if the queue has ended: a caller may wait for the end of its jobs."""
        if self._parts.state.is_closed:
            self._parts.wakeups.turn()

    def _notify(self, error: CurbstoneError | None) -> None:
        waiting, self._waiting = self._waiting, []
        for on_done in waiting:
            self._parts.state.host.notify(on_done, error)

    def when_open(self, on_done: Done) -> None:
        """Call `on_done(error)`, in a later turn, once the queue is on disk or could not be created."""
        state = self._parts.state
        if self.is_open or state.is_closed:
            error = state.ended()
            state.host.call_soon(lambda: on_done(error))
        else:
            self._waiting.append(on_done)

    @property
    def cap(self) -> int:
        """The cap in force: a smaller one applies at once, a larger one once a crash can't restore the smaller."""
        return min(self._stored_cap, *self._coming_caps, self._parts.state.options.cap)

    def store(self, data: bytes, cap: int, on_done: Done) -> None:
        """Replace `meta` on disk, after the queue's creation and all earlier changes; `cap` is the cap that it sets."""
        self._coming_caps[cap] = self._coming_caps.get(cap, 0) + 1
        self._fit_cap()

        def opened(error: CurbstoneError | None) -> None:
            if error is not None:
                on_done(error)
                return
            self._storing.append((cap, on_done))
            self._data = data
            if len(self._storing) == 1:
                self._store_next()

        self.when_open(opened)

    def _fit_cap(self) -> None:
        log = self._parts.log
        log.resize(self.cap, meta_reserve(self.cap))
        if log.room.excess and log.segments:
            log.lower_excess()

    def settle_first(self) -> None:
        """Store the next `meta`, which relies on the settles that wait now, only when these are on disk."""
        self._settles_first = True

    def _store_next(self) -> None:
        """Write all changes that wait now at once."""
        data, count = self._data, len(self._storing)
        if not self._settles_first:
            self._store_now(data, count)
            return
        self._settles_first = False

        def settled(error: CurbstoneError | None) -> None:
            if error is None:
                self._store_now(data, count)
            else:
                self._settles_first = True
                self._stored(count, error)

        self._parts.write_queue.when_committed(settled)

    def _store_now(self, data: bytes, count: int) -> None:
        log = self._parts.log
        if self._parts.state.is_private:  # no start would read it
            state = self._parts.state
            state.shared.host.call_soon(partial(state.host.contain, self._stored, count, None))
            return

        def done(_: object, error: BaseException | None) -> None:
            self._parts.state.shared.alarms.ended(f"{self._parts.state.label}: its options", error)
            self._stored(
                count, Unavailable(f"the queue's options can't be written: {client_text(error)}") if error else None
            )

        self._parts.state.host.submit(lambda: store_meta(log.disk, log.directory, data), done)

    def _stored(self, count: int, error: CurbstoneError | None) -> None:
        stored, self._storing = self._storing[:count], self._storing[count:]
        self._has_failed = error is not None
        for cap, _ in stored:
            self._coming_caps[cap] -= 1
            if not self._coming_caps[cap]:
                del self._coming_caps[cap]
        last_cap = stored[-1][0]
        self._stored_cap = last_cap if error is None else min(last_cap, self._stored_cap)
        self._fit_cap()
        if self._storing:
            self._store_next()
        for _, on_done in stored:
            self._parts.state.host.notify(on_done, error)
        self._ended()
