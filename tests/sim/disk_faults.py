"""Faults of the disk of a simulated run: syncs fail, the disk fills up and recovers; and then a crash.

A crash right after a failure finds what the failure left behind. So each is followed by one more often than not.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.kit.simulated import SimDisk

UNLIMITED = 1 << 60


def syncs_fail(rng: Random, disk: SimDisk) -> None:
    disk.eio_chance = rng.choice([0.05, 0.5, 1.0])


def changes_fail(rng: Random, disk: SimDisk) -> None:
    """Some changes of names and sizes fail, and some of those are made all the same."""
    disk.doubt_chance = rng.choice([0.05, 0.5])


def disk_fills_up(rng: Random, disk: SimDisk) -> None:
    """There is little room left, or none."""
    used = sum(len(inode.cache) for inode in disk.names.values())
    disk.capacity = used + rng.choice([0, rng.randrange(500), rng.randrange(20_000), rng.randrange(60_000)])


def disk_recovers(_rng: Random, disk: SimDisk) -> None:
    disk.eio_chance = disk.doubt_chance = 0
    disk.capacity = UNLIMITED


def from_the_start(rng: Random, disk: SimDisk) -> None:
    """Now and then the disk fails, or is full, before there is any queue."""
    if rng.random() < 0.1:
        rng.choice([syncs_fail, disk_fills_up])(rng, disk)


def inject_fault(rng: Random, disk: SimDisk, advance: Callable[[], None], crash: Callable[[], None]) -> None:
    """Let the disk fail, fill up or recover; then maybe let a little happen, and crash at any call."""
    happens = rng.choices([syncs_fail, changes_fail, disk_fills_up, disk_recovers], [3, 1, 3, 4])[0]
    happens(rng, disk)
    if happens is not disk_recovers and rng.random() < 0.1:
        for _ in range(rng.randrange(4)):
            advance()
        crash()
