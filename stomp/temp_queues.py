"""Private queues: those of `/topic/…` subscriptions and `/temp-queue/…`, which are deleted with their connection.

A slow subscriber must neither block publishers nor fill the disk. So a private queue has a cap, and the first message
that does not fit ends the queue (`Broker.left_out`): its subscriber gets an ERROR and its connection is closed. The
publisher gets no error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from curbstone.access.errors import TooMany
from curbstone.core.errors import CurbstoneError, QueueFull
from curbstone.core.names import QueueName
from curbstone.stomp.errors import ProtocolError
from curbstone.stomp.session_state import SessionState

if TYPE_CHECKING:
    from curbstone.core.port import Queue


def make(connection: SessionState, name: QueueName) -> Queue:
    """Return a private queue of the connection, created if needed; raise TooMany."""
    most = connection.limits.private_max
    if name not in connection.private and len(connection.private) >= most:
        raise TooMany(f"a connection has at most {most} temporary queues and topics")

    def stored(error: CurbstoneError | None) -> None:
        if error is not None and not connection.lost:
            connection.fail(error)

    queue = connection.access.private(name, {"cap": connection.limits.private_cap}, stored)
    connection.private.add(name)
    return queue


def subscriber_error(error: CurbstoneError, connection: SessionState) -> CurbstoneError | ProtocolError:
    """Return the error for the subscriber of a private queue that the engine ended with `error`."""
    if isinstance(error, QueueFull):
        cap = connection.limits.private_cap
        return ProtocolError(f"the subscriber is too slow: its queue is at its cap of {cap} bytes")
    return error
