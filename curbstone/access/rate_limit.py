"""Rate limits: how many messages and bytes a user may publish per second.

A message counts when it arrives, whether it is stored or not, over all connections of the user together. A burst may
exceed the rate; the excess is a debt, which decreases with time. While a user is in debt, its publishing connections
are not read (`Throttle`), and its HTTP requests are refused with the time to retry (`Meter.check`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple
from weakref import WeakValueDictionary

from curbstone.access.errors import TooFast
from curbstone.core.errors import BadRequest
from curbstone.core.host import Host, Timer
from curbstone.core.options import parse_size
from curbstone.core.values import ignore

AT_ONCE_US = 1_000_000
"""The burst: after an idle period of this length a user may send at once what its rate allows in that period."""
WAIT_MS_MAX = 86_400_000
RATE_KEYS = ("messages", "bytes")
BAD_RATE = 'rate: expected messages and bytes per second, at least 1, as in { messages = 1000, bytes = "10MiB" }'


class BadRate(ValueError):
    """A rate in the users file is not valid."""


class Rate(NamedTuple):
    """The most that may be published per second; 0 for no limit."""

    messages: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        parts = [f"{self.messages} messages"] * bool(self.messages) + [f"{self.bytes} bytes"] * bool(self.bytes)
        return f"{' and '.join(parts) or 'any amount'} per second"


NO_RATE = Rate()


def parse_rate(table: object) -> Rate:
    """Return the rate in a table of the users file; raise BadRate."""
    if not isinstance(table, dict) or not table or not set(table) <= set(RATE_KEYS):
        raise BadRate(BAD_RATE)
    messages, size = table.get("messages"), table.get("bytes")
    if isinstance(size, str):
        try:
            size = parse_size(size)
        except BadRequest as error:
            raise BadRate(f"rate: {error}") from None
    for value in (messages, size):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise BadRate(BAD_RATE)
    return Rate(messages or 0, size or 0)


def most(rates: Iterable[Rate]) -> Rate:
    """Return a rate with the largest limit of each kind; a missing limit counts as the smallest."""
    found = list(rates)
    return Rate(max((rate.messages for rate in found), default=0), max((rate.bytes for rate in found), default=0))


class Meter:
    """Measures the publishes of one user. Called on the host's thread."""

    def __init__(self, rate: Rate, host: Host, held_back: dict[str, int]) -> None:
        """`held_back` counts how often the user was held back, by protocol."""
        self.rate = rate
        self._host = host
        self._held_back = held_back
        self._us_a_message = 1_000_000 / rate.messages if rate.messages else 0.0
        self._us_a_byte = 1_000_000 / rate.bytes if rate.bytes else 0.0
        self._paid_us = [0.0, 0.0]
        """When the debt of the messages, and that of the bytes counted so far, is zero again."""
        self._throttles: dict[Throttle, None] = {}
        self._timer: Timer | None = None

    def count(self, messages: int, size: int) -> None:
        least = self._host.now_us() - AT_ONCE_US
        by_count, by_size = self._paid_us
        self._paid_us = [
            max(by_count, least) + messages * self._us_a_message,
            max(by_size, least) + size * self._us_a_byte,
        ]

    @property
    def debt_us(self) -> float:
        """The time until the user is out of debt; 0 if it is not in debt."""
        return max(0.0, max(self._paid_us) - self._host.now_us())

    def check(self, protocol: str) -> None:
        """Raise TooFast if the user is in debt."""
        if debt_us := self.debt_us:
            self._note(protocol)
            raise TooFast(f"this user may publish {self.rate}", int(-(-debt_us // 1_000_000)))

    def hold(self, throttle: Throttle, protocol: str) -> None:
        """Add a throttle, which is released when the user is out of debt."""
        self._note(protocol)
        self._throttles[throttle] = None
        if self._timer is None:
            self._arm()

    def remove(self, throttle: Throttle) -> None:
        """Remove a throttle whose connection has ended."""
        self._throttles.pop(throttle, None)
        if not self._throttles and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def cancel_debt(self) -> None:
        """Cancel the debt, because the user has another rate now."""
        self._paid_us = [0.0, 0.0]
        self._release()

    def _note(self, protocol: str) -> None:
        self._held_back[protocol] = self._held_back.get(protocol, 0) + 1

    def _arm(self) -> None:
        self._timer = self._host.call_later(min(int(self.debt_us // 1000) + 1, WAIT_MS_MAX), self._due)

    def _due(self) -> None:
        self._timer = None
        if self.debt_us:  # another connection has published meanwhile
            self._arm()
        else:
            self._release()

    def _release(self) -> None:
        try:
            for throttle in list(self._throttles):
                self.remove(throttle)
                throttle.release()
        finally:
            if self._throttles and self._timer is None:  # one of them raised; release the others later
                self._arm()


class Throttle:
    """The throttle of one connection. It is on while the connection tries to publish and its user is in debt.

    While it is on, the connection must not be read, and input that was read before waits in order.
    """

    def __init__(self, protocol: str, released: Callable[[], None]) -> None:
        """`released` is called when the connection may publish again."""
        self._protocol = protocol
        self._released = released
        self._meter: Meter | None = None

    @property
    def is_on(self) -> bool:
        return self._meter is not None

    def holds(self, meter: Meter | None) -> bool:
        """Return whether nothing may be published now; if so, turn the throttle on."""
        if meter is None:
            return False
        if self._meter is None and meter.debt_us:
            self._meter = meter
            meter.hold(self, self._protocol)
        return self._meter is not None

    def release(self) -> None:
        """Turn the throttle off, because the user is out of debt."""
        self._meter = None
        self._released()

    def close(self) -> None:
        """Turn the throttle off, because the connection has ended."""
        if self._meter is not None:
            self._meter.remove(self)
            self._meter = None
        self._released = ignore


class Meters:
    """The meters of the users with a rate limit. A meter lives as long as an identity refers to it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._meters: WeakValueDictionary[tuple[str, Rate], Meter] = WeakValueDictionary()
        self.held_back: dict[str, int] = {}
        """How often a connection was held back or a request refused, by protocol."""

    def of(self, user: str, rate: Rate) -> Meter | None:
        """Return the meter of a user; None if the user has no rate limit."""
        if rate == NO_RATE:
            return None
        meter = self._meters.get((user, rate))
        if meter is None:
            meter = self._meters[user, rate] = Meter(rate, self._host, self.held_back)
        return meter
