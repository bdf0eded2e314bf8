"""The login behind a WebSocket of a queue or event: it ends with the right it was opened under."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError

if TYPE_CHECKING:
    from curbstone.access.door import Access
    from curbstone.access.gate import Caller
    from curbstone.access.presence import Presence


class SocketLogin:
    """Who is at the other end, and that the server knows of it."""

    def __init__(self, access: Access, caller: Caller, check: Callable[[], None]) -> None:
        """`check` raises where the right is lost."""
        self._access = access
        self._caller = caller
        self._check = check
        self._presence: Presence | None = None

    def begin(self, fail: Callable[[CurbstoneError], None], unacked: Callable[[], int] = lambda: 0) -> None:
        """The connection is there; `fail` is called when it must end."""

        def changed() -> None:
            try:
                self._check()
            except CurbstoneError as error:
                fail(error)

        connections = self._access.gate.connections
        self._presence = connections.enter(self._access, self._caller, end=fail, changed=changed, unacked=unacked)

    def leave(self) -> None:
        """It is over."""
        if self._presence is not None:
            self._presence.leave()
