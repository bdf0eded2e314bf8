"""Makes and removes the directories of queues in order, so that at most one directory of each name counts.

For its users a deleted queue is gone at once, and its name may be used again at once. On disk the new directory is made
only when the deletion of the old one is durable. So no crash leaves two directories of one name, or brings old messages
into the new queue. If a removal fails, its callers get the error, and it is tried again until it succeeds.
Meanwhile no queue of that name can be created.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from itertools import takewhile

from curbstone.core.engine.disk_alarms import AlarmingHost
from curbstone.core.engine.shared import Shared
from curbstone.core.errors import CurbstoneError, Unavailable, client_text, shutting_down
from curbstone.core.host import Job
from curbstone.core.names import QueueName
from curbstone.core.values import Done

QUEUES = "queues"
GONE_SUFFIX = ".gone"
TWIN_SUFFIX = ".twin"
"""For a directory whose queue is in another directory, too. It is kept, but not served."""
RETRY_MS = 1000

logger = logging.getLogger("curbstone.core")


class Removal:
    """The removal of one directory: it is renamed, so that a crash leaves all or none of it, and then emptied."""

    def __init__(self, name: QueueName, directory: str, close: Callable[[], None]) -> None:
        self.name = name
        self.directory = directory
        self.gone = directory if name.is_private else directory + GONE_SUFFIX
        """Its name from when on a start removes it unread. That of a private queue has it from the beginning."""
        self.close = close
        self.is_renamed = False
        """Whether it is renamed durably, so that no crash can bring it back."""
        self.is_working = True
        self.waiting: list[Done] = []
        """To be called when its files are gone, or when an attempt has failed."""
        self.blocked: list[Done] = []
        """To be called when its name can be used again, or when an attempt has failed."""


class Directories:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._host = AlarmingHost(shared.host, shared.alarms, "making and removing queues")
        self._disk = shared.disk
        self._removals: dict[QueueName, list[Removal]] = {}

    @property
    def is_working(self) -> bool:
        """Whether a removal is under way. One that has failed and waits for the next attempt does not count."""
        return any(removal.is_working for removals in self._removals.values() for removal in removals)

    # --- making

    def create(
        self, name: QueueName, directory: str, job: Job, on_done: Callable[[BaseException | None], None]
    ) -> None:
        """Run a job that makes a directory, as soon as the name is free on disk; `on_done` gets the error or None.

        It waits for removals of earlier directories of this name. If the removal of this very directory has been asked
        for meanwhile, that does not count, because it waits for the creation.
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
        self,
        name: QueueName,
        directory: str,
        when_idle: Callable[[Callable[[], None]], None],
        close: Callable[[], None],
        on_done: Done,
    ) -> None:
        """Remove a directory as soon as it is idle; `on_done` is called after the first attempt.

        `when_idle` calls back when no job works in the directory any more. `close` is called in the job, before
        anything is removed. After `on_done(None)` no crash brings anything of the directory back, except files of a
        private queue, which the next start removes.
        """
        known = next((removal for removal in self._removals.get(name, ()) if removal.directory == directory), None)
        if known is not None:
            known.waiting.append(on_done)
            return
        removal = Removal(name, directory, close)
        removal.waiting.append(on_done)
        self._removals.setdefault(name, []).append(removal)
        when_idle(lambda: self._rename(removal))

    def when_removed(self, name: QueueName, on_done: Done) -> bool:
        """Call back when all removals of a name are done or one fails again; return False if there are none."""
        removals = self._removals.get(name)
        if not removals:
            return False

        def next_one(error: CurbstoneError | None) -> None:
            if error is not None or not self.when_removed(name, on_done):
                on_done(error)

        removals[0].waiting.append(next_one)
        self._try_again(removals[0])
        return True

    def _try_again(self, removal: Removal) -> None:
        if removal.is_working or removal not in self._removals.get(removal.name, ()):
            return
        if self._shared.is_stopping:
            self._host.call_soon(lambda: self._notify(removal, shutting_down()))
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
            if not removal.name.is_private:
                with suppress(FileNotFoundError):  # it was never made, or an earlier attempt has renamed it
                    self._disk.rename(directory, removal.gone)
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
            if removal.name.is_private and self._shared.is_stopping:  # the next start removes them
                return
            with suppress(FileNotFoundError):
                self._disk.remove_tree(removal.gone)
            if not removal.name.is_private:  # no caller waits until the files of a private queue are gone
                self._disk.sync_dir(QUEUES)  # without this a power cut could restore files whose deletion was confirmed

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
        self._notify(removal, Unavailable(f"{text}: {client_text(error)}"))

    @staticmethod
    def _notify(removal: Removal, error: CurbstoneError) -> None:
        waiting, removal.waiting = removal.waiting, []
        blocked, removal.blocked = removal.blocked, []
        for on_done in (*blocked, *waiting):
            on_done(error)
