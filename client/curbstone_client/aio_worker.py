"""Workers for asyncio: they call a handler for each message, until they are stopped."""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from curbstone_client.aio_messages import Message, Messages
from curbstone_client.errors import ClientError
from curbstone_client.message import BaseMessage
from curbstone_client.worker import SLOW_STOP, SLOW_STOP_S, BaseWorker, Handler, log, poison_warning

if TYPE_CHECKING:
    from curbstone_client.aio import Client


class Worker(BaseWorker):
    """Calls a handler for the messages of a queue, at most `parallel` at once.

    If the handler returns, the message is acked; the returned value is the reply of a request. If it raises, or takes
    longer than `timeout` seconds, the message is redelivered after 1, 2, 4 … 300 s (± 15 %), the server keeps the
    error's text with it, and the error is logged with its traceback. If it raises `Reject`, the message is
    dead-lettered; if it raises `Retry`, the message is redelivered after that delay. A handler that is a plain function
    runs in the event loop.
    """

    def __init__(
        self,
        client: Client,
        queue: str,
        handler: Handler,
        group: str | None,
        parallel: int,
        timeout: float | None,
        prefetch: int | None,
    ) -> None:
        super().__init__(client, queue, handler, group, parallel, prefetch)
        self._timeout = timeout
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Subscribe to the queue and start to handle messages."""
        messages = self._subscribe()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._work(messages)) for _ in range(self._parallel)]
        self._tasks.append(loop.create_task(self._warn_about_options()))

    async def drained(self) -> None:
        """Wait until the running handlers have finished."""
        if self._tasks:
            await asyncio.gather(*self._tasks)

    async def failed(self) -> None:
        """Wait until consuming fails, and raise the error. This never returns."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        await asyncio.Event().wait()

    async def _work(self, messages: Messages) -> None:
        async for message in messages:
            await self._handle(message)

    async def _handle(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                result = self._handler(message)
                if inspect.isawaitable(result):
                    result = await result
        except Exception as error:
            self._failed(message, error)
            return
        except BaseException as error:
            self._failed(message, error)
            raise
        try:
            if result is not None and message.reply_to is not None:
                await self._client.answer(message, result)
            if not message.is_settled:
                message.ack()
        except ClientError as error:
            self._not_ended(message, error)

    def _failed(self, message: BaseMessage[Any], error: BaseException) -> None:
        if isinstance(error, TimeoutError) and self._timeout is not None and not str(error):
            late = TimeoutError(f"the handler took longer than {self._timeout:g} s")
            error = late.with_traceback(error.__traceback__)
        super()._failed(message, error)

    async def _warn_about_options(self) -> None:
        try:
            warning = poison_warning(self._queue, await self._client.queue(self._queue).info())
        except ClientError:
            return  # no HTTP, or no right; the warning is only a hint
        if warning:
            log.warning("%s", warning)


async def run_until_signal(workers: Sequence[Worker], stop: asyncio.Event) -> None:
    """Run workers until `stop` is set, in the main thread also until SIGTERM or SIGINT; a second one is not caught.

    Raise the error of a worker that can't continue.
    """
    loop = asyncio.get_running_loop()
    is_main = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGTERM, signal.SIGINT) if is_main else ()
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    try:
        for worker in workers:
            worker.start()
        waiting = [loop.create_task(stop.wait()), *[loop.create_task(worker.failed()) for worker in workers]]
        done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest)
        for number in signals:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        for worker in workers:
            worker.stop()
        for task in done:
            task.result()
        drained = asyncio.gather(*[worker.drained() for worker in workers])
        if not await _ends_soon(drained):
            log.warning("%s", SLOW_STOP)
        await drained
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


async def _ends_soon(drained: asyncio.Future[Any]) -> bool:
    done, _ = await asyncio.wait([drained], timeout=SLOW_STOP_S)
    return bool(done)
