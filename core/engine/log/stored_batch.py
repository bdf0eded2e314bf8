"""One batch as it is read back, by recovery, for consumers and pages, and by checks of the files.

Nothing in a batch is believed before the CRC over all of it has been checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from curbstone.core.engine.log.format import (
    BATCH_BYTES,
    BATCH_MAGIC_BYTES,
    BatchHeader,
    batch_is_whole,
    decode_batch_header,
    decode_entries,
)
from curbstone.core.message import Message


class StoredBatch(NamedTuple):
    """A good batch. It begins at index `at` of `data`, which may hold more; `offset` is its place in the file."""

    header: BatchHeader
    data: bytes
    at: int
    offset: int

    @property
    def messages_at(self) -> int:
        return self.at + BATCH_BYTES

    @property
    def releases_at(self) -> int:
        return self.messages_at + self.header.messages_bytes

    @property
    def settles_at(self) -> int:
        return self.releases_at + self.header.releases_bytes

    @property
    def notes_at(self) -> int:
        return self.settles_at + self.header.settles_bytes

    @property
    def end_at(self) -> int:
        """Index behind the batch."""
        return self.at + self.header.length

    def messages(self) -> list[Message]:
        """Return its messages. In a copy made by the cleaner they have the seqs and times of their publishing."""
        return decode_entries(self.data, self.messages_at, self.header.messages, self.header.first_seq)


def batch_at(data: bytes, at: int, salt: int, offset: int = 0) -> StoredBatch | None:
    """Return the batch at index `at` if it is complete and matches its CRC; `offset` is its place in the file."""
    header = decode_batch_header(data, at)
    if header is None or not batch_is_whole(data, at, header.length, salt):
        return None
    return StoredBatch(header, data, at, offset)


def batches_in(data: bytes, salt: int) -> Iterator[StoredBatch]:
    """Yield the good batches in `data`, which begins with a batch. Bytes that do not match their CRC are skipped."""
    at = 0
    while at < len(data):
        batch = batch_at(data, at, salt)
        if batch is not None:
            yield batch
            at = batch.end_at
            continue
        magic = data.find(BATCH_MAGIC_BYTES, at + 5)  # behind the damage there may be good batches
        if magic < 0:
            return
        at = magic - 4
