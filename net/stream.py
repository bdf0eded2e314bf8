"""One connection between the event loop and a protocol, both ways: what every protocol's connections have in common.

What comes is handed on in turns (`turns`), and not read while the protocol has too much of it on its way or while too
much output waits for the client to read. What goes out is gathered for the end of the turn and sent in one write; once
that is too much it is sent before, so that a full socket holds back what the rest of the turn would bring. It knows no
protocol, and not whether what is sent is encrypted on the way.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from curbstone.net.limits import TURN_OUTPUT_BYTES_MAX
from curbstone.net.turns import Intake, Turns


class Loop(Protocol):
    """What is used of an event loop."""

    def call_soon(self, callback: Callable[[], object]) -> object:
        """Call it in the next turn."""


class Transport(Protocol):
    """What is used of a transport."""

    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""

    def get_write_buffer_size(self) -> int:
        """How much of what was written waits for the client to read."""

    def pause_reading(self) -> object:
        """Read no more."""

    def resume_reading(self) -> object:
        """Read on."""

    def abort(self) -> object:
        """Close at once."""


class Stream(ABC):
    """See the module's docstring."""

    _transport: Transport

    def __init__(self, loop: Loop, turns: Turns) -> None:
        """`turns`: those of all that is read in the process."""
        self._call_soon = loop.call_soon
        self._intake = Intake(turns, self)
        self._flush_due = False
        self._gathered_bytes = 0
        """How much output has come since the last flush."""
        self._is_reading = True
        self._is_full = False
        self._unsent_bytes_max = sys.maxsize
        """Unsent output at which the client is not read."""

    # --- what a protocol adds

    @abstractmethod
    def take(self, data: bytes) -> None:
        """Carry out what was read; see `turns.Taker`."""

    @abstractmethod
    def _flush(self) -> None:
        """Send all output there is in one write. Must set `_flush_due` to False and `_gathered_bytes` to 0 first."""

    @abstractmethod
    def _hold(self) -> None:
        """Deliver nothing more: the socket is full."""

    @abstractmethod
    def _go_on(self) -> None:
        """Go on after `_hold`."""

    @abstractmethod
    def _is_congested(self) -> bool:
        """Return whether too much of what came is on its way to read on."""

    @abstractmethod
    def reading(self, on: bool) -> None:
        """Reading stopped, or goes on: a client that is not read can't be late."""

    # --- pressure

    def pause_writing(self) -> None:
        """The socket is full."""
        self._is_full = True
        self._hold()
        self._steer()

    def resume_writing(self) -> None:
        """The socket takes more."""
        self._is_full = False
        self._go_on()
        self._steer()

    def caught_up(self) -> None:
        """Nothing waits any more; see `turns.Taker`."""
        self._steer()

    def _steer(self) -> None:
        """Read or do not read, as the protocol, the socket and the turns can take it."""
        transport = self._transport
        if transport.is_closing():
            return
        full = self._is_full and transport.get_write_buffer_size() > self._unsent_bytes_max
        reading = not (full or self._intake.is_waiting or self._is_congested())
        if reading == self._is_reading:
            return
        self._is_reading = reading
        self.reading(reading)
        if reading:
            transport.resume_reading()
        else:
            transport.pause_reading()

    # --- output

    def changed(self, more_bytes: int = 0) -> None:
        """There is so much more output, or the end: flush once for all of this turn, or at once what is too much."""
        self._gathered_bytes += more_bytes
        if self._gathered_bytes > TURN_OUTPUT_BYTES_MAX:
            self._flush()
        elif not self._flush_due:
            self._flush_due = True
            self._call_soon(self._flush)

    def abort(self) -> None:
        """Cut the connection."""
        self._transport.abort()
