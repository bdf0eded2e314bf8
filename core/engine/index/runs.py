"""Where the messages are, and which of them are pending, in about a bit for each message.

A run is a range of seqs whose messages are near each other in one segment. Runs never overlap in seq, so the index is a
sorted list. For each group a run has a bit mask of the seqs that are pending in the group: the group is entitled to the
message and has not settled it. A run without pending messages is dropped. To find a message, bisect to its run and read
the run's part of the file.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, count

from curbstone.core.engine.log.commit import Segment
from curbstone.core.message import Message
from curbstone.core.values import UNNAMED

RUN_BYTES_MAX = 64 * 1024
RUN_SPAN_MAX = 2048

FEW = 12
"""So many bits are found one by one faster than by looking at all."""
_TRUTH = bytes([byte == ord("1") for byte in range(256)])

_NO_LEVELS: dict[int, int] = {}
"""Shared by queues without messages that have a priority."""


class Run:
    """The pending messages of seqs `first` to `last`, which are in `segment` between `offset` and `end`."""

    __slots__ = (
        "bits", "bytes_live", "end", "expires_ms", "first", "is_indexed", "is_keyed", "last", "levels", "messages",
        "named", "naming", "offset", "ranked", "segment", "time_ms",
    )  # fmt: skip

    def __init__(self, first: int, last: int, bits: int, segment: Segment, offset: int, end: int, size: int) -> None:
        self.first = first
        self.last = last
        self.bits = bits
        """The mask of the seqs pending in the unnamed group: bit i is for seq first + i."""
        self.named: dict[str, int] | None = None
        """Masks of the seqs pending in named groups, or None if there are none."""
        self.levels: dict[int, int] | None = None
        """By level, the mask of its messages, which may be settled. None if all have the default level."""
        self.ranked = 0
        """The union of the masks in `levels`."""
        self.naming = 0
        """The mask of the messages that name their groups; they may be settled."""
        self.time_ms = 0
        """Wall-clock time when the first of its messages was published."""
        self.segment = segment
        self.offset = offset
        self.end = end
        self.bytes_live = size
        """Bytes of the entries that are pending in some group; an estimate after recovery."""
        self.messages: list[Message | None] | None = None
        """The messages, at index seq - first, while they are cached; else None."""
        self.expires_ms = 0
        """Engine time when the first of its messages expires; 0 for never."""
        self.is_indexed = False
        self.is_keyed = False
        """Whether one of the cached messages has an ordering key."""

    def pending(self, group: str) -> int:
        """Return the mask of the seqs pending in `group`."""
        if group == UNNAMED:
            return self.bits
        return self.named.get(group, 0) if self.named else 0

    def set_pending(self, group: str, bits: int) -> None:
        """Replace the mask of `group`."""
        if group == UNNAMED:
            self.bits = bits
        elif bits:
            if self.named is None:
                self.named = {}
            self.named[group] = bits
        elif self.named:
            self.named.pop(group, None)

    def rank(self, level: int, bits: int) -> None:
        """Note that the messages of a mask have a level other than the default."""
        if self.levels is None:
            self.levels = {}
        self.levels[level] = self.levels.get(level, 0) | bits
        self.ranked |= bits

    def of_level(self, level: int, bits: int) -> int:
        """Return the part of a mask whose messages have a level."""
        if level:
            return bits & self.levels.get(level, 0) if self.levels is not None else 0
        return bits & ~self.ranked

    def level_of(self, seq: int) -> int:
        bit = 1 << (seq - self.first)
        if self.levels is not None and self.ranked & bit:
            for level, bits in self.levels.items():
                if bits & bit:
                    return level
        return 0

    def live(self) -> int:
        """Return the mask of the seqs pending in any group."""
        bits = self.bits
        if self.named:
            for other in self.named.values():
                bits |= other
        return bits

    def is_pending(self, group: str, seq: int) -> bool:
        """Return whether a message of the run is pending in `group`."""
        return bool(self.pending(group) >> (seq - self.first) & 1)

    def part(self, first: int, end: int) -> int:
        """Return the mask of the seqs of the run from `first` on and below `end`."""
        low, high = max(first - self.first, 0), min(end, self.last + 1) - self.first
        return (1 << high) - (1 << low) if low < high else 0

    def bytes_of(self, bits: int) -> int:
        """Return an estimate of the bytes of the entries of these live messages."""
        live = self.live().bit_count()
        return self.bytes_live * bits.bit_count() // live if live else 0

    def __repr__(self) -> str:
        return f"Run({self.first}-{self.last}, {self.live().bit_count()} live, segment {self.segment.number})"


class Page:
    """Some messages of a run that is not in memory itself."""

    __slots__ = ("bits", "messages")

    def __init__(self, messages: list[Message | None], bits: int) -> None:
        self.messages: list[Message | None] | None = messages
        """At index seq - first of the run; None for messages outside of the page. None once the page is forgotten."""
        self.bits = bits
        """The mask of its messages."""


class Runs:
    """All runs of one queue, in the order of their seqs."""

    __slots__ = ("_firsts", "_runs", "any_expires", "bytes_live", "levels")

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._firsts: list[int] = []
        self.bytes_live = 0
        """Bytes of all entries that are pending in some group."""
        self.any_expires = False
        """Whether any message of the queue ever had an expiry."""
        self.levels = _NO_LEVELS
        """By level other than the default, the last seq that had it. Empty if all messages have the default level."""

    @property
    def oldest_ms(self) -> int:
        """Wall-clock time when the first message of the first run was published, 0 if there is none."""
        return self._runs[0].time_ms if self._runs else 0

    @property
    def end(self) -> int:
        """The seq behind the last run, or 0 if there is none."""
        return self._runs[-1].last + 1 if self._runs else 0

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def at_or_after(self, seq: int) -> Run | None:
        """Return the run with `seq`; if there is none, the next run after it, or None."""
        index = bisect_right(self._firsts, seq) - 1
        if index >= 0 and seq <= self._runs[index].last:
            return self._runs[index]
        return self._runs[index + 1] if index + 1 < len(self._runs) else None

    def find(self, seq: int) -> Run | None:
        index = bisect_right(self._firsts, seq) - 1
        if index < 0:
            return None
        run = self._runs[index]
        return run if seq <= run.last else None

    def find_pending(self, group: str, seq: int) -> Run | None:
        """Return the run with `seq` if the message is pending in a group, else None."""
        run = self.find(seq)
        return run if run is not None and run.is_pending(group, seq) else None

    def between(self, first: int, end: int) -> Iterator[Run]:
        """Yield the runs with messages from `first` on and below `end`. The caller may drop them."""
        run = self.at_or_after(first)
        while run is not None and run.first < end:
            following = run.last + 1
            yield run
            run = self.at_or_after(following)

    def append(self, first: int, bits: int, segment: Segment, offset: int, end: int, size: int) -> tuple[Run, bool]:
        """Add messages behind all others, to the last run if they fit; return the run, and whether it is new.

        `bits` is the mask, from `first` on, of the seqs that exist. The caller sets what is pending in which group.
        """
        span = bits.bit_length()
        last = first + span - 1
        self.bytes_live += size
        if self._runs:
            run = self._runs[-1]
            assert first > run.last, "messages are appended in the order of their seqs"
            if run.segment is segment and end - run.offset <= RUN_BYTES_MAX and last - run.first < RUN_SPAN_MAX:
                run.last = last
                run.end = end
                run.bytes_live += size
                return run, False
        run = Run(first, last, 0, segment, offset, end, size)
        self._runs.append(run)
        self._firsts.append(first)
        run.is_indexed = True
        segment.runs += 1
        return run, True

    def drop(self, run: Run) -> None:
        index = bisect_right(self._firsts, run.first) - 1
        assert self._runs[index] is run
        del self._runs[index], self._firsts[index]
        if not self._runs:
            self.levels = _NO_LEVELS
        run.segment.runs -= 1
        self.bytes_live -= run.bytes_live
        run.bytes_live = 0
        run.is_indexed = False
        assert run.segment.runs >= 0 and (self.bytes_live >= 0 if self._runs else self.bytes_live == 0)

    def rank(self, run: Run, level: int, bits: int) -> bool:
        """Note that messages of a run have a level; return whether it is the first time for this level."""
        run.rank(level, bits)
        last = run.first + bits.bit_length() - 1
        if not self.levels:
            self.levels = {}
        before = self.levels.get(level, 0)
        self.levels[level] = max(before, last)
        return not before

    def next_pending(self, group: str, level: int, seq: int) -> int:
        """Return the first seq from `seq` on of a level that is pending in a group, or 0 if there is none."""
        index = max(bisect_right(self._firsts, seq) - 1, 0)
        for place in range(index, len(self._runs)):
            run = self._runs[place]
            skip = max(seq - run.first, 0)
            bits = run.of_level(level, run.pending(group)) >> skip
            if bits:
                return run.first + skip + (bits & -bits).bit_length() - 1
        return 0

    def shrink(self, run: Run, size: int) -> None:
        """Count `size` bytes of a run as no longer live."""
        assert size >= 0
        size = min(size, run.bytes_live)
        run.bytes_live -= size
        self.bytes_live -= size

    def grow(self, run: Run, size: int) -> None:
        """Count `size` more bytes of a run as live."""
        assert size >= 0
        run.bytes_live += size
        self.bytes_live += size

    def move(self, run: Run, segment: Segment, offset: int, end: int, size: int) -> None:
        """Change the place of a run, whose live messages, of `size` bytes, were copied there."""
        assert run.is_indexed and run.segment.runs > 0
        run.segment.runs -= 1
        segment.runs += 1
        run.segment, run.offset, run.end = segment, offset, end
        self.bytes_live += size - run.bytes_live
        run.bytes_live = size

    def insert(self, run: Run) -> None:
        """Add a run at its place in the order, for copies that are not behind all others; see `copies`."""
        index = bisect_right(self._firsts, run.first)
        assert not index or self._runs[index - 1].last < run.first, "runs do not overlap"
        assert index == len(self._runs) or run.last < self._runs[index].first, "runs do not overlap"
        self._runs.insert(index, run)
        self._firsts.insert(index, run.first)
        run.is_indexed = True
        run.segment.runs += 1
        self.bytes_live += run.bytes_live

    def in_segment(self, segment: Segment) -> list[Run]:
        return [run for run in self._runs if run.segment is segment]


def mask_of(first: int, last: int, seqs: Sequence[int]) -> int:
    """Return the mask, starting at `first`, of those `seqs` (in ascending order) that are in `first` to `last`."""
    mask = 0
    for place in range(bisect_left(seqs, first), bisect_right(seqs, last)):
        mask |= 1 << (seqs[place] - first)
    return mask


def seqs_of(first: int, bits: int) -> Iterable[int]:
    """Return the seqs of a mask that starts at `first`, in order."""
    if bits.bit_count() > FEW:
        return compress(count(first), bin(bits)[:1:-1].encode().translate(_TRUTH))
    seqs: list[int] = []
    while bits:
        low = bits & -bits
        seqs.append(first + low.bit_length() - 1)
        bits ^= low
    return seqs


def ranges_of(first: int, bits: int) -> list[tuple[int, int]]:
    """Return the ranges of consecutive seqs, as (first, count), in a mask that starts at `first`."""
    ranges = []
    while bits:
        skip = (bits & -bits).bit_length() - 1
        bits >>= skip
        count = (~bits & (bits + 1)).bit_length() - 1
        ranges.append((first + skip, count))
        bits >>= count
        first += skip + count
    return ranges
