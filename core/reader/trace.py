"""Finds in a queue's log the messages that have moved from or to another queue, and the transactions that moved them.

A move is a transaction over both queues: each has a batch with the number of the transaction, and what is in the batch
belongs to it. Copies that the cleaner made have lost the number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from curbstone.core.disk import Disk
from curbstone.core.engine.log.commit import Segment
from curbstone.core.engine.log.format import SEGMENT_BYTES, Reason, decode_segment_header, decode_settled
from curbstone.core.engine.log.scan import Scan
from curbstone.core.engine.log.stored_batch import StoredBatch
from curbstone.core.positions import Trace, Trail
from curbstone.core.reader.history import position_of

BYTES_AT_ONCE = 16 * 1024 * 1024
"""After so many bytes the rest is left to another job, so that other readers get their turn."""


def read_traces(disk: Disk, trail: Trail, segments: list[Segment], _offset: int) -> tuple[list[Trace], int]:
    """Return what was found in some segments, and the position to continue at."""
    found: list[Trace] = []
    left = BYTES_AT_ONCE
    for segment in segments:
        if left <= 0:
            return found, position_of(segment.number, SEGMENT_BYTES)
        left -= segment.end
        last_tx = _tx_before(disk, segment)
        for batch in Scan(disk, segment, 0, is_active=True).batches():
            tx = batch.header.tx if batch.header.tx > last_tx else 0
            last_tx = max(last_tx, batch.header.tx)
            found += _traces(batch, tx, trail)
    return found, position_of(segments[-1].number, segments[-1].end)


def _tx_before(disk: Disk, segment: Segment) -> int:
    """Return the last transaction before a segment: a batch has the number of the last one, if it has none itself."""
    with closing(disk.open(segment.path)) as file:
        header = decode_segment_header(file.read(0, SEGMENT_BYTES))
    return header.tx if header is not None else 0


def _traces(batch: StoredBatch, tx: int, trail: Trail) -> Iterator[Trace]:
    is_tx = 0 != tx == trail.tx
    has_line = bool(trail.line) and batch.data.find(trail.line, batch.messages_at, batch.releases_at) >= 0
    if is_tx or has_line or (trail.seqs and batch.header.first_seq <= max(trail.seqs)):
        for message in batch.messages():
            if is_tx or message.seq in trail.seqs or (has_line and trail.line in message.headers):
                yield Trace(message.seq, tx, False, message.headers)
    if tx and (is_tx or trail.seqs):
        for _group, reason, first, span in decode_settled(batch.data, batch.settles_at, batch.notes_at):
            if reason == Reason.MOVED:
                for seq in range(first, first + span):
                    if is_tx or seq in trail.seqs:
                        yield Trace(seq, tx, True, b"")
