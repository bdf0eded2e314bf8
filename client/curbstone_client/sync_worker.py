"""Workers for threads: they call a handler for each message, until they are stopped."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from curbstone_client.errors import ClientError
from curbstone_client.sync_messages import Message, Messages
from curbstone_client.worker import SLOW_STOP, SLOW_STOP_S, BaseWorker, Handler, log, poison_warning

if TYPE_CHECKING:
    from curbstone_client.sync import Client


class Worker(BaseWorker):
    """Calls a handler for the messages of a queue, in `parallel` threads.

    If the handler returns, the message is acked; the returned value is the reply of a request. If it raises, the
    message is redelivered after 1, 2, 4 … 300 s (± 15 %), the server keeps the error's text with it, and the error is
    logged with its traceback. If it raises `Reject`, the message is dead-lettered; if it raises `Retry`, the message is
    redelivered after that delay.
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
        super().__init__(client, queue, handler, group, parallel, prefetch)
        self._threads: list[threading.Thread] = []
        self.error: BaseException | None = None
        """Why the worker can't continue; None while it can."""

    def start(self, failed: Callable[[], None]) -> None:
        """Subscribe to the queue and start to handle its messages.

        `failed` is called, in a thread of the worker, when the worker can't continue.
        """
        messages = self._subscribe()
        self._threads = [
            threading.Thread(target=self._work, args=(messages, failed), name=f"curbstone worker {self._queue}")
            for _ in range(self._parallel)
        ]
        for thread in self._threads:
            thread.start()
        self._warn_about_options()

    def drained(self, timeout: float | None = None) -> bool:
        """Wait until the running handlers have finished, or for `timeout` seconds; return whether they have.

        A handler may call this: its own thread is not waited for.
        """
        others = [thread for thread in self._threads if thread is not threading.current_thread()]
        deadline = None if timeout is None else time.monotonic() + timeout
        for thread in others:
            thread.join(None if deadline is None else max(0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in others)

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
        except ClientError as error:
            self._not_ended(message, error)

    def _warn_about_options(self) -> None:
        try:
            warning = poison_warning(self._queue, self._client.queue(self._queue).info())
        except ClientError:
            return  # no HTTP, or no right; the warning is only a hint
        if warning:
            log.warning("%s", warning)


def run_until_signal(workers: Sequence[Worker], stop: threading.Event) -> None:
    """Run workers until `stop` is set, in the main thread also until SIGTERM or SIGINT; a second one is not caught.

    Raise the error of a worker that can't continue.
    """
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, lambda _number, _frame: stop.set())
    try:
        for worker in workers:
            worker.start(stop.set)
        stop.wait()
        for number in before:
            signal.signal(number, signal.SIG_DFL)
        for worker in workers:
            worker.stop()
        if not all([worker.drained(SLOW_STOP_S) for worker in workers]):
            log.warning("%s", SLOW_STOP)
        for worker in workers:
            worker.drained()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for worker in workers:
        if worker.error is not None:
            raise worker.error
