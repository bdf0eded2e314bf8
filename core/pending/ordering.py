"""Ordering keys, in one group: messages of a key are handed out one at a time, in the order of their seqs.

Of each key that the group's cursor has come across one message has its turn: the first that is pending. It may be
ready, delayed, handed out or on its way to the dead letters, and keeps its turn until it is settled and that is on
disk; so what comes back after a crash comes before anything that was handed out behind it. All others of the key are
held back, in memory: a few entries for a message, and none for one that has no key or that the cursor has not reached.
If too many are held back the cursor stops until some of them have had their turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Message
from curbstone.core.pending.memory import Memory

HELD_BACK_MAX = 16_384
KEPT_BYTES_MAX = 4 * 1024 * 1024
"""What of messages that are held back stays in memory; the rest is read again when it has its turn."""
STALE_MAX = 64


class Ordering:
    """The keys of one group. It exists where the group has met a message with one."""

    __slots__ = ("_comes", "_first", "_kept", "_kept_bytes", "_key_of", "_memory", "_waiting", "_waits", "held_back")

    def __init__(self, memory: Memory, comes: Callable[[int], None]) -> None:
        """`comes` is told a seq that was held back and has its turn now."""
        self._memory = memory
        self._comes = comes
        self._first: dict[bytes, int] = {}
        """By key: the seq that has its turn, also while its settle is being written."""
        self._waiting: dict[bytes, deque[int]] = {}
        """By key: the seqs behind it, in order, and some that were settled meanwhile."""
        self._waits = 0
        """Entries in these."""
        self._key_of: dict[int, bytes] = {}
        """The key of each pending message that the cursor has met."""
        self.held_back: set[int] = set()
        """What would be ready but for its key."""
        self._kept: dict[int, Message] = {}
        self._kept_bytes = 0

    def admits(self, key: bytes, seq: int) -> bool:
        """Return whether a message may be looked at: whether it has its turn, or can be held back."""
        return len(self._key_of) - len(self._first) < HELD_BACK_MAX or self._first.get(key, seq) == seq

    def has_turn(self, key: bytes, message: Message, *, is_ready: bool) -> bool:
        """Return whether a message that the cursor has come to has its turn; else it is held back from now on."""
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

    def first_before(self, seq: int) -> int:
        """Return the seq that a message is held back for, 0 for none."""
        key = self._key_of.get(seq)
        first = self._first[key] if key is not None else seq
        return first if first != seq else 0

    def kept(self, seq: int) -> Message | None:
        """Return a message that had to wait, where it stayed in memory; it is let go."""
        message = self._kept.pop(seq, None)
        if message is not None:
            self._kept_bytes -= len(message.headers) + len(message.body)
        return message

    def ended(self, seqs: Iterable[int]) -> None:
        """Messages are no longer pending: what waits behind them has its turn when that is on disk."""
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
        if passed:
            self._memory.when_written(partial(self._pass_on, passed))
        if self._waits > 2 * len(self._key_of) + STALE_MAX:
            self._sweep()

    def _pass_on(self, keys: list[bytes], error: CurbstoneError | None) -> None:
        """The first of these keys are settled on disk, or that failed and is tried again."""
        if error is not None:
            if not self._memory.is_closed:
                self._memory.when_written(partial(self._pass_on, keys))
            return
        for key in keys:
            following = self._next(key)
            if following:
                self._first[key] = following
                self.held_back.discard(following)
                self._comes(following)
            else:
                del self._first[key]

    def _next(self, key: bytes) -> int:
        """Return the next seq of a key that is still pending; 0 where none waits."""
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
        """Forget entries of what was settled while it waited."""
        swept = {key: deque([seq for seq in seqs if seq in self._key_of]) for key, seqs in self._waiting.items()}
        self._waiting = {key: seqs for key, seqs in swept.items() if seqs}
        self._waits = sum(map(len, self._waiting.values()))

    def rewind(self, handed_out: set[int]) -> None:
        """The cursor begins anew: only what is handed out, or settled and not written yet, keeps its turn."""
        self._first = {key: seq for key, seq in self._first.items() if seq in handed_out or seq not in self._key_of}
        self._key_of = {seq: key for seq, key in self._key_of.items() if self._first.get(key) == seq}
        self._waiting.clear()
        self._waits = 0
        self.held_back.clear()
        self._kept.clear()
        self._kept_bytes = 0
