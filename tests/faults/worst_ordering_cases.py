"""The worst input for what selects the next message: keys and priorities; see `test_turns`."""

from __future__ import annotations

import orjson

from tests.faults.many_batches import AT_ONCE
from tests.faults.worst_cases import JSON, Case, World


def with_keys(world: World, queue: str, count: int, **options: object) -> None:
    """Publish so many messages, each with a key of its own."""
    world.call("PUT", queue, json=options)
    for first in range(0, count, AT_ONCE):
        batch = [{"message": "x", "key": f"k{number}"} for number in range(first, first + AT_ONCE)]
        world.call("POST", f"{queue}/messages/batch", 201, content=orjson.dumps(batch), headers=JSON)


def keys(world: World, queue: str) -> None:
    """As many keys as a group knows."""
    with_keys(world, queue, 100_000, fair=True, key_limit=0)
    world.lease(queue)
    for by in ("waiting", "in_flight"):
        world.call("GET", f"{queue}/keys", 200, params={"by": by, "limit": 1000})


def keys_throttled(world: World, queue: str) -> None:
    """Many keys that all wait for their rates, and then no longer."""
    with_keys(world, queue, 50_000, fair=True, key_limit=0, key_rate=0.001)
    world.call("POST", f"{queue}/messages/lease", 200, json={"count": 1000})
    world.call("POST", f"{queue}/messages/lease", 200, json={"count": 1000, "wait": 0.2})
    world.call("PUT", queue, json={"key_rate": 0})
    world.lease(queue, 2)
    world.call("POST", f"{queue}/purge", 200, json={})


def keys_in_order(world: World, queue: str) -> None:
    """Two keys that alternate: all but two messages are passed over, and each is an entry of its own."""
    for _ in range(5):
        batch = [{"message": "x", "key": f"k{number % 2}"} for number in range(AT_ONCE)]
        world.call("POST", f"{queue}/messages/batch", 201, content=orjson.dumps(batch), headers=JSON)
    ids = world.lease(queue, 11)
    world.call("POST", f"{queue}/messages/ack", 200, json={"ackIds": ids})
    world.call("GET", f"{queue}/explain", 200)
    world.call("PUT", queue, json={"key_limit": 2})
    world.lease(queue, 1)
    world.call("PUT", queue, json={"fair": True, "key_limit": 0})
    world.lease(queue, 2)


def priorities(world: World, queue: str) -> None:
    """Messages of one priority, and then of all, in turn and by age."""
    for first, count in ((9, 1), (0, 10)):
        batch = [{"message": "x", "priority": first + number % count} for number in range(AT_ONCE)]
        world.call("POST", f"{queue}/messages/batch", 201, content=orjson.dumps(batch), headers=JSON)
    world.lease(queue, 10)
    world.call("PUT", queue, json={"oldest_every": 2})
    world.lease(queue, 5)
    world.call("PUT", queue, json={"fair": True})
    world.lease(queue, 5)


def fair_backlog(world: World, queue: str) -> None:
    """A queue with much on disk becomes fair: its messages are read to find their keys."""
    world.call("PUT", world.large, json={"fair": True, "key_limit": 0})
    try:
        world.call("POST", f"{world.large}/messages/lease", 200, json={"count": 1000, "seconds": 1})
        world.call("GET", f"{world.large}/keys", 200)
    finally:
        world.call("PUT", world.large, json={"fair": False, "key_limit": 1})


KEYS_AND_PRIORITIES: dict[str, Case] = {
    "listKeys": keys,
    "Keys throttled": keys_throttled,
    "Keys in order": keys_in_order,
    "Priorities": priorities,
    "Fair backlog": fair_backlog,
}
