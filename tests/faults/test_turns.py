"""No request holds up the event loop: the CPU time of the longest turn for the worst input of every operation.

The goal is 50 ms; the test fails above 500, because a busy machine takes longer for everything. A new operation of the
contract fails here until it has a worst case.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.test_many_queues import prepare
from tests.faults.worst_cases import CASES, WITHOUT_QUEUE, World
from tests.faults.worst_ordering_cases import KEYS_AND_PRIORITIES
from tests.faults.worst_protocol_cases import WIRE
from tests.kit.contract import operations
from tests.kit.guarded_server import guarded_server
from tests.kit.server import ServerProcess, clean_environment
from tests.kit.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
ALL = CASES | WIRE | KEYS_AND_PRIORITIES
TURN_MS_MAX = 500
GOAL_MS = 50
USERS = """
[users.admin]
home = "default"
grants = ["send,receive,peek,manage */*", "send,receive topic:*/*", "admin,metrics server"]
"""


class MeasuredProcess(ServerProcess):
    """A server that measures its turns; see `measured`."""

    _asked = 0

    @property
    def _figures(self) -> Path:
        return self.data_dir.with_name("turns")

    def command(self) -> list[str]:
        program = [sys.executable, "-m", "tests.faults.measured", str(self._figures)]
        return [*program, "serve", "--data", str(self.data_dir)]

    def longest_ms(self) -> float:
        """Return the CPU time of the longest turn since the last call."""
        self._asked += 1
        self.process.send_signal(signal.SIGUSR2)
        wait_until(
            lambda: self._figures.exists() and int(self._figures.read_text().split()[0]) == self._asked, "the figure"
        )
        return float(self._figures.read_text().split()[1])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    path = tmp_path_factory.mktemp("turns")
    (path / "data").mkdir(mode=0o700)
    prepare(path / "data", 1000, 100_000)
    env = clean_environment(PYTHONPATH=str(ROOT))
    more = ("--sync=never", "--cap=64MiB", "--standby-backlog=64MiB")
    with guarded_server(path, USERS, *more, env=env, process=MeasuredProcess) as it:
        world = World(it)
        world.prepare()
        yield world


@pytest.mark.parametrize("name", dict.fromkeys([*(each["operationId"] for _, _, each in operations()), *ALL]))
def test_worst_case_input_does_not_block_the_loop(world: World, name: str) -> None:
    assert name in ALL, f"{name} has no worst case in tests/faults/worst_cases.py"
    case = ALL[name]
    server = world.guarded.server
    assert isinstance(server, MeasuredProcess)
    took_ms = TURN_MS_MAX + 1.0
    for _ in range(3):  # a busy machine takes twice as long for everything, so look again
        ready = "" if case in WITHOUT_QUEUE else world.ready(name.replace(" ", "-"))
        server.longest_ms()
        case(world, ready)
        took_ms = min(took_ms, server.longest_ms())
        if took_ms < TURN_MS_MAX:
            break
    print(f"{name}: {took_ms:.1f} ms{'' if took_ms <= GOAL_MS else ', more than the goal'}")
    assert took_ms < TURN_MS_MAX
