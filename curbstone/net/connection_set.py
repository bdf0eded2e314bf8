"""The clients that are connected to one server, and how a stopping server lets them finish. Does not handle sockets."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar


class Client(Protocol):
    """A connection."""

    def shutdown(self) -> None:
        """Finish what is under way, notify the client, and close."""

    def abort(self) -> None:
        """Close at once."""


C = TypeVar("C", bound=Client)


class ConnectionSet(set[C]):
    """The set of connected clients. The server adds each client that joins and discards each that leaves."""

    def __init__(self) -> None:
        super().__init__()
        self._empty = asyncio.Event()

    def discard(self, client: object) -> None:
        """Remove a client that has left."""
        super().discard(client)
        if not self:
            self._empty.set()

    async def leave(self, seconds: float) -> None:
        """Shut all clients down and wait until they have left; abort those that are still there after `seconds`."""
        for client in list(self):
            client.shutdown()
        try:
            async with asyncio.timeout(seconds):
                while self:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            for client in list(self):
                client.abort()
