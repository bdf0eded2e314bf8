"""The errors of this library::

    ClientError
    ├── CantConnect        no connection within `connect_timeout`
    ├── Refused            the server refused: nothing was stored or changed. `status` is as in HTTP
    │   ├── QueueFull      507, with `retry_after`
    │   ├── TooLarge       413
    │   ├── NoSuchQueue    404
    │   └── NotAllowed     401, 403
    ├── NotSupported       501, or not at this address
    ├── Unknown            no reply in time: the message may have been stored, or not
    ├── Stale              the delivery ended before it was settled; the message is redelivered
    └── Closed             the client was closed

A worker's handler raises `Reject` or `Retry` to settle its delivery; these are not a `ClientError`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random


class ClientError(Exception):
    """Base class of all errors of this library."""


class CantConnect(ClientError):
    """No connection could be made; the text says why."""

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after
        """The server's Retry-After in seconds; None without one."""


class Refused(ClientError):
    """The server refused the message or the call: nothing was stored or changed."""

    def __init__(self, text: str, status: int = 400, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.status = status
        """The HTTP status code."""
        self.retry_after = retry_after
        """The server's Retry-After in seconds; None without one."""


class QueueFull(Refused):
    """The message does not fit under the queue's cap."""


class TooLarge(Refused):
    """The message is larger than the queue or the server accepts."""


class NoSuchQueue(Refused):
    """The queue does not exist."""


class NotAllowed(Refused):
    """The login is wrong, or does not have the right."""


class NotSupported(ClientError):
    """The server does not support this, or not at this address."""


class Unknown(ClientError):
    """No reply before the timeout, the loss of the connection or `close`: it may have been stored, or not."""


class Stale(ClientError):
    """The delivery ended before it was settled: nothing was sent, and the message is redelivered."""


class Closed(ClientError):
    """The client was closed."""


class Reject(Exception):
    """Raised by a handler: the message is dead-lettered, with this text as the reason."""


class Retry(Exception):
    """Raised by a handler: the message is redelivered after `delay` seconds."""

    def __init__(self, delay: float = 0, reason: str = "") -> None:
        super().__init__(reason or f"retry in {delay} s")
        self.delay = delay


RETRY_DELAY_S_MAX = 300.0

_chance = Random()
"""A separate generator, so that an application that seeds the global one is not affected."""

_BY_STATUS: dict[int, type[Refused]] = {
    401: NotAllowed,
    403: NotAllowed,
    404: NoSuchQueue,
    413: TooLarge,
    507: QueueFull,
}


def refusal(status: int, text: str, retry_after: float | None = None) -> ClientError:
    """Return the error of an HTTP status code."""
    if status == 501:
        return NotSupported(text)
    if status == 410:
        return Stale(text)
    return _BY_STATUS.get(status, Refused)(text, status, retry_after)


def detail_of(body: bytes) -> str:
    """Return the text of an error reply: the `detail` of a problem in JSON, or the start of any other text."""
    try:
        problem = json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")[:300].strip()
    return str(problem.get("detail", "")) if isinstance(problem, dict) else ""


def is_standby(body: bytes) -> bool:
    """Return whether an error reply is the problem of a standby, which does not serve."""
    try:
        problem = json.loads(body)
    except ValueError:
        return False
    return isinstance(problem, dict) and str(problem.get("type", "")).endswith("#standby")


@dataclass(frozen=True, slots=True)
class End:
    """How a delivery is settled whose handler raised: rejected, or requeued after `delay` seconds."""

    reject: bool
    delay: float | None
    reason: str


def end_of(error: BaseException, tries: int) -> End:
    """Return how a delivery is settled whose handler raised this error.

    The message is redelivered after 1, 2, 4 … 300 s (± 15 %), unless the error is a `Reject` or a `Retry`.
    """
    if isinstance(error, Reject):
        return End(True, None, str(error) or "rejected")
    if isinstance(error, Retry):
        return End(False, error.delay, str(error))
    delay = min(RETRY_DELAY_S_MAX, 2.0 ** min(tries, 20)) * _chance.uniform(0.85, 1.15)
    return End(False, delay, f"{type(error).__name__}: {error}")
