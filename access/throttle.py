"""Guesses: after some failures each further try waits, longer and longer, before anything is hashed. No clock here.

What counts is a user from an address, and the address alone; nobody is locked out of anywhere else. Of IPv6 an address
is its /64.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

FREE_OF_USER, FREE_OF_ADDRESS = 5, 50
"""Failures before tries wait."""
WAIT_MS_MAX = 60_000
FORGET_MS = 15 * 60_000
KNOWN_MAX = 100_000


def source_of(address: str) -> str:
    """Return what failures of an address are counted under."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, IPv6Address):
        return str(ip.ipv4_mapped) if ip.ipv4_mapped else f"{int(ip) >> 64:x}/64"
    return str(ip)


class _Failures:
    __slots__ = ("count", "last_ms")

    def __init__(self) -> None:
        self.count = 0
        self.last_ms = 0


class Throttle:
    """Counts failed logins."""

    def __init__(self) -> None:
        self._failures: dict[tuple[str, str], _Failures] = {}

    def wait_ms(self, user: str, address: str, now_ms: int) -> int:
        """Return how long a try has to wait; 0 where it may be made now."""
        source = source_of(address)
        of_user = self._wait_ms((user, source), FREE_OF_USER, now_ms)
        return max(of_user, self._wait_ms(("", source), FREE_OF_ADDRESS, now_ms))

    def _wait_ms(self, key: tuple[str, str], free: int, now_ms: int) -> int:
        failures = self._failures.get(key)
        if failures is None or failures.count < free or now_ms - failures.last_ms > FORGET_MS:
            return 0
        wait_ms = min(1000 << min(failures.count - free, 6), WAIT_MS_MAX)
        return max(failures.last_ms + wait_ms - now_ms, 0)

    def failed(self, user: str, address: str, now_ms: int) -> None:
        """A login failed."""
        source = source_of(address)
        for key in ((user, source), ("", source)):
            if len(self._failures) >= KNOWN_MAX:
                self._forget(now_ms)
            failures = self._failures.setdefault(key, _Failures())
            if now_ms - failures.last_ms > FORGET_MS:
                failures.count = 0
            failures.count += 1
            failures.last_ms = now_ms

    def succeeded(self, user: str, address: str) -> None:
        """A login succeeded: the user's failures from there are forgotten, the address's are not."""
        self._failures.pop((user, source_of(address)), None)

    def _forget(self, now_ms: int) -> None:
        """Make room: drop what is old, else the oldest half."""
        recent = {key: each for key, each in self._failures.items() if now_ms - each.last_ms <= FORGET_MS}
        if len(recent) >= KNOWN_MAX:
            recent = dict(sorted(recent.items(), key=lambda item: item[1].last_ms)[len(recent) // 2 :])
        self._failures = recent
