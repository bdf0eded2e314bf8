"""Reads files again while the server runs: at SIGHUP, at `POST /v2/reload`, and when one of them has changed.

New content is used only if it is right. If it is wrong, this is reported once, and the old content stays in use. Files
are read in a thread, one read at a time, so that the last read is the one that counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from curbstone.access import files
from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.host import Host
from curbstone.core.values import AllDone, Done

CHECK_EVERY_MS = 5_000

T = TypeVar("T")
Stamp = tuple[tuple[int, int, int], ...]

log = logging.getLogger("curbstone")


class Reloadable(Protocol):
    """Something that can be read again."""

    def reload(self, on_done: Done) -> None:
        """Read it again; `on_done` gets what is wrong with it."""


class Reloading(Generic[T]):
    """Some files that form one thing. Called on the host's thread."""

    def __init__(
        self,
        host: Host,
        name: str,
        paths: Sequence[Path],
        read: Callable[[], T],
        take: Callable[[T], object],
        refuse: Callable[[BaseException], object] = lambda _error: None,
    ) -> None:
        """`read` runs in a thread and returns the thing or raises; `take` gets the thing, `refuse` the exception."""
        self._host = host
        self._name = name
        self._paths = paths
        self._read = read
        self._take = take
        self._refuse = refuse
        self._seen = self._stamp()
        self._is_reading = False
        self._asked: list[Done] = []
        """Callers since the current read began. It may not have seen what they know of."""
        host.call_later(CHECK_EVERY_MS, self._check)

    def reload(self, on_done: Done) -> None:
        """See `Reloadable.reload`. Reads the files whether they have changed or not."""
        self._asked.append(on_done)
        if not self._is_reading:
            self._start()

    def _check(self) -> None:
        self._host.call_later(CHECK_EVERY_MS, self._check)
        if not self._is_reading:
            self._is_reading = True
            self._host.submit(self._stamp, self._checked)

    def _checked(self, stamp: Stamp | None, _error: BaseException | None) -> None:
        self._is_reading = False
        if self._asked or (stamp is not None and stamp != self._seen):
            self._start()

    def _start(self) -> None:
        self._is_reading = True
        asked, self._asked = self._asked, []

        def read() -> tuple[Stamp, T | None, BaseException | None]:
            stamp = self._stamp()  # taken before reading: files that change meanwhile are read again
            try:
                return stamp, self._read(), None
            except Exception as error:
                return stamp, None, error

        def done(found: tuple[Stamp, T | None, BaseException | None], failed: BaseException | None) -> None:
            assert failed is None, failed
            self._seen, result, error = found
            self._is_reading = False
            outcome = self._outcome(result, error)
            for on_done in asked:
                on_done(outcome)
            if self._asked and not self._is_reading:
                self._start()

        self._host.submit(read, done)

    def _outcome(self, result: T | None, error: BaseException | None) -> CurbstoneError | None:
        """Use what was read, or return what is wrong with it."""
        if error is None:
            assert result is not None
            self._take(result)
            log.info("%s: read again", self._name)
            return None
        log.error("%s: not changed: %s", self._name, error)
        self._refuse(error)
        return Unavailable(f"{self._name}: not changed: {error}")

    def _stamp(self) -> Stamp:
        """Return a value that changes when a file is changed or replaced, or when a link is redirected."""
        return tuple(files.version_of(path) for path in self._paths)


class Reloads:
    """Everything that is read again together."""

    def __init__(self) -> None:
        self._all: list[Reloadable] = []

    def add(self, one: Reloadable) -> None:
        """Add one to be read again."""
        self._all.append(one)

    def __bool__(self) -> bool:
        return bool(self._all)

    def reload(self, on_done: Done = lambda _error: None) -> None:
        """Read all of them again; there is at least one. `on_done` gets the first error when all are read."""
        done = AllDone(on_done, len(self._all))
        for each in self._all:
            each.reload(done)
