"""Those who are connected to one server, and how it takes leave of them. Knows no sockets."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar


class Client(Protocol):
    """A connection."""

    def shutdown(self) -> None:
        """Finish what is under way, tell the client, and close."""

    def abort(self) -> None:
        """Close at once."""


C = TypeVar("C", bound=Client)


class Crowd(set[C]):
    """Who is connected; whoever joins and leaves is added and discarded."""

    def __init__(self) -> None:
        super().__init__()
        self._empty = asyncio.Event()

    def discard(self, client: object) -> None:
        """Forget one."""
        super().discard(client)
        if not self:
            self._empty.set()

    async def leave(self, seconds: float) -> None:
        """Let all of them finish; whoever is there after so long is cut off."""
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
