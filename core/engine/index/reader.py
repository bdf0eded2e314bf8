"""Reads runs of messages back from the log, off the event loop, and keeps a bounded number of bytes in memory.

The messages published last and those that were read back are in memory. If there is no room, what was read back longest
ago is removed first. A body that was published to many queues at once is in memory once but counts in each of them, so
the actual use may be less than the bound.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from curbstone.core.disk import Disk
from curbstone.core.engine.index.runs import Page, Run, Runs, seqs_of
from curbstone.core.engine.log.file_view import read_around
from curbstone.core.engine.log.format import ENTRY_BYTES, decode_some
from curbstone.core.engine.log.log import Log
from curbstone.core.engine.log.room import Room
from curbstone.core.engine.log.stored_batch import batches_in
from curbstone.core.engine.state import QueueState
from curbstone.core.engine.turns import Wakeups
from curbstone.core.headers import KEY_MARK
from curbstone.core.message import Message

logger = logging.getLogger("curbstone.core")

AGAIN_MS = 250
AGAIN_MS_MAX = 1000
TAIL_BYTES_MAX = 4 * 1024 * 1024
READ_MIN = 4
"""How many runs that were read back stay in memory even if there is no room, so that the callers can use them."""


class Read(NamedTuple):
    """What a job has read: messages by seq, and a text about what could not be read, which may be empty."""

    messages: dict[int, Message]
    damage: str


class Reader:
    """The runs of one queue, and their messages that are in memory."""

    __slots__ = (
        "_cache", "_cached", "_damaged", "_host", "_is_closed", "_keeping", "_loading", "_log", "_read", "_tail_bytes",
        "room", "runs", "state", "wakeups",
    )  # fmt: skip

    def __init__(self, state: QueueState, wakeups: Wakeups, log: Log, damaged: Callable[[Run, str], None]) -> None:
        """`damaged(run, text)` is called when messages of a run can't be read and are given up."""
        self.state = state
        self._host = state.host
        self._log = log
        self._cache = state.shared.cache
        self._damaged = damaged
        self.wakeups = wakeups
        self.room: Room = log.room
        self.runs = Runs()
        self._cached: dict[Run | Page, int] = {}
        self._read: dict[Run | Page, None] = {}
        """The runs that were read back and are in memory, the one read longest ago first."""
        self._tail_bytes = 0
        self._loading: dict[Run, list[Callable[[], None]]] = {}
        """The runs that are being read, with the callbacks of the readers."""
        self._keeping: dict[Run, None] = {}
        """The runs of `_loading` that stay in memory."""
        self._is_closed = False

    def keep(self, run: Run, is_new: bool, messages: list[Message], size: int) -> None:
        """Keep messages that were just appended to `run` in memory, if there is room."""
        if is_new:
            run.messages = []
        elif run.messages is None:
            return
        if self._is_closed or not self._fits(size):
            self.forget(run)
            return
        kept = run.messages
        gap = messages[0].seq - run.first - len(kept)
        if gap:
            kept.extend([None] * gap)
        kept.extend(messages)
        self._account(run, size)

    def is_loading(self, run: Run) -> bool:
        return run in self._loading

    def forget(self, run: Run | Page) -> None:
        """Remove the messages of a run or a page from memory."""
        run.messages = None
        self._read.pop(run, None)
        size = self._cached.pop(run, 0)
        self._tail_bytes -= size
        self._cache.bytes -= size

    def close(self) -> None:
        """Remove all messages from memory, and keep none from now on."""
        self._is_closed = True
        for run in list(self._cached):
            self.forget(run)

    def _fits(self, size: int) -> bool:
        return self._tail_bytes + size <= TAIL_BYTES_MAX and self._cache.bytes + size <= self._cache.bytes_max

    def _account(self, run: Run | Page, size: int) -> None:
        self._cached[run] = self._cached.get(run, 0) + size
        self._tail_bytes += size
        self._cache.bytes += size

    def load_page(self, run: Run, bits: int, then: Callable[[Page | None], None]) -> None:
        """Read the messages of a run that are in a mask, then call `then` with them.

        They stay in memory until `forget`. `then` gets None if some can't be read; `load` gives up what is damaged.
        """
        place = (run.segment.path, run.segment.salt, run.offset, run.end)
        first, count = run.first, bits.bit_length()

        def job() -> Read:
            return read_place(self._log.disk, *place, first, first + count - 1, bits)

        def done(read: Read | None, _error: BaseException | None) -> None:
            if self._is_closed:
                return
            found = read.messages if read is not None else {}
            if len(found) != bits.bit_count():
                then(None)
                return
            run.is_keyed = run.is_keyed or any([message.headers.find(KEY_MARK) >= 0 for message in found.values()])
            messages: list[Message | None] = [None] * count
            for seq, message in found.items():
                messages[seq - first] = message
            page = Page(messages, bits)
            self._account(page, sum([ENTRY_BYTES + len(each.headers) + len(each.body) for each in found.values()]))
            then(page)

        self._host.submit(job, done)

    def load(self, run: Run, then: Callable[[], None] | None = None, *, keeps: bool = True) -> None:
        """Read a run's messages from disk, then call `then`; by that time the run may have been dropped or moved.

        Without `then` the queue has a turn in which all groups and the cleaner continue. If `keeps` is false, the
        messages are in memory only while `then` is called, so that reading many runs removes no others from memory. If
        reading fails for another reason than damage, for example because no file descriptor or memory is left, it is
        tried again until it succeeds; no message is given up for that.
        """
        then = then or self.wakeups.wake_all
        if keeps:
            self._keeping[run] = None
        waiting = self._loading.get(run)
        if waiting is not None:
            waiting.append(then)
            return
        self._loading[run] = [then]
        place = (run.segment.path, run.segment.salt, run.offset, run.end)
        first, last = run.first, run.last
        again_ms = AGAIN_MS

        def job() -> Read:
            return read_place(self._log.disk, *place, first, last)

        def done(result: Read | None, error: BaseException | None) -> None:
            nonlocal again_ms
            if isinstance(error, OSError | MemoryError) and not self._is_closed and run.live():
                if again_ms == AGAIN_MS:
                    logger.warning("%s can't be read now: %s; it is tried again", place[0], error)
                self._host.call_later(again_ms, lambda: self._host.submit(job, done))
                again_ms = min(2 * again_ms, AGAIN_MS_MAX)
                return
            is_damaged = result is None or bool(result.damage)
            if is_damaged and self._log.retry_after_drop(self._host, lambda: done(result, error)):
                return
            callbacks = self._loading.pop(run)
            keeps = run in self._keeping
            self._keeping.pop(run, None)
            moved = (run.segment.path, run.segment.salt, run.offset, run.end) != place or run.last != last
            is_here = not self._is_closed and not moved and run.live() and run.messages is None
            if is_here:
                self._loaded(run, result or Read({}, f"{place[0]}: {error}"), keeps=keeps)
            for callback in callbacks:
                callback()
            if is_here and not keeps:
                self.forget(run)

        self._host.submit(job, done)

    def _loaded(self, run: Run, read: Read, *, keeps: bool) -> None:
        missing = [seq for seq in seqs_of(run.first, run.live()) if seq not in read.messages]
        if missing:
            for seq in missing:
                self._give_up(run, seq)
            what = read.damage or f"{run.segment.path}: not found where they should be"
            self._damaged(run, f"{what}; messages {missing[0]} to {missing[-1]} ({len(missing)}) can't be read")
            if not run.live():
                return
        run.messages = [read.messages.get(seq) for seq in range(run.first, run.last + 1)]
        run.is_keyed = any([message.headers.find(KEY_MARK) >= 0 for message in read.messages.values()])
        size = run.end - run.offset
        if keeps:
            while len(self._read) >= READ_MIN and not self._fits(size):
                self.forget(next(iter(self._read)))
            self._read[run] = None
        self._account(run, size)

    def _give_up(self, run: Run, seq: int) -> None:
        mask = ~(1 << (seq - run.first))
        for group in [*run.named] if run.named else []:
            run.set_pending(group, run.pending(group) & mask)
        run.bits &= mask


def read_place(disk: Disk, path: str, salt: int, start: int, end: int, first: int, last: int, bits: int = 0) -> Read:
    """Return the messages `first` to `last` in the batches from `start` to `end` of a file. Blocking.

    With `bits`, a mask that begins at `first`, return only the messages in the mask.
    """
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return Read({}, f"{path}: no such file")
    with closing(file):
        data, unreadable = read_around(file, start, end - start)
    found: dict[int, Message] = {}
    digits = bin(bits)[:1:-1]
    damage = "".join(
        [f"{path}: bytes {low} to {high} can't be read: the disk reports an error" for low, high in unreadable[:1]]
    )
    good = 0
    for batch in batches_in(data, salt):
        if batch.at > good:
            damage = damage or f"{path}: bytes from {start + good} on do not check"
        good = batch.end_at
        if batch.header.messages and batch.header.first_seq <= last:
            some = decode_some(data, batch.messages_at, batch.header, first, digits) if bits else batch.messages()
            for message in some:
                if first <= message.seq <= last:
                    found[message.seq] = message
    if good < len(data):
        damage = damage or f"{path}: bytes from {start + good} on do not check"
    return Read(found, damage)
