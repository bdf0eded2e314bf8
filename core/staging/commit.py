"""The commit of a staged transaction: room is reserved, a marker makes it happen, then it is applied.

The marker is a file. Once it is durable the transaction has happened, and what a crash leaves is finished
at the next start. Where it is in doubt whether it is durable, it is removed before anybody hears of an
error. When everything is in the queues the id is remembered, durably, and then the files go.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import Protocol

from curbstone.core.disk import Disk
from curbstone.core.errors import CurbstoneError, MessageTooLarge, QueueFull, Unavailable
from curbstone.core.log.window import read_around
from curbstone.core.names import QueueName, queue_name
from curbstone.core.queue import Queue
from curbstone.core.staging.apply import Application, Target, windows_of
from curbstone.core.staging.committed import Committed
from curbstone.core.staging.frames import Share
from curbstone.core.staging.marker import MARKER, MARKER_BYTES_MAX, Marker, PartFile
from curbstone.core.staging.parts import Part, check_part, disk_error
from curbstone.core.staging.transaction import StagedTransaction
from curbstone.core.values import State

ROOM_MS = 2
ROOM_MS_MAX = 10_000
RETRY_MS = 1000

logger = logging.getLogger("curbstone.core")


def load_marker(disk: Disk, directory: str) -> bytes | None:
    """Return what is in the file of a marker, if there is one; blocking."""
    try:
        file = disk.open(f"{directory}/{MARKER}")
    except FileNotFoundError:
        return None
    try:
        return read_around(file, 0, MARKER_BYTES_MAX)[0]
    finally:
        file.close()


class Owner(Protocol):
    """Who has all transactions, as far as a commit needs it."""

    committed: Committed

    def queue(self, name: QueueName) -> Queue:
        """Return a queue; raise NoSuchQueue."""

    def commit_ended(self, commit: Commit) -> None:
        """Nothing more comes of a commit."""

    def remove(self, transaction: StagedTransaction) -> None:
        """Remove a transaction with its directory."""


class Commit:
    """One commit, from the request or from the marker that a crash left."""

    def __init__(
        self, owner: Owner, transaction: StagedTransaction, number: int, project: str, identifier: str
    ) -> None:
        self._owner = owner
        self._transaction = transaction
        self._ground = transaction.ground
        self._host = transaction.ground.host
        self._number = number
        self._project = project
        self._identifier = identifier
        self._targets: dict[str, Target] = {}
        self._files: list[PartFile] = []
        self._deadline_ms = 0
        self._last_segments: dict[Queue, int] = {}
        self._marker: Marker | None = None
        self._application: Application | None = None
        self._is_busy = False

    @property
    def is_working(self) -> bool:
        """Whether a job is under way."""
        return self._is_busy or (self._application is not None and self._application.is_reading)

    def stop(self) -> None:
        """The server stops: what is not applied yet is at the next start."""
        if self._application is not None:
            self._application.stop()

    # --- from a request

    def begin(self, parts: list[Part]) -> None:
        """Commit these parts."""
        shares: dict[str, Share] = {}
        for part in parts:
            for name, share in part.shares.items():
                shares.setdefault(name, Share()).add(share)
        self._files = [part.frames for part in parts]
        self._deadline_ms = self._host.now_ms() + ROOM_MS_MAX
        try:
            for name, share in shares.items():
                queue = self._owner.queue(queue_name(name, self._project))
                if share.longest > queue.options.max_message_size:
                    raise _too_large(queue, share)
                self._targets[name] = Target(queue, name, share)
        except CurbstoneError as error:
            self._fail(error)
            return
        self._reserve(None)

    def _reserve(self, error: CurbstoneError | None) -> None:
        """Reserve room in every queue, or in none."""
        if error is None and self._ground.is_stopping:
            error = Unavailable("the server is shutting down")
        windows = windows_of(self._files)
        for target in self._targets.values():
            queue = target.queue
            assert queue is not None
            error = error or queue.state.publish_refusal()
            if error is not None:
                break
            if not queue.meta_writer.is_open:
                self._give_back()
                queue.meta_writer.when_open(self._reserve)
                return
            wanted = target.wanted_bytes(windows)
            if not queue.log.room.grant(wanted, target.share.largest):
                self._give_back()
                self._no_room(queue, wanted, target.share.largest)
                return
            target.reserved = wanted
        if error is not None:
            self._give_back()
            self._fail(error)
            return
        self._mark()

    def _no_room(self, queue: Queue, wanted: int, largest: int) -> None:
        """Let the queue's cleaner work, for one turn over the log at most, then try again."""
        last = self._last_segments.setdefault(queue, queue.log.active.number)
        is_over = queue.log.segments[0].number > last or self._host.now_ms() > self._deadline_ms
        if is_over or not queue.reading.can_make_room(wanted + queue.log.room.reserved, largest):
            cap = queue.options.cap
            self._fail(QueueFull(f"queue {queue.name} has no room for {wanted} bytes under its cap of {cap} bytes"))
            return
        queue.agenda.dirty()
        self._host.call_later(ROOM_MS, partial(self._reserve, None))

    def _give_back(self) -> None:
        for target in self._targets.values():
            if target.queue is not None:
                target.queue.log.room.give_back(target.reserved)
            target.reserved = 0

    def _fail(self, error: CurbstoneError) -> None:
        """Nothing happened: what is staged stays."""
        self._transaction.state = State.STAGED
        self._transaction.touch()
        self._transaction.answer(error, 0)
        self._owner.commit_ended(self)

    # --- the marker

    def _mark(self) -> None:
        """Make it happen."""
        transaction = self._transaction
        queues = {t.name: (t.queue.uid, t.share) for t in self._targets.values() if t.queue is not None}
        time_ms, series = self._host.wall_ms(), transaction.series
        marker = Marker(self._number, self._project, self._identifier, time_ms, self._files, queues, series)
        data = marker.encode()
        disk, path = self._ground.disk, f"{transaction.directory}/{MARKER}"

        def job() -> None:
            for file in self._files:
                check_part(disk, transaction.directory, file)
            with suppress(FileNotFoundError):
                disk.remove(f"{path}.new")
            fresh = disk.open(f"{path}.new", create=True)
            try:
                fresh.write(0, [data])
                fresh.sync()
            finally:
                fresh.close()
            disk.rename(f"{path}.new", path)
            disk.sync_dir(transaction.directory)

        def done(_: object, error: BaseException | None) -> None:
            self._is_busy = False
            if error is not None:
                logger.error("transaction %s can't be committed: %s", transaction.label, error)
                self._unmark(disk_error(error))
            else:
                self._apply(marker, is_checked=True)

        self._is_busy = True
        transaction.submit(job, done)

    def _unmark(self, answer: CurbstoneError) -> None:
        """Remove a marker of which nobody knows whether it is durable; only then it has not happened."""
        if self._ground.is_stopping:
            self._owner.commit_ended(self)
            return
        transaction, disk = self._transaction, self._ground.disk

        def job() -> None:
            with suppress(FileNotFoundError):
                disk.remove(f"{transaction.directory}/{MARKER}")
            disk.sync_dir(transaction.directory)

        def done(_: object, error: BaseException | None) -> None:
            self._is_busy = False
            if error is not None:
                self._host.call_later(RETRY_MS, partial(self._unmark, answer))
                return
            self._give_back()
            self._fail(answer)

        self._is_busy = True
        transaction.submit(job, done)

    # --- from a marker

    def resume(self, marker: Marker, queues: dict[str, Queue]) -> None:
        """Go on with what a crash or a stop left; `queues` are all by their uids. Nothing else has run yet."""
        self._files = marker.files
        windows = windows_of(self._files)
        for name, (uid, share) in marker.queues.items():
            queue = queues.get(uid)
            target = self._targets[name] = Target(queue, name, share)
            if queue is None:
                logger.warning("queue %s is gone: what a committed transaction had for it is dropped", name)
                continue
            target.skip = queue.notes.staged.count(self._number)
            target.reserved = target.wanted_bytes(windows)
            queue.log.room.grant_known(target.reserved)
        self._host.call_soon(partial(self._apply, marker, is_checked=False))

    # --- afterwards

    def _apply(self, marker: Marker, *, is_checked: bool) -> None:
        self._marker = marker
        directory, on_trouble = self._transaction.directory, self._transaction.stuck
        application = Application(
            self._ground, directory, marker, self._targets, self._applied, on_trouble, is_checked=is_checked
        )
        self._application = application
        if not self._ground.is_stopping:
            application.go_on()

    def _applied(self) -> None:
        self._give_back()
        assert self._marker is not None
        transaction, messages = self._transaction, self._marker.messages
        self._owner.committed.add(transaction.hashed, messages, self._remembered, transaction.series)

    def _remembered(self, error: CurbstoneError | None) -> None:
        """The id is on disk: the answer can leave, and the files go."""
        self._owner.commit_ended(self)
        if error is not None:  # the server stops; the next start finds everything applied
            return
        assert self._marker is not None
        for target in self._targets.values():
            if target.queue is not None:
                target.queue.notes.staged.forget(self._number)
        self._transaction.state = State.COMMITTED
        self._transaction.answer(None, self._marker.messages)
        self._owner.remove(self._transaction)


def _too_large(queue: Queue, share: Share) -> CurbstoneError:
    most = queue.options.max_message_size
    return MessageTooLarge(f"a message has {share.longest} bytes, the max_message_size of queue {queue.name} is {most}")
