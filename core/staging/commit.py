"""The commit of a staged transaction, up to the marker that makes it happen.

Room is reserved in every queue, or in none. All parts are read back and checked. Then the marker is written. Once it is
durable the transaction has happened, and `core.staging.apply` puts the messages into their queues, now or after the
next start. If writing the marker fails, it may be on the disk all the same, and a transaction that was refused could
happen later. So it is removed, durably, before the error is answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from curbstone.core.disk import replace_file
from curbstone.core.engine.queue import Queue
from curbstone.core.engine.write_queue import Reservation
from curbstone.core.errors import Conflict, CurbstoneError, MessageTooLarge, QueueFull, shutting_down
from curbstone.core.names import QueueName, queue_name
from curbstone.core.staging.apply import Target, windows_of
from curbstone.core.staging.files import MARKER, Marker, Part, check_part, disk_error
from curbstone.core.staging.frames import QueueShare
from curbstone.core.staging.transaction import StagedTransaction
from curbstone.core.values import State

RETRY_MS = 1000
ROOM_MS_MAX = 10_000
"""How long a commit waits for room that is being made."""

logger = logging.getLogger("curbstone.core")

Marked = Callable[[StagedTransaction, Marker, list[Target]], None]
"""Called when the marker is durable, with the queues that get the messages."""


class StagedCommit:
    """One request to commit. It ends with a durable marker, or with the answer that nothing has happened."""

    def __init__(
        self,
        transaction: StagedTransaction,
        marker: Marker,
        parts: list[Part],
        queue_of: Callable[[QueueName], Queue],
        on_marked: Marked,
    ) -> None:
        """`marker` has everything but its time and the queues, which are added when it is written."""
        self._transaction = transaction
        self._marker = marker
        self._parts = parts
        self._queue_of = queue_of
        self._on_marked = on_marked
        self._area = transaction.area
        self._host = transaction.area.host
        self._targets: list[Target] = []
        self._asked: dict[Target, Reservation] = {}
        """What was asked of the queues that have not granted or refused it yet."""
        self._refusal: CurbstoneError | None = None
        """Why one of them refused."""

    def begin(self) -> None:
        """Find the queues, check that they take the messages, and reserve room in them."""
        shares: dict[str, QueueShare] = {}
        for part in self._parts:
            for name, share in part.shares.items():
                shares.setdefault(name, QueueShare()).add(share)
        try:
            for name, share in shares.items():
                queue = self._queue_of(queue_name(name, self._marker.project))
                most = queue.options.max_message_size
                if share.longest > most:
                    text = f"a message has {share.longest} bytes, the max_message_size of queue {queue.name} is {most}"
                    raise MessageTooLarge(text)
                if queue.options.schema:
                    raise Conflict(f"queue {queue.name} has a schema, which staged messages are not checked against")
                self._targets.append(Target(name, share, queue))
        except CurbstoneError as error:
            self._fail(error)
            return
        self._reserve()

    def _reserve(self) -> None:
        """Ask for room in every queue, and continue when all have answered."""
        refusals = [target.queue.state.publish_refusal() for target in self._targets if target.queue is not None]
        refusal = next(filter(None, refusals), None)
        if refusal is not None:
            self._fail(refusal)
            return
        if not self._targets:  # all its parts are empty
            self._mark()
            return
        windows = windows_of(self._marker.files)
        for target in self._targets:
            wanted = target.wanted_bytes(windows)
            self._asked[target] = Reservation(wanted, target.share.largest, partial(self._answered, target))
        for target, asked in self._asked.items():
            assert target.queue is not None
            target.queue.write_queue.publish(asked)
        self._host.call_later(ROOM_MS_MAX, self._stop_waiting)

    def _stop_waiting(self) -> None:
        """Have the requests that were not granted refused."""
        for target, asked in self._asked.items():
            assert target.queue is not None
            asked.refusal = QueueFull(f"queue {target.queue.name} has made no room in {ROOM_MS_MAX // 1000} s")
            target.queue.wakeups.schedule()

    def _answered(self, target: Target, error: CurbstoneError | None, _first: int, _count: int) -> None:
        """A queue has granted or refused room."""
        asked = self._asked.pop(target)
        if error is None:
            target.reserved = asked.atomic_bytes
        self._refusal = self._refusal or error
        if self._asked:
            return
        if self._area.shared.is_stopping:
            self._refusal = shutting_down()
        if self._refusal is not None:
            self._fail(self._refusal)
        else:
            self._mark()

    def _give_back(self) -> None:
        for target in self._targets:
            target.give_back()

    def _fail(self, error: CurbstoneError) -> None:
        """Answer that nothing has happened. The transaction is staged again."""
        self._give_back()
        self._transaction.state = State.STAGED
        self._transaction.touch()
        self._transaction.answer(error, 0)

    def _mark(self) -> None:
        """Check the parts and write the marker. Once that is durable the transaction has happened."""
        transaction, directory = self._transaction, self._transaction.directory
        queues = {target.name: (target.queue.uid, target.share) for target in self._targets if target.queue is not None}
        marker = self._marker._replace(time_ms=self._host.wall_ms(), queues=queues)
        data = marker.encode()

        def job() -> None:
            for file in marker.files:
                check_part(transaction.disk, directory, file)
            replace_file(transaction.disk, f"{directory}/{MARKER}", data).close()

        def done(_: object, error: BaseException | None) -> None:
            if error is None:
                self._on_marked(transaction, marker, self._targets)
                return
            logger.error("transaction %s can't be committed: %s", transaction.label, error)
            self._unmark(disk_error(error))

        transaction.submit(job, done)

    def _unmark(self, answer: CurbstoneError) -> None:
        """Remove a marker that may be durable or not. Try until that is durable; only then nothing has happened."""
        if self._area.shared.is_stopping:
            return  # the caller was asked to try again, and the next start sees whether the marker is there
        transaction, directory = self._transaction, self._transaction.directory

        def job() -> None:
            with suppress(FileNotFoundError):
                transaction.disk.remove(f"{directory}/{MARKER}")
            transaction.disk.sync_dir(directory)

        def done(_: object, error: BaseException | None) -> None:
            if error is not None:
                self._host.call_later(RETRY_MS, partial(self._unmark, answer))
            else:
                self._fail(answer)

        transaction.submit(job, done)
