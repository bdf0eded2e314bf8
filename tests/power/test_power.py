"""The real process on a file system that loses what was not synced, with the checks of tests/crash.

A kill is followed by a power cut: any part of what was not synced is lost, by sectors of each write and by entries of
directories; half of the cuts hit the middle of a write. Everything that was confirmed must be there all the same, a cut
is never reported as damage, and the directories never hold more than the cap.

    CURBSTONE_POWER_SECONDS=1800 pytest -m soak tests/power
    CURBSTONE_LAZYFS=/path/to/lazyfs pytest -m soak tests/power       # also on LazyFS
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.crash.directory import Sampler
from tests.crash.killable import KillableServer
from tests.crash.test_real_file import CAP, Run, seed_of_run
from tests.kit.results import recorded
from tests.kit.server import ServerProcess
from tests.power.volumes import PowerCut, Volatile, lazyfs, needs_fuse, needs_lazyfs, volatile

WRITES_MAX = 40
STOPPED_S_MAX = 2.0


class PoweredServer(KillableServer):
    """A server whose power is cut when it is killed."""

    def __init__(self, process: ServerProcess, volume: PowerCut, rng: Random) -> None:
        self._volume = volume
        self._rng = rng
        self.torn = 0
        """Cuts in the middle of a write."""
        super().__init__(process)

    def kill(self, before_it_ends: Callable[[], None] | None = None) -> None:
        """Kill it, often in the middle of a write, and cut the power."""
        volume = self._volume
        if not isinstance(volume, Volatile):
            super().kill()
        else:
            if self._rng.random() < 0.5:
                volume.stop_at_write(self._rng.randrange(1, WRITES_MAX))
                self.torn += volume.wait_until_stopped(STOPPED_S_MAX)
            super().kill(volume.let_fail)
        volume.cut()


def send_a_file(parent: Path, volume: PowerCut, lines: int, cuts: int, seed: int) -> str:
    """Send a file through all protocols with so many power cuts; return the figures."""
    rng = Random(seed)
    with ServerProcess(volume.directory / "data", "--log-level=warning", log_file=parent / "log") as process:
        server = PoweredServer(process, volume, rng)
        with Sampler(process.data_dir) as sampler:
            run = Run(server, lines, seed)
            run.run(cuts)
        verdict = run.history.judge()
        report = f"{run.report(verdict, seed, sampler)} torn={server.torn}"
        print(report)
        verdict.check()
        assert max(sampler.largest, run.largest_at_rest) <= CAP
        assert "Traceback" not in process.log
        # The last commit may be torn, which is logged; `check_health` after each start says that nothing is damaged.
        assert "damaged" not in process.log.replace("before it was confirmed, or damaged", ""), process.log[-4000:]
        assert process.stop() == 0
    return report


@needs_fuse
def test_a_file_survives_power_cuts(tmp_path: Path) -> None:
    seed = seed_of_run()
    print(f"CURBSTONE_CRASH_SEED={seed}")
    with volatile(tmp_path, Random(seed)) as volume:
        send_a_file(tmp_path, volume, lines=3_000, cuts=4, seed=seed)
        assert volume.files_hurt, "no cut lost anything"


@needs_fuse
@pytest.mark.parametrize(("sync", "kept"), [("always", 20), ("never", 0)])
def test_total_loss_power_cut_shows_whether_confirms_were_durable(tmp_path: Path, sync: str, kept: int) -> None:
    """Also of the first messages in a new data directory, whose own name must be durable."""
    with (
        volatile(tmp_path, Random(1)) as volume,
        ServerProcess(volume.directory / "data", f"--sync={sync}", log_file=tmp_path / "log") as process,
    ):
        queue = f"{process.url}/v2/default/queues/q"
        httpx.put(queue).raise_for_status()
        for number in range(20):
            httpx.post(f"{queue}/messages", content=f"{number}").raise_for_status()
        process.kill()
        volume.cut_all()
        process.restart()
        counts = httpx.get(f"{process.url}/v2/default/queues/q")  # at its new port
        assert (counts.json()["rdy"] if counts.status_code == 200 else 0) == kept
    assert volume.files_hurt or volume.entries_lost


def send_files(tmp_path: Path, mounted: Callable[[Path, Random], AbstractContextManager[PowerCut]]) -> None:
    """Send files, each on a file system of its own, for as long as CURBSTONE_POWER_SECONDS says."""
    end = time.monotonic() + float(os.environ.get("CURBSTONE_POWER_SECONDS", "600"))
    for number in count(1):
        seed = seed_of_run()
        parent = tmp_path / str(number)
        parent.mkdir()
        print(f"CURBSTONE_CRASH_SEED={seed}")
        with mounted(parent, Random(seed)) as volume:
            with recorded("power", lambda: {"power cuts": 25, "messages confirmed": 12_000}):
                send_a_file(parent, volume, lines=12_000, cuts=25, seed=seed)
            if isinstance(volume, Volatile):
                print(f"files hurt: {volume.files_hurt}, entries lost: {volume.entries_lost}")
        if time.monotonic() > end:
            break


@needs_fuse
@pytest.mark.soak
def test_files_survive_power_cuts_for_as_long_as_asked(tmp_path: Path) -> None:
    send_files(tmp_path, volatile)


@needs_lazyfs
@pytest.mark.soak
def test_files_survive_power_cuts_on_lazyfs(tmp_path: Path) -> None:
    send_files(tmp_path, lambda parent, _rng: lazyfs(parent))
