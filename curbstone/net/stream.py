"""The base of the connections of all protocols: flow control between the socket and the protocol.

The client is not read while too much of its input is being processed, or while too much output waits to be read. On a
`TurnStream`, input is passed on in turns (`fair_reader`), and the output of a turn is sent in one write. Much output is
sent at once, so that a full socket can hold back the rest of the turn.
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
    """A connection with back-pressure in both directions. Implements `budget.Holder`."""

    _transport: asyncio.Transport

    def __init__(self, account: Account) -> None:
        self.is_reading = True
        self.is_full = False
        """Whether the socket accepts no output at present."""
        self._account = account
        self._is_paused = False
        """Whether deliveries are paused because the share of its user is used up."""
        self._is_stopped = False
        """Whether reading is stopped because the share of its user is used up."""
        self._unsent_bytes_max = sys.maxsize
        """Unsent output, in bytes, above which the client is not read."""

    # --- implemented by protocols

    @abstractmethod
    def _pause_deliveries(self) -> None:
        """Pause deliveries."""

    @abstractmethod
    def _resume_deliveries(self) -> None:
        """Resume deliveries."""

    @abstractmethod
    def _is_congested(self) -> bool:
        """Return whether so much input is being processed that the client must not be read."""

    @abstractmethod
    def reading(self, on: bool) -> None:
        """Note that reading stopped or resumed: a client that is not read can't be late."""

    # --- flow control

    def pause_writing(self) -> None:
        self.is_full = True
        self._account.hold_output(self._transport.get_write_buffer_size())
        self._pause_deliveries()
        self._adjust_flow()

    def resume_writing(self) -> None:
        self.is_full = False
        self._account.hold_output(0)
        if not self._is_paused:
            self._resume_deliveries()
        self._adjust_flow()

    def pause_output(self) -> None:
        self._is_paused = True
        self._pause_deliveries()
        self._adjust_flow()

    def resume_output(self) -> None:
        self._is_paused = False
        if not self.is_full:
            self._resume_deliveries()
        self._adjust_flow()

    def pause_input(self) -> None:
        self._is_stopped = True
        self._adjust_flow()

    def resume_input(self) -> None:
        self._is_stopped = False
        self._adjust_flow()

    def _adjust_flow(self) -> None:
        """Start or stop reading, as the protocol and the socket require."""
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
        self._transport.abort()


class TurnStream(Stream):
    """A connection whose input is processed in turns, and whose output of a turn is sent in one write."""

    def __init__(self, loop: asyncio.AbstractEventLoop, turns: Turns, account: Account) -> None:
        """All connections of the process share `turns`."""
        super().__init__(account)
        self._call_soon = loop.call_soon
        self._intake = Intake(turns, self)
        self._flush_due = False
        self._gathered_bytes = 0
        """The bytes of output since the last flush."""

    # --- implemented by protocols

    @abstractmethod
    def take(self, data: bytes) -> None:
        """See `fair_reader.Receiver`."""

    @abstractmethod
    def _flush(self) -> None:
        """Send all output in one write. Must first set `_flush_due` to False and `_gathered_bytes` to 0."""

    @abstractmethod
    def _has_too_much(self) -> bool:
        """Return whether so much input is being processed that the client must not be read."""

    # --- input

    def caught_up(self) -> None:
        self._adjust_flow()

    def _is_congested(self) -> bool:
        return self._intake.is_waiting or self._has_too_much()

    # --- output

    def changed(self, more_bytes: int = 0) -> None:
        """Flush new output, or the end of the output, at the end of the turn, or at once if it is large."""
        self._gathered_bytes += more_bytes
        if self._gathered_bytes > TURN_OUTPUT_BYTES_MAX:
            self._flush()
        elif not self._flush_due:
            self._flush_due = True
            self._call_soon(self._flush)
