"""Logins by password: throttled, queued, hashed and counted.

A password that was recently verified is not hashed again. At an address where its user has logged in before it is not
throttled either, so that guesses from there can't lock the user out. At other addresses the throttle comes first:
otherwise only correct guesses would be answered, which would reveal them.
"""

from __future__ import annotations

from collections.abc import Callable

from curbstone.access.caller import Caller, Credentials
from curbstone.access.errors import TOO_MANY_FAILED, TooMany
from curbstone.access.login_throttle import LoginThrottle, network_of
from curbstone.access.passwords import Passwords
from curbstone.access.users import User, Users
from curbstone.core.errors import CurbstoneError
from curbstone.core.host import Host
from curbstone.net.peer import source_of

SOURCES_MAX = 256
"""The most addresses remembered for a user that has logged in from them."""

Checked = Callable[[CurbstoneError | None, str], None]
"""(Busy, or None if the password was checked; the hash that it matches, or "")"""


class PasswordLogins:
    """Checks passwords of clients. Called on the host's thread.

    Concurrent logins with the same password of the same user from the same address share one attempt. So a fleet of
    workers that starts together costs one hash.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._passwords = Passwords(host)
        self._throttle = LoginThrottle()
        self._under_way: dict[tuple[bytes, str, tuple[str, ...]], list[Checked]] = {}
        self._sources: dict[str, dict[str, None]] = {}
        """The addresses that each user has logged in from, the latest last."""

    def known(self, users: Users, credentials: Credentials, caller: Caller) -> str:
        """Return the hash that a password recently matched; "" if it has to be hashed. Raise TooMany if throttled."""
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
            raise TooMany(f"{TOO_MANY_FAILED}; try again in {wait_s} s", wait_s)
        if kept:
            self._succeeded(name, caller)
        return kept

    def check(self, users: Users, credentials: Credentials, caller: Caller, on_done: Checked) -> None:
        """Hash a password for which `known` returned "", or join the same login that is in progress."""
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
        return self._passwords.fingerprint(*credentials), caller.address, hashes


def _hashes(user: User | None, caller: Caller) -> tuple[str, ...]:
    """Return the hashes of a user's passwords; none for an unknown user or one who may not log in from this address."""
    return user.passwords if user is not None and user.may_log_in_from(caller.address) else ()
