"""`…/count`: a subscription to the number of messages in a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError
from curbstone.stomp.session_state import SessionState

if TYPE_CHECKING:
    from curbstone.core.port import Queue
    from curbstone.stomp.destinations import Destination


class CountSubscription:
    """Sends the number of messages in a queue (rdy, wip and delayed): at once, and then whenever it changes.

    These MESSAGEs are not stored and need no ACK. While the socket is full none is sent; afterwards only the latest
    count.
    """

    def __init__(
        self, connection: SessionState, index: int, lines: str, queue: Queue, destination: Destination
    ) -> None:
        self._connection = connection
        self.destination = destination
        self._start = f"MESSAGE\n{lines}message-id:count-{index}-"
        self._sent = 0
        self._last = -1
        self._queue = queue
        self._unwatch = self._queue.watch(self.changed)
        if connection.access.shares_queues:  # the counts known here may be out of date
            queue.refresh(self._refreshed)
        else:
            self.changed()

    def _refreshed(self, _error: CurbstoneError | None) -> None:
        self.changed()

    def changed(self) -> None:
        """Send the count if it differs from the last one sent."""
        connection = self._connection
        if connection.held or connection.ending:
            return
        counts = self._queue.counts()
        count = counts.rdy + counts.wip + counts.delayed
        if count == self._last:
            return
        self._last = count
        self._sent += 1
        body = str(count)
        connection.write(
            f"{self._start}{self._sent}\ncontent-type:text/plain\ncontent-length:{len(body)}\n\n{body}\0\n".encode()
        )

    def close(self) -> None:
        """Send no more."""
        self._unwatch()
