"""The room of one queue's log under its cap: a ledger of what is held, what is promised, and what may still be taken.

Whoever wants to write asks here, and nobody else adds up bytes of the cap. All sums are kept up to date as things
change, so a question costs almost nothing. The rules:

1. The log, with `meta` and with damaged segments that are kept for repair, never holds more than the cap plus
   `excess`. `excess` is 0, unless the log was found above its cap, or was given a smaller one.
2. `left` is what is free beside the room that cleaning takes: a copy of any one segment at the end of the log, and the
   slack, in which messages are settled meanwhile. The copy may be a little larger than the segment, because it says of
   each message which groups have settled it.
3. A publish is admitted if `left`, without the excess, covers it and everything that is promised. Promised is (`kept`)
   one record of its tries for each pending message, in each group, that has none in the log yet, and the notes that
   have to be repeated when their segment goes; and (`reserved`) what was granted to publishes that will come. So a
   message brings the room for its own first release with it, and a release always fits.
4. Settles and releases may use what is promised, and the slack, because they end what that was kept for. They may
   never use the room for the copy (`records_left`). So cleaning can always go on, and it brings back whatever settles
   have used.
5. What was granted is given back exactly once: when it has been written, or when nobody will write it any more.
"""

from __future__ import annotations

from curbstone.core.log.format import BATCH_BYTES, SEGMENT_BYTES

SEGMENTS_PER_CAP = 16
SEGMENT_BYTES_MIN = 4 * 1024
HEADERS_BYTES = SEGMENTS_PER_CAP // 2 * (SEGMENT_BYTES + BATCH_BYTES)

RELEASE_BYTES = 24
"""One record of a message's tries."""
RETRY_BYTES = RELEASE_BYTES + RELEASE_BYTES // 12
"""What is kept for one. It is a little more, because batches and segments have headers."""


def release_bytes(records: int) -> int:
    """Return the bytes to keep for so many records of tries."""
    return RETRY_BYTES * records


class Room:
    """See the module's docstring."""

    __slots__ = (
        "_aside_bytes", "_end", "_sealed_bytes", "_sealed_end_max", "cap", "excess", "free", "kept", "left",
        "meta_bytes", "notes_bytes", "pending", "reserved", "segment_bytes", "slack_bytes",
    )  # fmt: skip

    def __init__(self, cap: int, meta_bytes: int) -> None:
        self._aside_bytes = self._end = self._sealed_bytes = self._sealed_end_max = 0
        self.excess = 0
        """How many bytes above the cap a log that holds too much may go, only to settle and to clean."""
        self.reserved = 0
        """Bytes that were granted to publishes that will come."""
        self.pending = 0
        """Pending messages, counted once for each group in which they are pending."""
        self.notes_bytes = 0
        """Bytes of the notes that are repeated when their segment goes."""
        self.kept = 0
        """Bytes kept for records of tries that are not in the log yet, and to repeat notes."""
        self.resize(cap, meta_bytes)

    def resize(self, cap: int, meta_bytes: int) -> None:
        """Change the cap, or what `meta` takes of it."""
        self.cap = cap
        self.meta_bytes = meta_bytes
        self.segment_bytes = max(SEGMENT_BYTES_MIN, (cap - meta_bytes) // SEGMENTS_PER_CAP)
        """The size that segments are meant to have."""
        self.slack_bytes = self.segment_bytes // 4
        """Room kept for settles while the cleaner copies."""
        self._weigh()

    # --- what is held

    @property
    def aside_bytes(self) -> int:
        """Bytes of damaged segments that are kept for repair."""
        return self._aside_bytes

    def set_aside(self, size: int) -> None:
        """Count `size` more bytes of damaged segments that are kept for repair."""
        self._aside_bytes += size
        self._weigh()

    def holds(self, sealed_bytes: int, sealed_end_max: int, end: int) -> None:
        """Take in new segments: bytes of those before the active one, the end of the longest, and of the active one."""
        self._sealed_bytes = sealed_bytes
        self._sealed_end_max = sealed_end_max
        self._end = end
        self._weigh()

    def ends(self, end: int) -> None:
        """Take in where the contents of the active segment end now."""
        grown = end - self._end
        self._end = end
        if end > self.segment_bytes:
            self._weigh()
        else:  # a copy takes as much as before: a whole segment, or the longest of the sealed ones
            self.free -= grown
            self.left -= grown

    def exceed_by(self, excess: int) -> None:
        """Let the log go `excess` bytes above its cap."""
        self.excess = excess
        self._weigh()

    @property
    def held(self) -> int:
        """Bytes of contents, without `meta`."""
        return self._aside_bytes + self._sealed_bytes + self._end

    def _weigh(self) -> None:
        end = self._end
        self.free = self.cap + self.excess - self.meta_bytes - self._aside_bytes - self._sealed_bytes - end
        """Bytes by which the contents may still grow."""
        self.left = self.free - self.to_clean(end if end > self._sealed_end_max else self._sealed_end_max)
        """What remains of `free` beside the room that cleaning takes; may be negative."""

    def to_clean(self, largest: int) -> int:
        """Return the room that cleaning takes if the largest segment ends at `largest`: its copy, and the slack."""
        copy = self.segment_bytes if self.segment_bytes > largest else largest
        return copy + copy // 4 + self.slack_bytes + HEADERS_BYTES

    # --- what is promised

    def pends(self, messages: int) -> None:
        """Count messages that became pending in a group, or, as a negative number, that are not pending any more."""
        self.pending += messages
        self.kept += messages * RETRY_BYTES

    def recorded(self, records: int) -> None:
        """Count records of tries that are in the log now, or, as a negative number, that do not count any more."""
        self.kept -= records * RETRY_BYTES

    def notes(self, size: int) -> None:
        """Count bytes of notes that will have to be repeated, or, as a negative number, that will not any more."""
        self.notes_bytes += size
        self.kept += size

    @property
    def tries_bytes(self) -> int:
        """The most bytes that a record of tries for every pending message, and all notes, take in the log."""
        return self.pending * RETRY_BYTES + self.notes_bytes

    @property
    def promised(self) -> int:
        """Bytes that are promised in all."""
        return self.kept + self.reserved

    def grant(self, size: int, largest: int) -> bool:
        """Keep `size` bytes for batches that will come, if there is room now; no message of them exceeds `largest`."""
        if size and not self.fits_pieces(size + self.promised, largest):
            return False
        self.reserved += size
        return True

    def grant_known(self, size: int) -> None:
        """Keep bytes without asking: they are known to be free, or were granted before a restart."""
        self.reserved += size

    def give_back(self, size: int) -> None:
        """Give back granted bytes, because they were written or never will be."""
        self.reserved -= size

    # --- what may be taken

    @property
    def publish_left(self) -> int:
        """Bytes that publishes could add now if nothing were promised; may be negative."""
        return self.left - self.excess

    @property
    def budget(self) -> int:
        """Bytes that publishes may add now beside all that is promised; may be negative."""
        return self.left - self.excess - self.kept - self.reserved

    @property
    def records_left(self) -> int:
        """Bytes that settles and releases may add now: everything but the room for a copy of any one segment."""
        return self.left + self.slack_bytes - BATCH_BYTES

    def admits(self, size: int) -> bool:
        """Return whether a publish of `size` bytes leaves room for everything that is promised."""
        return self.fits(size + self.promised)

    def can_keep(self, size: int) -> bool:
        """Return whether `size` more bytes of records may be promised now."""
        return size <= self.left - self.promised

    def fits(self, size: int) -> bool:
        """Return whether a publish of `size` bytes, which may exceed a segment, leaves the room that cleaning takes."""
        if size <= self.segment_bytes:
            return size <= self.publish_left
        return self.fits_pieces(size, size)

    def fits_pieces(self, size: int, largest: int) -> bool:
        """Return whether batches of `size` bytes in all leave that room. None exceeds both a segment and `largest`."""
        free = self.free - self.excess - size
        return size <= self.publish_left and free >= self.to_clean(largest + SEGMENT_BYTES)

    def fits_compacted(self, size: int, live_bytes: int, largest: int) -> bool:
        """Return whether `size` bytes would fit if the log held nothing but `live_bytes` of entries.

        `largest` is how many of the `size` bytes have to go into one batch.
        """
        compacted = live_bytes + live_bytes // 64 + SEGMENTS_PER_CAP * SEGMENT_BYTES
        room = self.cap - self.meta_bytes - self._aside_bytes - compacted
        return room - size >= self.to_clean(largest + SEGMENT_BYTES)
