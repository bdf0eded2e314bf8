"""Requests that wait: until a result arrives, the time is up, the right is lost, or the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from starlette.types import Receive

from curbstone.access.rights import Right
from curbstone.core.errors import CurbstoneError
from curbstone.gateway.http.client_disconnect import until_disconnect
from curbstone.gateway.http.problem import ClientGone

if TYPE_CHECKING:
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.core.names import QueueName
    from curbstone.core.port_reading import Waiter

T = TypeVar("T")


class FirstOf:
    """Waits for several results. The first one cancels the other waits, and calls back with None."""

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
        """Stop waiting; return False if a result has arrived already."""
        was_waiting = self._on_done is not None
        self._on_done = None
        for waiter in self._waiters:
            waiter.cancel()
        return was_waiting


class Held(NamedTuple):
    """The right that a waiting call needs all the time."""

    check: Callable[[], None]
    """Raises if the right is lost."""
    watch: Callable[[Callable[[], None]], Callable[[], None]]
    """Arranges that a function is called when the right may be lost; returns a function that ends this."""


def held_by(access: AuthorizedBroker, name: QueueName, right: Right = Right.RECEIVE) -> Held:
    """Return the right on a queue that a waiting call needs."""
    return Held(lambda: access.check(right, name), access.identity.watch)


def _nothing(_result: object) -> None:
    """Do nothing: the result need not be given back."""


class Polls:
    """The waiting requests of the server."""

    def __init__(self) -> None:
        self._open: dict[asyncio.Future[Any], Waiter] = {}

    async def poll(
        self,
        start: Callable[[Callable[[T | CurbstoneError], None]], Waiter],
        receive: Receive,
        held: Held,
        give_back: Callable[[T], object] = _nothing,
    ) -> T | None:
        """Call `start` with a callback, wait, and return the callback's result; None if the server stops meanwhile.

        An error is raised. If the client leaves, ClientGone is raised; if it loses its right, what `held.check` raises.
        In both cases the call is cancelled, and a result that still arrives is passed to `give_back`.
        """
        future: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        errors: list[Exception] = []  # not set on the future, for the reason given in `callbacks.answer`

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
        watch = asyncio.ensure_future(until_disconnect(receive))
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

    @property
    def count(self) -> int:
        """The number of waiting requests."""
        return len(self._open)

    def release(self) -> None:
        """End all waiting requests with None: the server is stopping. Requests that have their result keep it."""
        for future, waiter in list(self._open.items()):
            if not future.done() and waiter.cancel():
                future.set_result(None)
