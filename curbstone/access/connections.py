"""The open connections: listed for administrators, counted for limits, and ended by revocations.

Requests that are answered at once are not listed here, because each one is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from curbstone.access.authorization import AuthorizedBroker
from curbstone.access.caller import Caller, Credentials
from curbstone.access.errors import NotAllowed, NotLoggedIn, TooMany
from curbstone.core.errors import CurbstoneError
from curbstone.core.host import Host, Timer
from curbstone.core.values import ignore

OF_USER_MAX = 1_000
"""The most connections of one user."""
STREAMS_MAX = 100
"""The most streams of server-sent events of one user; each receives messages without further requests."""
SUBSCRIPTIONS_MAX = 10_000
"""The most subscriptions of one user over all its connections, because dispatching a message visits all of them."""
STREAM = "sse"
TIMER_MS_MAX = 86_400_000

Admitted = Callable[[AuthorizedBroker | CurbstoneError], None]
"""Called with the client's access, or with the reason for refusing it."""
Admit = Callable[[Credentials, Caller, Admitted], None]
"""Checks credentials."""

ENDED = "an administrator ended the connection"
EXPIRED = "the login has expired"


class OpenConnection:
    """One open connection. Call `close` when it has ended."""

    def __init__(
        self,
        connections: Connections,
        number: int,
        access: AuthorizedBroker,
        caller: Caller,
        since_ms: int,
        end: Callable[[CurbstoneError], None],
        changed: Callable[[], None],
        unacked: Callable[[], int],
    ) -> None:
        self._connections = connections
        self.id = str(number)
        self.access = access
        self.caller = caller
        self.since_ms = since_ms
        self.unacked = unacked
        """Returns the number of its unsettled deliveries."""
        self._end = end
        self._changed = changed
        self.subscriptions = 0
        self._is_closed = False
        self._is_renewing = False
        self._timer: Timer | None = None
        self._unwatch = access.identity.watch(self._check)
        self._arm()

    def renew(self, credentials: Credentials, on_done: Admitted) -> None:
        """Log in again, so that the connection can outlive its first login. May call back before it returns.

        `on_done` gets the new access, and then `changed` is called; or it gets an error, and the connection keeps its
        access. It is not called if the connection ends meanwhile.
        """
        if self._is_renewing:
            on_done(TooMany("another login of this connection is in progress", 1))
            return
        self._is_renewing = True

        def admitted(answer: AuthorizedBroker | CurbstoneError) -> None:
            self._is_renewing = False
            if self._is_closed:
                return
            if isinstance(answer, CurbstoneError):
                on_done(answer)
            elif answer.identity.user != self.access.identity.user:
                on_done(NotAllowed("the connection belongs to another user"))
            else:
                self._replace_access(answer)
                on_done(answer)
                if not self._is_closed:
                    self._changed()

        self._connections.admit(credentials, self.caller, admitted)

    def _replace_access(self, access: AuthorizedBroker) -> None:
        self._unwatch()
        self._stop_timer()
        self.access = access
        self._unwatch = access.identity.watch(self._check)
        self._arm()

    def set_subscriptions(self, count: int) -> None:
        """Set the number of its subscriptions; raise TooMany if its user would have too many."""
        if not self._is_closed:
            self._connections.add_subscriptions(self.access, count - self.subscriptions)
            self.subscriptions = count

    def close(self) -> None:
        """Remove the connection, which has ended, from the list. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._unwatch()
            self._stop_timer()
            self._connections.remove(self)
            # The callbacks refer to the connection, and would keep it in memory.
            self._unwatch = self._changed = ignore
            self._end = ignore
            self.unacked = int

    def end(self, reason: CurbstoneError) -> None:
        """End the connection and send the client this reason."""
        if not self._is_closed:
            self._end(reason)

    def _check(self) -> None:
        reason = self.access.identity.end_reason
        if reason:
            self.end(NotLoggedIn(reason))
        else:
            self._changed()

    def _arm(self) -> None:
        expires_ms = self.access.identity.expires_ms
        if expires_ms:
            wait_ms = expires_ms - self._connections.host.wall_ms()
            self._timer = self._connections.host.call_later(min(max(wait_ms, 1), TIMER_MS_MAX), self._due)

    def _due(self) -> None:
        self._timer = None
        if self._connections.host.wall_ms() >= self.access.identity.expires_ms:
            self.end(NotLoggedIn(EXPIRED))
        else:
            self._arm()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Connections:
    """The list of open connections. Called on the host's thread."""

    def __init__(self, host: Host, admit: Admit) -> None:
        self.host = host
        self.admit = admit
        """Checks the credentials of connections that log in again."""
        self._numbers = count(1)
        self._open: dict[str, OpenConnection] = {}
        self._by_user: dict[str, int] = {}
        self._streams: dict[str, int] = {}
        self._subscriptions: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._open)

    def check(self, access: AuthorizedBroker) -> None:
        """Raise TooMany if the user has too many connections, or NotLoggedIn if the login has ended."""
        identity = access.identity
        if identity.end_reason:
            raise NotLoggedIn(identity.end_reason)
        if identity.owner and self._by_user.get(identity.user, 0) >= OF_USER_MAX:
            raise TooMany(f"this user has {OF_USER_MAX} connections, the limit")

    def check_stream(self, access: AuthorizedBroker) -> None:
        """Like `check`, for server-sent events."""
        self.check(access)
        identity = access.identity
        if identity.owner and self._streams.get(identity.user, 0) >= STREAMS_MAX:
            raise TooMany(f"this user has {STREAMS_MAX} streams, the limit")

    def add_subscriptions(self, access: AuthorizedBroker, more: int) -> None:
        """Change a user's number of subscriptions by `more`; raise TooMany."""
        identity = access.identity
        if more > 0 and identity.owner and self._subscriptions.get(identity.user, 0) + more > SUBSCRIPTIONS_MAX:
            raise TooMany(f"this user has {SUBSCRIPTIONS_MAX} subscriptions over all its connections, the limit")
        _count(self._subscriptions, identity.user, more)

    def add(
        self,
        access: AuthorizedBroker,
        caller: Caller,
        *,
        end: Callable[[CurbstoneError], None],
        changed: Callable[[], None] = lambda: None,
        unacked: Callable[[], int] = int,
    ) -> OpenConnection:
        """Add a connection that `check` has allowed.

        `end(reason)` is called when it must end, `changed` when its rights have changed.
        """
        identity = access.identity
        _count(self._by_user, identity.user, 1)
        if caller.protocol == STREAM:
            _count(self._streams, identity.user, 1)
        number = next(self._numbers)
        connection = OpenConnection(self, number, access, caller, self.host.wall_ms(), end, changed, unacked)
        self._open[connection.id] = connection
        return connection

    def listed(self) -> list[OpenConnection]:
        """Return all connections, the oldest first."""
        return list(self._open.values())

    def end(self, identifier: str) -> OpenConnection | None:
        """End a connection and return it; None if there is none with this id."""
        connection = self._open.get(identifier)
        if connection is not None:
            connection.end(NotLoggedIn(ENDED))
        return connection

    def remove(self, connection: OpenConnection) -> None:
        """Remove a connection that has ended."""
        user = connection.access.identity.user
        self._open.pop(connection.id, None)
        _count(self._by_user, user, -1)
        _count(self._subscriptions, user, -connection.subscriptions)
        if connection.caller.protocol == STREAM:
            _count(self._streams, user, -1)


def _count(counts: dict[str, int], user: str, more: int) -> None:
    left = counts.pop(user, 0) + more
    if left > 0:
        counts[user] = left
