"""Rates: how many messages, or bytes of them, a user may publish in a second. Users without a rate are not counted.

A message counts when it arrives, whether it is stored or not, over all connections of the user together. For a moment a
user may exceed its rate. That makes a debt, which time pays off, and until it is paid nothing more of the user is
accepted. A connection that publishes meanwhile is not read (`Throttle`). An HTTP request is refused, with the time to
try again (`Meter.check`).
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
"""A user that was silent for this long may send at once what its rate allows in that time."""
WAIT_MS_MAX = 86_400_000
RATE_KEYS = ("messages", "bytes")
BAD_RATE = 'rate has messages and bytes in a second, as in { messages = 1000, bytes = "10MiB" }, both from 1'


class BadRate(ValueError):
    """A rate breaks the rules; the text says which."""


class Rate(NamedTuple):
    """The most that may be published in a second; 0 for no bound."""

    messages: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        parts = [f"{self.messages} messages"] * bool(self.messages) + [f"{self.bytes} bytes"] * bool(self.bytes)
        return f"{' and '.join(parts) or 'any amount'} in a second"


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
    """Return a rate with the largest bound of each kind; a missing bound counts as the smallest."""
    found = list(rates)
    return Rate(max((rate.messages for rate in found), default=0), max((rate.bytes for rate in found), default=0))


class Meter:
    """Counts what one user publishes, and how long its debt takes to pay. Called on the host's thread."""

    def __init__(self, rate: Rate, host: Host, held_back: dict[str, int]) -> None:
        """`held_back` counts how often the user was held back, by protocol."""
        self.rate = rate
        self._host = host
        self._held_back = held_back
        self._us_a_message = 1_000_000 / rate.messages if rate.messages else 0.0
        self._us_a_byte = 1_000_000 / rate.bytes if rate.bytes else 0.0
        self._paid_us = [0.0, 0.0]
        """When the messages, and when the bytes, counted so far are paid for."""
        self._throttles: dict[Throttle, None] = {}
        self._timer: Timer | None = None

    def count(self, messages: int, size: int) -> None:
        """Count messages and bytes."""
        least = self._host.now_us() - AT_ONCE_US
        by_count, by_size = self._paid_us
        self._paid_us = [
            max(by_count, least) + messages * self._us_a_message,
            max(by_size, least) + size * self._us_a_byte,
        ]

    @property
    def debt_us(self) -> float:
        """The time until everything is paid for; 0 if it is."""
        return max(0.0, max(self._paid_us) - self._host.now_us())

    def check(self, protocol: str) -> None:
        """Raise TooFast if not everything is paid for."""
        if debt_us := self.debt_us:
            self._note(protocol)
            raise TooFast(f"this user may publish {self.rate}", int(-(-debt_us // 1_000_000)))

    def hold(self, throttle: Throttle, protocol: str) -> None:
        """Release a throttle when everything is paid for."""
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
        """Cancel the debt: the user has another rate now."""
        self._paid_us = [0.0, 0.0]
        self._release()

    def _note(self, protocol: str) -> None:
        self._held_back[protocol] = self._held_back.get(protocol, 0) + 1

    def _arm(self) -> None:
        self._timer = self._host.call_later(min(int(self.debt_us // 1000) + 1, WAIT_MS_MAX), self._due)

    def _due(self) -> None:
        self._timer = None
        if self.debt_us:  # another connection has sent more meanwhile
            self._arm()
        else:
            self._release()

    def _release(self) -> None:
        try:
            for throttle in list(self._throttles):
                self.remove(throttle)
                throttle.release()
        finally:
            if self._throttles and self._timer is None:  # one of them raised: the others are released later
                self._arm()


class Throttle:
    """The throttle of one connection. It is on while the connection wants to publish and its user is in debt.

    While it is on, the connection must not be read. Input that was read before waits, in its order.
    """

    def __init__(self, protocol: str, released: Callable[[], None]) -> None:
        """`released` is called when the connection may publish again."""
        self._protocol = protocol
        self._released = released
        self._meter: Meter | None = None

    @property
    def is_on(self) -> bool:
        """Whether the connection is held back."""
        return self._meter is not None

    def stops(self, meter: Meter | None) -> bool:
        """Return whether nothing may be published now; if so, the throttle is on from now."""
        if meter is None:
            return False
        if self._meter is None and meter.debt_us:
            self._meter = meter
            meter.hold(self, self._protocol)
        return self._meter is not None

    def release(self) -> None:
        """Turn the throttle off: everything is paid for."""
        self._meter = None
        self._released()

    def close(self) -> None:
        """Turn the throttle off: the connection has ended."""
        if self._meter is not None:
            self._meter.remove(self)
            self._meter = None
        self._released = ignore


class Meters:
    """The meters of the users that have a rate. A meter lives as long as it is referred to."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._meters: WeakValueDictionary[tuple[str, Rate], Meter] = WeakValueDictionary()
        self.held_back: dict[str, int] = {}
        """How often a connection was not read, or a request refused, by protocol."""

    def of(self, user: str, rate: Rate) -> Meter | None:
        """Return the meter of a user; None if it has no rate."""
        if rate == NO_RATE:
            return None
        meter = self._meters.get((user, rate))
        if meter is None:
            meter = self._meters[user, rate] = Meter(rate, self._host, self.held_back)
        return meter
