"""Puts the messages of a committed transaction into their queues, a chunk at a time, once its marker is durable.

The parts are read in order, a window at a time. The messages of a window for one queue go into its log as one batch, or
as a few if the queue's segments are small. The same batch notes how many messages of the transaction that log has now.
So a restart needs no other state: it reads the parts from the beginning, and in each queue skips that many messages.
First it checks all files; as long as one of them is damaged or missing, nothing continues, and that is reported.

Nothing is refused, because room was reserved before the marker was written. In each queue the messages of the
transaction keep their order. Messages that others publish meanwhile may lie between them. Messages that are published
after the commit was answered follow them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from curbstone.core.disk import File
from curbstone.core.engine.commit.unique_names import facts_bytes
from curbstone.core.engine.facts.kinds import KINDS
from curbstone.core.engine.log.format import BATCH_BYTES, SEGMENT_BYTES, Note, entry_bytes
from curbstone.core.engine.log.room import release_bytes
from curbstone.core.engine.queue import Queue
from curbstone.core.engine.write_queue import AtomicWrite, StagedMark
from curbstone.core.errors import CurbstoneError, StagedDamaged, client_text
from curbstone.core.message import Message
from curbstone.core.orders import changed, has_name, level_in
from curbstone.core.staging.files import Marker, PartFile, check_part
from curbstone.core.staging.frames import FrameMessages, FrameReader, QueueShare
from curbstone.core.staging.transaction import StagedTransaction

WINDOW_BYTES = 512 * 1024
AHEAD_BYTES = 2 * WINDOW_BYTES
RETRY_MS = 1000
RETRY_MS_MAX = 60_000

_EXTRAS_BYTES = 8
_FACT_BYTES = KINDS[Note.STAGED].room
_LIST_BYTES = 80

logger = logging.getLogger("curbstone.core")


class Target:
    """A queue that gets messages of a transaction, and the room that was reserved there for them."""

    def __init__(self, name: str, share: QueueShare, queue: Queue | None, skip: int = 0) -> None:
        self.name = name
        self.share = share
        self.queue = queue
        """None if the queue was deleted; then its messages are dropped."""
        self.skip = skip
        """How many messages are in the log already."""
        self.handed = 0
        """How many messages have been read, including those that were skipped."""
        self.reserved = 0
        """How many bytes are still reserved in the queue's log."""

    def wanted_bytes(self, windows: int) -> int:
        """Return the most bytes that the missing messages take in the log, with the room that it keeps for them."""
        assert self.queue is not None
        count = self.share.count - self.skip
        if not count:
            return 0
        size = min(self.share.size, count * self.share.largest)
        chunks = min(count, windows + 2 * size // chunk_bytes(self.queue) + 2)
        return self._bytes_of(size, count, self.share.delayed, chunks)

    def reserved_for(self, messages: list[Message], size: int) -> int:
        """Take the bytes that a chunk may need from the reservation, or, for the last chunk, all that are left."""
        taken = self.reserved
        if self.handed < self.share.count:
            delayed = sum([message.delay_ms > 0 for message in messages])
            taken = min(taken, self._bytes_of(size, len(messages), delayed, 1))
        self.reserved -= taken
        return taken

    def _bytes_of(self, size: int, count: int, delayed: int, chunks: int) -> int:
        """Return the most bytes that `count` entries of `size` bytes in all take in `chunks` batches.

        Each entry may get an expiry. Each message needs room for one record of its tries in every group, and one with a
        delay for a second, because the delay is such a record, too.
        """
        assert self.queue is not None
        groups = 1 + len(self.queue.meta.groups)
        of_chunk = BATCH_BYTES + SEGMENT_BYTES + _FACT_BYTES + _LIST_BYTES * groups
        return size + count * _EXTRAS_BYTES + release_bytes((count + delayed) * groups) + chunks * of_chunk

    def give_back(self) -> None:
        if self.queue is not None:
            self.queue.log.room.give_back(self.reserved)
        self.reserved = 0


def chunk_bytes(queue: Queue) -> int:
    """Return how many bytes of entries go into one batch of a queue, unless a single message has more."""
    return min(WINDOW_BYTES, queue.log.room.small_bytes // 2)


def windows_of(files: list[PartFile]) -> int:
    """Return the most windows that reading files takes. An entry that a window cuts is read again with the next."""
    return sum(file.size // (WINDOW_BYTES // 4) + 2 for file in files)


def resumed_targets(marker: Marker, queues: dict[str, Queue]) -> list[Target]:
    """Return the targets of the rest of a transaction after a restart; `queues` has all queues by their uids.

    The room for it is reserved again, before any other publish can take it.
    """
    targets = []
    windows = windows_of(marker.files)
    for name, (uid, share) in marker.queues.items():
        queue = queues.get(uid)
        if queue is None:
            logger.warning("queue %s is gone: what a committed transaction had for it is dropped", name)
            targets.append(Target(name, share, None))
            continue
        target = Target(name, share, queue, queue.facts.staged(marker.number))
        target.reserved = target.wanted_bytes(windows)
        queue.log.room.grant_known(target.reserved)
        targets.append(target)
    return targets


class Application:
    """Applies one transaction, and calls `on_done` when all of it is on disk. After failures it tries again.

    One job at a time checks a file or reads a window. When it ends, the messages it has read are handed to the queues,
    and the next window is read, unless `AHEAD_BYTES` or more are still on their way to the logs.
    """

    def __init__(
        self,
        transaction: StagedTransaction,
        marker: Marker,
        targets: Iterable[Target],
        on_done: Callable[[Application], None],
        *,
        is_checked: bool,
    ) -> None:
        self.transaction = transaction
        self.marker = marker
        self.targets = {target.name: target for target in targets}
        self._on_done = on_done
        self._host = transaction.area.host
        self._disk = transaction.disk
        self._files = marker.files
        self._checked = len(marker.files) if is_checked else 0
        """How many of the files have been checked."""
        self._index = 0
        """The place in `_files` of the file that is being read."""
        self._offset = 0
        """Where in that file the next window begins."""
        self._file: File | None = None
        self._reader = FrameReader()
        self._outstanding = 0
        """Bytes that were handed over and are not on disk yet."""
        self._retry_ms = RETRY_MS
        self._has_job = False
        self._is_waiting = False
        """Whether it has failed and will start over in a while."""
        self._is_over = False

    def stop(self) -> None:
        """Hand over nothing more, because the server stops."""
        self._is_over = True
        if not self._has_job:
            self._close()

    def proceed(self) -> None:
        """Check or read the next piece, unless enough is under way."""
        if self._has_job or self._is_waiting or self._is_over:
            return
        if self._checked < len(self._files):
            self._has_job = True
            self.transaction.submit(self._check, self._have_checked)
        elif self._index < len(self._files):
            if self._outstanding < AHEAD_BYTES:
                self._has_job = True
                self.transaction.submit(self._read, self._have_read)
        elif not self._outstanding:
            self._end()

    def _end(self) -> None:
        """Finish when everything was read and written, if it is as many messages as the marker says."""
        if any(target.handed != target.share.count for target in self.targets.values()):
            self._fail(f"{self.transaction.directory}: its parts hold other messages than were committed")
            return
        self._is_over = True
        for target in self.targets.values():
            target.give_back()
        self._on_done(self)

    # --- what keeps it from continuing

    def _fail(self, text: str) -> None:
        """Start over in a while: check and read everything again, and skip the messages that were handed over."""
        if text != self.transaction.trouble:
            logger.error("a committed transaction can't be applied, it is tried again: %s", text)
        self.transaction.stuck(text)
        self._close()
        self._reader = FrameReader()
        self._checked = self._index = self._offset = 0
        for target in self.targets.values():
            target.skip, target.handed = max(target.skip, target.handed), 0
        self._is_waiting = True
        self._host.call_later(self._retry_ms, self._try_again)
        self._retry_ms = min(2 * self._retry_ms, RETRY_MS_MAX)

    def _try_again(self) -> None:
        self._is_waiting = False
        self.proceed()

    def _check(self) -> None:
        check_part(self._disk, self.transaction.directory, self._files[self._checked])

    def _have_checked(self, _: object, error: BaseException | None) -> None:
        self._has_job = False
        if self._is_over:
            return
        if error is not None:
            self._fail(self._text_of(error, self._checked))
            return
        self._checked += 1
        if self._checked == len(self._files) and self.transaction.trouble:
            self._retry_ms = RETRY_MS
            self.transaction.stuck("")
        self.proceed()

    def _text_of(self, error: BaseException, index: int) -> str:
        if isinstance(error, StagedDamaged):
            return str(error)
        path = f"{self.transaction.directory}/{self._files[index].name}"
        if isinstance(error, FileNotFoundError):
            return f"{path} is missing"
        return f"{path} can't be read: {client_text(error)}"

    # --- reading, in a job

    def _read(self) -> tuple[list[FrameMessages], int]:
        """Return the messages of the next window, and where the one after it begins."""
        part = self._files[self._index]
        if self._file is None:
            self._file = self._disk.open(f"{self.transaction.directory}/{part.name}")
        size = WINDOW_BYTES
        while True:
            data = self._file.read(self._offset, min(size, part.size - self._offset))
            found, used = self._reader.read(data)
            end = self._offset + used
            if end == part.size:
                self._file.close()
                self._file = None
                return found, end
            if used:
                return found, end
            if self._offset + len(data) >= part.size or len(data) < size:
                raise StagedDamaged(f"{self.transaction.directory}/{part.name} is damaged at byte {self._offset}")
            size *= 2  # a message is larger than the window

    def _have_read(self, result: tuple[list[FrameMessages], int], error: BaseException | None) -> None:
        self._has_job = False
        if self._is_over:
            self._close()
            return
        if error is not None:
            self._fail(self._text_of(error, self._index))
            return
        found, self._offset = result
        if any(name not in self.targets for name, _, _ in found):
            path = f"{self.transaction.directory}/{self._files[self._index].name}"
            self._fail(f"{path} is damaged: it names a queue it is not for")
            return
        if self._offset == self._files[self._index].size:
            self._index += 1
            self._offset = 0
        for name, messages, size in _together(found):
            self._hand_over(self.targets[name], messages, size)
        self.proceed()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    # --- writing

    def _hand_over(self, target: Target, messages: list[Message], size: int) -> None:
        before = target.handed
        if before < target.skip:
            gone = min(target.skip - before, len(messages))
            target.handed += gone
            messages = messages[gone:]
            size = sum(map(entry_bytes, messages))
        if not messages:
            return
        queue = target.queue
        if queue is None or queue.is_closed:
            target.handed += len(messages)
            return
        elapsed_ms = max(self._host.wall_ms() - self.marker.time_ms, 0)
        for message in messages:
            level, named = level_in(message.headers), has_name(message.headers)
            if message.timestamp_ms or message.expires_ms or level or named:
                delay_ms = max(message.timestamp_ms - elapsed_ms, 0) if message.timestamp_ms else 0
                ttl_ms = message.expires_ms
                message.orders = changed(message.orders, delay_ms=delay_ms, ttl_ms=ttl_ms, level=level, named=named)
                message.expires_ms = 0
        for chunk, chunk_size in _chunks(messages, size, chunk_bytes(queue)):
            self._publish(target, queue, chunk, chunk_size)

    def _publish(self, target: Target, queue: Queue, messages: list[Message], size: int) -> None:
        target.handed += len(messages)
        whole = size + _EXTRAS_BYTES * len(messages) + BATCH_BYTES + _FACT_BYTES + facts_bytes(queue.parts, messages)
        publish = AtomicWrite(messages, partial(self._written, target, size), whole)
        publish.mark = StagedMark(self.marker.number, target.handed)
        publish.reserved = target.reserved_for(messages, size)
        self._outstanding += size
        queue.write_queue.publish(publish)

    def _written(self, target: Target, size: int, error: CurbstoneError | None, _first: int, _count: int) -> None:
        self._outstanding -= size
        if error is not None and target.queue is not None:
            logger.warning("queue %s was deleted: what a committed transaction had for it is dropped", target.name)
            target.queue = None
        self.proceed()


def _together(found: list[FrameMessages]) -> list[FrameMessages]:
    """Return what was read, with the frames of each queue joined to one."""
    if len(found) == 1:
        return found
    by_name: dict[str, list[Message]] = {}
    sizes: dict[str, int] = {}
    for name, messages, size in found:
        by_name.setdefault(name, []).extend(messages)
        sizes[name] = sizes.get(name, 0) + size
    return [FrameMessages(name, messages, sizes[name]) for name, messages in by_name.items()]


def _chunks(messages: list[Message], size: int, most: int) -> Iterator[tuple[list[Message], int]]:
    """Cut messages into lists of up to `most` bytes, or of one message if that has more."""
    if size <= most:
        yield messages, size
        return
    start = total = 0
    for place, message in enumerate(messages):
        more = entry_bytes(message)
        if total and total + more > most:
            yield messages[start:place], total
            start, total = place, 0
        total += more
    yield messages[start:], total
