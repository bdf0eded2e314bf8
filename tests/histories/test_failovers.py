"""Histories of clients of a server and its standby, checked by Porcupine: the server is killed or stopped, and the
standby promoted; or it takes over by a lease, or by a switchover. The clients have both addresses."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.crash.test_real_file import seed_of_run
from tests.histories.clients import Address, Clients
from tests.histories.judge import Judge, Undecided, needs_porcupine
from tests.histories.plants import PLANTS
from tests.histories.record import Event
from tests.kit.commands import curbstone
from tests.kit.rabbitmq import free_port
from tests.kit.results import record
from tests.kit.server import ServerProcess, call, clean_environment
from tests.kit.waiting import wait_until
from tests.standby.kubernetes_api import KubernetesApi
from tests.standby.load import wait_in_sync
from tests.standby.standby_process import StandbyProcess

OPTIONS = ("--standby-backlog=1MiB",)
SYNC = (*OPTIONS, "--confirm-with=standby", "--standby-patience=never")
LEASE = (*OPTIONS, "--confirm-with=standby", "--lease=k8s://shop/lease", "--lease-ttl=6")
LEASE_S = 5
"""A message whose lease is lost with its answer is there again after that."""
ANSWER_S_MAX = 3
"""A server that is stopped does not answer; then a client tries the other address."""
PAUSE_S = 0.1


class Machines:
    """A server and its standby. Each keeps its address when they change places."""

    def __init__(self, folder: Path, rng: Random, *options: str, env: dict[str, str] | None = None) -> None:
        self.addresses: list[Address] = [(host, free_port()) for host in ("127.0.0.2", "127.0.0.3")]
        self.counts: Counter[str] = Counter()
        self.rng = rng
        self._env = clean_environment() if env is None else env
        folders = [folder / "one", folder / "two"]
        self._options = {
            each: (f"--http-addr={host}:{port}", *options)
            for each, (host, port) in zip(folders, self.addresses, strict=True)
        }
        self.server = ServerProcess(folders[0], *self._options[folders[0]], env=self._env)
        self.standby = self._following(folders[1])

    def _following(self, folder: Path) -> StandbyProcess:
        return StandbyProcess(folder, self.server.url, "--discard", *self._options[folder], env=self._env)

    def is_ready(self) -> None:
        """Wait until the standby can take over without a loss."""
        wait_in_sync(self.server)
        self.standby.is_promotable()
        wait_until(lambda: (call(self.server, "GET", "/v2/standby")["lease"] or {"standbys": 1})["standbys"] == 1)

    def promote(self) -> None:
        """Kill the server, and promote the standby."""
        self.is_ready()
        self.server.kill()
        done = self.standby.promote()
        assert done.code == 0 and "nothing that was confirmed is missing" in done.out, done.err
        self._change_places("failovers")

    def take_over(self) -> None:
        """Kill the server, or stop it until it was replaced. The standby takes the lease."""
        self.is_ready()
        is_stopped = self.rng.random() < 0.5
        self.server.process.send_signal(signal.SIGSTOP if is_stopped else signal.SIGKILL)
        self._serves()
        if is_stopped:
            self.server.process.send_signal(signal.SIGCONT)
            assert self.server.process.wait(60) == 7
        self.server.kill()
        self._change_places("failovers")

    def switch_over(self) -> None:
        self.is_ready()
        done = curbstone("switchover", "--server", self.server.url, cwd=self.server.data_dir.parent)
        assert done.code == 0, done.err
        assert self.server.process.wait(60) == 7
        self.server.kill()
        self._serves()
        self._change_places("switchovers")

    def _serves(self) -> None:
        ServerProcess.read_addresses(self.standby, self.standby.process)

    def _change_places(self, what: str) -> None:
        former, self.server = self.server, self.standby
        self.standby = self._following(former.data_dir)
        self.counts[what] += 1

    def history(self, queue: str, faults: list[Callable[[], None]], messages: int) -> list[Event]:
        """Record what clients of a new queue do while the faults happen."""
        self.is_ready()
        call(self.server, "PUT", f"/v2/default/queues/{queue}", {"lease": LEASE_S})
        clients = Clients(
            lambda: self.addresses, self.rng, messages, queue=queue, pause_s=PAUSE_S, answer_s_max=ANSWER_S_MAX
        )
        return clients.run(faults, self.rng)

    def close(self) -> None:
        for each in (self.server, self.standby):
            each.kill()


@pytest.fixture(params=["promote", "lease"])
def machines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machines]:
    seed = seed_of_run()
    print(f"CURBSTONE_CRASH_SEED={seed}")
    rng = Random(seed)
    if request.param == "promote":
        found = Machines(tmp_path, rng, *SYNC)
        yield found
        found.close()
        return
    with KubernetesApi(tmp_path) as api:
        found = Machines(tmp_path, rng, *LEASE, env=clean_environment(**api.variables))
        yield found
        found.close()


def takes_over(machines: Machines) -> Callable[[], None]:
    """Return the fault after which the standby serves."""
    return machines.promote if "--standby-patience=never" in machines.server.args else machines.take_over


@needs_porcupine
def test_the_history_of_a_queue_is_possible_across_failovers(machines: Machines, judge: Judge) -> None:
    events = machines.history("q", [takes_over(machines), machines.switch_over], messages=20)
    judge.allows(events)
    for plant in PLANTS:
        judge.refuses(plant(events))


@needs_porcupine
def test_a_failover_that_loses_what_was_confirmed_is_refused(tmp_path: Path, judge: Judge) -> None:
    """The server does not wait for its standby, which is away while messages are published."""
    machines = Machines(tmp_path, Random(0), *OPTIONS)
    try:
        call(machines.server, "PUT", "/v2/default/queues/q", {"lease": LEASE_S})
        machines.standby.has_everything(machines.server)
        machines.standby.kill()

        def lose() -> None:
            wait_until(lambda: len(clients.published) >= 20)
            machines.server.kill()
            machines.standby.restart()
            machines.standby.status("/healthz")  # then it has the directory, and not the command that promotes it
            done = machines.standby.promote("--accept-loss")
            assert done.code == 0, done.err

        clients = Clients(lambda: machines.addresses, Random(0), 20, pause_s=PAUSE_S, consumes_late=True)
        judge.refuses(clients.run([lose], Random(0)))
    finally:
        machines.close()


@needs_porcupine
@pytest.mark.soak
def test_histories_of_failovers_are_possible_for_as_long_as_asked(machines: Machines, judge: Judge) -> None:
    seconds = float(os.environ.get("CURBSTONE_CRASH_SECONDS", "60"))
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    is_finding = True
    try:
        while time.monotonic() < end:
            faults = [takes_over(machines), takes_over(machines), machines.switch_over]
            machines.rng.shuffle(faults)
            events = machines.history(f"q{counts['histories']}", faults, messages=20)
            counts["histories"] += 1
            counts["operations"] += judge.allows(events)
        is_finding = False
    except Undecided:
        is_finding = False
        raise
    finally:
        record("failover histories", counts + machines.counts, is_finding=is_finding)
        print(dict(counts + machines.counts))
