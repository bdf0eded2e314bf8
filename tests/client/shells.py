"""Both shells of the client behind one set of blocking calls, so that one suite runs them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import curbstone_client as aio
from curbstone_client import sync

WAIT_S_MAX = 60


class Shell(Protocol):
    """A client, whichever it is. Names and arguments are those of the client."""

    client: Any

    def publish(self, queue: str, body: Any, **options: Any) -> aio.Stored: ...
    def send(self, queue: str, body: Any, **options: Any) -> Any: ...
    def result(self, sent: Any) -> Any: ...
    def flush(self) -> None: ...
    def consume(self, queue: str, prefetch: int = 100, **options: Any) -> Any: ...
    def take(self, messages: Any) -> Any: ...
    def settle(self, message: Any, how: str, *args: Any) -> Any: ...
    def end(self, messages: Any) -> None: ...
    def widen(self, messages: Any, prefetch: int) -> None: ...
    def handle(self, message: Any, fn: Callable[[], None]) -> None: ...
    def commit(self, messages: Sequence[Any], sends: Sequence[tuple[str, Any]]) -> None: ...
    def call(self, name: str, *args: Any, **options: Any) -> Any: ...
    def on_queue(self, queue: str, name: str, *args: Any, **options: Any) -> Any: ...
    def batch(self, queue: str, size: int, wait: float) -> Any: ...
    def subscribe(self, event: str, **options: Any) -> Any: ...
    def publish_event(self, event: str, body: Any, **options: Any) -> aio.Stored: ...
    def work(self, queue: str, handler: Callable[[Any], Any], **options: Any) -> Callable[[], None]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Shell: ...
    def __exit__(self, *_error: object) -> None: ...


class Threads:
    """The client for threads."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.client: Any = sync.Client(url, project="shop", **settings)
        self.client.__enter__()

    def publish(self, queue: str, body: Any, **options: Any) -> aio.Stored:
        stored: aio.Stored = self.client.queue(queue).publish(body, **options)
        return stored

    def send(self, queue: str, body: Any, **options: Any) -> Any:
        return self.client.queue(queue).send(body, **options)

    def result(self, sent: Any) -> Any:
        return sent.result(WAIT_S_MAX)

    def flush(self) -> None:
        self.client.flush(WAIT_S_MAX)

    def consume(self, queue: str, prefetch: int = 100, **options: Any) -> Any:
        return self.client.queue(queue).consume(prefetch, **options)

    def take(self, messages: Any) -> Any:
        message = messages.get(WAIT_S_MAX)
        assert message is not None, "nothing came"
        return message

    def settle(self, message: Any, how: str, *args: Any) -> Any:
        return getattr(message, how)(*args)

    def end(self, messages: Any) -> None:
        messages.close()

    def widen(self, messages: Any, prefetch: int) -> None:
        messages.prefetch = prefetch

    def handle(self, message: Any, fn: Callable[[], None]) -> None:
        with message:
            fn()

    def commit(self, messages: Sequence[Any], sends: Sequence[tuple[str, Any]]) -> None:
        with self.client.transaction(*messages) as tx:
            for queue, body in sends:
                if isinstance(body, Exception):
                    raise body
                tx.publish(queue, body)

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        return getattr(self.client, name)(*args, **options)

    def on_queue(self, queue: str, name: str, *args: Any, **options: Any) -> Any:
        return getattr(self.client.queue(queue), name)(*args, **options)

    def batch(self, queue: str, size: int, wait: float) -> Any:
        batch = next(self.client.queue(queue).batches(size, wait))
        batch.ack()
        return batch

    def subscribe(self, event: str, **options: Any) -> Any:
        return self.client.event(event).subscribe(**options)

    def publish_event(self, event: str, body: Any, **options: Any) -> aio.Stored:
        stored: aio.Stored = self.client.event(event).publish(body, **options)
        return stored

    def work(self, queue: str, handler: Callable[[Any], Any], **options: Any) -> Callable[[], None]:
        self.client.worker(queue, **options)(handler)
        thread = threading.Thread(target=self.client.run)
        thread.start()

        def stop() -> None:
            self.client.stop()
            thread.join(WAIT_S_MAX)
            assert not thread.is_alive()

        return stop

    def close(self) -> None:
        self.client.close()

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class Asyncio:
    """The client for asyncio, in a loop of its own."""

    def __init__(self, url: str, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.client: Any = aio.Client(url, project="shop", **settings)
        try:
            self._run(self.client.__aenter__())
        except BaseException:
            self.close()
            raise

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, WAIT_S_MAX), self._loop).result()

    def _do(self, fn: Callable[[], Any]) -> Any:
        """Call in the loop, and wait for what is to be waited for."""

        async def do() -> Any:
            found = fn()
            return await found if asyncio.iscoroutine(found) else found

        return self._run(do())

    def publish(self, queue: str, body: Any, **options: Any) -> aio.Stored:
        stored: aio.Stored = self._do(lambda: self.client.queue(queue).publish(body, **options))
        return stored

    def send(self, queue: str, body: Any, **options: Any) -> Any:
        return self._do(lambda: self.client.queue(queue).send(body, **options))

    def result(self, sent: Any) -> Any:
        async def result() -> Any:
            return await sent

        return self._run(result())

    def flush(self) -> None:
        self._do(lambda: self.client.flush())

    def consume(self, queue: str, prefetch: int = 100, **options: Any) -> Any:
        return self._do(lambda: self.client.queue(queue).consume(prefetch, **options))

    def take(self, messages: Any) -> Any:
        return self._do(lambda: messages.__anext__())

    def settle(self, message: Any, how: str, *args: Any) -> Any:
        return self._do(lambda: getattr(message, how)(*args))

    def end(self, messages: Any) -> None:
        self._do(lambda: messages.aclose())

    def widen(self, messages: Any, prefetch: int) -> None:
        self._do(lambda: setattr(messages, "prefetch", prefetch))

    def handle(self, message: Any, fn: Callable[[], None]) -> None:
        async def handle() -> None:
            async with message:
                fn()

        self._run(handle())

    def commit(self, messages: Sequence[Any], sends: Sequence[tuple[str, Any]]) -> None:
        async def commit() -> None:
            async with self.client.transaction(*messages) as tx:
                for queue, body in sends:
                    if isinstance(body, Exception):
                        raise body
                    tx.publish(queue, body)

        self._run(commit())

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        return self._do(lambda: getattr(self.client, name)(*args, **options))

    def on_queue(self, queue: str, name: str, *args: Any, **options: Any) -> Any:
        return self._do(lambda: getattr(self.client.queue(queue), name)(*args, **options))

    def batch(self, queue: str, size: int, wait: float) -> Any:
        async def batch() -> Any:
            found = await anext(self.client.queue(queue).batches(size, wait))
            await found.ack()
            return found

        return self._run(batch())

    def subscribe(self, event: str, **options: Any) -> Any:
        return self._do(lambda: self.client.event(event).subscribe(**options))

    def publish_event(self, event: str, body: Any, **options: Any) -> aio.Stored:
        stored: aio.Stored = self._do(lambda: self.client.event(event).publish(body, **options))
        return stored

    def work(self, queue: str, handler: Callable[[Any], Any], **options: Any) -> Callable[[], None]:
        async def work() -> asyncio.Task[None]:
            self.client.worker(queue, **options)(handler)
            return asyncio.create_task(self.client.run())

        running = self._run(work())

        def stop() -> None:
            async def stopping() -> None:
                self.client.stop()
                await running

            self._run(stopping())

        return stop

    def close(self) -> None:
        try:
            self._run(self.client.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Asyncio:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


SHELLS: dict[str, Callable[..., Shell]] = {"asyncio": Asyncio, "threads": Threads}
