"""Completes transactions over several queues that a crash has left half written: missing parts are written again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial

from curbstone.core.engine.commit.unique_names import facts_bytes
from curbstone.core.engine.queue import Queue
from curbstone.core.engine.write_queue import AtomicWrite
from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.transactions.records import Recorded
from curbstone.core.transactions.tx_log import TxLog


class MissingParts:
    """The parts that a start has its queues write. Until they are on disk, a transaction can be seen in half."""

    def __init__(self) -> None:
        self._left = 0
        self._waiting: list[Callable[[], object]] = []

    def when_written(self, fn: Callable[[], object]) -> None:
        """Call `fn` when all of them are on disk, or their queues gone; at once if there are none.

        That may take as long as a disk is full.
        """
        self._waiting.append(fn)
        self._notify()

    def count(self, parts: int) -> None:
        """Count parts that queues have to write, or, as a negative number, that they have written or will not."""
        self._left += parts
        self._notify()

    def _notify(self) -> None:
        if not self._left:
            waiting, self._waiting = self._waiting, []
            for fn in waiting:
                fn()


def replay_transactions(tx_log: TxLog, queues: Iterable[Queue], left: Collection[str]) -> MissingParts:
    """Have each queue write the parts that its log lacks; parts of queues that can't be served (`left`) are kept."""
    missing = MissingParts()
    by_uid = {int(queue.uid, 16): queue for queue in queues}
    for part in tx_log.recover(max([queue.log.tx for queue in by_uid.values()], default=0)):
        queue = by_uid.get(part.uid)
        if queue is None and f"{part.uid:012x}" in left:
            tx_log.keep(part)
        elif queue is not None and part.tx > queue.log.tx:
            tx_log.keep(part)
            _write(tx_log, queue, part, missing)
    return missing


def _write(tx_log: TxLog, queue: Queue, part: Recorded, missing: MissingParts) -> None:
    missing.count(1)
    publish = AtomicWrite(part.messages, partial(_written, tx_log, part, missing), 1)
    publish.tx = part.tx
    publish.records = [queue.index.settle_replayed(settled) for settled in part.settled]
    publish.released = [each for item in part.released for each in queue.index.release_replayed(item)]
    if part.ended_batch:
        publish.ended_batch = part.ended_batch
        queue.parts.count_batches().reporting.add(part.ended_batch)
    publish.reserved = part.log_bytes + facts_bytes(queue.parts, part.messages)
    queue.log.room.grant_known(publish.reserved)
    queue.write_queue.publish(publish)


def _written(
    tx_log: TxLog, part: Recorded, missing: MissingParts, error: CurbstoneError | None, _first: int, _count: int
) -> None:
    if not isinstance(error, Unavailable):  # if it is, the next start writes the part
        tx_log.part_done(part.tx, part.uid)
    missing.count(-1)
