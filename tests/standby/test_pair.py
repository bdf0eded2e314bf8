"""Failovers in a made world: nothing that was confirmed is missing on the other disk.

A failure names the history; CURBSTONE_SIM_SEED sets the first seed, and CURBSTONE_SIM_SECONDS how long the soak takes.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.kit.results import recorded
from tests.standby.pair_run import PairRun, simulate

FIRST_SEED = int(os.environ.get("CURBSTONE_SIM_SEED", "0"))
HISTORIES = 9

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("is_sync", [True, False], ids=["synchronous", "asynchronous"])
def test_nothing_confirmed_before_the_cut_is_missing_after_a_failover(is_sync: bool) -> None:
    PairRun.counts.clear()
    for step in range(HISTORIES):
        simulate(FIRST_SEED + step, is_sync=is_sync, step=step)
    assert PairRun.counts["failovers"] > HISTORIES, "next to nothing was tested"


@pytest.mark.soak
def test_nothing_confirmed_is_missing_for_as_long_as_asked() -> None:
    seconds = float(os.environ.get("CURBSTONE_SIM_SECONDS", "600"))
    seed = int(os.environ.get("CURBSTONE_SIM_SEED", str(time.time_ns() // 1_000_000 % 1_000_000_000)))
    print(f"\nfirst seed {seed}")
    PairRun.counts.clear()
    end = time.monotonic() + seconds
    runs = 0
    with recorded("pair", lambda: {"histories": 2 * runs, "failovers": PairRun.counts["failovers"]}):
        while time.monotonic() < end:
            for is_sync in (True, False):
                simulate(seed + runs, is_sync=is_sync, step=runs)
            runs += 1
    print(f"{2 * runs} histories", dict(PairRun.counts))
