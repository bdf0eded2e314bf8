"""The login of an MQKS connection: `{id} auth {user} {password}`, or `{id} auth {token}`.

Before the login every other action is an error, unless the client's certificate is a login, or the users file admits
clients without credentials. A connection that logs in again, as the same user, outlives the token it began with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from curbstone.access.caller import NO_CREDENTIALS, Credentials, client_info_of
from curbstone.access.errors import LOGIN_REQUIRED, Busy, TooMany
from curbstone.core.errors import CurbstoneError
from curbstone.core.values import ignore
from curbstone.mqks.errors import RequestError

if TYPE_CHECKING:
    from curbstone.access.authenticator import Authenticator
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.access.caller import Caller
    from curbstone.access.connections import OpenConnection
    from curbstone.core.values import ClientInfo

FAILURES_MAX = 3
"""How many failed logins end the connection."""

AUTH = b"auth"


def _no_deliveries() -> int:
    return 0


class Login:
    """The login of one connection."""

    def __init__(
        self,
        authenticator: Authenticator,
        caller: Caller,
        *,
        end: Callable[[CurbstoneError], None],
        changed: Callable[[], None],
        unacked: Callable[[], int],
        logged_in: Callable[[str], object],
    ) -> None:
        self.access: AuthorizedBroker = authenticator.anonymous
        self.is_pending = False
        """Whether a login is being checked. Requests after it wait."""
        self._authenticator = authenticator
        self._caller = caller
        self._end = end
        self._changed = changed
        self._unacked = unacked
        self._logged_in = logged_in
        self._open_connection: OpenConnection | None = None
        self._failures = 0
        self._is_closed = False

    @property
    def has_user(self) -> bool:
        """Whether the client has logged in, or its login is being checked."""
        return bool(self.access.identity.user) or self.is_pending

    def begin(self) -> None:
        """Log in a client that needs no `auth`."""
        try:
            access = self._authenticator.enter(NO_CREDENTIALS, self._caller)
        except CurbstoneError:
            return  # an auth may follow
        if access is not None:
            self._take(access)

    def check(self, action: bytes) -> None:
        """Raise RequestError if the action needs a login and there is none."""
        if not self.access.identity.user and action != AUTH:
            raise RequestError(f"{LOGIN_REQUIRED}: send auth first")

    def auth(self, words: list[str], on_done: Callable[[CurbstoneError | RequestError | None, bool], None]) -> None:
        """Log in. `on_done(error, is_later)` gets the error, if any, and whether it is called in a later turn."""
        if not 1 <= len(words) <= 2:
            raise RequestError("the arguments of auth must be {user} {password}, or {token}")
        credentials = Credentials(*words) if len(words) == 2 else Credentials("", words[0])
        self.is_pending = True
        is_later = False
        open_connection = self._open_connection

        def admitted(answer: AuthorizedBroker | CurbstoneError) -> None:
            self.is_pending = False
            on_done(self._answered(answer), is_later)

        if open_connection is not None:
            open_connection.renew(credentials, admitted)
        else:
            self._authenticator.admit(credentials, self._caller, admitted)
        is_later = True

    def _answered(self, answer: AuthorizedBroker | CurbstoneError) -> CurbstoneError | RequestError | None:
        if self._is_closed:
            return None
        try:
            if isinstance(answer, CurbstoneError):
                raise answer
            self._take(answer)
        except (TooMany, Busy) as error:  # the login was not checked
            return RequestError(str(error), retry_after_s=error.wait_s)
        except CurbstoneError as error:
            self._failures += 1
            return RequestError(str(error), fatal=self._failures >= FAILURES_MAX)
        return None

    def _take(self, access: AuthorizedBroker) -> None:
        if self._open_connection is None:
            connections = self._authenticator.connections
            connections.check(access)
            self._open_connection = connections.add(
                access, self._caller, end=self._end, changed=self._changed, unacked=self._unacked
            )
        self.access = access
        self._logged_in(access.identity.user)

    def client_info(self, consumer: bytes) -> ClientInfo:
        """Return the client's description for the list of a queue's consumers."""
        return client_info_of(self._caller, self.access.identity, subscription=consumer.decode("utf-8", "replace"))

    def holds(self, consumers: int) -> None:
        """Note the number of consumers, now or in a moment; raise TooMany if the user would have too many."""
        if self._open_connection is not None:
            self._open_connection.set_subscriptions(consumers)

    def leave(self) -> None:
        """Remove the connection, which is closed."""
        self._is_closed = True
        if self._open_connection is not None:
            self._open_connection.close()
        # The callbacks and this login would keep each other in memory.
        self._end = self._changed = self._logged_in = ignore
        self._unacked = _no_deliveries
