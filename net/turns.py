"""Turns: what connections send is taken so that none of them holds up the others for long. Knows no sockets.

How long bytes take is only known when they have been carried out: one message can be as long as a thousand requests.
So the cost of a byte is measured for each connection, and what it sends next is cut into pieces by that measure.

In one turn of the loop all reads together may take `TURN_US`. Small reads never wait. A larger one that finds the turn
used up waits in a line; its connection is not read meanwhile, and it is the first in the next turn. If a turn took too
long the next ones are shorter. If nobody else has anything to do the next turn comes at once. While only one connection
sends anything its turns are long, because what is carried out together is committed together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

TURN_US = 2_000
"""What all reads of one turn may take together. A small request passes four or five turns until it is answered."""
ALONE_US = 100_000
"""What they may take while only one connection sends anything."""
SHARED_US = 100_000
"""How long after another connection sent something the turns are shared."""
SMALL_US = 200
"""What probably takes no longer never waits, unless it is longer than `FIRST_BYTES`."""
SMALL_BYTES = 1024
"""What is no longer never waits either, whatever its connection sent before; nothing is cut smaller."""
COUNTED_US = 50
"""What took less is not counted, so that the usual small read costs the loop no turn more."""
UNKNOWN_US_PER_BYTE = 1.0
"""Of a connection that has sent nothing yet."""
FIRST_BYTES = 16 * 1024
"""While turns are shared the first piece of what was read is no longer, and each other at most three times as long as
all before: bytes may cost more than those that came last."""


class Clock(Protocol):
    """What is used of the host."""

    def now_us(self) -> int:
        """Microseconds of a clock that never jumps."""

    def call_soon(self, fn: Callable[[], object]) -> object:
        """Call `fn` in the next turn."""


class Taker(Protocol):
    """A connection."""

    def take(self, data: bytes) -> None:
        """Carry out what was read; called for the bytes of the stream in their order, cut anywhere."""

    def caught_up(self) -> None:
        """Nothing waits any more: read on."""

    def abort(self) -> None:
        """Cut the connection: there is a bug in what it asked for."""


class Turns:
    """The turns of all connections of the process."""

    def __init__(self, clock: Clock) -> None:
        self.now_us = clock.now_us
        self._call_soon = clock.call_soon
        self._line: deque[Intake] = deque()
        self._spent_us = 0
        self._is_due = False
        self.last: Intake | None = None
        """Whose bytes came last."""
        self._shared_until_us = 0

    @property
    def left_us(self) -> int:
        """What reads may still take in this turn."""
        return self._turn_us - self._spent_us

    @property
    def is_shared(self) -> bool:
        """Whether more than one connection sends something."""
        return len(self._line) > 1 or self.now_us() < self._shared_until_us

    @property
    def _turn_us(self) -> int:
        return TURN_US if self.is_shared else ALONE_US

    def comes(self, intake: Intake) -> None:
        """Bytes come from another connection than the last ones."""
        if self.last is not None:
            self._shared_until_us = self.now_us() + SHARED_US
        self.last = intake

    def spend(self, took_us: int) -> None:
        """Count what a read took."""
        self._spent_us += took_us
        self._next_soon()

    def wait(self, intake: Intake) -> None:
        """Put a connection at the end of the line."""
        self._line.append(intake)
        self._next_soon()

    def _next_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._call_soon(self._next)

    def _next(self) -> None:
        self._is_due = False
        self._spent_us = max(0, self._spent_us - self._turn_us)
        line = self._line
        try:
            for _ in range(len(line)):
                if self.left_us <= 0:
                    break
                line.popleft().go_on()
        finally:
            if line or self._spent_us:
                self._next_soon()


class Intake:
    """What one connection sends, on its way to `taker`, which is not to be read while something waits."""

    def __init__(self, turns: Turns, taker: Taker) -> None:
        self._turns = turns
        self._taker: Taker = taker
        self._us_per_byte = UNKNOWN_US_PER_BYTE
        self._held = b""
        self._held_from = 0

    @property
    def is_waiting(self) -> bool:
        """Whether something that was read waits for its turn."""
        return bool(self._held)

    def receive(self, data: bytes) -> None:
        """Hand on what was read, or as much as this turn has room for."""
        size = len(data)
        if self._turns.last is not self:
            self._turns.comes(self)
        if self._held:
            self._held = self._held[self._held_from :] + data
            self._held_from = 0
        elif size <= SMALL_BYTES:
            self._taker.take(data)  # not even measured: a request at a time is what most connections send
        elif size <= FIRST_BYTES and size * self._us_per_byte <= SMALL_US:
            self._hand_on(data)
        else:
            self._hand_on_in_turn(data, 0)

    def go_on(self) -> None:
        """It is this connection's turn."""
        data, self._held = self._held, b""
        if not data:
            return
        if self._turns.last is not self:
            self._turns.comes(self)
        try:
            self._hand_on_in_turn(data, self._held_from)
        except BaseException:
            self._taker.abort()
            raise
        if not self._held:
            self._taker.caught_up()

    def close(self) -> None:
        """Forget what waits, and the taker: the connection is gone."""
        self._held = b""
        del self._taker  # the two hold each other
        if self._turns.last is self:
            self._turns.last = None

    def _hand_on_in_turn(self, data: bytes, start: int) -> None:
        size = len(data)
        first = start
        while start < size:
            left_us = self._turns.left_us
            if left_us <= 0:
                self._held = data
                self._held_from = start
                self._turns.wait(self)
                return
            most = FIRST_BYTES + 3 * (start - first) if self._turns.is_shared else size
            end = start + max(SMALL_BYTES, min(most, int(left_us / self._us_per_byte)))
            self._hand_on(data[start:end])
            start = end

    def _hand_on(self, data: bytes) -> None:
        now_us = self._turns.now_us
        started_us = now_us()
        self._taker.take(data)
        took_us = now_us() - started_us
        # A read of a few bytes says little about what many cost. A higher cost counts at once and a lower one little by
        # little, so that a client can't send cheap bytes first to get costly ones through.
        us_per_byte = max(took_us, 1) / max(len(data), SMALL_BYTES)
        self._us_per_byte = max(us_per_byte, (self._us_per_byte + us_per_byte) / 2)
        if took_us >= COUNTED_US:
            self._turns.spend(took_us)
