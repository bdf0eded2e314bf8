"""Workers for threads: they call a handler for each message, until the process is asked to stop."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from curbstone_client import base
from curbstone_client.errors import ClientError, Stale
from curbstone_client.sync_messages import Message, Messages

if TYPE_CHECKING:
    from curbstone_client.sync import Client

log = logging.getLogger("curbstone_client")

Handler = Callable[[Message], Any]


class Worker:
    """Hands a queue's messages to a handler, in `parallel` threads.

    If the handler returns, the message is acked; the value it returned is sent to the sender of a request. If it
    raises, the message comes again after 1, 2, 4 … 300 s (give or take 15 %), the server keeps the error's text with
    it, and the error is logged with its traceback. If it raises `Reject`, the message goes to the dead-letter queue; if
    it raises `Retry`, the message comes again after that delay.
    """

    def __init__(
        self,
        client: Client,
        queue: str,
        handler: Handler,
        group: str | None,
        parallel: int,
        prefetch: int | None,
    ) -> None:
        self._client = client
        self._queue = queue
        self._handler = handler
        self._group = group
        self._parallel = parallel
        self._prefetch = prefetch or 2 * parallel
        self._messages: Messages | None = None
        self._threads: list[threading.Thread] = []
        self.error: BaseException | None = None
        """Why the worker can't go on; None while it can."""

    def start(self, failed: Callable[[], None]) -> None:
        """Subscribe to the queue and start to handle its messages.

        `failed` is called, in a thread of the worker, when the worker can't go on.
        """
        messages = self._messages = self._client.queue(self._queue).consume(self._prefetch, group=self._group)
        self._threads = [
            threading.Thread(target=self._work, args=(messages, failed), name=f"curbstone worker {self._queue}")
            for _ in range(self._parallel)
        ]
        for thread in self._threads:
            thread.start()
        self._look_at_options()

    def stop(self) -> None:
        """Take no more messages. Those that no handler has begun go back to the queue."""
        messages, self._messages = self._messages, None
        if messages is not None:
            messages.close()

    def drained(self) -> None:
        """Wait until the running handlers have finished. A handler may call this: its own thread is not waited for."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _work(self, messages: Messages, failed: Callable[[], None]) -> None:
        try:
            for message in messages:
                self._handle(message)
        except BaseException as error:
            self.error = error
            failed()

    def _handle(self, message: Message) -> None:
        try:
            result = self._handler(message)
        except Exception as error:
            self._failed(message, error)
            return
        except BaseException as error:
            self._failed(message, error)
            raise
        try:
            if result is not None and message.reply_to is not None:
                self._client.answer(message, result)
            if not message.is_settled:
                message.ack()
        except Stale:
            log.info("%s: the connection of %r was lost while it was handled; it comes again", self._queue, message)
        except ClientError as error:
            log.warning("%s: %r was handled, but could not be answered or acked: %s", self._queue, message, error)
            self._give_back(message, error)

    def _failed(self, message: Message, error: BaseException) -> None:
        base.log_failure(self._queue, message, error)
        self._give_back(message, error)

    def _give_back(self, message: Message, error: BaseException) -> None:
        try:
            if not message.is_stale:
                message.give_back(error)
        except Stale:
            pass  # the delivery ended after it was looked at

    def _look_at_options(self) -> None:
        try:
            warning = base.poison_warning(self._queue, self._client.queue(self._queue).info())
        except ClientError:
            return  # no HTTP, or no right to look; the warning is only a hint
        if warning:
            log.warning("%s", warning)


def run_until_signal(workers: Sequence[Worker], stop: threading.Event) -> None:
    """Run workers until `stop` is set, in the main thread also until SIGTERM or SIGINT.

    Raise the error of a worker that can't go on.
    """
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, lambda _number, _frame: stop.set())
    try:
        for worker in workers:
            worker.start(stop.set)
        stop.wait()
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.drained()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for worker in workers:
        if worker.error is not None:
            raise worker.error
