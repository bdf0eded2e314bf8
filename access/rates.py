"""How much a user may publish in a second: messages, bytes of them, or both. Where nothing is set nothing is counted.

What is published counts when it comes, stored or not; over all connections of the user together. It may be more than
the rate for a moment: that is a debt, and until it is paid, by waiting, nothing of the user is taken. A connection that
publishes meanwhile is not read (`Brake`); a request over HTTP is refused, and told when to come again (`Meter.check`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple
from weakref import WeakValueDictionary

from curbstone.access.errors import TooFast
from curbstone.core.errors import BadRequest
from curbstone.core.host import Host, Timer
from curbstone.core.options import parse_size

AT_ONCE_US = 1_000_000
"""Who was silent for so long may send at once what the rate allows in that time."""
WAIT_MS_MAX = 86_400_000
RATE_KEYS = ("messages", "bytes")
BAD_RATE = 'rate has messages and bytes in a second, as in { messages = 1000, bytes = "10MiB" }, both from 1'


class BadRate(ValueError):
    """A rate breaks the rules; the text says which."""


class Rate(NamedTuple):
    """What may be published in a second; 0 where there is no bound."""

    messages: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        told = [f"{self.messages} messages"] * bool(self.messages) + [f"{self.bytes} bytes"] * bool(self.bytes)
        return f"{' and '.join(told) or 'as much as comes'} in a second"


NO_RATE = Rate()


def parse_rate(table: object) -> Rate:
    """Return the rate that a table says; raise BadRate."""
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
    """Return the largest bounds of some; those that say nothing do not count."""
    found = list(rates)
    return Rate(max((rate.messages for rate in found), default=0), max((rate.bytes for rate in found), default=0))


class Meter:
    """What one user publishes, and how long it takes to pay for what was too much. Called on the host's thread."""

    def __init__(self, rate: Rate, host: Host, held_back: dict[str, int]) -> None:
        """`held_back`: how often that happened, by protocol."""
        self.rate = rate
        self._host = host
        self._held_back = held_back
        self._us_a_message = 1_000_000 / rate.messages if rate.messages else 0.0
        self._us_a_byte = 1_000_000 / rate.bytes if rate.bytes else 0.0
        self._paid_us = [0.0, 0.0]
        """When all that came is paid: its messages, and its bytes."""
        self._brakes: dict[Brake, None] = {}
        self._timer: Timer | None = None

    def count(self, messages: int, size: int) -> None:
        """So much came."""
        least = self._host.now_us() - AT_ONCE_US
        by_count, by_size = self._paid_us
        self._paid_us = [
            max(by_count, least) + messages * self._us_a_message,
            max(by_size, least) + size * self._us_a_byte,
        ]

    @property
    def debt_us(self) -> float:
        """In how many microseconds all is paid; 0 where it is."""
        return max(0.0, max(self._paid_us) - self._host.now_us())

    def check(self, protocol: str) -> None:
        """Raise TooFast as long as not all is paid."""
        if debt_us := self.debt_us:
            self._note(protocol)
            raise TooFast(f"this user may publish {self.rate}", int(-(-debt_us // 1_000_000)))

    def hold(self, brake: Brake, protocol: str) -> None:
        """Release a brake once all is paid."""
        self._note(protocol)
        self._brakes[brake] = None
        if self._timer is None:
            self._arm()

    def let_go(self, brake: Brake) -> None:
        """Its connection is over."""
        self._brakes.pop(brake, None)
        if not self._brakes and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def forgive(self) -> None:
        """The user has another rate from now on."""
        self._paid_us = [0.0, 0.0]
        self._release()

    def _note(self, protocol: str) -> None:
        self._held_back[protocol] = self._held_back.get(protocol, 0) + 1

    def _arm(self) -> None:
        self._timer = self._host.call_later(min(int(self.debt_us // 1000) + 1, WAIT_MS_MAX), self._due)

    def _due(self) -> None:
        self._timer = None
        if self.debt_us:  # another connection had more under way
            self._arm()
        else:
            self._release()

    def _release(self) -> None:
        try:
            for brake in list(self._brakes):
                self.let_go(brake)
                brake.release()
        finally:
            if self._brakes and self._timer is None:  # one of them failed: the others are still to come
                self._arm()


class Brake:
    """Of one connection: on while it has something to publish and its user has not paid for what came before.

    It must not be read meanwhile; what was read already waits, in its order.
    """

    def __init__(self, protocol: str, released: Callable[[], None]) -> None:
        """`released` is called when it may publish again."""
        self._protocol = protocol
        self._released = released
        self._meter: Meter | None = None

    @property
    def is_on(self) -> bool:
        """Whether the connection is held back."""
        return self._meter is not None

    def stops(self, meter: Meter | None) -> bool:
        """Return whether nothing may be published now; then it is on."""
        if meter is None:
            return False
        if self._meter is None and meter.debt_us:
            self._meter = meter
            meter.hold(self, self._protocol)
        return self._meter is not None

    def release(self) -> None:
        """All is paid."""
        self._meter = None
        self._released()

    def close(self) -> None:
        """The connection is over, and hears no more."""
        if self._meter is not None:
            self._meter.let_go(self)
            self._meter = None
        self._released = _nothing


class Meters:
    """One for each user that has a rate, as long as somebody holds it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._meters: WeakValueDictionary[tuple[str, Rate], Meter] = WeakValueDictionary()
        self.held_back: dict[str, int] = {}
        """How often a connection was not read, or a request refused, by protocol."""

    def of(self, user: str, rate: Rate) -> Meter | None:
        """Return what counts for a user; None where it has no rate."""
        if rate == NO_RATE:
            return None
        meter = self._meters.get((user, rate))
        if meter is None:
            meter = self._meters[user, rate] = Meter(rate, self._host, self.held_back)
        return meter


def _nothing() -> None:
    """Nobody is to be told any more."""
