"""The rules of a lease, in simulated histories and one by one. Each rule is planted as a bug, which has to be found."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from curbstone.standby.lease import (
    MARGIN_MS,
    Call,
    Candidate,
    Found,
    Holder,
    Lease,
    Watch,
)
from tests.kit.results import record
from tests.standby.lease_machine import Machine
from tests.standby.lease_world import Store, World, simulate

Patch = pytest.MonkeyPatch
HISTORIES = 45
HISTORIES_MAX = 400
FOUND_AT = {"L4: a copy is never behind": 80, "L1: who has given it away goes on": 57}
"""The first seeds that find these, where the search begins: earlier ones find nothing, and take seconds."""

LEASE = Lease(server="s", term=1, holder="a", name="one", url="", sync=("b",), ttl_ms=15_000)


def test_lease_histories_keep_their_invariants() -> None:
    for seed in range(HISTORIES):
        simulate(seed)


@pytest.mark.soak
def test_many_lease_histories_keep_their_invariants() -> None:
    end = time.monotonic() + float(os.environ.get("CURBSTONE_SIM_SECONDS", "60"))
    seed = first = time.time_ns() % 1_000_000_000
    World.counts.clear()
    try:
        while time.monotonic() < end:
            simulate(seed)
            seed += 1
    finally:
        counts = {
            "histories": seed - first,
            "takeovers": World.counts["takes"],
            "messages confirmed": World.counts["confirmed"],
        }
        record("lease", counts, is_finding=time.monotonic() < end)


def _answered_late(patch: Patch) -> None:
    original = Holder.answer

    def answer(self: Holder, found: Found | None) -> None:
        before = self.valid_until_ms
        original(self, found)
        if self.valid_until_ms != before:
            self.valid_until_ms = self._now_ms() + self.lease.ttl_ms - MARGIN_MS

    patch.setattr(Holder, "answer", answer)


def _failed_is_forgotten(patch: Patch) -> None:
    """Whether a call that has failed has worked all the same does not count when it is asked who is in sync."""
    patch.setattr(Holder, "names_no_standby", property(lambda self: not self.lease.sync))


def _given_and_kept(patch: Patch) -> None:
    original = Holder.hand_over

    def hand_over(self: Holder, holder: str, name: str) -> None:
        original(self, holder, name)
        self.valid_until_ms = self._now_ms() + self.lease.ttl_ms - MARGIN_MS

    def call(self: Holder) -> Call | None:
        before = self.valid_until_ms
        found = original_call(self)
        self.valid_until_ms = before
        return found

    original_call = Holder.call
    patch.setattr(Holder, "hand_over", hand_over)
    patch.setattr(Holder, "call", call)
    patch.setattr(Machine, "is_given_up", lambda self: True)


def _changed(patch: Patch, change: Callable[[Candidate], Candidate]) -> None:
    """The rules see another copy than there is."""
    original = Watch.possible_loss
    patch.setattr(Watch, "possible_loss", lambda self, copy, lag_ms: original(self, change(copy), lag_ms))


def _named_by_nobody(patch: Patch) -> None:
    """A copy takes the lease because the server has stated that it is in sync, whatever the record names."""
    original = Watch.possible_loss

    def possible_loss(self: Watch, copy: Candidate, lag_ms: int | None) -> str:
        before = self.found
        if before is not None:
            self.found = before._replace(lease=replace(before.lease, sync=(copy.id,)))
        try:
            return original(self, copy, lag_ms)
        finally:
            self.found = before

    patch.setattr(Watch, "possible_loss", possible_loss)


def _named_at_once(patch: Patch) -> None:
    """The record names a standby that joins. What the server has stated to the standby does not count."""

    def tick(self: Machine, holder: Holder) -> None:
        if not self.barrier.tick() and self.confirms_for is not None:
            self.confirms_for.disconnect()
        if self.confirms_for is not None:
            holder.name_in_sync(self.confirms_for.id)

    patch.setattr(Machine, "tick", tick)
    _changed(patch, lambda copy: copy._replace(in_sync=True))


def _property(patch: Patch, owner: type, name: str, value: Callable[[Any], object]) -> None:
    patch.setattr(owner, name, property(value))


def _waits_less(patch: Patch) -> None:
    def is_expired(self: Watch) -> bool:
        return self.found is not None and self.unrenewed_ms >= self.found.lease.ttl_ms // 2

    _property(patch, Watch, "is_expired", is_expired)


RARE = ("L1: there is no margin", "L3: a standby that joins is named", "L4: half a copy takes it")
"""Found in more than a hundred histories; left to the soak."""
PLANTED_BUGS: dict[str, Callable[[Patch], None]] = {
    "L1: the lease is not looked at": lambda patch: _property(
        patch, Holder, "holds", lambda holder: holder.valid_until_ms > 0
    ),
    "L1: its time begins with the answer": _answered_late,
    "L1: there is no margin": lambda patch: patch.setattr("curbstone.standby.lease.MARGIN_MS", 0),
    "L1: who has given it away goes on": _given_and_kept,
    "L2: the record is not changed": lambda patch: patch.setattr(Machine, "may_continue_alone", lambda self: True),
    "L2: a call that has failed is forgotten": _failed_is_forgotten,
    "L3: a standby that joins is named": _named_at_once,
    "L4: nobody waits": lambda patch: _property(patch, Watch, "is_expired", lambda watch: watch.found is not None),
    "L4: half the time is waited for": _waits_less,
    "L4: the record need not name it": _named_by_nobody,
    "L4: half a copy takes it": lambda patch: _changed(
        patch, lambda copy: copy._replace(is_complete=True, in_sync=True)
    ),
    "L4: a copy is never behind": lambda patch: _changed(patch, lambda copy: copy._replace(reaches_ms=1 << 60)),
    "the store replaces any version": lambda patch: patch.setattr(Store, "accepts", lambda self, call: True),
}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.soak) if each in RARE else each for each in PLANTED_BUGS]
)
def test_a_planted_bug_is_found(name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        PLANTED_BUGS[name](patch)
        first = FOUND_AT.get(name, 0)
        for seed in range(first, first + HISTORIES_MAX):
            try:
                simulate(seed)
            except Exception:
                print(f"{name}: found by seed {seed}")
                return
    raise AssertionError(f"{name}: not found in {HISTORIES_MAX} histories")
