"""Reloads files while the server runs: at SIGHUP, at `POST /v2/reload`, and when one of them has changed.

If the new content is not valid, the error is logged and the old content stays in use. Files are read in a thread, one
read at a time, so the latest read takes effect last.
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
    def reload(self, on_done: Done) -> None:
        """Read the files again; `on_done` gets the error, if any."""


class Reloading(Generic[T]):
    """Files that are reloaded together. Called on the host's thread."""

    def __init__(
        self,
        host: Host,
        name: str,
        paths: Sequence[Path],
        read: Callable[[], T],
        take: Callable[[T], object],
        refuse: Callable[[BaseException], object] = lambda _error: None,
    ) -> None:
        """`read` runs in a thread; `take` gets its result, `refuse` its exception."""
        self._host = host
        self._name = name
        self._paths = paths
        self._read = read
        self._take = take
        self._refuse = refuse
        self._seen = self._stamp()
        self._is_reading = False
        self._callers: list[Done] = []
        """Callers since the current read began, which may have missed the change that they report."""
        host.call_later(CHECK_EVERY_MS, self._check)

    def reload(self, on_done: Done) -> None:
        """See `Reloadable`. Reads the files whether they have changed or not."""
        self._callers.append(on_done)
        if not self._is_reading:
            self._start()

    def _check(self) -> None:
        self._host.call_later(CHECK_EVERY_MS, self._check)
        if not self._is_reading:
            self._is_reading = True
            self._host.submit(self._stamp, self._checked)

    def _checked(self, stamp: Stamp | None, _error: BaseException | None) -> None:
        self._is_reading = False
        if self._callers or (stamp is not None and stamp != self._seen):
            self._start()

    def _start(self) -> None:
        self._is_reading = True
        callers, self._callers = self._callers, []

        def read() -> tuple[Stamp, T | None, BaseException | None]:
            stamp = self._stamp()  # before reading, so that files that change meanwhile are read again
            try:
                return stamp, self._read(), None
            except Exception as error:
                return stamp, None, error

        def done(found: tuple[Stamp, T | None, BaseException | None], failed: BaseException | None) -> None:
            assert failed is None, failed
            self._seen, result, error = found
            self._is_reading = False
            outcome = self._outcome(result, error)
            for on_done in callers:
                on_done(outcome)
            if self._callers and not self._is_reading:
                self._start()

        self._host.submit(read, done)

    def _outcome(self, result: T | None, error: BaseException | None) -> CurbstoneError | None:
        """Use the result, or return the error."""
        if error is None:
            assert result is not None
            self._take(result)
            log.info("%s: reloaded", self._name)
            return None
        log.error("%s: not reloaded: %s", self._name, error)
        self._refuse(error)
        return Unavailable(f"{self._name}: not reloaded: {error}")

    def _stamp(self) -> Stamp:
        """Return a value that changes when a file is changed or replaced, or when a link is redirected."""
        return tuple(files.version_of(path) for path in self._paths)


class Reloads:
    """Everything that is reloaded together."""

    def __init__(self) -> None:
        self._all: list[Reloadable] = []

    def add(self, one: Reloadable) -> None:
        self._all.append(one)

    def __bool__(self) -> bool:
        return bool(self._all)

    def reload(self, on_done: Done = lambda _error: None) -> None:
        """Reload all of them; there is at least one. `on_done` gets the first error once all are read."""
        done = AllDone(on_done, len(self._all))
        for each in self._all:
            each.reload(done)
