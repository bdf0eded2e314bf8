"""The offset of a stream: the place in each queue where reading continues. Pure.

    {"shop/orders": {"from": 1, "next": 101, "epoch": "…", "floor": 0, "lost": 0}}

An offset also defines the batch that ends at it: the messages from `from` up to, but not including, `next`. So a batch
that is repeated after a crash is the same, regardless of acks meanwhile, and a queue that joins begins where its first
batch says. `floor` and `lost` are the group's losses by then. `gaps` are the gaps that were found when the batch was
planned. `gone` means that the queue no longer exists. An older checkpoint has no `from`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from curbstone.spark.gaps import Gap

Place = dict[str, Any]
Offset = dict[str, Place]

_OF_BATCH = ("from", "gaps")


class Part(NamedTuple):
    """The range of a queue that a batch reads. `low` is None if the offset lacks it."""

    queue: str
    epoch: str
    low: int | None
    high: int


def place(next_seq: int, epoch: str, floor: int = 0, lost: int = 0) -> Place:
    return {"next": next_seq, "epoch": epoch, "floor": floor, "lost": lost}


def left(at: Place) -> Place:
    """Return the place where a batch ended, without the members that belong to that batch only."""
    return {name: value for name, value in at.items() if name not in _OF_BATCH}


def with_gap(at: Place, gap: Gap) -> Place:
    return {**at, "gaps": [*at.get("gaps", ()), gap.to_json()]}


def planned(at: Place, rows: int) -> Place:
    """Return the end of a batch that begins at this place and reads `rows` seqs."""
    return at if at.get("gone") else {**at, "from": at["next"], "next": at["next"] + rows}


def is_news(start: Offset, begun: Offset, rows: Mapping[str, int]) -> bool:
    """Return whether a batch is due: there are rows or a gap, or queues were added or removed."""
    return any(rows.values()) or begun != {queue: left(at) for queue, at in start.items()}


def parts(start: Offset, end: Offset) -> list[Part]:
    """Return the ranges that the batch between two offsets reads."""
    found = []
    for queue, until in end.items():
        since = start.get(queue)
        if since == until or until.get("gone"):
            continue
        low = until.get("from")
        if low is None and since is not None:
            low = since["next"] if since["epoch"] == until["epoch"] else 0
        if low is None or low < until["next"]:
            found.append(Part(queue, until["epoch"], low, until["next"]))
    return found


class End(NamedTuple):
    """The end of a queue. Messages up to `until` take `size` of the batch's limit of `size_max` bytes (0: no limit)."""

    next: int
    until: int
    size: int
    size_max: int


def rows_up_to(begun: Offset, ends: Mapping[str, End], target: Mapping[str, int] | None) -> dict[str, int]:
    """Return the seqs of each queue that a batch may read: up to its end or target, within the bytes of a batch."""
    rows, sizes = {}, {}
    for queue, end in ends.items():
        low = begun[queue]["next"]
        high = end.next if target is None else min(end.next, target.get(queue, end.next))
        rows[queue] = max(0, min(high, end.until) - low)
        sizes[queue] = end.size * rows[queue] / max(1, end.until - low)
    size, size_max = sum(sizes.values()), max((end.size_max for end in ends.values()), default=0)
    if size <= size_max or not size_max or len(ends) == 1:
        return rows
    return {queue: max(1, int(count * size_max / size)) if count else 0 for queue, count in rows.items()}


def shares(rows: Mapping[str, int], most: int) -> dict[str, int]:
    """Return the rows of each queue in a batch of `most` rows: in proportion, but at least one of each."""
    total = sum(rows.values())
    if total <= most:
        return dict(rows)
    given = {queue: max(1, count * most // total) if count else 0 for queue, count in rows.items()}
    # With very many queues, one row of each may exceed the limit. Then the queues with most rows wait.
    for queue in sorted(given, key=lambda name: rows[name]):
        over = sum(given.values()) - most
        if over <= 0:
            break
        given[queue] -= min(over, given[queue])
    return given
