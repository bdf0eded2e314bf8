"""The whole server in a made world: clients of all protocols, crashes, faults and restarts, against one model.

A failure names its seed and shows the shortest run that was found to fail alike; with CURBSTONE_SIM_SEED set to the
seed the first run is that one. How long the long test takes is set by CURBSTONE_SIM_SECONDS.
"""

from __future__ import annotations

import os
import time
from random import Random

import pytest

from curbstone.core.engine.delivery.consumer import Consumer
from curbstone.core.engine.delivery.pop import Pops
from curbstone.core.engine.log.format import Reason
from curbstone.core.engine.write_queue import Pop, WriteQueue
from curbstone.core.errors import CurbstoneError
from curbstone.gateway.http.long_poll import Polls
from curbstone.mqks.session import Session as MqksSession
from curbstone.stomp.codec import Head
from curbstone.stomp.transactions import Transactions
from tests.kit.results import recorded
from tests.sim.history import Violation
from tests.sim.server_run import ServerRun, Step, plan
from tests.sim.shrink import explain, failure_of, shrink

FIRST_SEED = int(os.environ.get("CURBSTONE_SIM_SEED", "0"))
STEPS = 300
SEEDS_AT_ONCE = 4

pytestmark = pytest.mark.source


def simulate(seed: int) -> ServerRun:
    """Run one life of a server; odd seeds have faults of the disk."""
    steps = plan(seed, STEPS)
    run = ServerRun(seed, faults=seed % 2 == 1)
    try:
        run.run(steps)
    except Exception as error:
        error.add_note(f"seed {seed}: CURBSTONE_SIM_SEED={seed} repeats it")
        error.add_note(explain(seed, steps, faults=run.faults))
        raise
    return run


@pytest.mark.parametrize("block", range(5))
def test_nothing_confirmed_over_any_protocol_is_lost(block: int) -> None:
    first = FIRST_SEED + block * SEEDS_AT_ONCE
    runs = [simulate(seed) for seed in range(first, first + SEEDS_AT_ONCE)]
    assert sum(run.crashes for run in runs) > 0
    assert sum(len(run.history.gone) for run in runs) > 0


def test_same_seed_gives_the_same_run() -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        run = ServerRun(7, faults=True)
        run.trace = trace
        run.run(plan(7, STEPS))
    assert traces[0] == traces[1]


@pytest.mark.soak
def test_nothing_confirmed_over_any_protocol_is_lost_for_as_long_as_asked() -> None:
    seconds = float(os.environ.get("CURBSTONE_SIM_SECONDS", "600"))
    seed = int(os.environ.get("CURBSTONE_SIM_SEED", str(time.time_ns() // 1_000_000 % 1_000_000_000)))
    print(f"\nfirst seed {seed}")
    end = time.monotonic() + seconds
    runs = crashes = steps = deliveries = 0
    with recorded("server", lambda: {"histories": runs, "crashes": crashes, "deliveries": deliveries}):
        while time.monotonic() < end:
            run = simulate(seed + runs)
            runs += 1
            crashes += run.crashes
            steps += run.steps_done
            deliveries += run.history.deliveries
    print(f"{runs} lives, {crashes} crashes, {steps} frames and requests, {deliveries} deliveries in {seconds:.0f} s")


# ---------------------------------------------------------------- does it see anything?


def finds_something(seeds: range) -> bool:
    """Return whether some seed ends in a broken promise, or a broken server."""
    return any(failure_of(seed, plan(seed, STEPS), faults=False) for seed in seeds)


def test_server_simulator_detects_unwritten_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WriteQueue, "settled", lambda self, group, reason, seqs: self._wakeups.schedule())
    assert finds_something(range(10))


def test_server_simulator_detects_a_transaction_without_its_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    def ack(self: Transactions, head: Head) -> None:
        transaction = self._count(head, 0)
        subscription, seqs = self._covered(head, transaction)
        self._settle(transaction, subscription, seqs)

    monkeypatch.setattr(Transactions, "ack", ack)
    assert finds_something(range(13, 33))


def test_server_simulator_detects_an_answer_before_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    original = MqksSession.start

    def start(self: MqksSession, request: object, call: object, size: int = 0) -> None:
        def at_once(done: object) -> None:
            def nobody(_error: CurbstoneError | None) -> None:
                pass

            call(nobody)  # type: ignore[operator]
            self._registry.engine._broker.host.call_soon(lambda: done(None))  # type: ignore[operator, attr-defined]

        original(self, request, at_once, size)  # type: ignore[arg-type]

    monkeypatch.setattr(MqksSession, "start", start)
    assert finds_something(range(30))


def test_server_simulator_detects_an_exceeded_window(monkeypatch: pytest.MonkeyPatch) -> None:
    def credit(self: Consumer) -> int:
        return 0 if self.held or self.paused or self.closed else self.window + 1 - len(self.unsettled)

    monkeypatch.setattr(Consumer, "credit", property(credit))
    assert finds_something(range(10))


def test_server_simulator_detects_a_refused_pop_that_takes_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model took a popped message for settled when it was handed out, and saw none of this."""

    def failed(self: Pops, pops: list[Pop], error: CurbstoneError, *, is_undone: bool) -> None:
        for pop in pops:
            message = pop.delivery.message
            self._index.clear(pop.group, [message])
            self._write_queue.settled(pop.group, Reason.ACK, [message.seq])
            pop.on_done(error)

    def noticed(seed: int) -> bool:
        return isinstance(failure_of(seed, plan(seed, STEPS), faults=True), Violation)

    monkeypatch.setattr(Pops, "failed", failed)
    assert any(noticed(seed) for seed in range(1, 80, 2))


def test_server_simulator_detects_a_stop_that_denies_a_served_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def release(self: Polls) -> None:
        for future, waiter in list(self._open.items()):
            waiter.cancel()
            if not future.done():
                future.set_result(None)

    monkeypatch.setattr(Polls, "release", release)
    assert finds_something(range(60))


def test_failing_run_shrinks_to_the_relevant_steps() -> None:
    rng = Random(1)
    steps = [Step("world", f"step {number}", rng.getrandbits(32)) for number in range(300)]
    needed = {steps[17], steps[150], steps[299]}
    assert set(shrink(steps, lambda shorter: needed <= set(shorter))) == needed


def test_a_planted_bug_is_reported_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WriteQueue, "settled", lambda self, group, reason, seqs: self._wakeups.schedule())
    seed = next(seed for seed in range(20) if failure_of(seed, plan(seed, STEPS), faults=False))
    reported = explain(seed, plan(seed, STEPS), faults=False)
    assert int(reported.split()[0]) < 40, reported
