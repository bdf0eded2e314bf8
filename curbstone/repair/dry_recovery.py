"""Replays each queue of a data directory without writing, to find out what the next start would recover.

It runs the engine's own recovery on a read-only disk: if recovery would cut or remove a file, nothing happens.
Transactions that are in the journal but not in the logs yet count as if they were in the logs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from curbstone.core.disk import Disk, File
from curbstone.core.engine.facts.facts import Facts
from curbstone.core.engine.fault_barrier import FaultBarrier
from curbstone.core.engine.index.index import Index
from curbstone.core.engine.log.log import Log, random_salt
from curbstone.core.engine.log.meta import Meta
from curbstone.core.engine.parts import Parts
from curbstone.core.engine.recovery.replay import Replay
from curbstone.core.engine.shared import Shared
from curbstone.core.engine.state import QueueState
from curbstone.core.engine.turns import Wakeups
from curbstone.core.engine.write_queue import WriteQueue
from curbstone.core.host import BeginWrite, Job, JobDone, Timer
from curbstone.core.options import SyncMode
from curbstone.core.transactions.records import Recorded
from curbstone.core.transactions.tx_log import Journal, read_journal
from curbstone.core.values import ignore
from curbstone.core.write_behind import WriteBehindDisk


@dataclass
class Revived:
    """The pending messages of one queue. `transactions` are those that are in the journal but not in the log."""

    live: int = 0
    """Messages that some group has not settled. Expired messages count until they are removed."""
    pending: dict[str, int] = field(default_factory=dict)
    """Unsettled messages of each group; "" is the unnamed one."""
    transactions: list[str] = field(default_factory=list)


class DryRecovery:
    """Replays queues into memory."""

    def __init__(self, disk: Disk) -> None:
        self._disk = WriteBehindDisk(_Untouched(disk))
        self._shared = Shared(_IdleHost(), self._disk, SyncMode.parse("never"))
        self._recorded: dict[int, list[Recorded]] = {}
        self.highest_tx = 0
        """The highest number of a transaction in the logs of the replayed queues."""

    def read_journal(self) -> Journal:
        """Read the journal; call this before `queue`."""
        journal = read_journal(self._disk)
        for part in journal.parts:
            self._recorded.setdefault(part.uid, []).append(part)
        return journal

    def queue(self, meta: Meta, directory: str) -> Revived:
        """Replay a queue."""
        uid = int(meta.uid, 16)
        log = Log(self._disk, directory, uid, cap=meta.options.cap, meta_bytes=0, salt=random_salt)
        host = FaultBarrier(self._shared, meta, _raise)
        state = QueueState(self._shared, meta, host)
        wakeups = Wakeups(host, ignore, lambda _turn: None)
        index = Index(state, wakeups, log)
        found = Revived()
        with _quiet():
            parts = Parts(state, wakeups, log, index, Facts(state, log.room), WriteQueue(wakeups))
            if Replay(parts).run() is None:
                log.close()
        self.highest_tx = max(self.highest_tx, log.tx)
        for part in self._recorded.get(uid, ()):
            if part.tx > log.tx:
                found.transactions.append(_take_part(state, index, part, found))
        found.live += sum(run.live().bit_count() for run in index.runs)
        for name, group in index.groups.items():
            found.pending[name] = found.pending.get(name, 0) + group.pending
        return found


def _take_part(state: QueueState, index: Index, part: Recorded, found: Revived) -> str:
    """Apply a queue's part of a transaction in memory; return a description."""
    settled = sum(len(index.settle_replayed(each)[2]) for each in part.settled)
    for message in part.messages:
        message.seq = state.next_seq
        state.next_seq += 1
        for name in index.entitled(message):
            found.pending[name] = found.pending.get(name, 0) + 1
    found.live += len(part.messages)
    return (
        f"transaction {part.tx} of the journal is not in the log yet: "
        f"the next start adds {len(part.messages)} messages and settles {settled}"
    )


def _raise(error: Exception) -> None:
    raise error


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the log of recovery, because the check itself reports the damage."""
    logger = logging.getLogger("curbstone.core")
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = False


class _UntouchedFile:
    """A read-only file. Implements `core.disk.File`."""

    def __init__(self, file: File) -> None:
        self.read = file.read
        self.size = file.size
        self.close = file.close

    def write(self, offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        """Fail, because recovery writes nothing."""
        raise AssertionError("recovery writes nothing")

    def sync(self) -> None:
        """Do nothing, as nothing was written."""

    def truncate(self, size: int) -> None:
        """Do nothing. A real start would cut the file."""


class _Untouched:
    """A read-only data directory. Implements the part of `core.disk.Disk` that recovery uses."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.list_dir = disk.list_dir
        self.make_dir = disk.make_dir
        self.remove_tree = disk.remove_tree
        self.close = disk.close

    def open(self, path: str, *, create: bool = False) -> _UntouchedFile:
        return _UntouchedFile(self._disk.open(path, create=create))

    def open_lasting(self, path: str, *, create: bool = False) -> _UntouchedFile:
        return self.open(path, create=create)

    def remove(self, path: str) -> None:
        """Do nothing. A real start would remove it."""

    def rename(self, old: str, new: str) -> None:
        """Do nothing. A real start would set it aside."""

    def sync_dir(self, path: str) -> None:
        """Nothing was changed."""

    def sync_all(self, path: str) -> bool:
        """Nothing was changed."""
        return True


class _IdleHost:
    """A host that never runs anything. Implements `core.host.Host`."""

    def now_ms(self) -> int:
        return self.wall_ms()

    def now_us(self) -> int:
        return time.monotonic_ns() // 1000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_soon(self, fn: Callable[[], object]) -> object:
        """Never call it."""
        return None

    def call_later(self, delay_ms: int, fn: Callable[[], object]) -> Timer:
        """Never call it."""
        return _Never()

    def submit(self, job: Job, done: JobDone, begin: BeginWrite | None = None) -> None:
        """Never run it."""


class _Never:
    def cancel(self) -> None:
        """Do nothing, as the call would not happen anyway."""
