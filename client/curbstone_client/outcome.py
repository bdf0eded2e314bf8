"""How something that was sent ends: once, with a value or an error. The shells add the waiting."""

from __future__ import annotations

from collections.abc import Callable


class Outcome:
    """The end of something that was sent. Neither future nor lock is made until somebody waits."""

    __slots__ = ("_seen", "_waiter", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: Exception | None = None
        self._waiter: Callable[[], None] | None = None
        self._seen = False

    @property
    def seen(self) -> bool:
        """Whether somebody has waited for the end, and so was told how it went."""
        return self._seen

    def finish(self, error: Exception | None = None) -> None:
        """It has ended; at most once."""
        if self.done:
            return
        self.done = True
        self.error = error
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter()

    def on_done(self, call: Callable[[], None]) -> None:
        """Call this when it ends, or now if it has ended; where several ask, in their order."""
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
        """Raise the error, if there is one; the end is seen."""
        self._seen = True
        if self.error is not None:
            raise self.error
