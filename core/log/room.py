"""The room of one queue's log under its cap: a ledger of what is held, what is promised, and what may still be taken.

Whoever wants to write asks here, and nobody else adds up bytes of the cap. All sums are kept as things change, so
that a question costs nothing. The rules:

1. What the log holds, with `meta` and with damaged segments that are kept for repair, is never more than the cap and
   `excess`. `excess` is 0, but for a log that was found above its cap, or got a smaller one.
2. `left` is what is free beside the copy of any one segment to the end, which is how the cleaner makes room, and
   beside the slack for settling while it does. The copy may be a little larger than the segment: it says of each
   message which groups have settled it.
3. A publish is admitted when `left` without the excess covers it and everything promised so far. Promised are:
   a record of its tries for each pending message of each group that has none in the log yet (`kept`, with the notes
   that have to be said again when their segment goes), and what was granted to publishes that will come (`reserved`).
   So a message brings the room for its own first release, and a release always fits.
4. Settles and releases may use what is promised, and the slack, because they end what it was kept for; never what the
   copy takes (`records_left`). So cleaning can always go on, and gives back whatever settles have used up.
5. What was granted is given back exactly once: when it has been written, or when nobody will write it.
"""

from __future__ import annotations

from curbstone.core.log.format import BATCH_BYTES, SEGMENT_BYTES

SEGMENTS_PER_CAP = 16
SEGMENT_BYTES_MIN = 4 * 1024
HEADERS_BYTES = SEGMENTS_PER_CAP // 2 * (SEGMENT_BYTES + BATCH_BYTES)

RELEASE_BYTES = 24
"""One record of a message's tries."""
RETRY_BYTES = RELEASE_BYTES + RELEASE_BYTES // 12
"""What is kept for one: batches and segments have headers, too."""


def release_bytes(records: int) -> int:
    """Return what so many records of releases take, one by one."""
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
        """How far above the cap the log may go while it holds too much for it: for settling and cleaning alone."""
        self.reserved = 0
        """Bytes that are granted to publishes that will come."""
        self.pending = 0
        """Pending messages, once for each group they are pending in."""
        self.notes_bytes = 0
        """Of notes that are said again when their segment goes."""
        self.kept = 0
        """Bytes that are kept for records of tries that are not in the log yet, and for notes."""
        self.resize(cap, meta_bytes)

    def resize(self, cap: int, meta_bytes: int) -> None:
        """Change the cap, or what `meta` takes of it."""
        self.cap = cap
        self.meta_bytes = meta_bytes
        self.segment_bytes = max(SEGMENT_BYTES_MIN, (cap - meta_bytes) // SEGMENTS_PER_CAP)
        """The size a segment is meant to have."""
        self.slack_bytes = self.segment_bytes // 4
        """Room kept for settling between two steps of the cleaner."""
        self._weigh()

    # --- what is held

    @property
    def aside_bytes(self) -> int:
        """Bytes of damaged segments that are kept for repair."""
        return self._aside_bytes

    def set_aside(self, size: int) -> None:
        """So many bytes more are kept for repair."""
        self._aside_bytes += size
        self._weigh()

    def holds(self, sealed_bytes: int, sealed_end_max: int, end: int) -> None:
        """The segments before the active one have changed: their bytes, and where the longest ends."""
        self._sealed_bytes = sealed_bytes
        self._sealed_end_max = sealed_end_max
        self._end = end
        self._weigh()

    def ends(self, end: int) -> None:
        """The contents of the active segment end there now."""
        grown = end - self._end
        self._end = end
        if end > self.segment_bytes:
            self._weigh()
        else:  # then what a copy takes is the same: a whole segment, or the longest of those before
            self.free -= grown
            self.left -= grown

    def exceed_by(self, excess: int) -> None:
        """Let the log go so far above its cap."""
        self.excess = excess
        self._weigh()

    @property
    def held(self) -> int:
        """Bytes of contents, without `meta`."""
        return self._aside_bytes + self._sealed_bytes + self._end

    def _weigh(self) -> None:
        end = self._end
        self.free = self.cap + self.excess - self.meta_bytes - self._aside_bytes - self._sealed_bytes - end
        """Bytes that contents may still grow by."""
        self.left = self.free - self.to_clean(end if end > self._sealed_end_max else self._sealed_end_max)
        """What of those is free beside a copy of any one segment, and beside the slack; may be negative."""

    def to_clean(self, largest: int) -> int:
        """Return what cleaning takes where the largest segment ends at `largest`: its copy, and the slack meanwhile."""
        copy = self.segment_bytes if self.segment_bytes > largest else largest
        return copy + copy // 4 + self.slack_bytes + HEADERS_BYTES

    # --- what is promised

    def pends(self, messages: int) -> None:
        """So many messages became pending in a group, or, below 0, are not any more."""
        self.pending += messages
        self.kept += messages * RETRY_BYTES

    def recorded(self, records: int) -> None:
        """So many records of tries are in the log now, or, below 0, do not count any more."""
        self.kept -= records * RETRY_BYTES

    def notes(self, size: int) -> None:
        """There are so many bytes more of notes to be said again one day, or, below 0, less."""
        self.notes_bytes += size
        self.kept += size

    @property
    def tries_bytes(self) -> int:
        """Bytes that the log needs, at most, to say of every pending message how often it was tried, and all notes."""
        return self.pending * RETRY_BYTES + self.notes_bytes

    @property
    def promised(self) -> int:
        """Bytes that are promised in all."""
        return self.kept + self.reserved

    def grant(self, size: int, largest: int) -> bool:
        """Keep `size` bytes for batches that will come, if there is room now; no message takes more than `largest`."""
        if size and not self.fits_pieces(size + self.promised, largest):
            return False
        self.reserved += size
        return True

    def grant_known(self, size: int) -> None:
        """Keep bytes that are known to be there, or were granted before a restart."""
        self.reserved += size

    def give_back(self, size: int) -> None:
        """What was granted is written, or will not be."""
        self.reserved -= size

    # --- what may be taken

    @property
    def publish_left(self) -> int:
        """Bytes that publishes may add now, if nothing is promised; may be negative."""
        return self.left - self.excess

    @property
    def budget(self) -> int:
        """Bytes that publishes may add now beside all that is promised; may be negative."""
        return self.left - self.excess - self.kept - self.reserved

    @property
    def records_left(self) -> int:
        """Bytes that settles and releases may add now: all but what copying any one segment forward takes."""
        return self.left + self.slack_bytes - BATCH_BYTES

    def admits(self, size: int) -> bool:
        """Return whether a publish of `size` bytes leaves everything that is promised."""
        return self.fits(size + self.promised)

    def can_keep(self, size: int) -> bool:
        """Return whether `size` bytes more of records may be promised now."""
        return size <= self.left - self.promised

    def fits(self, size: int) -> bool:
        """Return whether a publish of `size` bytes, maybe larger than a segment, leaves what cleaning takes."""
        if size <= self.segment_bytes:
            return size <= self.publish_left
        return self.fits_pieces(size, size)

    def fits_pieces(self, size: int, largest: int) -> bool:
        """Return whether batches of `size` bytes in all, none larger than a segment or `largest`, leave it."""
        free = self.free - self.excess - size
        return size <= self.publish_left and free >= self.to_clean(largest + SEGMENT_BYTES)

    def fits_compacted(self, size: int, live_bytes: int, largest: int) -> bool:
        """Return whether it would after everything but `live_bytes` of entries has been cleaned away.

        `largest` is what of the `size` bytes has to go into one batch.
        """
        compacted = live_bytes + live_bytes // 64 + SEGMENTS_PER_CAP * SEGMENT_BYTES
        room = self.cap - self.meta_bytes - self._aside_bytes - compacted
        return room - size >= self.to_clean(largest + SEGMENT_BYTES)
