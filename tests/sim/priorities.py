"""Priorities in a simulated run: nothing goes out while something ready of a higher priority is left in its group."""

from __future__ import annotations

from collections.abc import Iterator

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.index.group import Group
from curbstone.core.engine.index.runs import Run, seqs_of
from curbstone.core.headers import key_of
from curbstone.core.message import Delivery
from curbstone.core.orders import level_in, priority_of
from tests.sim.history import History, Violation


def see_order(history: History, queue: LocalQueue, name: str, deliveries: list[Delivery]) -> None:
    """Messages were handed to a consumer; what is wrong with that is kept for `History.check`."""
    if not history.priorities:
        return
    group = queue.index.groups[name]
    lowest = 9
    for delivery in deliveries:
        message = delivery.message
        level = 0 if key_of(message.headers) else level_in(message.headers)
        if history.shares_keys:  # a message with a key has a priority, or not, by an option that changes
            level = group.level_of(message.seq).number
        lowest = min(lowest, priority_of(level))
        if group.level_of(message.seq).number != level:
            whose = f"{queue.name} {name!r}: {message.seq}"
            history.violations.append(Violation(f"{whose} of level {level} was handed out as of another"))
    if queue.options.oldest_every:
        return
    for run in queue.index.runs:
        for level in [0, *(run.levels or ())]:
            left = next(_ready(group, run, level), 0) if priority_of(level) > lowest else 0
            if left:
                whose = f"{queue.name} {name!r}: one of priority {lowest}"
                history.violations.append(Violation(f"{whose} went before {left} of {priority_of(level)}"))


def waiting(group: Group) -> set[int]:
    """Return the messages that wait for others of their keys."""
    backlogs = [each for key in group.keys._table.values() for each in key.backlogs] if group.keys is not None else []
    spans = [(each._spans[at], each._spans[at + 1]) for each in backlogs for at in range(each._at, len(each._spans), 2)]
    return {seq for each in backlogs for seq in each._returned} | {
        seq for low, high in spans for seq in range(low, high + 1)
    }


def _ready(group: Group, run: Run, level: int) -> Iterator[int]:
    """Yield the messages of a level that are ready."""
    held_back = waiting(group)
    if group.level_numbered(level).stuck_at >= 0:
        return
    for seq in seqs_of(run.first, run.of_level(level, run.pending(group.name))):
        if seq not in group.in_flight and not group.is_delayed(seq) and seq not in held_back:
            yield seq
