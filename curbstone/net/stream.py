"""One connection between the event loop and a protocol: what the connections of all protocols have in common.

The client is not read while the protocol has too much input under way, or while too much output waits for the client to
read it. On a `TurnStream`, input is handed to the protocol in turns (`fair_reader`), and output is gathered and sent in
one write at the end of the turn. If much output has gathered, it is sent at once, so that a full socket can hold back
what the rest of the turn would add. This module is independent of the protocol, and of whether its output is encrypted.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from curbstone.net.budget import Account
from curbstone.net.fair_reader import Intake, Turns
from curbstone.net.limits import TURN_OUTPUT_BYTES_MAX

if TYPE_CHECKING:
    import asyncio


class Stream(ABC):
    """A connection with back-pressure both ways; see the module's docstring. Implements `budget.Holder`."""

    _transport: asyncio.Transport

    def __init__(self, account: Account) -> None:
        """`account` has what the connection holds."""
        self.is_reading = True
        """Whether the client is read."""
        self.is_full = False
        """Whether the socket takes no more output for now."""
        self._account = account
        self._is_paused = False
        """Whether deliveries are paused because its user holds too much."""
        self._is_stopped = False
        """Whether reading is stopped because its user holds too much."""
        self._unsent_bytes_max = sys.maxsize
        """Unsent output, in bytes, beyond which the client is not read."""

    # --- what a protocol adds

    @abstractmethod
    def _hold(self) -> None:
        """Pause deliveries: the socket is full, or its user holds too much."""

    @abstractmethod
    def _go_on(self) -> None:
        """Resume deliveries after `_hold`."""

    @abstractmethod
    def _is_congested(self) -> bool:
        """Return whether so much input is under way that the client must not be read."""

    @abstractmethod
    def reading(self, on: bool) -> None:
        """Note that reading stopped or continued: a client that is not read can't be late."""

    # --- pressure

    def pause_writing(self) -> None:
        """Called by asyncio: the socket is full."""
        self.is_full = True
        self._account.hold_output(self._transport.get_write_buffer_size())
        self._hold()
        self._adjust_flow()

    def resume_writing(self) -> None:
        """Called by asyncio: the socket takes output again."""
        self.is_full = False
        self._account.hold_output(0)
        if not self._is_paused:
            self._go_on()
        self._adjust_flow()

    def pause_output(self) -> None:
        """See `budget.Holder`."""
        self._is_paused = True
        self._hold()
        self._adjust_flow()

    def resume_output(self) -> None:
        """See `budget.Holder`."""
        self._is_paused = False
        if not self.is_full:
            self._go_on()
        self._adjust_flow()

    def pause_input(self) -> None:
        """See `budget.Holder`."""
        self._is_stopped = True
        self._adjust_flow()

    def resume_input(self) -> None:
        """See `budget.Holder`."""
        self._is_stopped = False
        self._adjust_flow()

    def _adjust_flow(self) -> None:
        """Start or stop reading, depending on the protocol and the socket."""
        transport = self._transport
        if transport.is_closing():
            return
        full = self.is_full and (self._is_paused or transport.get_write_buffer_size() > self._unsent_bytes_max)
        reading = not (full or self._is_stopped or self._is_congested())
        if reading == self.is_reading:
            return
        self.is_reading = reading
        self.reading(reading)
        if reading:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def abort(self) -> None:
        """Cut the connection."""
        self._transport.abort()


class TurnStream(Stream):
    """A connection whose input is handed on in turns, and whose output of a turn leaves in one write."""

    def __init__(self, loop: asyncio.AbstractEventLoop, turns: Turns, account: Account) -> None:
        """`turns` are shared by everything that is read in the process."""
        super().__init__(account)
        self._call_soon = loop.call_soon
        self._intake = Intake(turns, self)
        self._flush_due = False
        self._gathered_bytes = 0
        """The bytes of output since the last flush."""

    # --- what a protocol adds

    @abstractmethod
    def take(self, data: bytes) -> None:
        """Carry out input; see `fair_reader.Receiver`."""

    @abstractmethod
    def _flush(self) -> None:
        """Send all output in one write. Must first set `_flush_due` to False and `_gathered_bytes` to 0."""

    @abstractmethod
    def _has_too_much(self) -> bool:
        """Return whether the protocol has so much input under way that the client must not be read."""

    # --- input

    def caught_up(self) -> None:
        """No input waits for its turn any more; see `fair_reader.Receiver`."""
        self._adjust_flow()

    def _is_congested(self) -> bool:
        return self._intake.is_waiting or self._has_too_much()

    # --- output

    def changed(self, more_bytes: int = 0) -> None:
        """Note `more_bytes` of new output, or the end: flush at the end of the turn, or at once if it is much."""
        self._gathered_bytes += more_bytes
        if self._gathered_bytes > TURN_OUTPUT_BYTES_MAX:
            self._flush()
        elif not self._flush_due:
            self._flush_due = True
            self._call_soon(self._flush)
