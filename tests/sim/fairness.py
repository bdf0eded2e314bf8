"""Keys that share a queue, in a simulated run: how many of each are in flight, and which one is next.

It changes the options of keys, and judges what is handed out by them. Only some runs have it: in the others, keys are
in order, which `tests.sim.turns` judges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.index.backlogs import Backlog
from curbstone.core.engine.index.group import Group
from curbstone.core.engine.index.keys import Keys
from curbstone.core.headers import key_of
from curbstone.core.message import Delivery
from tests.sim.history import Violation
from tests.sim.priorities import see_order

if TYPE_CHECKING:
    from tests.sim.run import Run


class Fairness:
    """The options of one run; `focus` may name it."""

    def __init__(self, run: Run, seed: int, focus: str) -> None:
        self._run = run
        self._rng = Random(f"fair {seed}")
        self.is_on = focus == "fair" or self._rng.random() < 0.15
        self._keys: dict[tuple[str, str, int], bytes] = {}
        """By queue and group, the keys of what was delivered."""
        self._before: dict[tuple[str, str], tuple[object, set[int]]] = {}
        """By queue and group, the options of keys, and what was in flight when they changed: that may count later."""
        if self.is_on:
            run.history.keys = run.history.keys or 5
            run.history.shares_keys = True

    def weights(self) -> dict[str, int]:
        """Return how often its action comes."""
        return {"fair": 4} if self.is_on else {}

    def act(self) -> None:
        """Change what a queue does with keys, and publish to it, so that something is there."""
        queue = self._run.any_queue()
        rng = self._rng
        changes: dict[str, object] = {"key_limit": rng.choice([0, 1, 2, 3]), "fair": rng.choice([True, True, False])}
        changes["key_rate"] = rng.choice([0, 0, 0, 20, 1000])
        self._run.directories.declare(queue.name, changes)
        self._run.publish_to(queue)

    def drain(self) -> None:
        """All that is there is to come out soon."""
        for queue in self._run.broker.queues() if self.is_on else ():
            self._run.directories.declare(queue.name, {"key_rate": 0})

    def see(self, queue: LocalQueue, name: str, deliveries: list[Delivery]) -> None:
        """Messages were handed to a consumer; what is wrong with that is kept for `History.check`."""
        see_order(self._run.history, queue, name, deliveries)
        if not self.is_on:
            return
        of, group, options = (queue.uid, name), queue.index.groups[name], queue.options
        fresh = {delivery.message.seq for delivery in deliveries}
        self._keys |= {(*of, delivery.message.seq): key_of(delivery.message.headers) for delivery in deliveries}
        held = [seq for seq, holder in group.in_flight.items() if holder is not None or seq in fresh]
        if self._before.get(of, (None,))[0] != options.keys:
            self._before[of] = options.keys, {*held} - fresh
        held = [seq for seq in held if seq not in self._before[of][1]]
        counts = Counter(self._keys.get((*of, seq), b"") for seq in held)
        served = {self._keys[*of, seq] for seq in fresh}
        whose, report = f"{queue.name} {name!r}", self._run.history.violations.append
        for key in served - {b""} if options.key_limit else ():
            if counts[key] > options.key_limit:
                report(Violation(f"{whose}: {counts[key]} of {key!r} are in flight, not {options.key_limit} at most"))
        if group.keys is None or not options.fair or options.oldest_every:
            return
        levels = {group.level_of(seq).number for seq in fresh}
        backlogs = [each for each in group.keys._by_first.values() if each.scheduler.level.number in levels]
        waiting = [each.key.places_taken for each in backlogs if _goes(group, each)]
        most = max([group.keys._table[key].places_taken for key in served if key in group.keys._table], default=0)
        if len(levels) == 1 and waiting and most > min(waiting) + 1:
            report(Violation(f"{whose}: a key with {most} in flight was served before one with {min(waiting)}"))


def _goes(group: Group, backlog: Backlog) -> bool:
    """Return whether the first message of a backlog could have been handed out."""
    seq = backlog.first
    run = group.reader.runs.find(seq)
    is_pending = run is not None and run.pending(group.name) >> (seq - run.first) & 1
    return bool(backlog.is_offered and is_pending and seq not in group.in_flight and not group.is_delayed(seq))


def _tables(queue: LocalQueue) -> list[Keys]:
    return [group.keys for group in queue.index.groups.values() if group.keys is not None]


def _key_waits_for_the_disk(queue: LocalQueue) -> bool:
    tables = _tables(queue)
    return any(
        key.places_taken and key.waits and key.last not in keys._placed
        for keys in tables
        for key in keys._table.values()
    )


def _key_is_full(queue: LocalQueue) -> bool:
    tables = [keys for keys in _tables(queue) if keys._limit > 1]
    return any(key.places_taken >= keys._limit and key.waits for keys in tables for key in keys._table.values())


def _keys_are_equal(queue: LocalQueue) -> bool:
    schedulers = [scheduler for keys in _tables(queue) for scheduler in keys._schedulers.values()]
    return any(len(backlogs) > 1 for scheduler in schedulers for backlogs in scheduler._by_count.values())


OF_KEYS: dict[str, Callable[[LocalQueue], object]] = {
    "the next of a key waits until the settle of the first is on disk": _key_waits_for_the_disk,
    "a key has as many in flight as it may, and more wait": _key_is_full,
    "a key waits for a token": lambda queue: any(keys._throttled for keys in _tables(queue)),
    "several keys of a fair queue have as few in flight": _keys_are_equal,
    "a fair queue reads a run for the first message of a key": lambda queue: any(k._reading for k in _tables(queue)),
}
"""States that simulated histories must reach; see `tests.sim.states`."""
