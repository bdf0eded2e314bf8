"""Where a coroutine of an HTTP request waits for a callback of the engine: one future a request, at most."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from starlette.types import Receive

from curbstone.core.errors import CurbstoneError
from curbstone.gateway.problem import ClientGone

T = TypeVar("T")


class Waiter(Protocol):
    """A call to the engine that may take long and can be given up."""

    def cancel(self) -> object:
        """Give it up; its callback is not called any more."""


async def answer(start: Callable[[Callable[..., None]], object]) -> tuple[Any, ...]:
    """Call `start` with a callback; return what the callback gets.

    Where its first argument is an error, that is raised.
    """
    future: asyncio.Future[tuple[Any, ...]] = asyncio.get_running_loop().create_future()

    def on_done(*results: Any) -> None:
        if not future.done():
            future.set_result(results)

    start(on_done)
    results = await future
    if isinstance(results[0], CurbstoneError):
        raise results[0]
    return results


class Polls:
    """The requests that wait for a message."""

    def __init__(self) -> None:
        self._open: dict[asyncio.Future[Any], Waiter] = {}

    async def poll(self, start: Callable[[Callable[[T | CurbstoneError], None]], Waiter], receive: Receive) -> T | None:
        """Call `start` with a callback and return what that gets; None when the server stops meanwhile.

        An error is raised, ClientGone where the client went away; then the call was given up.
        """
        future: asyncio.Future[T | CurbstoneError | None] = asyncio.get_running_loop().create_future()

        def on_done(result: T | CurbstoneError) -> None:
            if not future.done():
                future.set_result(result)

        self._open[future] = start(on_done)
        watch = asyncio.ensure_future(_disconnected(receive))
        watch.add_done_callback(lambda _: self._give_up(future, ClientGone()))
        try:
            result = await future
        finally:
            self._open.pop(future, None)
            watch.cancel()
        if isinstance(result, CurbstoneError):
            raise result
        return result

    def release(self) -> None:
        """End all of them at once with nothing: the server stops."""
        for future in list(self._open):
            self._give_up(future, None)

    def _give_up(self, future: asyncio.Future[Any], error: Exception | None) -> None:
        waiter = self._open.pop(future, None)
        if waiter is None or future.done():
            return
        waiter.cancel()
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def in_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns; it takes long enough to hold up everything else and touches nothing shared."""
    return await asyncio.to_thread(work)


def new_event() -> asyncio.Event:
    """Return what one coroutine can wait for."""
    return asyncio.Event()


class Bell:
    """Wakes one coroutine; a ring while nobody waits is kept."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake it."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until it has rung since the last wait."""
        await self._event.wait()
        self._event.clear()


class Departure:
    """Watches for the end of a client, for a reply that goes on without end."""

    def __init__(self, receive: Receive, on_gone: Callable[[], None]) -> None:
        self.is_gone = False
        self._on_gone = on_gone
        self._watch = asyncio.ensure_future(_disconnected(receive))
        self._watch.add_done_callback(self._end)

    def _end(self, watch: asyncio.Future[None]) -> None:
        if not watch.cancelled():
            self.is_gone = True
            self._on_gone()

    def close(self) -> None:
        """Watch no more."""
        self._watch.cancel()
