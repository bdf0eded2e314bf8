"""What a producer asks for with a message: a delay, a time to live, groups. A plain message has none."""

from __future__ import annotations

from typing import Any, NamedTuple


class Orders(NamedTuple):
    """Many messages may share one of these."""

    delay_ms: int = 0
    """Milliseconds after publishing before it may be delivered; 0 for at once."""
    ttl_ms: int = 0
    """Milliseconds after publishing when it expires; 0 for the queue's own ttl."""
    groups: tuple[str, ...] = ()
    """The groups entitled to it; empty for the unnamed group and every declared one."""


NOTHING = Orders()


def orders_of(*, delay_ms: int = 0, ttl_ms: int = 0, groups: tuple[str, ...] = ()) -> Orders | None:
    """Return the orders, or None if they ask for nothing."""
    return Orders(delay_ms, ttl_ms, groups) if delay_ms or ttl_ms or groups else None


def changed(orders: Orders | None, **changes: Any) -> Orders | None:
    """Return orders with some of them changed, or None if they ask for nothing any more."""
    orders = (orders or NOTHING)._replace(**changes)
    return orders if orders != NOTHING else None
