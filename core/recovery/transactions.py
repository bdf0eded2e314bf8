"""Completes transactions over several queues that a crash has left half written: missing parts are written again."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import Protocol

from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.log.log import Log
from curbstone.core.log.publish import WholePublish
from curbstone.core.log.transactions import Recorded
from curbstone.core.pending.pending import Pending
from curbstone.core.writing.journal import Journal
from curbstone.core.writing.outbox import Outbox


class Member(Protocol):
    """A queue that was recovered."""

    uid: str
    log: Log
    pending: Pending
    outbox: Outbox


def replay_transactions(journal: Journal, queues: Iterable[Member], left: Collection[str]) -> None:
    """Have each queue write the parts that its log lacks; parts of queues that can't be served (`left`) are kept."""
    by_uid = {int(queue.uid, 16): queue for queue in queues}
    for part in journal.recover():
        queue = by_uid.get(part.uid)
        if queue is None and f"{part.uid:012x}" in left:
            journal.keep(part)
        elif queue is not None and part.tx > queue.log.tx:
            journal.keep(part)
            _write(journal, queue, part)
    highest = max([queue.log.tx for queue in by_uid.values()], default=0)
    journal.next_tx = max(journal.next_tx, highest + 1)


def _write(journal: Journal, queue: Member, part: Recorded) -> None:
    publish = WholePublish(part.messages, partial(_written, journal, part), 1)
    publish.tx = part.tx
    publish.records = [queue.pending.settle_replayed(settled) for settled in part.settled]
    publish.released = [each for item in part.released for each in queue.pending.release_replayed(item)]
    publish.reserved = part.log_bytes
    queue.log.room.grant_known(publish.reserved)
    queue.outbox.publish(publish)


def _written(journal: Journal, part: Recorded, error: CurbstoneError | None, _first: int, _count: int) -> None:
    if not isinstance(error, Unavailable):  # if it is, the next start writes the part
        journal.part_done(part.tx, part.uid)
