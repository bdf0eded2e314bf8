"""The login behind a WebSocket of a queue or event: it ends with the right it was opened under, or is renewed.

`{"token":"…"}` logs the same user in anew, at any time; the answer is `{"expires":…}`, or an error behind which the
connection goes on as long as the login it has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson

from curbstone.access.callers import ASKING, Credentials
from curbstone.core.errors import CurbstoneError
from curbstone.gateway.http.problem import status_of
from curbstone.gateway.websocket.codec import text_frame
from curbstone.gateway.websocket.session import error_frame
from curbstone.net.wire import Wire

if TYPE_CHECKING:
    from curbstone.access.ack_ids import Holder
    from curbstone.access.callers import Caller
    from curbstone.access.door import Access
    from curbstone.access.presence import Connections, Presence
    from curbstone.access.rates import Meter
    from curbstone.access.rights import Right
    from curbstone.core.names import QueueName
    from curbstone.core.port import Queue


def token_in(fields: dict[str, Any]) -> str:
    """Return the token that a JSON frame logs in with, "" if it is something else."""
    token = fields.get("token") if len(fields) == 1 else None
    return token if isinstance(token, str) else ""


def _nothing_to_check(_access: Access) -> None:
    pass


class SocketLogin:
    """Who is at the other end, and that the server knows of it."""

    def __init__(
        self, connections: Connections, access: Access, caller: Caller, check: Callable[[Access], None]
    ) -> None:
        """`check` raises if the right is lost."""
        self.access = access
        """What the client may do now."""
        self._connections = connections
        self._caller = caller
        self._check = check
        self._presence: Presence | None = None

    @property
    def meter(self) -> Meter | None:
        """What counts what its user publishes; None where that has no rate."""
        return self.access.identity.meter

    def begin(self, fail: Callable[[CurbstoneError], None], unacked: Callable[[], int] = lambda: 0) -> None:
        """The connection is there; `fail` is called when it must end."""

        def changed() -> None:
            ASKING.set(self._caller)
            try:
                self._check(self.access)
            except CurbstoneError as error:
                fail(error)

        self._presence = self._connections.enter(self.access, self._caller, end=fail, changed=changed, unacked=unacked)

    def queue(self, name: QueueName, right: Right) -> Queue:
        """See `Access.queue`."""
        ASKING.set(self._caller)
        return self.access.queue(name, right)

    def holds(self, subscriptions: int) -> None:
        """See `Presence.holds`."""
        if self._presence is not None:
            self._presence.holds(subscriptions)

    def hold(self, holder: Holder) -> str:
        """See `AckIds.enter`."""
        return self.access.ack_ids.enter(holder)

    def let_go(self, name: str) -> None:
        """See `AckIds.leave`."""
        self.access.ack_ids.leave(name)

    def holding(self, ack_id: str) -> Queue | None:
        """See `Access.holding`."""
        ASKING.set(self._caller)
        return self.access.holding(ack_id)

    def renew(self, token: str, wire: Wire) -> None:
        """Log in anew, and say on the wire what came of it."""

        def done(answer: Access | CurbstoneError) -> None:
            if isinstance(answer, CurbstoneError):
                wire.send(error_frame(status_of(answer), str(answer)))
                return
            self.access = answer
            wire.send(text_frame(orjson.dumps({"expires": answer.identity.expires_ms or None})))

        assert self._presence is not None
        self._presence.renew(Credentials("", token), done)

    def leave(self) -> None:
        """It is over."""
        if self._presence is not None:
            self._presence.leave()
        self._check = _nothing_to_check  # a session that checks by itself goes with its last reference
