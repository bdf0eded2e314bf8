"""One batch as it is read back, whoever reads it: recovery, a consumer, a page, the journal, a check.

Nothing of a batch is believed before all of it was checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from curbstone.core.log.format import (
    BATCH_BYTES,
    BATCH_MAGIC_BYTES,
    BatchHeader,
    batch_is_whole,
    decode_batch_header,
    decode_entries,
)
from curbstone.core.message import Message


class Batch(NamedTuple):
    """A good batch: its header, and the bytes it lies in from `at` on; `offset` is its place in the file."""

    header: BatchHeader
    data: bytes
    at: int
    offset: int

    @property
    def messages_at(self) -> int:
        """Index of the message entries."""
        return self.at + BATCH_BYTES

    @property
    def releases_at(self) -> int:
        """Index of the releases."""
        return self.messages_at + self.header.messages_bytes

    @property
    def settles_at(self) -> int:
        """Index of the settles."""
        return self.releases_at + self.header.releases_bytes

    @property
    def notes_at(self) -> int:
        """Index of the notes."""
        return self.settles_at + self.header.settles_bytes

    @property
    def end_at(self) -> int:
        """Index behind the batch."""
        return self.at + self.header.length

    def messages(self) -> list[Message]:
        """Return its messages; of a copy they are as they were published."""
        return decode_entries(self.data, self.messages_at, self.header.messages, self.header.first_seq)


def batch_at(data: bytes, at: int, salt: int, offset: int = 0) -> Batch | None:
    """Return the batch that begins at an index, if all of it is there and checks; `offset` is its place in the file."""
    header = decode_batch_header(data, at)
    if header is None or not batch_is_whole(data, at, header.length, salt):
        return None
    return Batch(header, data, at, offset)


def batches_in(data: bytes, salt: int) -> Iterator[Batch]:
    """Yield the good batches in some bytes that begin with one; what does not check is passed over."""
    at = 0
    while at < len(data):
        batch = batch_at(data, at, salt)
        if batch is not None:
            yield batch
            at = batch.end_at
            continue
        magic = data.find(BATCH_MAGIC_BYTES, at + 5)  # what follows may still be good: look for the next batch
        if magic < 0:
            return
        at = magic - 4
