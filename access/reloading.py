"""Files that are read again while the server runs: at SIGHUP, at `POST /v2/reload`, and when one of them has changed.

What is read counts only if it is right: where it is not, that is told once and what was read before goes on. Reading
happens in a thread, one at a time, so that what is read last is what counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from curbstone.access import files
from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.host import Host
from curbstone.core.values import Done

LOOK_EVERY_MS = 5_000

T = TypeVar("T")
Stamp = tuple[tuple[int, int, int], ...]

log = logging.getLogger("curbstone")


class Reloadable(Protocol):
    """What can be read again."""

    def reload(self, on_done: Done) -> None:
        """Read it; `on_done` says what is wrong with it."""


class Reloading(Generic[T]):
    """Some files that make one thing. Called on the host's thread."""

    def __init__(
        self,
        host: Host,
        name: str,
        paths: Sequence[Path],
        read: Callable[[], T],
        take: Callable[[T], object],
        refuse: Callable[[BaseException], object] = lambda _error: None,
    ) -> None:
        """`read` makes it, in a thread, and raises what is wrong; `take` gets it, and `refuse` that error."""
        self._host = host
        self._name = name
        self._paths = paths
        self._read = read
        self._take = take
        self._refuse = refuse
        self._seen = self._stamp()
        self._is_reading = False
        self._asked: list[Done] = []
        """Who asked since the reading under way began, which may have seen less than they know of."""
        host.call_later(LOOK_EVERY_MS, self._look)

    def reload(self, on_done: Done) -> None:
        """See `Reloadable.reload`: changed or not."""
        self._asked.append(on_done)
        if not self._is_reading:
            self._start()

    def _look(self) -> None:
        self._host.call_later(LOOK_EVERY_MS, self._look)
        if not self._is_reading:
            self._is_reading = True
            self._host.submit(self._stamp, self._looked)

    def _looked(self, stamp: Stamp | None, _error: BaseException | None) -> None:
        self._is_reading = False
        if self._asked or (stamp is not None and stamp != self._seen):
            self._start()

    def _start(self) -> None:
        self._is_reading = True
        asked, self._asked = self._asked, []

        def read() -> tuple[Stamp, T | None, BaseException | None]:
            stamp = self._stamp()  # before it is read: what changes meanwhile is read again
            try:
                return stamp, self._read(), None
            except Exception as error:
                return stamp, None, error

        def done(found: tuple[Stamp, T | None, BaseException | None], failed: BaseException | None) -> None:
            assert failed is None, failed
            self._seen, result, error = found
            self._is_reading = False
            told = self._told(result, error)
            for on_done in asked:
                on_done(told)
            if self._asked and not self._is_reading:
                self._start()

        self._host.submit(read, done)

    def _told(self, result: T | None, error: BaseException | None) -> CurbstoneError | None:
        """Let count what was read, or say what is wrong with it."""
        if error is None:
            assert result is not None
            self._take(result)
            log.info("%s: read again", self._name)
            return None
        log.error("%s: not changed: %s", self._name, error)
        self._refuse(error)
        return Unavailable(f"{self._name}: not changed: {error}")

    def _stamp(self) -> Stamp:
        """Return what changes when a file does; also if another one is put in its place, or a link is turned."""
        return tuple(files.version_of(path) for path in self._paths)


class Reloads:
    """All that is read again together."""

    def __init__(self) -> None:
        self._all: list[Reloadable] = []

    def add(self, one: Reloadable) -> None:
        """From now on it is one of them."""
        self._all.append(one)

    def __bool__(self) -> bool:
        return bool(self._all)

    def reload(self, on_done: Done = lambda _error: None) -> None:
        """Read all of them; `on_done` when each is read, with the first thing that is wrong. There is one at least."""
        left, errors = len(self._all), list[CurbstoneError]()

        def done(error: CurbstoneError | None) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                errors.append(error)
            if not left:
                on_done(errors[0] if errors else None)

        for each in self._all:
            each.reload(done)
