"""Private queues: those of `/topic/…` subscriptions and `/temp-queue/…`, which are deleted with their connection.

A subscriber that does not take its messages must not hold up publishers, nor use much of the disk. So a private queue
has a cap, and the first message that does not fit ends the queue (`Broker.left_out`). The subscriber then gets an ERROR
and its connection is closed, while the publisher notices nothing.
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
    """Return a private queue of the connection, and create it if needed; raise TooMany."""
    most = connection.limits.private_max
    if name not in connection.private and len(connection.private) >= most:
        raise TooMany(f"more than {most} temporary queues and topics of one connection")

    def stored(error: CurbstoneError | None) -> None:
        if error is not None and not connection.lost:
            connection.fail(error)

    queue = connection.access.private(name, {"cap": connection.limits.private_cap}, stored)
    connection.private.add(name)
    return queue


def told(error: CurbstoneError, connection: SessionState) -> CurbstoneError | ProtocolError:
    """Return the error that the subscriber of a private queue is told when the queue ends."""
    if isinstance(error, QueueFull):
        cap = connection.limits.private_cap
        return ProtocolError(
            f"the subscriber is too slow: what waits in a queue of its own takes all of its {cap} bytes"
        )
    return error
