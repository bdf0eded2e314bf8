"""Turns: input is carried out in such pieces that no connection delays the others for long. Does not handle sockets.

How long a piece of input takes is known only after it was carried out: one message can take as long as a thousand
requests. So the cost of a byte is measured for each connection, and the connection's next input is cut by that measure.

In one turn of the loop, all input together may take `TURN_US` and have `TURN_BYTES`. Small reads never wait. A larger
read that finds the turn used up waits in a line; meanwhile its connection is not read, and the next turn begins with
those in the line. If a turn takes too long, the following ones are shorter. If nothing else is to be done, the next
turn begins at once. While only one connection sends anything, its turns are long, because input that is carried out
together is committed together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

TURN_US = 2_000
"""How long all input of one turn may take. A small request needs four or five turns until it is answered."""
TURN_BYTES = 1024 * 1024
"""After so many bytes a turn is over, too. If more were read, the disk would wait: only after the turn the loop hears
that a commit has ended, and begins the next."""
ALONE_US = 50_000
"""How long a turn may take while only one connection sends anything."""
SHARED_US = 100_000
"""How long turns stay short after input arrived from a second connection."""
SMALL_US = 200
"""A read that probably takes no longer than this never waits, unless it is longer than `FIRST_BYTES`."""
SMALL_BYTES = 1024
"""A read that is no longer than this never waits, whatever its connection sent before. Nothing is cut smaller."""
COUNTED_US = 50
"""A short read that took less is not counted, so that the usual small read does not cost the loop another turn."""
UNKNOWN_US_PER_BYTE = 3.0
"""The assumed cost for a connection that has sent nothing yet: about that of SUBSCRIBEs, which cost 3 to 5."""
FIRST_BYTES = 16 * 1024
"""The longest first piece of a read while turns are shared. Each further piece may be longer by three times the length
of all pieces before it. The limit is there because bytes may cost more than those before them."""


class Clock(Protocol):
    """The part of the host that is used here."""

    def now_us(self) -> int:
        """Return the microseconds of a clock that never jumps."""

    def call_soon(self, fn: Callable[[], object]) -> object:
        """Call `fn` in the next turn."""


class Receiver(Protocol):
    """The connection that an intake hands its input to."""

    def take(self, data: bytes) -> None:
        """Carry out input. Called with the bytes of the stream in order, cut anywhere."""

    def caught_up(self) -> None:
        """No input waits any more, so the connection can be read again."""

    def abort(self) -> None:
        """Abort the connection: carrying out its input raised an exception, which is a bug."""


class Turns:
    """The turns of all connections of the process."""

    def __init__(self, clock: Clock) -> None:
        self.now_us = clock.now_us
        self._call_soon = clock.call_soon
        self._queue: deque[Intake] = deque()
        self._spent_us = 0
        self._spent_bytes = 0
        self._is_due = False
        self.last: Intake | None = None
        """The connection whose input arrived last."""
        self._shared_until_us = 0

    @property
    def left_us(self) -> int:
        """How long input may still take in this turn."""
        return 0 if self._spent_bytes >= TURN_BYTES else self._turn_us - self._spent_us

    @property
    def is_shared(self) -> bool:
        """Whether more than one connection sends something."""
        return len(self._queue) > 1 or self.now_us() < self._shared_until_us

    @property
    def _turn_us(self) -> int:
        return TURN_US if self.is_shared else ALONE_US

    def switch_to(self, intake: Intake) -> None:
        """Note that input arrives from another connection than the last input."""
        if self.last is not None:
            self._shared_until_us = self.now_us() + SHARED_US
        self.last = intake

    def spend(self, took_us: int, size: int) -> None:
        """Count how long a piece of input took, and its bytes."""
        self._spent_us += took_us
        self._spent_bytes += size
        self._next_soon()

    def wait(self, intake: Intake) -> None:
        """Put a connection at the end of the line."""
        self._queue.append(intake)
        self._next_soon()

    def _next_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._call_soon(self._next)

    def _next(self) -> None:
        self._is_due = False
        self._spent_us = max(0, self._spent_us - self._turn_us)
        self._spent_bytes = 0
        queue = self._queue
        try:
            for _ in range(len(queue)):
                if self.left_us <= 0:
                    break
                queue.popleft().resume()
        finally:
            if queue or self._spent_us:
                self._next_soon()


class Intake:
    """The input of one connection, for its `receiver`. While input waits here, the connection must not be read."""

    def __init__(self, turns: Turns, receiver: Receiver) -> None:
        self._turns = turns
        self._receiver: Receiver = receiver
        self._us_per_byte = UNKNOWN_US_PER_BYTE
        self._held = b""
        self._held_from = 0

    @property
    def is_waiting(self) -> bool:
        """Whether input waits for its turn."""
        return bool(self._held)

    def receive(self, data: bytes) -> None:
        """Pass input to the receiver, or as much of it as this turn has room for."""
        size = len(data)
        if self._turns.last is not self:
            self._turns.switch_to(self)
        if self._held:
            self._held = self._held[self._held_from :] + data
            self._held_from = 0
        elif size <= SMALL_BYTES:
            self._receiver.take(data)  # not even measured: most connections send one small request at a time
        elif size <= FIRST_BYTES and size * self._us_per_byte <= SMALL_US:
            self._pass(data)
        else:
            self._pass_in_turn(data, 0)

    def resume(self) -> None:
        """Pass on the waiting input: it is this connection's turn."""
        data, self._held = self._held, b""
        if not data:
            return
        if self._turns.last is not self:
            self._turns.switch_to(self)
        try:
            self._pass_in_turn(data, self._held_from)
        except BaseException:
            self._receiver.abort()
            raise
        if not self._held:
            self._receiver.caught_up()

    def close(self) -> None:
        """Drop the waiting input and the receiver: the connection is closed."""
        self._held = b""
        del self._receiver  # breaks the reference cycle between the two
        if self._turns.last is self:
            self._turns.last = None

    def _pass_in_turn(self, data: bytes, start: int) -> None:
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
            self._pass(data[start:end])
            start = end

    def _pass(self, data: bytes) -> None:
        now_us = self._turns.now_us
        started_us = now_us()
        self._receiver.take(data)
        took_us = now_us() - started_us
        # A read of a few bytes says little about the cost of many. A higher cost counts at once and a lower one only
        # gradually, so that a client can't send cheap bytes first to get costly ones through.
        us_per_byte = max(took_us, 1) / max(len(data), SMALL_BYTES)
        self._us_per_byte = max(us_per_byte, (self._us_per_byte + us_per_byte) / 2)
        if took_us >= COUNTED_US or len(data) > FIRST_BYTES:
            self._turns.spend(took_us, len(data))
