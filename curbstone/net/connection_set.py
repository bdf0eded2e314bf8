"""The clients of one server, and their orderly shutdown. Does not handle sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar


class Client(Protocol):
    """A connection."""

    def shutdown(self) -> None:
        """Finish the requests in progress, notify the client, and close."""

    def abort(self) -> None:
        """Close at once."""


C = TypeVar("C", bound=Client)


class ConnectionSet(set[C]):
    """The set of connected clients. The server adds and discards them."""

    def __init__(self) -> None:
        super().__init__()
        self._remaining = 0
        """The number of clients that remain once all that are closing have closed."""
        self._have_closed = asyncio.Event()

    def discard(self, client: object) -> None:
        super().discard(client)
        if len(self) <= self._remaining:
            self._have_closed.set()

    async def shut_down(self, seconds: float, stays: Callable[[C], bool] = lambda _client: False) -> None:
        """Shut all clients down, except those for which `stays` returns True, and wait until they have closed.

        Abort the connections that are still open after `seconds`.
        """
        for client in self._closing(stays):
            client.shutdown()
        try:
            async with asyncio.timeout(seconds):
                while closing := self._closing(stays):
                    self._remaining = len(self) - len(closing)
                    self._have_closed.clear()
                    await self._have_closed.wait()
        except TimeoutError:
            for client in self._closing(stays):
                client.abort()

    def _closing(self, stays: Callable[[C], bool]) -> list[C]:
        return [client for client in self if not stays(client)]
