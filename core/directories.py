"""The directories of queues, made and removed in order: of one name there is never more than one that counts.

A queue that is deleted is gone for those who use it at once, and its name may be used again at once. On disk
the new directory is made only when the old one's deletion is durable, so no crash leaves two of one name, nor
brings old messages into the new queue. A removal that fails is told to those who wait for it, and tried again
until it is done; meanwhile a queue of that name can't be created.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from itertools import takewhile

from curbstone.core.disk import Disk
from curbstone.core.errors import CurbstoneError, Unavailable, shutting_down, told
from curbstone.core.host import Host, Job
from curbstone.core.names import QueueName
from curbstone.core.values import Done

QUEUES = "queues"
GONE_SUFFIX = ".gone"
TWIN_SUFFIX = ".twin"
"""Of a directory whose name another has taken: it is kept, and not served."""
RETRY_MS = 1000
IDLE_POLL_MS = 5

logger = logging.getLogger("curbstone.core")


class Removal:
    """One directory on its way out: renamed, so that a crash leaves all or nothing of it, then emptied."""

    def __init__(self, name: QueueName, directory: str, is_idle: Callable[[], bool], close: Callable[[], None]) -> None:
        self.name = name
        self.directory = directory
        self.is_idle = is_idle
        """Whether no job works in it any more; a turn in which it says so is the last that asks."""
        self.close = close
        self.is_renamed = False
        """Whether no crash can bring it back."""
        self.is_working = True
        self.waiting: list[Done] = []
        """Who wants to know when its files are gone."""
        self.blocked: list[Done] = []
        """Who wants to use its name."""


class Directories:
    """See the module's docstring."""

    def __init__(self, host: Host, disk: Disk) -> None:
        self._host = host
        self._disk = disk
        self._removals: dict[QueueName, list[Removal]] = {}
        self.is_stopping = False

    @property
    def is_working(self) -> bool:
        """Whether a removal is under way; one that failed and will be tried again is not."""
        return any(removal.is_working for removals in self._removals.values() for removal in removals)

    # --- making

    def create(
        self, name: QueueName, directory: str, job: Job, on_done: Callable[[BaseException | None], None]
    ) -> None:
        """Run a job that makes a directory, once the name is free on disk; `on_done` with what went wrong.

        It waits for the removals that were asked for before it: its own, if there is one by then, waits for it.
        """

        def freed(error: CurbstoneError | None) -> None:
            if error is not None:
                on_done(error)
            else:
                self.create(name, directory, job, on_done)

        until_own = takewhile(lambda removal: removal.directory != directory, self._removals.get(name, ()))
        before = next((removal for removal in until_own if not removal.is_renamed), None)
        if before is None:
            self._host.submit(job, lambda _result, error: on_done(error))
        else:
            before.blocked.append(freed)
            self._try_again(before)

    # --- removing

    def remove(
        self, name: QueueName, directory: str, is_idle: Callable[[], bool], close: Callable[[], None], on_done: Done
    ) -> None:
        """Remove a directory when it is idle and `close` was called, in a job; `on_done` after the first attempt.

        If that went well no crash brings anything of it back; of a private queue it may bring back the files, which
        the next start removes.
        """
        known = next((removal for removal in self._removals.get(name, ()) if removal.directory == directory), None)
        if known is not None:
            known.waiting.append(on_done)
            return
        removal = Removal(name, directory, is_idle, close)
        removal.waiting.append(on_done)
        self._removals.setdefault(name, []).append(removal)
        self._when_idle(removal)

    def when_removed(self, name: QueueName, on_done: Done) -> bool:
        """Wait for all removals of a name, or the first that fails again; False if there are none."""
        removals = self._removals.get(name)
        if not removals:
            return False

        def next_one(error: CurbstoneError | None) -> None:
            if error is not None or not self.when_removed(name, on_done):
                on_done(error)

        removals[0].waiting.append(next_one)
        self._try_again(removals[0])
        return True

    def _when_idle(self, removal: Removal) -> None:
        if removal.is_idle():
            self._rename(removal)
        else:
            self._host.call_later(IDLE_POLL_MS, lambda: self._when_idle(removal))

    def _try_again(self, removal: Removal) -> None:
        if removal.is_working or removal not in self._removals.get(removal.name, ()):
            return
        if self.is_stopping:
            self._host.call_soon(lambda: self._tell(removal, shutting_down()))
            return
        removal.is_working = True
        if removal.is_renamed:
            self._empty(removal)
        else:
            self._rename(removal)

    def _rename(self, removal: Removal) -> None:
        directory = removal.directory

        def job() -> None:
            removal.close()
            with suppress(FileNotFoundError):  # it was never made, or an earlier attempt came further
                self._disk.rename(directory, directory + GONE_SUFFIX)
            self._disk.sync_dir(QUEUES)

        def done(_: object, error: BaseException | None) -> None:
            if error is not None:
                self._failed(removal, f"queue {removal.name} can't be removed from the disk", error)
                return
            removal.is_renamed = True
            blocked, removal.blocked = removal.blocked, []
            self._empty(removal)
            for on_done in blocked:
                on_done(None)

        self._host.submit(job, done)

    def _empty(self, removal: Removal) -> None:
        def job() -> None:
            with suppress(FileNotFoundError):
                self._disk.remove_tree(removal.directory + GONE_SUFFIX)
            if not removal.name.is_private:  # nobody waits for the end of those
                self._disk.sync_dir(QUEUES)  # else a power cut could bring files back that are told to be gone

        def done(_: object, error: BaseException | None) -> None:
            if error is not None:
                self._failed(removal, f"queue {removal.name} is deleted, but not all of its files are", error)
                return
            removal.is_working = False
            removals = self._removals[removal.name]
            removals.remove(removal)
            if not removals:
                del self._removals[removal.name]
            for on_done in removal.waiting:
                on_done(None)

        self._host.submit(job, done)

    def _failed(self, removal: Removal, text: str, error: BaseException) -> None:
        """Tell those who wait, and try again in a while."""
        logger.error("%s: %s; trying again", text, error)
        removal.is_working = False
        self._host.call_later(RETRY_MS, lambda: self._try_again(removal))
        self._tell(removal, Unavailable(f"{text}: {told(error)}"))

    @staticmethod
    def _tell(removal: Removal, error: CurbstoneError) -> None:
        waiting, removal.waiting = removal.waiting, []
        blocked, removal.blocked = removal.blocked, []
        for on_done in (*blocked, *waiting):
            on_done(error)
