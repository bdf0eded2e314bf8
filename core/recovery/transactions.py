"""Transactions over several queues that a crash has left half written: the parts that are missing are written again."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from functools import partial
from typing import Protocol

from curbstone.core.disk import Disk
from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.log.log import Log
from curbstone.core.log.publish import Publish
from curbstone.core.log.transactions import Recorded, decode_records
from curbstone.core.log.window import read_around
from curbstone.core.pending.pending import Pending
from curbstone.core.writing.journal import JOURNAL, Journal
from curbstone.core.writing.outbox import Outbox

logger = logging.getLogger("curbstone.core")


class Member(Protocol):
    """A queue that was recovered."""

    uid: str
    log: Log
    pending: Pending
    outbox: Outbox


def read_transactions(disk: Disk, damage: list[str]) -> tuple[list[Recorded], int]:
    """Return all parts that the journal has, and where its whole records end; blocking.

    `damage` gets what can't be read. Bytes that do not check are none: the file ends with what was never synced, or
    with what an earlier use has left.
    """
    try:
        file = disk.open(JOURNAL)
    except FileNotFoundError:
        return [], 0
    try:
        file.sync()  # a process that was killed may have left what only the system's memory has
        data, bad = read_around(file, 0, file.size())
    finally:
        file.close()
    disk.sync_dir("")
    damage += [f"{JOURNAL}: bytes {first} to {end} can't be read" for first, end in bad]
    return decode_records(data)


def replay_transactions(disk: Disk, journal: Journal, queues: Iterable[Member], left: Collection[str]) -> None:
    """Have each queue write the parts that its log has not; those of queues that are not served (`left`) stay."""
    damage: list[str] = []
    recorded, end = read_transactions(disk, damage)
    by_uid = {int(queue.uid, 16): queue for queue in queues}
    missing = [part for part in recorded if part.uid in by_uid and part.tx > by_uid[part.uid].log.tx]
    waiting = [part for part in recorded if f"{part.uid:012x}" in left]
    highest = max([part.tx for part in recorded] + [queue.log.tx for queue in by_uid.values()], default=0)
    journal.recovered([*missing, *waiting], end, highest + 1)
    for part in missing:
        _write(journal, by_uid[part.uid], part)
    for text in damage:
        logger.error("damaged: %s", text)


def _write(journal: Journal, queue: Member, part: Recorded) -> None:
    publish = Publish(part.messages, partial(_written, journal, part), 1)
    publish.tx = part.tx
    publish.records = [queue.pending.settle_replayed(settled) for settled in part.settled]
    publish.released = [each for item in part.released for each in queue.pending.release_replayed(item)]
    publish.reserved = part.log_bytes
    queue.log.room.grant_known(publish.reserved)
    queue.outbox.publish(publish)


def _written(journal: Journal, part: Recorded, error: CurbstoneError | None, _first: int, _count: int) -> None:
    if not isinstance(error, Unavailable):  # else the next start writes it
        journal.part_done(part.tx, part.uid)
