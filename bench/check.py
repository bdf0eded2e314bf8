"""The bodies of the load, and the check that each one arrives once, undamaged and in order.

A body repeats its producer and sequence number every sixteen bytes, so that the check detects a cut, shifted or mixed
body. The usual case, a run of exactly the expected bodies, is compared in one piece at C speed. Only if that fails are
the bodies examined one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MARK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Tally:
    """The findings of a consumer.

    `reordered` messages arrived after a later one of the same producer. `left` messages are still in the queue after
    the drain, because they were never delivered or their acknowledgement did not settle them.
    """

    received: int = 0
    lost: int = 0
    duplicate: int = 0
    corrupt: int = 0
    reordered: int = 0
    left: int = 0

    @property
    def clean(self) -> bool:
        return not (self.lost or self.duplicate or self.corrupt or self.reordered or self.left)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.received + other.received,
            self.lost + other.lost,
            self.duplicate + other.duplicate,
            self.corrupt + other.corrupt,
            self.reordered + other.reordered,
            self.left + other.left,
        )


def body(producer: int, seq: int, size: int) -> bytes:
    """Return a body. It is printable, without line break or NUL, so every protocol carries it unchanged."""
    return (b"%03d:%011d;" % (producer, seq) * (size // MARK_SIZE + 1))[:size]


def bodies(producer: int, first: int, count: int, size: int) -> list[bytes]:
    repeat = size // MARK_SIZE + 1
    return [(b"%03d:%011d;" % (producer, seq) * repeat)[:size] for seq in range(first, first + count)]


class Checker:
    """Counts lost, duplicate, corrupt and reordered messages of one queue with one or more producers."""

    def __init__(self, size: int, producers: int = 1, *, prepare: int = 0) -> None:
        """`prepare` is the number of bodies of a single producer to create now, before the clock starts."""
        assert size >= MARK_SIZE
        self.received = 0
        self.distinct = 0
        """The number of undamaged messages, each counted once."""
        self._size = size
        self._next = [0] * producers
        self._missing: list[set[int]] = [set() for _ in range(producers)]
        self._duplicate = 0
        self._corrupt = 0
        self._reordered = 0
        self._prepared = b"".join(bodies(0, 0, prepare, size)) if producers == 1 else b""

    def take(self, arrived: Sequence[bytes]) -> None:
        """Check bodies, which are given in the order of their arrival."""
        self.received += len(arrived)
        if len(self._next) == 1:
            start = self._next[0]
            end = start + len(arrived)
            joined = b"".join(arrived)
            if end * self._size <= len(self._prepared):
                expected = self._prepared.startswith(joined, start * self._size)
            else:
                expected = joined == b"".join(bodies(0, start, len(arrived), self._size))
            # Count and sizes are checked, too, because bodies cut elsewhere can join to the same bytes.
            if expected and len(joined) == len(arrived) * self._size and _even(arrived, self._size):
                self._next[0] = end
                self.distinct += len(arrived)
                return
        for one in arrived:
            self._take_one(one)

    def _take_one(self, arrived: bytes) -> None:
        producer, seq = parse_mark(arrived)
        if not 0 <= producer < len(self._next) or arrived != body(producer, seq, self._size):
            self._corrupt += 1
            return
        expected = self._next[producer]
        if seq >= expected:
            self._missing[producer].update(range(expected, seq))
            self._next[producer] = seq + 1
            self.distinct += 1
        elif seq in self._missing[producer]:
            self._missing[producer].remove(seq)
            self._reordered += 1
            self.distinct += 1
        else:
            self._duplicate += 1

    def tally(self, sent: Sequence[int]) -> Tally:
        """Return the findings, given the number of messages from each producer. More than that are duplicates."""
        lost = beyond = 0
        for count, expected, missing in zip(sent, self._next, self._missing, strict=True):
            lost += sum(seq < count for seq in missing) + max(0, count - expected)
            beyond += max(0, expected - count)
        return Tally(self.received, lost, self._duplicate + beyond, self._corrupt, self._reordered)


def parse_mark(arrived: bytes) -> tuple[int, int]:
    """Return (producer, seq) of the first mark in a body, or (-1, -1) if it has none."""
    producer, colon, rest = arrived[:MARK_SIZE].partition(b":")
    seq, semicolon, _ = rest.partition(b";")
    if not (colon and semicolon and producer.isdigit() and seq.isdigit()):
        return -1, -1
    return int(producer), int(seq)


def _even(arrived: Sequence[bytes], size: int) -> bool:
    """Return whether all bodies have this size. Their sum is right, so otherwise at least two differ."""
    return max(map(len, arrived), default=size) == size
