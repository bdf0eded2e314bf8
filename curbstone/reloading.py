"""Files that are read again while the server runs: at SIGHUP, and when one of them has changed.

What is read counts only if it is right: where it is not, that is told once and what was read before goes on. Reading
happens in a thread, one at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from curbstone.core.host import Host

LOOK_EVERY_MS = 5_000

T = TypeVar("T")
Stamp = tuple[tuple[int, int, int] | None, ...]

log = logging.getLogger("curbstone")


class Reloading(Generic[T]):
    """Some files that make one thing."""

    def __init__(
        self,
        host: Host,
        name: str,
        paths: Sequence[Path],
        read: Callable[[], T],
        take: Callable[[T], object],
    ) -> None:
        """`read` makes it, in a thread, and raises what is wrong; `take` gets it, on the host's thread."""
        self._host = host
        self._name = name
        self._paths = paths
        self._read = read
        self._take = take
        self._seen = self._stamp()
        self._is_reading = False
        self._is_wanted = False
        host.call_later(LOOK_EVERY_MS, self._look)

    def reload(self) -> None:
        """Read them now, changed or not."""
        self._is_wanted = True
        if not self._is_reading:
            self._start()

    def _look(self) -> None:
        self._host.call_later(LOOK_EVERY_MS, self._look)
        if not self._is_reading and self._stamp() != self._seen:
            self.reload()

    def _start(self) -> None:
        self._is_wanted = False
        self._is_reading = True
        self._seen = self._stamp()  # before it is read: what changes meanwhile is read again
        self._host.submit(self._read, self._done)

    def _done(self, result: T, error: BaseException | None) -> None:
        self._is_reading = False
        if error is None:
            self._take(result)
            log.info("%s: read again", self._name)
        else:
            log.error("%s: not changed: %s", self._name, error)
        if self._is_wanted:
            self._start()

    def _stamp(self) -> Stamp:
        """Return what changes when a file does; also if another one is put in its place, or a link is turned."""
        return tuple(_stamp_of(path) for path in self._paths)


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
