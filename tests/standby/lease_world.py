"""Simulated histories of servers that share a lease, with a store whose calls are slow, fail, or fail and have worked.

Each machine has a clock of its own, which is fast or slow. Machines are killed and paused, connections and the store
are lost. The judges: no confirm leaves a server unless the record in the store is that server's, no two servers hold
the lease at a time, and whoever takes over has everything that was confirmed, or with a lag all but the latest.

    python -m tests.standby.lease_world SEED [HISTORIES]
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from random import Random
from typing import NamedTuple

from curbstone.standby.lease import Call, Found
from tests.standby.lease_machine import Machine

STEP_MS = 50
LAG_MS = 5_000
SLACK_MS = 3_000
"""By how much more than the lag may be missing: the time between two acknowledgements, looks and steps."""


class Broken(AssertionError):
    """A promise was broken."""


class Asked(NamedTuple):
    """A call to the store that is under way."""

    machine: Machine
    run: int
    """Which run of the machine's process has asked."""
    call: Call
    works_ms: int | None
    """When it takes effect; None for never."""
    replies_ms: int
    fails: bool


class Store:
    """The store. Its record is the truth."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.found: Found | None = None
        self.writes = 0
        self.until_ms = 0
        """Until then it can't be reached."""
        self.written_ms = self.left_ms = 0
        """When it was written last, and when the holder before this one has."""
        self.asked: list[Asked] = []
        self.results: dict[int, Found | None | OSError] = {}

    def ask(self, machine: Machine, call: Call) -> None:
        rng, now_ms = self.world.rng, self.world.now_ms
        delay_ms, way_ms = rng.choice(self.world.delays_ms), rng.choice(self.world.delays_ms)
        works: int | None = now_ms + delay_ms
        replies, fails = now_ms + delay_ms + way_ms, False
        what = rng.random()
        if now_ms < self.until_ms or machine.store_is_cut or what < 0.05:
            works, fails = None, True
        elif what < 0.10:
            fails = True  # and it has worked
            self.world.counts["calls that failed and worked"] += 1
        elif what < 0.14:
            works, fails = replies + rng.choice([100, 3000, 20_000]), True  # it works later
            self.world.counts["calls that worked later"] += 1
        self.asked.append(Asked(machine, machine.run, call, works, replies, fails))

    def step(self) -> None:
        now_ms = self.world.now_ms
        for asked in list(self.asked):
            key = id(asked)
            if asked.works_ms is not None and asked.works_ms <= now_ms and key not in self.results:
                self.results[key] = self.work(asked.call)
            is_done = asked.works_ms is None or key in self.results
            if asked.replies_ms <= now_ms and asked.machine.waits_for is not None:
                machine = asked.machine
                if machine.run == asked.run and machine.waits_for is asked.call:
                    if machine.is_paused:
                        continue
                    result = OSError("it has failed") if asked.fails else self.results[key]
                    machine.waits_for = None
                    machine.answered(asked.call, result)
            if is_done and asked.replies_ms <= now_ms:
                self.asked.remove(asked)
                self.results.pop(key, None)

    def work(self, call: Call) -> Found | None | OSError:
        if call.lease is None:
            return self.found
        if not self.accepts(call):
            return OSError("another version")
        self.writes += 1
        if self.found is not None and self.found.lease.holder != call.lease.holder:
            self.left_ms = self.written_ms
        self.written_ms = self.world.now_ms
        self.found = Found(call.lease, str(self.writes))
        return self.found

    def accepts(self, call: Call) -> bool:
        return call.version == (self.found.version if self.found is not None else None)


class World:
    """A history."""

    counts: Counter[str] = Counter()

    def __init__(self, seed: int) -> None:
        self.rng = Random(f"lease {seed}")
        self.now_ms = self.items = self.lives = 0
        self.is_sync = self.rng.random() < 0.7
        self.lag_ms = None if self.is_sync or self.rng.random() < 0.2 else LAG_MS
        self.delays_ms = self.rng.choice([[5, 50], [5, 50, 200, 1000, 4000]])
        self.confirmed: dict[int, int] = {}
        """When each item was confirmed."""
        self.store = Store(self)
        self.machines: list[Machine] = []
        for number in range(self.rng.choice([2, 2, 3])):
            self.machines.append(Machine(self, number))

    def confirm(self, server: Machine, item: int) -> None:
        found = self.store.found
        if found is None or (found.lease.holder, found.lease.term) != (server.id, server.term):
            raise Broken(f"{server.id} confirms, and the lease is that of {found and found.lease.holder}")
        self.confirmed[item] = self.now_ms
        self.counts["confirmed"] += 1

    def takes_over(self, machine: Machine) -> None:
        missing = self.confirmed.keys() - set(machine.items)
        if not missing:
            return
        oldest_ms = min(self.confirmed[item] for item in missing)
        if not machine.misses_some or oldest_ms < self.store.left_ms - LAG_MS - SLACK_MS:
            raise Broken(
                f"{len(missing)} are missing; the first was confirmed {self.store.left_ms - oldest_ms} ms earlier"
            )
        for item in missing:
            del self.confirmed[item]

    def begins_to_serve(self, machine: Machine) -> None:
        if self.confirmed.keys() - set(machine.items):
            raise Broken(f"{machine.id} serves, and lacks what was confirmed")

    def trouble(self) -> None:
        rng = self.rng
        machine = rng.choice(self.machines)
        what = rng.random()
        if what < 0.25:
            if machine.is_down:
                machine.start()
            else:
                machine.end()
        elif what < 0.4:
            machine.is_paused = not machine.is_down and not machine.is_paused
        elif what < 0.65:
            machine.store_is_cut = not machine.store_is_cut
        elif what < 0.8:
            machine.net_is_cut = not machine.net_is_cut
        elif what < 0.85:
            self.store.until_ms = self.now_ms + rng.choice([1000, 10_000, 30_000])
        else:
            for each in self.machines:
                each.is_paused = each.store_is_cut = each.net_is_cut = False
                if each.is_down:
                    each.start()

    def run(self) -> None:
        p_trouble = self.rng.choice([0.002, 0.005, 0.02])
        for _ in range(6000):
            self.now_ms += STEP_MS
            self.store.step()
            for machine in self.machines:
                machine.step()
            holding = [machine.id for machine in self.machines if machine.is_holding]
            if len(holding) > 1:
                raise Broken(f"{holding} hold the lease")
            if self.rng.random() < p_trouble:
                self.trouble()


def simulate(seed: int) -> None:
    try:
        World(seed).run()
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


def main() -> None:
    """Run histories from a seed on; print which failed."""
    logging.disable(logging.CRITICAL)
    seed, histories = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 100
    failed = 0
    for number in range(histories):
        try:
            simulate(seed + number)
        except Exception as error:
            failed += 1
            print(type(error).__name__, error, *error.__notes__, flush=True)
    print(f"{histories} histories, {failed} failed", dict(World.counts))


if __name__ == "__main__":
    main()
