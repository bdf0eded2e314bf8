"""Where a coroutine of an HTTP request waits for a callback of the engine: one future a request, at most."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from starlette.types import Receive, Scope

from curbstone.access.rights import Right
from curbstone.core.errors import CurbstoneError
from curbstone.gateway.http.problem import ClientGone

if TYPE_CHECKING:
    from curbstone.access.door import Access
    from curbstone.core.names import QueueName
    from curbstone.core.port import Waiter
    from curbstone.core.values import Published

T = TypeVar("T")

GONE = "is_gone"
"""Under this name the state of a request has what `is_gone` asks."""


def is_gone(scope: Scope) -> bool:
    """Return whether the client of a request has closed the connection; the server's transport says so."""
    says: Callable[[], bool] | None = scope.get("state", {}).get(GONE)
    return says is not None and says()


def is_wanted(scope: Scope) -> Callable[[], bool]:
    """Return what tells at any time whether a client is still there to be answered."""
    return lambda: not is_gone(scope)


async def answer(start: Callable[[Callable[..., None]], object]) -> tuple[Any, ...]:
    """Call `start` with a callback; return what the callback gets.

    Where its first argument is an error, that is raised.
    """
    future: asyncio.Future[tuple[Any, ...]] = asyncio.get_running_loop().create_future()
    # An error leads to this frame by its traceback. Were it kept by anything here, the two would hold each other.
    errors: list[CurbstoneError] = []

    def on_done(*results: Any) -> None:
        if not future.done():
            if isinstance(results[0], CurbstoneError):
                errors.append(results[0])
                results = ()
            future.set_result(results)

    start(on_done)
    results = await future
    if errors:
        raise errors.pop()
    return results


async def answers_for(count: int, start: Callable[[Published], object]) -> list[tuple[int, int]]:
    """Call `start` with a callback of a publish; return its (first seq, count) once they cover `count` messages.

    The first error is raised then.
    """
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    told: list[tuple[int, int]] = []
    errors: list[CurbstoneError] = []

    def on_done(error: CurbstoneError | None, first_seq: int, covered: int) -> None:
        told.append((first_seq, covered))
        if error is not None:
            errors.append(error)
        if sum([each for _, each in told]) >= count and not future.done():
            future.set_result(None)

    start(on_done)
    await future
    if errors:
        raise errors[0]
    return told


async def all_answers(starts: Sequence[Callable[[Callable[..., None]], object]]) -> None:
    """Wait for the answers of several calls that are made at once; raise the first error."""
    await asyncio.gather(*[answer(start) for start in starts])


async def answers(
    starts: Sequence[Callable[[Callable[..., None]], object]],
) -> list[tuple[Any, ...] | CurbstoneError]:
    """Likewise, but return what each callback gets, or the error that it has instead."""
    results = await asyncio.gather(*[answer(start) for start in starts], return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, CurbstoneError):
            raise result
    return [result for result in results if isinstance(result, tuple | CurbstoneError)]


class FirstOf:
    """Waits for several things at once: the first that comes ends the others, and calls back with nothing."""

    def __init__(
        self, starts: Sequence[Callable[[Callable[..., None]], Waiter]], on_done: Callable[[None], None]
    ) -> None:
        self._on_done: Callable[[None], None] | None = on_done
        self._waiters = [start(self._end) for start in starts]

    def _end(self, *_result: object) -> None:
        on_done = self._on_done
        if on_done is not None:
            self.cancel()
            on_done(None)

    def cancel(self) -> bool:
        """Nobody waits any more; False where something has come."""
        was_waiting = self._on_done is not None
        self._on_done = None
        for waiter in self._waiters:
            waiter.cancel()
        return was_waiting


class Held(NamedTuple):
    """What a call that waits needs all the while."""

    check: Callable[[], None]
    """Raises where it is lost."""
    watch: Callable[[Callable[[], None]], Callable[[], None]]
    """Has a function called when it may be; returns what ends that."""


def held_by(access: Access, name: QueueName, right: Right = Right.RECEIVE) -> Held:
    """Return the right on a queue under which a call waits."""
    return Held(lambda: access.check(right, name), access.identity.watch)


def _nothing(_result: object) -> None:
    """Nothing can be given back."""


class Polls:
    """The requests that wait for a message."""

    def __init__(self) -> None:
        self._open: dict[asyncio.Future[Any], Waiter] = {}

    async def poll(
        self,
        start: Callable[[Callable[[T | CurbstoneError], None]], Waiter],
        receive: Receive,
        held: Held,
        give_back: Callable[[T], object] = _nothing,
    ) -> T | None:
        """Call `start` with a callback and return what that gets; None when the server stops meanwhile.

        An error is raised, ClientGone where the client went away, and what `held` raises where the client lost its
        right; then the call was given up. What came too late for that goes to `give_back`.
        """
        future: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        errors: list[Exception] = []  # not in the future, see `answer`

        def on_done(result: T | CurbstoneError) -> None:
            if isinstance(result, CurbstoneError):
                if not future.done():
                    errors.append(result)
                    future.set_result(None)
            elif future.done():
                give_back(result)
            else:
                future.set_result(result)

        def give_up(error: Exception) -> None:
            waiter = self._open.pop(future, None)
            if waiter is not None and not future.done():
                waiter.cancel()
                errors.append(error)
                future.set_result(None)

        self._open[future] = start(on_done)
        watch = asyncio.ensure_future(_disconnected(receive))
        watch.add_done_callback(lambda _: give_up(ClientGone()))

        def look() -> None:
            try:
                held.check()
            except CurbstoneError as error:
                give_up(error)

        unwatch = held.watch(look)
        try:
            result = await future
        finally:
            unwatch()
            self._open.pop(future, None)
            watch.cancel()
        if errors:
            raise errors.pop()
        return result

    def release(self) -> None:
        """End all of them at once with nothing: the server stops. Those that are being served are served."""
        for future, waiter in list(self._open.items()):
            if not future.done() and waiter.cancel():
                future.set_result(None)


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

    def __init__(self, scope: Scope, receive: Receive, on_gone: Callable[[], None]) -> None:
        self._scope = scope
        self._is_gone = False
        self._on_gone = on_gone
        self._watch = asyncio.ensure_future(_disconnected(receive))
        self._watch.add_done_callback(self._end)

    def _end(self, watch: asyncio.Future[None]) -> None:
        if not watch.cancelled():
            self._is_gone = True
            self._on_gone()

    @property
    def is_gone(self) -> bool:
        """Whether the client has left."""
        return self._is_gone or is_gone(self._scope)

    def close(self) -> None:
        """Watch no more."""
        self._watch.cancel()
