"""Passwords: hashed with argon2id in threads, two at a time, in turns. A good one is remembered for a while.

An unknown user, or one without a password, costs as many hashes as any other. What is remembered is not the password
but an HMAC of it, with a key of this process.
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
"""How many may wait: so many users at addresses that they have used before, and so many others."""
REMEMBERED_MS = 5 * 60_000
REMEMBERED_MAX = 10_000
BYTES_MIN, BYTES_MAX = 8, 128

logger = logging.getLogger("curbstone.access")

_HASHER = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)

Checked = Callable[[CurbstoneError | None, str], None]
"""(Busy, or None if it was checked; the hash that the password belongs to, empty for none)"""


def hash_password(password: str) -> str:
    """Return the hash of a password for the users file. Blocks. Raise ValueError, which names the broken rule."""
    if not BYTES_MIN <= len(password.encode()) <= BYTES_MAX:
        raise ValueError(f"a password must have {BYTES_MIN} to {BYTES_MAX} bytes")
    return _HASHER.hash(password)


@cache
def _nobody() -> str:
    """Return a hash that no password belongs to."""
    return _HASHER.hash(secrets.token_urlsafe(32))


def hash_of(password: str, hashes: Sequence[str], most: int = 1) -> str:
    """Return the hash that a password belongs to, or "" for none. Blocks.

    It always takes as long as for `most` hashes, however many there are.
    """
    found = ""
    for kept in [*hashes, *[_nobody()] * (max(most, 1) - len(hashes))]:
        try:
            _HASHER.verify(kept, password)
            found = kept
        except (VerificationError, InvalidHashError):
            continue
    return found if found in hashes else ""


class Passwords:
    """Checks passwords. Called on the host's thread."""

    def __init__(self, host: Host) -> None:
        _nobody()  # made now, so that the first unknown user also costs one hash only, and a server without users none
        self._host = host
        self._key = secrets.token_bytes(32)
        self._remembered: dict[bytes, tuple[int, str]] = {}
        """(when to forget it, the hash it was right for) by mark."""
        self._familiar, self._others = LoginQueue(WAITING_MAX), LoginQueue(WAITING_MAX)
        self._order = [self._familiar, self._others]
        """The one that was served last is last, so neither can keep out the other."""
        self._running = 0

    def known(self, user: str, password: str, hashes: Sequence[str]) -> str:
        """Return the hash that the password was recently found right for, if it still counts; else ""."""
        found = self._remembered.get(self.mark(user, password))
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
        """Call back, in a later turn, with the hash that the password belongs to. `most`: see `hash_of`.

        Networks take turns. `is_familiar`: the user has logged in from this address before, and waits among such only.
        """

        def done(found: str | None, error: BaseException | None) -> None:
            self._running -= 1
            if found:
                self._remember(self.mark(user, password), found)
            self._next()
            if error is not None:
                logger.error("a password can't be checked: %s", error)
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

    def mark(self, user: str, password: str) -> bytes:
        """Return a mark of a user's password that is valid in this process and does not reveal the password."""
        return hmac.digest(self._key, f"{user}\0{password}".encode("utf-8", "surrogatepass"), "sha256")

    def _remember(self, mark: bytes, kept: str) -> None:
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[mark] = (self._host.now_ms() + REMEMBERED_MS, kept)
