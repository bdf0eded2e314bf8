"""Passwords: hashed with argon2id in threads, two at a time. A matching one is cached for a while.

An unknown user, or one without a password, costs as many hashes as any other. The cache holds not the password but its
HMAC, with a key of this process.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Callable, Sequence
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from curbstone.access.errors import Busy
from curbstone.access.login_queue import LoginQueue, WaitingLogin
from curbstone.core.errors import CurbstoneError
from curbstone.core.host import Host

AT_ONCE = 2
WAITING_MAX = 64
"""How many logins may wait: from addresses that their user has used before, and as many others."""
REMEMBERED_MS = 5 * 60_000
REMEMBERED_MAX = 10_000
BYTES_MIN, BYTES_MAX = 8, 128

logger = logging.getLogger("curbstone.access")

_HASHER = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)

Checked = Callable[[CurbstoneError | None, str], None]
"""(Busy, or None if the password was checked; the hash that it matches, or "")"""


def hash_password(password: str) -> str:
    """Return the hash of a password for the users file. Blocks. Raise ValueError for a bad length."""
    if not BYTES_MIN <= len(password.encode()) <= BYTES_MAX:
        raise ValueError(f"a password must have {BYTES_MIN} to {BYTES_MAX} bytes")
    return _HASHER.hash(password)


@cache
def _dummy_hash() -> str:
    """Return a hash that no password matches."""
    return _HASHER.hash(secrets.token_urlsafe(32))


def hash_of(password: str, hashes: Sequence[str], most: int = 1) -> str:
    """Return the hash that a password matches, or "". Blocks, always for as long as checking `most` hashes takes."""
    found = ""
    for kept in [*hashes, *[_dummy_hash()] * (max(most, 1) - len(hashes))]:
        try:
            _HASHER.verify(kept, password)
            found = kept
        except (VerificationError, InvalidHashError):
            continue
    return found if found in hashes else ""


class Passwords:
    """Checks passwords. Called on the host's thread."""

    def __init__(self, host: Host) -> None:
        _dummy_hash()  # computed now, so that the first unknown user costs no extra hash
        self._host = host
        self._key = secrets.token_bytes(32)
        self._remembered: dict[bytes, tuple[int, str]] = {}
        """(when to forget it, the hash that it matched) by fingerprint."""
        self._familiar, self._others = LoginQueue(WAITING_MAX), LoginQueue(WAITING_MAX)
        self._order = [self._familiar, self._others]
        """The queue served last is last, so neither can starve the other."""
        self._running = 0

    def known(self, user: str, password: str, hashes: Sequence[str]) -> str:
        """Return the hash that the password recently matched, if it is still one of `hashes`; else ""."""
        found = self._remembered.get(self.fingerprint(user, password))
        return found[1] if found is not None and found[0] > self._host.now_ms() and found[1] in hashes else ""

    def check(
        self,
        user: str,
        password: str,
        hashes: Sequence[str],
        most: int,
        on_done: Checked,
        *,
        network: str = "",
        is_familiar: bool = False,
    ) -> None:
        """Call back, in a later turn, with the hash that the password matches. `most`: see `hash_of`.

        Networks are served in turn. `is_familiar`: the user has logged in from this address before; such logins have a
        queue of their own.
        """

        def done(found: str | None, error: BaseException | None) -> None:
            self._running -= 1
            if found:
                self._remember(self.fingerprint(user, password), found)
            self._next()
            if error is not None:
                logger.error("can't check a password: %s", error)
            on_done(None, found or "")

        def start() -> None:
            self._running += 1
            self._host.submit(lambda: hash_of(password, hashes, most), done)

        def refuse() -> None:
            self._host.call_soon(lambda: on_done(Busy("too many logins are waiting to be checked; try again"), ""))

        (self._familiar if is_familiar else self._others).add(network, WaitingLogin(start, refuse))
        self._next()

    def _next(self) -> None:
        while self._running < AT_ONCE and (login := self._take()) is not None:
            login.start()

    def _take(self) -> WaitingLogin | None:
        for turns in self._order:
            if (login := turns.take()) is not None:
                self._order.remove(turns)
                self._order.append(turns)
                return login
        return None

    def fingerprint(self, user: str, password: str) -> bytes:
        """Return an HMAC of a user and password with a key of this process."""
        return hmac.digest(self._key, f"{user}\0{password}".encode("utf-8", "surrogatepass"), "sha256")

    def _remember(self, fingerprint: bytes, kept: str) -> None:
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[fingerprint] = (self._host.now_ms() + REMEMBERED_MS, kept)
