"""Processes input in slices, so that no connection delays the others for long. Does not handle sockets.

The cost of input is known only after it was processed: one message can take as long as a thousand requests. So the cost
per byte is measured for each connection, and the size of its next slice is chosen accordingly.

In one turn of the event loop, all input together may take `TURN_US` and have `TURN_BYTES`. Small reads never wait. A
larger read that finds the turn used up is queued; meanwhile its connection is not read, and the next turn begins with
the queue. If a turn takes too long, the following ones are shorter. If there is nothing else to do, the next turn
begins at once. While only one connection sends, its turns are long, because input that is processed together is
committed together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

TURN_US = 2_000
"""How long all input of one turn may take. A small request needs four or five turns until it is answered."""
TURN_BYTES = 1024 * 1024
"""The most bytes of one turn. More would idle the disk: only after the turn does the event loop learn that a commit has
completed, and start the next one."""
ALONE_US = 50_000
"""How long a turn may take while only one connection sends."""
SHARED_US = 100_000
"""How long turns stay short after input arrived from a second connection."""
SMALL_US = 200
"""A read whose estimated cost is below this never waits, unless it is longer than `FIRST_BYTES`."""
SMALL_BYTES = 1024
"""A read up to this size never waits, whatever its connection sent before. This is also the smallest slice."""
COUNTED_US = 50
"""A short read that took less is not counted, so that the usual small read does not cost the loop another turn."""
UNKNOWN_US_PER_BYTE = 3.0
"""The assumed cost for a connection that has sent nothing yet: about that of SUBSCRIBEs, which cost 3 to 5."""
FIRST_BYTES = 16 * 1024
"""The longest first slice of a read while turns are shared. Each further slice may be longer by three times the length
of all slices before it. The limit exists because bytes may cost more than those before them."""


class Clock(Protocol):
    """The methods of the host that are used here."""

    def now_us(self) -> int:
        """Return a monotonic time in microseconds."""

    def call_soon(self, fn: Callable[[], object]) -> object:
        """Call `fn` in the next turn."""


class Receiver(Protocol):
    """A connection whose input passes through an `Intake`."""

    def take(self, data: bytes) -> None:
        """Process input: the bytes of the stream in order, cut anywhere."""

    def caught_up(self) -> None:
        """Resume reading, because no input waits any more."""

    def abort(self) -> None:
        """Abort the connection, because processing its input raised an exception, which is a bug."""


class Turns:
    """The turns that all connections of the process share."""

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
        """How long further input may take in this turn."""
        return 0 if self._spent_bytes >= TURN_BYTES else self._turn_us - self._spent_us

    @property
    def is_shared(self) -> bool:
        """Whether more than one connection is sending."""
        return len(self._queue) > 1 or self.now_us() < self._shared_until_us

    @property
    def _turn_us(self) -> int:
        return TURN_US if self.is_shared else ALONE_US

    def switch_to(self, intake: Intake) -> None:
        """Note that input arrives from a different connection than before."""
        if self.last is not None:
            self._shared_until_us = self.now_us() + SHARED_US
        self.last = intake

    def spend(self, took_us: int, size: int) -> None:
        """Count the cost of processed input."""
        self._spent_us += took_us
        self._spent_bytes += size
        self._next_soon()

    def wait(self, intake: Intake) -> None:
        """Add a connection at the end of the queue."""
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
    """Passes the input of one connection to its `receiver`. While input waits here, the connection must not be read."""

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
        """Pass input to the receiver, or as much of it as fits into this turn."""
        size = len(data)
        if self._turns.last is not self:
            self._turns.switch_to(self)
        if self._held:
            self._held = self._held[self._held_from :] + data
            self._held_from = 0
        elif size <= SMALL_BYTES:
            self._receiver.take(data)  # not measured: most connections send one small request at a time
        elif size <= FIRST_BYTES and size * self._us_per_byte <= SMALL_US:
            self._pass(data)
        else:
            self._pass_in_turn(data, 0)

    def resume(self) -> None:
        """Pass the waiting input on, because it is this connection's turn."""
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
        """Drop the waiting input and the receiver, because the connection is closed."""
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
        # A read of a few bytes says little about the cost of many. A higher cost takes effect at once and a lower one
        # gradually, so that a client can't send cheap bytes first to get expensive ones through.
        us_per_byte = max(took_us, 1) / max(len(data), SMALL_BYTES)
        self._us_per_byte = max(us_per_byte, (self._us_per_byte + us_per_byte) / 2)
        if took_us >= COUNTED_US or len(data) > FIRST_BYTES:
            self._turns.spend(took_us, len(data))
