"""Logins by password: throttled, queued, hashed and counted.

A password that was recently found right is not hashed again. It is not throttled either where its user has logged in
before: guesses from there must not lock the user out. Anywhere else the throttle is first: if only right guesses were
answered, a guesser would learn which are right.
"""

from __future__ import annotations

from collections.abc import Callable

from curbstone.access.caller import Caller, Credentials
from curbstone.access.errors import TOO_MANY, TooMany
from curbstone.access.login_throttle import LoginThrottle, network_of
from curbstone.access.passwords import Passwords
from curbstone.access.users import User, Users
from curbstone.core.errors import CurbstoneError
from curbstone.core.host import Host
from curbstone.net.peer import source_of

SOURCES_MAX = 256
"""Of how many addresses it is remembered that a user has logged in from there."""

Checked = Callable[[CurbstoneError | None, str], None]
"""(Busy, or None if it was checked; the hash that the password is right for, empty if none)"""


class PasswordLogins:
    """Checks passwords that may be guesses. Called on the host's thread.

    Logins with the same password of the same user from the same address share one try, however many there are. So a
    fleet of workers that starts together takes one hash.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._passwords = Passwords(host)
        self._throttle = LoginThrottle()
        self._under_way: dict[tuple[bytes, str, tuple[str, ...]], list[Checked]] = {}
        self._sources: dict[str, dict[str, None]] = {}
        """From where each user has logged in, the latest last."""

    def known(self, users: Users, credentials: Credentials, caller: Caller) -> str:
        """Return the hash that a password was recently found right for; empty if it has to be hashed.

        Raise TooMany if it must wait first.
        """
        name, secret = credentials
        hashes = _hashes(users.users.get(name), caller)
        kept = self._passwords.known(name, secret, hashes)
        if kept and self._is_familiar(name, caller):
            return kept
        if self._key(credentials, caller, hashes) in self._under_way:
            return ""
        wait_ms = self._throttle.wait_ms(name, caller.address, self._host.now_ms())
        if wait_ms:
            wait_s = -(-wait_ms // 1000)
            raise TooMany(f"{TOO_MANY}; try again in {wait_s} s", wait_s)
        if kept:
            self._succeeded(name, caller)
        return kept

    def check(self, users: Users, credentials: Credentials, caller: Caller, on_done: Checked) -> None:
        """Hash a password that `known` let through, or wait for the hash of the same one that is under way."""
        name, address = credentials.user, caller.address
        hashes = _hashes(users.users.get(name), caller)
        key = self._key(credentials, caller, hashes)
        if key in self._under_way:
            self._under_way[key].append(on_done)
            return
        waiting = self._under_way[key] = [on_done]
        self._throttle.began(name, address)

        def checked(error: CurbstoneError | None, kept: str) -> None:
            del self._under_way[key]
            self._throttle.ended(name, address)
            if kept:
                self._succeeded(name, caller)
            elif error is None:
                self._throttle.failed(name, address, self._host.now_ms())
            for each in waiting:
                each(error, kept)

        most = max((len(user.passwords) for user in users.users.values()), default=1)
        self._passwords.check(
            name,
            credentials.secret,
            hashes,
            most,
            checked,
            network=network_of(address),
            is_familiar=self._is_familiar(name, caller),
        )

    def _succeeded(self, name: str, caller: Caller) -> None:
        self._throttle.succeeded(name, caller.address)
        sources = self._sources.setdefault(name, {})
        source = source_of(caller.address)
        sources.pop(source, None)
        sources[source] = None
        if len(sources) > SOURCES_MAX:
            del sources[next(iter(sources))]

    def _is_familiar(self, name: str, caller: Caller) -> bool:
        """Return whether a user has logged in from this address before."""
        return source_of(caller.address) in self._sources.get(name, ())

    def _key(
        self, credentials: Credentials, caller: Caller, hashes: tuple[str, ...]
    ) -> tuple[bytes, str, tuple[str, ...]]:
        return self._passwords.mark(*credentials), caller.address, hashes


def _hashes(user: User | None, caller: Caller) -> tuple[str, ...]:
    """Return the hashes that a password may be right for; none if there is no such user, or not from this address."""
    return user.passwords if user is not None and user.may_log_in_from(caller.address) else ()
