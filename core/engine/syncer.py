"""The seam at which the commits of many queues may share a sync."""

from __future__ import annotations

from collections.abc import Callable

from curbstone.core.engine.log.commit import Commit
from curbstone.core.errors import CurbstoneError
from curbstone.core.host import JobDone


class Syncer:
    """Runs commits that are made in one turn of the loop together. All callbacks it is given raise nothing.

    This class gathers none, so each queue runs its own commits. `core.wal.sync_group.SyncGroup` extends it.
    """

    def __init__(self) -> None:
        self.is_gathering = False
        """Whether a turn is under way. Otherwise a commit is run by itself, and neither `defer` nor `submit` is called.
        """

    def begin_turn(self) -> None:
        """A turn of several queues begins: commits are gathered until `end_turn`."""

    def end_turn(self) -> None:
        """End the turn: run the commits that were gathered."""

    def defer(self, turn: Callable[[], object]) -> bool:
        """Return whether a commit made now would only wait for others; then `turn` is called when it would not."""
        return False

    def submit(self, commit: Commit, done: JobDone) -> None:
        """Run a commit, alone or with others, then call `done(result, error)`; the result has no meaning."""
        raise AssertionError("nothing is gathered")

    def keep(self, text: str) -> None:
        """A segment could not be synced, so what else says what is in it has to be kept. `text` says what failed."""

    def erase_refusal(self, uid: int) -> CurbstoneError | None:
        """Return why bytes of a queue can't be erased before the next start, or None."""
        return None
