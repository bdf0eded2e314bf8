"""The login of a WebSocket: the socket ends when its right is lost or its login expires, unless that is renewed.

`{"token":"…"}` logs the same user in again, at any time. The answer is `{"expires":…}`, or an error, after which the
connection keeps its login.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson

from curbstone.access.caller import CURRENT_CALLER, Credentials, client_info_of
from curbstone.core.errors import CurbstoneError
from curbstone.gateway.http.problem import status_of
from curbstone.gateway.websocket.codec import text_frame
from curbstone.gateway.websocket.session import error_frame
from curbstone.net.websocket_port import WebSocketPort

if TYPE_CHECKING:
    from curbstone.access.ack_ids import Holder
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.access.caller import Caller
    from curbstone.access.connections import Connections, OpenConnection
    from curbstone.access.rate_limit import Meter
    from curbstone.access.rights import Right
    from curbstone.core.names import QueueName
    from curbstone.core.port import Queue
    from curbstone.core.values import ClientInfo


def token_in(fields: dict[str, Any]) -> str:
    """Return the token in a JSON frame that logs in; "" if the frame is anything else."""
    token = fields.get("token") if len(fields) == 1 else None
    return token if isinstance(token, str) else ""


def _nothing_to_check(_access: AuthorizedBroker) -> None:
    pass


class SocketLogin:
    """The login of one socket, registered with the authenticator's connections."""

    def __init__(
        self,
        connections: Connections,
        access: AuthorizedBroker,
        caller: Caller,
        check: Callable[[AuthorizedBroker], None],
    ) -> None:
        """`check` raises if the right that the socket needs is lost."""
        self.access = access
        """The client's access; replaced when it logs in again."""
        self._connections = connections
        self._caller = caller
        self._check = check
        self._connection: OpenConnection | None = None

    @property
    def meter(self) -> Meter | None:
        """The meter of what the user publishes; None if it has no rate."""
        return self.access.identity.meter

    @property
    def client_info(self) -> ClientInfo:
        """The client's description in a queue's list of consumers."""
        return client_info_of(self._caller, self.access.identity)

    def begin(self, fail: Callable[[CurbstoneError], None], unacked: Callable[[], int] = lambda: 0) -> None:
        """Register the connection; `fail` is called when it must end."""

        def changed() -> None:
            CURRENT_CALLER.set(self._caller)
            try:
                self._check(self.access)
            except CurbstoneError as error:
                fail(error)

        self._connection = self._connections.add(self.access, self._caller, end=fail, changed=changed, unacked=unacked)

    def queue(self, name: QueueName, right: Right) -> Queue:
        """See `AuthorizedBroker.queue`."""
        CURRENT_CALLER.set(self._caller)
        return self.access.queue(name, right)

    def holds(self, subscriptions: int) -> None:
        """See `OpenConnection.holds`."""
        if self._connection is not None:
            self._connection.set_subscriptions(subscriptions)

    def hold(self, holder: Holder) -> str:
        return self.access.ack_ids.enter(holder)

    def detach(self, name: str) -> None:
        self.access.ack_ids.leave(name)

    def holding(self, ack_id: str) -> Queue | None:
        """See `AuthorizedBroker.holding`."""
        CURRENT_CALLER.set(self._caller)
        return self.access.holding(ack_id)

    def renew(self, token: str, wire: WebSocketPort) -> None:
        """Log in again, and send the result."""

        def done(answer: AuthorizedBroker | CurbstoneError) -> None:
            if isinstance(answer, CurbstoneError):
                wire.send(error_frame(status_of(answer), str(answer)))
                return
            self.access = answer
            wire.send(text_frame(orjson.dumps({"expires": answer.identity.expires_ms or None})))

        assert self._connection is not None
        self._connection.renew(Credentials("", token), done)

    def leave(self) -> None:
        """Remove the connection, which has ended."""
        if self._connection is not None:
            self._connection.close()
        self._check = _nothing_to_check  # breaks the cycle with a session whose own method is `check`
