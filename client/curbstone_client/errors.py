"""What can go wrong, as a tree::

    ClientError
    ├── CantConnect        no connection within `connect_timeout`, or the server refused the login
    ├── Refused            the server said no: nothing of it was stored or changed. `status` as in HTTP
    │   ├── QueueFull      507, with `retry_after`
    │   ├── TooLarge       413
    │   ├── NoSuchQueue    404
    │   └── NotAllowed     401, 403
    ├── NotSupported       501, or this address can't do it
    ├── Unknown            given up before the answer came: it may have been stored
    ├── Stale              the delivery ended before it was settled; the message comes again
    └── Closed             the client was closed

A handler of a worker raises these two to say how a delivery ends: `Reject`, `Retry`.
"""

from __future__ import annotations


class ClientError(Exception):
    """Base of all errors of this library."""


class CantConnect(ClientError):
    """There is no connection, and the text says why."""

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after
        """Seconds after which the server wants it tried again; None where it did not say."""


class Refused(ClientError):
    """The server refused: nothing of it was stored."""

    def __init__(self, text: str, status: int = 400, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.status = status
        """As in HTTP."""
        self.retry_after = retry_after
        """Seconds after which it may go; None where the server did not say."""


class QueueFull(Refused):
    """The message does not fit under the queue's cap."""


class TooLarge(Refused):
    """The message is larger than the queue or the server takes."""


class NoSuchQueue(Refused):
    """The queue is not there."""


class NotAllowed(Refused):
    """The login lacks the right."""


class NotSupported(ClientError):
    """The server, or this address of it, can't do that."""


class Unknown(ClientError):
    """Given up before the answer came: it may have been stored, or not."""


class Stale(ClientError):
    """The delivery ended before it was settled: nothing was sent, and the message comes again."""


class Closed(ClientError):
    """The client was closed."""


class Reject(Exception):
    """Raised by a handler: the message goes to the dead-letter queue, with this text as the reason."""


class Retry(Exception):
    """Raised by a handler: the message comes again after `delay` seconds."""

    def __init__(self, delay: float = 0, reason: str = "") -> None:
        super().__init__(reason or f"again in {delay} s")
        self.delay = delay


_BY_STATUS: dict[int, type[Refused]] = {
    401: NotAllowed,
    403: NotAllowed,
    404: NoSuchQueue,
    413: TooLarge,
    507: QueueFull,
}


def refusal(status: int, text: str, retry_after: float | None = None) -> ClientError:
    """Return the error for a status as in HTTP."""
    if status == 501:
        return NotSupported(text)
    if status == 410:
        return Stale(text)
    return _BY_STATUS.get(status, Refused)(text, status, retry_after)
