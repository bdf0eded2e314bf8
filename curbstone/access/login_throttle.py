"""Throttles logins: after some failures, each further attempt must wait, longer and longer, before it is hashed.

Failures are counted for a user from an address, and for the address alone, so a user is never locked out at other
addresses. For IPv6 the address is its /64. An attempt counts as a failure until it succeeds, so concurrent attempts do
not evade the limit. Callers pass the time.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from curbstone.net import peer
from curbstone.net.peer import source_of

FREE_OF_USER, FREE_OF_ADDRESS = 5, 50
"""How many failures are allowed before attempts must wait."""
AT_ONCE_OF_USER, AT_ONCE_OF_ADDRESS = 4, 16
"""How many attempts may be in progress before others are refused."""
AGAIN_MS = 1000
"""How long an attempt must wait if only those in progress prevent it."""
WAIT_MS_MAX = 60_000
FORGET_MS = 15 * 60_000
KNOWN_MAX = 100_000

_NAME = re.compile(r"[A-Za-z0-9._@:-]{1,128}")


def network_of(address: str) -> str:
    """Return the network that an address is served with: a /24 of IPv4, a /48 of IPv6. One client may own all of it."""
    return peer.network_of(address, 24, 48)


class _Failures:
    __slots__ = ("count", "last_ms")

    def __init__(self) -> None:
        self.count = 0
        self.last_ms = 0


class LoginThrottle:
    """Counts failed logins and those in progress."""

    def __init__(self) -> None:
        self._failures: dict[bytes, _Failures] = {}
        self._under_way: dict[bytes, int] = {}

    def wait_ms(self, user: str, address: str, now_ms: int) -> int:
        """Return how long an attempt must wait; 0 if it may be made now."""
        of_user, of_address = _keys(user, address)
        return max(
            self._wait_ms(of_user, FREE_OF_USER, AT_ONCE_OF_USER, now_ms),
            self._wait_ms(of_address, FREE_OF_ADDRESS, AT_ONCE_OF_ADDRESS, now_ms),
        )

    def _wait_ms(self, key: bytes, free: int, at_once: int, now_ms: int) -> int:
        under_way = self._under_way.get(key, 0)
        failures = self._failures.get(key)
        failed = failures.count if failures is not None and now_ms - failures.last_ms <= FORGET_MS else 0
        wait_ms = 0
        if failures is not None and failed >= free:
            wait_ms = failures.last_ms + min(1000 << min(failed - free, 6), WAIT_MS_MAX) - now_ms
        if under_way and (under_way >= at_once or failed + under_way >= free):
            wait_ms = max(wait_ms, AGAIN_MS)
        return max(wait_ms, 0)

    def began(self, user: str, address: str) -> None:
        """Note that an attempt is in progress, until `ended`."""
        for key in _keys(user, address):
            self._under_way[key] = self._under_way.get(key, 0) + 1

    def ended(self, user: str, address: str) -> None:
        """Note that an attempt has ended. If it was checked, call `failed` or `succeeded`, too."""
        for key in _keys(user, address):
            self._under_way[key] -= 1
            if not self._under_way[key]:
                del self._under_way[key]

    def failed(self, user: str, address: str, now_ms: int) -> None:
        for key in _keys(user, address):
            if len(self._failures) >= KNOWN_MAX:
                self._forget(now_ms)
            failures = self._failures.setdefault(key, _Failures())
            if now_ms - failures.last_ms > FORGET_MS:
                failures.count = 0
            failures.count += 1
            failures.last_ms = now_ms

    def succeeded(self, user: str, address: str) -> None:
        """Clear the failures of a user from this address, but not those of the address alone."""
        self._failures.pop(_keys(user, address)[0], None)

    def _forget(self, now_ms: int) -> None:
        """Make room: drop expired failures, or the oldest half."""
        recent = {key: each for key, each in self._failures.items() if now_ms - each.last_ms <= FORGET_MS}
        if len(recent) >= KNOWN_MAX:
            recent = dict(sorted(recent.items(), key=lambda item: item[1].last_ms)[len(recent) // 2 :])
        self._failures = recent


def _keys(user: str, address: str) -> tuple[bytes, bytes]:
    """Return the keys of a user from an address, and of the address alone. All invalid user names share one key."""
    source = source_of(address)
    name = user if _NAME.fullmatch(user) else "?"
    return _digest(f"{name}\0{source}"), _digest(source)


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
