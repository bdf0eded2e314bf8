"""The end of a connection, so that the client really gets the last of the output.

Closing a socket with unread input makes the kernel send a reset, which destroys what the client has not read yet. So
only our half is closed; what still comes is read and dropped until the client closes its own, within bounds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> object:
        """Make it not happen."""


class Loop(Protocol):
    """What is used of an event loop."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call back after so many seconds."""


class Transport(Protocol):
    """What is used of a transport."""

    def write_eof(self) -> object:
        """Close our half behind what was written."""

    def abort(self) -> object:
        """Close at once."""


class Linger:
    """Our half is closed with the first call, and the other one in time."""

    def __init__(self, transport: Transport, loop: Loop, seconds: float, bytes_max: int = sys.maxsize) -> None:
        """Close our half; the client has so many seconds and bytes. The caller reads on, and says so in `dropped`."""
        self._transport = transport
        self._bytes_left = bytes_max
        self._timer = loop.call_later(seconds, transport.abort)
        with suppress(OSError):  # the client has closed both halves, and we are about to hear of it
            transport.write_eof()

    def dropped(self, size: int) -> None:
        """So much came that nobody wants."""
        self._bytes_left -= size
        if self._bytes_left < 0:
            self._transport.abort()

    def close(self) -> None:
        """The connection is closed."""
        self._timer.cancel()
