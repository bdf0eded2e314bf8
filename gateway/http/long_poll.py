"""Requests that wait for what is not there yet: until it comes, their time is up, or nobody may or wants to have it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from starlette.types import Receive

from curbstone.access.rights import Right
from curbstone.core.errors import CurbstoneError
from curbstone.gateway.http.departure import until_gone
from curbstone.gateway.http.problem import ClientGone

if TYPE_CHECKING:
    from curbstone.access.door import Access
    from curbstone.core.names import QueueName
    from curbstone.core.port_reading import Waiter

T = TypeVar("T")


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
        """Nobody waits any more; False if something has come."""
        was_waiting = self._on_done is not None
        self._on_done = None
        for waiter in self._waiters:
            waiter.cancel()
        return was_waiting


class Held(NamedTuple):
    """What a call that waits needs all the while."""

    check: Callable[[], None]
    """Raises if it is lost."""
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

        An error is raised, ClientGone where the client went away, and what `held` raises if the client lost its
        right; then the call was given up. What came too late for that goes to `give_back`.
        """
        future: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        errors: list[Exception] = []  # not in the future, see `answers.answer`

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
        watch = asyncio.ensure_future(until_gone(receive))
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
