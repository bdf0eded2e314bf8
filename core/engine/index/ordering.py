"""Ordering keys in one group: the messages of a key are handed out one at a time, in the order of their seqs.

For each key that the group's cursor has met, one message has its turn: the first that is pending. It may be ready,
delayed, handed out or on its way to the dead letters. It keeps its turn until it is settled and that is on disk. So a
crash can't bring it back after a later message of the key was handed out.

All other messages of the key are held back. That takes a few entries in memory for each of them, and none for messages
that have no key or that the cursor has not reached. If too many are held back, the cursor stops until some of them have
had their turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable

from curbstone.core.message import Message

HELD_BACK_MAX = 16_384
KEPT_BYTES_MAX = 4 * 1024 * 1024
"""How many bytes of messages that are held back stay in memory; the others are read again when they have their turn."""
STALE_MAX = 64


class Ordering:
    """The keys of one group, made when the group meets the first message with a key."""

    __slots__ = ("_comes", "_first", "_kept", "_kept_bytes", "_key_of", "_waiting", "_waits", "held_back")

    def __init__(self, comes: Callable[[int], None]) -> None:
        """`comes` is called with a seq that was held back and has its turn now."""
        self._comes = comes
        self._first: dict[bytes, int] = {}
        """By key, the seq that has its turn; it stays here while its settle is being written."""
        self._waiting: dict[bytes, deque[int]] = {}
        """By key, the seqs that wait behind `_first`, in order. Some may have been settled meanwhile."""
        self._waits = 0
        """The number of entries in `_waiting`."""
        self._key_of: dict[int, bytes] = {}
        """The key of each pending message that the cursor has met."""
        self.held_back: set[int] = set()
        """The seqs that are ready apart from their keys."""
        self._kept: dict[int, Message] = {}
        """Messages that wait for their turn in memory."""
        self._kept_bytes = 0

    def admits(self, key: bytes, seq: int) -> bool:
        """Return whether the cursor may advance to a message: it has its turn, or there is room to hold it back."""
        return len(self._key_of) - len(self._first) < HELD_BACK_MAX or self._first.get(key, seq) == seq

    def has_turn(self, key: bytes, message: Message, *, is_ready: bool) -> bool:
        """Return whether a message that the cursor has reached has its turn; if not, it is held back from now on."""
        seq = message.seq
        if self._first.setdefault(key, seq) == seq:
            self._key_of[seq] = key
            return True
        if seq not in self._key_of:
            self._key_of[seq] = key
            waiting = self._waiting.get(key)
            if waiting is None:
                waiting = self._waiting[key] = deque()
            waiting.append(seq)
            self._waits += 1
            size = len(message.headers) + len(message.body)
            if self._kept_bytes + size <= KEPT_BYTES_MAX:
                self._kept[seq] = message
                self._kept_bytes += size
        if is_ready:
            self.held_back.add(seq)
        return False

    def first_before(self, seq: int, key: bytes = b"") -> int:
        """Return the seq that a message is held back for, or 0 if there is none or it has no key.

        The key has to be given only for a message that the cursor may not have met yet.
        """
        first = self._first.get(self._key_of.get(seq, key), seq)
        return first if first != seq else 0

    def turns_from(self, seq: int) -> list[int]:
        """Return the pending messages from `seq` on that have the turns of their keys."""
        return [first for first in self._first.values() if first >= seq and first in self._key_of]

    def kept(self, seq: int) -> Message | None:
        """Return a message that waited, if it is in memory, and let go of it."""
        message = self._kept.pop(seq, None)
        if message is not None:
            self._kept_bytes -= len(message.headers) + len(message.body)
        return message

    def ended(self, seqs: Iterable[int]) -> list[bytes]:
        """Take in that messages are no longer pending; return the keys to `pass_on` once that is on disk."""
        passed = []
        for seq in seqs:
            key = self._key_of.pop(seq, None)
            if key is None:
                continue
            self.kept(seq)
            if self._first[key] == seq:
                passed.append(key)
            else:
                self.held_back.discard(seq)
        if self._waits > 2 * len(self._key_of) + STALE_MAX:
            self._sweep()
        return passed

    def pass_on(self, keys: list[bytes]) -> None:
        """Give the turn of each key to its next message."""
        for key in keys:
            following = self._next(key)
            if following:
                self._first[key] = following
                self.held_back.discard(following)
                self._comes(following)
            else:
                del self._first[key]

    def _next(self, key: bytes) -> int:
        """Return the next seq of a key that is still pending, or 0 if none waits."""
        waiting = self._waiting.get(key)
        while waiting:
            seq = waiting.popleft()
            self._waits -= 1
            if seq in self._key_of:
                if not waiting:
                    del self._waiting[key]
                return seq
        self._waiting.pop(key, None)
        return 0

    def _sweep(self) -> None:
        """Forget the entries of messages that were settled while they waited."""
        swept = {key: deque([seq for seq in seqs if seq in self._key_of]) for key, seqs in self._waiting.items()}
        self._waiting = {key: seqs for key, seqs in swept.items() if seqs}
        self._waits = sum(map(len, self._waiting.values()))

    def rewind(self, in_flight: Container[int]) -> None:
        """Forget what the cursor has met, because it starts over.

        Only messages that are in flight, or whose settle is not on disk yet, keep their turn.
        """
        self._first = {key: seq for key, seq in self._first.items() if seq in in_flight or seq not in self._key_of}
        self._key_of = {seq: key for seq, key in self._key_of.items() if self._first.get(key) == seq}
        self._waiting.clear()
        self._waits = 0
        self.held_back.clear()
        self._kept.clear()
        self._kept_bytes = 0
