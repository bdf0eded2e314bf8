"""The outcome of a sent frame. It ends once, with or without an error. The shells add waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar


class Outcome:
    """See the module's docstring. A future or a lock is created only when a caller waits for it."""

    __slots__ = ("_seen", "_waiter", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: Exception | None = None
        self._waiter: Callable[[], None] | None = None
        self._seen = False

    @property
    def seen(self) -> bool:
        """Whether `check` was called."""
        return self._seen

    def finish(self, error: Exception | None = None) -> None:
        """End it, and call the callbacks. Only the first call counts."""
        if self.done:
            return
        self.done = True
        self.error = error
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter()

    def on_done(self, call: Callable[[], None]) -> None:
        """Add a callback for the end, or call it now if the outcome has ended. Several are called in order."""
        if self.done:
            call()
            return
        before = self._waiter
        if before is None:
            self._waiter = call
            return

        def both() -> None:
            before()
            call()

        self._waiter = both

    def check(self) -> None:
        """Raise the error, if there is one, and mark it as seen."""
        self._seen = True
        if self.error is not None:
            raise self.error


S = TypeVar("S", bound=Outcome)
"""A shell's outcome of settling: on disk, refused, or unknown."""
