"""Closes a connection so that the client receives all of the output.

When a socket is closed while it has unread input, the kernel sends a reset, which destroys output that the client has
not read yet. So only our half is closed, and late input is read and dropped until the client closes its own half, for a
limited time and number of bytes.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class Linger:
    """A connection in its last seconds: our half is closed, and the whole connection within a deadline."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        seconds: float,
        bytes_max: int = sys.maxsize,
    ) -> None:
        """Close our half. Abort the connection after `seconds`, or when more than `bytes_max` bytes have arrived.

        The caller continues reading, and reports what it drops to `dropped`.
        """
        self._transport = transport
        self._bytes_left = bytes_max
        self._timer = loop.call_later(seconds, transport.abort)
        with suppress(OSError):  # the client has closed both halves, which asyncio reports next
            transport.write_eof()

    def dropped(self, size: int) -> None:
        self._bytes_left -= size
        if self._bytes_left < 0:
            self._transport.abort()

    def close(self) -> None:
        """Cancel the deadline, because the connection is closed."""
        self._timer.cancel()
