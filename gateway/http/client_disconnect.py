"""Detects that the client of a request has disconnected, and wakes endless replies for more output or for their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from starlette.types import Receive, Scope

from curbstone.gateway.http.scope import AnyScope

GONE = "is_gone"
"""The key in a request's `state` of the HTTP server's function that returns whether the client is gone."""


def is_gone(scope: AnyScope) -> bool:
    """Return whether the client of a request has closed the connection."""
    says: Callable[[], bool] | None = scope.get("state", {}).get(GONE)
    return says is not None and says()


def is_wanted(scope: AnyScope) -> Callable[[], bool]:
    """Return a function that returns whether the client can still be answered."""
    return lambda: not is_gone(scope)


async def until_disconnect(receive: Receive) -> None:
    """Return when the client has left; drop the rest of the body."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Bell:
    """Wakes one coroutine. If none waits, the next `wait` returns at once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake the waiting coroutine."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until the bell has rung since the last wait."""
        await self._event.wait()
        self._event.clear()


class ThreadBell:
    """Wakes one coroutine, and may be rung on any thread. Rings while no coroutine waits count as one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._is_rung = False

    def ring(self) -> None:
        """Wake the waiting coroutine."""
        if not self._is_rung:
            self._is_rung = True
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, most_s: float, gather_s: float) -> None:
        """Wait up to `most_s` for a ring since the last wait; after a ring, wait `gather_s` more to batch output."""
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self._event.wait()
        await asyncio.sleep(gather_s)
        self._event.clear()
        self._is_rung = False


class Disconnect:
    """Watches, for an endless reply, whether the client has left."""

    def __init__(self, scope: Scope, receive: Receive, on_gone: Callable[[], None]) -> None:
        self._scope = scope
        self._is_gone = False
        self._on_gone = on_gone
        self._watch = asyncio.ensure_future(until_disconnect(receive))
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
        """Stop watching."""
        self._watch.cancel()
