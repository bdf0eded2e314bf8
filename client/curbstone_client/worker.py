"""The part of a worker that both shells share: its settings, and how messages are settled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from curbstone_client.errors import ClientError, Reject, Retry, Stale
from curbstone_client.message import BaseMessage

log = logging.getLogger("curbstone_client")

Handler = Callable[[Any], Any]

SLOW_STOP_S = 1.0
"""After so long, a stop that waits for running handlers is logged."""
SLOW_STOP = "stopping: handlers are still running; another signal ends the process at once, and their messages return"


class BaseWorker:
    """Calls a handler for the messages of a queue."""

    def __init__(
        self, client: Any, queue: str, handler: Handler, group: str | None, parallel: int, prefetch: int | None
    ) -> None:
        self._client = client
        self._queue = queue
        self._handler = handler
        self._group = group
        self._parallel = parallel
        self._prefetch = prefetch or 2 * parallel
        self._messages: Any = None

    def _subscribe(self) -> Any:
        self._messages = self._client.queue(self._queue).consume(self._prefetch, group=self._group)
        return self._messages

    def stop(self) -> None:
        """Take no more messages. Those that no handler has begun return to the queue."""
        messages, self._messages = self._messages, None
        if messages is not None:
            self._client.end(messages)

    def _failed(self, message: BaseMessage[Any], error: BaseException) -> None:
        """End a message whose handler raised this error."""
        log_failure(self._queue, message, error)
        self._give_back(message, error)

    def _not_ended(self, message: BaseMessage[Any], error: ClientError) -> None:
        """Log that a handled message could not be replied to or acked."""
        if isinstance(error, Stale):
            text = "%s: the connection was lost while %r was handled; it is redelivered"
            log.info(text, self._queue, message)
        else:
            log.warning("%s: %r was handled, but could not be answered or acked: %s", self._queue, message, error)
            self._give_back(message, error)

    @staticmethod
    def _give_back(message: BaseMessage[Any], error: BaseException) -> None:
        try:
            if not message.is_stale:
                message.give_back(error)
        except Stale:
            pass  # with threads, the delivery may end between the two calls


def log_failure(queue: str, message: BaseMessage[Any], error: BaseException) -> None:
    """Log the error of a handler, with its traceback unless it is a `Reject` or a `Retry`."""
    if isinstance(error, Exception) and not isinstance(error, Reject | Retry):
        log.error("%s: the handler failed for %r", queue, message, exc_info=error)
    else:
        log.info("%s: %r was requeued: %s: %s", queue, message, type(error).__name__, error)


def poison_warning(queue: str, info: Mapping[str, Any]) -> str | None:
    """Return a warning if a message that always fails would be redelivered forever, or None."""
    options = info.get("options", info)
    if options.get("max_tries") or options.get("dead_letter"):
        return None
    return f"queue {queue} has neither max_tries nor dead_letter: a message that always fails is redelivered forever"
