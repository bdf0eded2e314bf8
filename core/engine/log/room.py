"""The room of one queue's log under its cap: a ledger of what is held, what is promised, and what may still be taken.

Every writer asks here, and no other code adds up bytes of the cap. All sums are kept up to date as things
change, so a question costs almost nothing. The rules:

1. The log, with `meta` and with damaged segments that are kept for repair, never holds more than the cap plus
   `excess`. `excess` is 0, unless the log was found above its cap, or was given a smaller one.
2. `left` is what is free beside the room that cleaning takes: a copy of any one segment at the end of the log, and the
   slack, in which messages are settled meanwhile. The copy may be a little larger than the segment, because it says of
   each message which groups have settled it.
3. A publish is admitted if `left`, without the excess, covers it, what splitting takes (`split_bytes`: a segment above
   the least size may become several when it is cleaned, and each has headers), and all that is promised. Promised is
   (`kept`) one record of its tries for each pending message, in each group, that has none in the log yet, and the notes
   that have to be repeated when their segment is dropped; and (`reserved`) what was granted to later publishes. So a
   message brings the room for its own first release with it, and a release always fits.
4. Settles and releases may use what is promised, and the slack, because they end what that was kept for. They may
   never use the room for the copy (`records_left`). So cleaning can always continue, and it regains the bytes that
   settles have used.
5. What was granted is returned exactly once: when it has been written, or when it will not be written any more.

Segments are small, so that a copy of one takes little of the cap, and a queue can be filled to more than nine tenths of
it. But each new segment costs syncs, and a batch is no larger than one. So while at most half of the cap is live,
segments of a small queue are `AMPLE` times as large (`choose_segment_size`). When such a queue fills up, the cleaner
copies what is live of them, once, into small ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from curbstone.core.engine.log.format import BATCH_BYTES, SEGMENT_BYTES

SEGMENTS_PER_CAP = 64
SEGMENT_BYTES_MIN = 4 * 1024
AMPLE = 4
AMPLE_BYTES_MAX = 1024 * 1024
"""Larger segments than this are no faster."""
SLACKS_PER_CAP = 80
SLACK_BYTES_MIN = 1024
HEADERS_BYTES = 8 * (SEGMENT_BYTES + BATCH_BYTES)

PIECE_BYTES = SEGMENT_BYTES + 2 * BATCH_BYTES
"""What a segment with a single batch takes beside the entries and records in it."""

RELEASE_BYTES = 24
"""One record of a message's tries."""
RETRY_BYTES = RELEASE_BYTES + RELEASE_BYTES // 12
"""What is kept for one. It is a little more, because batches and segments have headers."""


def split_bytes(end: int, least: int) -> int:
    """Return what more segments take if one that ends at `end` is copied into segments of `least` bytes.

    Any two pieces that follow each other are together larger than one such segment, or they would be one.
    """
    return 2 * end // (least - PIECE_BYTES) * PIECE_BYTES if end > least else 0


def release_bytes(records: int) -> int:
    """Return the bytes to keep for so many records of tries."""
    return RETRY_BYTES * records


class Room:
    __slots__ = (
        "_end", "_sealed_bytes", "_sealed_ends", "_sealed_split_bytes", "ample_bytes", "aside_bytes",
        "cap", "excess", "free", "kept", "left", "meta_bytes", "notes_bytes", "pending", "reserved",
        "sealed_end_max", "segment_bytes", "slack_bytes", "small_bytes", "split_bytes",
    )  # fmt: skip

    def __init__(self, cap: int, meta_bytes: int) -> None:
        self.aside_bytes = 0
        """Bytes of damaged segments that are kept for repair."""
        self._end = self._sealed_bytes = 0
        self.sealed_end_max = 0
        """The end of the longest segment before the active one."""
        self._sealed_split_bytes = 0
        self.split_bytes = 0
        """What the segments that are larger than the least size will take more when they are cleaned."""
        self._sealed_ends: Sequence[int] = ()
        self.excess = 0
        """How many bytes above the cap a log that holds too much may go, only to settle and to clean."""
        self.reserved = 0
        """Bytes that were granted to later publishes."""
        self.pending = 0
        """Pending messages, counted once for each group in which they are pending."""
        self.notes_bytes = 0
        """Bytes of the notes that are repeated when their segment is dropped."""
        self.kept = 0
        """Bytes kept for records of tries that are not in the log yet, and to repeat notes."""
        self.resize(cap, meta_bytes)

    def resize(self, cap: int, meta_bytes: int) -> None:
        """Change the cap, or what `meta` takes of it."""
        self.cap = cap
        self.meta_bytes = meta_bytes
        contents = cap - meta_bytes
        self.small_bytes = max(SEGMENT_BYTES_MIN, contents // SEGMENTS_PER_CAP)
        """The size that segments are meant to have when much of the cap is live."""
        self.ample_bytes = max(self.small_bytes, min(AMPLE * contents // SEGMENTS_PER_CAP, AMPLE_BYTES_MAX))
        """The size that they are meant to have otherwise."""
        self.segment_bytes = self.small_bytes
        """The size that they are meant to have now."""
        self.slack_bytes = max(SLACK_BYTES_MIN, contents // SLACKS_PER_CAP)
        """Room kept for settles while the cleaner copies."""
        self._count_splits()
        self._weigh()

    def under(self, cap: int, meta_bytes: int) -> Room:
        """Return the room under another cap of a log that holds and promises the same."""
        room = Room(cap, meta_bytes)
        room.aside_bytes, room.kept, room.reserved = self.aside_bytes, self.kept, self.reserved
        room.holds(self._sealed_bytes, self._sealed_ends, self._end)
        return room

    def choose_segment_size(self, live_bytes: int) -> None:
        """Choose the size of segments by how much of the log is live. Large ones take no room that is promised."""
        assert self.kept >= 0 and self.reserved >= 0, "what is promised was counted when it was promised"
        before, left = self.segment_bytes, self.left
        is_ample = 2 * (live_bytes + self.pending * RETRY_BYTES + self.notes_bytes) <= self.cap
        self.segment_bytes = self.ample_bytes if is_ample else self.small_bytes
        if self.segment_bytes != before:
            self._weigh()
            if self.left < min(left, self.promised + self.excess):
                self.segment_bytes = before
                self._weigh()

    # --- what is held

    def set_aside(self, size: int) -> None:
        """Count `size` more bytes of damaged segments that are kept for repair."""
        self.aside_bytes += size
        self._weigh()

    def holds(self, sealed_bytes: int, sealed_ends: Sequence[int], end: int) -> None:
        """Take in new segments: bytes and ends of those before the active one, and the end of the active one."""
        self._sealed_bytes = sealed_bytes
        self._sealed_ends = sealed_ends
        self.sealed_end_max = max(sealed_ends, default=0)
        self._end = end
        self._count_splits()
        self._weigh()

    def ends(self, end: int) -> None:
        """Take in where the contents of the active segment end now."""
        grown = end - self._end
        assert grown >= 0
        self._end = end
        if end > self.small_bytes:
            self.split_bytes = self._sealed_split_bytes + split_bytes(end, self.small_bytes)
        if end > self.segment_bytes:
            self._weigh()
        else:  # a copy takes as much as before: a whole segment, or the longest of the sealed ones
            self.free -= grown
            self.left -= grown
            # The other way to the same sum; see `_weigh`.
            held = self.aside_bytes + self._sealed_bytes + self._end
            assert self.free == self.cap + self.excess - self.meta_bytes - held

    def exceed_by(self, excess: int) -> None:
        self.excess = excess
        self._weigh()

    @property
    def held(self) -> int:
        """Bytes of contents, without `meta`."""
        return self.aside_bytes + self._sealed_bytes + self._end

    def _weigh(self) -> None:
        self.free = self.cap + self.excess - self.meta_bytes - self.aside_bytes - self._sealed_bytes - self._end
        """Bytes by which the contents may still grow."""
        self.left = self.free - self.to_clean(self.copy_bytes)
        """What remains of `free` beside the room that cleaning takes; may be negative."""

    def _count_splits(self) -> None:
        self._sealed_split_bytes = sum([split_bytes(end, self.small_bytes) for end in self._sealed_ends])
        self.split_bytes = self._sealed_split_bytes + split_bytes(self._end, self.small_bytes)

    @property
    def copy_bytes(self) -> int:
        """The bytes of the largest segment that there is or is meant to be."""
        return max(self.segment_bytes, self._end, self.sealed_end_max)

    def to_clean(self, largest: int) -> int:
        """Return the room that cleaning takes if the largest segment ends at `largest`: its copy, and the slack."""
        copy = self.segment_bytes if self.segment_bytes > largest else largest
        return copy + copy // 4 + self.slack_bytes + HEADERS_BYTES

    @property
    def kept_free(self) -> int:
        """Bytes of the cap that stay free however full the log is: to clean, and for all that is promised."""
        copy = self.copy_bytes if self.copy_bytes > self.ample_bytes else self.small_bytes
        return copy + copy // 4 + self.slack_bytes + HEADERS_BYTES + self.promised

    # --- what is promised

    def pends(self, messages: int) -> None:
        """Count messages that became pending in a group, or, as a negative number, that are not pending any more."""
        self.pending += messages
        self.kept += messages * RETRY_BYTES
        assert self.pending >= 0

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
        return self.kept + self.reserved

    def grant(self, size: int, largest: int) -> bool:
        """Reserve `size` bytes for later batches, if there is room now; no message of them exceeds `largest`."""
        if size and not self.fits_pieces(size + self.promised, largest):
            return False
        assert size >= 0
        self.reserved += size
        return True

    def grant_known(self, size: int) -> None:
        """Keep bytes without asking: they are known to be free, or were granted before a restart."""
        assert size >= 0
        self.reserved += size

    def give_back(self, size: int) -> None:
        """Give back granted bytes, because they were written or never will be."""
        assert 0 <= size <= self.reserved, "what was granted is returned once"
        self.reserved -= size

    # --- what may be taken

    @property
    def publish_left(self) -> int:
        """Bytes that publishes could add now if nothing were promised; may be negative."""
        return self.left - self.excess - self.split_bytes

    @property
    def budget(self) -> int:
        """Bytes that publishes may add now beside all that is promised; may be negative."""
        return self.left - self.excess - self.split_bytes - self.kept - self.reserved

    @property
    def records_left(self) -> int:
        """Bytes that settles and releases may add now: everything but the room for a copy of any one segment."""
        return self.left + self.slack_bytes - BATCH_BYTES

    def admits(self, size: int) -> bool:
        """Return whether a publish of `size` bytes leaves room for everything that is promised."""
        return self.fits(size, self.promised)

    def can_keep(self, size: int) -> bool:
        """Return whether `size` more bytes of records may be promised now."""
        return size <= self.left - self.split_bytes - self.promised

    def fits(self, size: int, beside: int = 0) -> bool:
        """Return whether a publish of `size` bytes, which may exceed a segment, leaves the room that cleaning takes.

        `beside` are bytes that have to be left, too.
        """
        if size <= self.segment_bytes:
            return size + beside <= self.publish_left
        return self.fits_pieces(size + beside, size)

    def fits_pieces(self, size: int, largest: int) -> bool:
        """Return whether batches of `size` bytes in all leave that room. None exceeds both a segment and `largest`."""
        free = self.free - self.excess - size
        return size <= self.publish_left and free >= self.to_clean(largest + SEGMENT_BYTES)

    def largest_now(self, heads_bytes: int) -> int:
        """Return the most bytes that one publish may take now. Its batch takes `heads_bytes` beside them."""
        small = min(self.segment_bytes, self.budget - heads_bytes)
        most = min(self.publish_left - self.promised, self._largest(self.free - self.excess - self.promised))
        large = most - BATCH_BYTES - SEGMENT_BYTES
        return large if large > self.segment_bytes else small

    def largest_compacted(self, live_bytes: int) -> int:
        """Return the most bytes in one batch that `fits_compacted` lets fit."""
        return self._largest(self._compacted_room(live_bytes))

    def _largest(self, free: int) -> int:
        """Return the most bytes that leave, of `free`, the room to clean a segment with nothing but them."""
        copy = (4 * (free + SEGMENT_BYTES - self.slack_bytes - HEADERS_BYTES) + 3) // 9
        if copy > self.segment_bytes:
            return copy - SEGMENT_BYTES
        return min(self.segment_bytes - SEGMENT_BYTES, free - self.to_clean(self.segment_bytes))

    def _compacted_room(self, live_bytes: int) -> int:
        contents = self.cap - self.meta_bytes
        heads = live_bytes // 64 + contents // self.small_bytes * SEGMENT_BYTES
        return contents - self.aside_bytes - live_bytes - heads

    def fits_compacted(self, size: int, live_bytes: int, largest: int) -> bool:
        """Return whether `size` bytes would fit if the log held nothing but `live_bytes` of entries.

        `largest` is how many of the `size` bytes have to go into one batch.
        """
        return self._compacted_room(live_bytes) - size >= self.to_clean(largest + SEGMENT_BYTES)
