"""Mutation testing of the engine's commit, cap, recovery and delivery: `python -m tests.mutation.run [MODULE...]`.

Each mutant runs in a process of its own, which is forked from one that has imported everything: the unit tests of the
module first, then some simulated histories, until something notices. `score.json` beside this file says how
many mutants a module has, and what became of each one that was tried; it is saved after each mutant. A run continues
where the last one has stopped, for CURBSTONE_MUTATION_SECONDS (600) of CPU time, with one process at a time. It tries
again mutants that survived without an explanation and a few that were noticed, and then new ones, in an order in which
those that were tried are spread evenly over the module. It exits with 1 if a mutant survives that was noticed before:
the score must not fall.

A mutant that changes nothing that is promised has a reason in `explained.json`, and does not count.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from math import ceil
from pathlib import Path
from random import Random
from typing import Any, TypedDict

import pytest

from tests.kit.results import record
from tests.mutation.mutants import Mutant, mutants_of
from tests.sim.run import Run

HERE = Path(__file__).parent
SCORE, EXPLAINED = HERE / "score.json", HERE / "explained.json"
CORE = HERE.parents[0] / "core"
ENGINE = "curbstone.core.engine"
TESTS = {
    f"{ENGINE}.commit.writer": "commit",
    f"{ENGINE}.commit.publishes": "commit facts",
    f"{ENGINE}.commit.records": "commit delivery",
    f"{ENGINE}.compaction.cleaner": "commit",
    f"{ENGINE}.log.commit": "commit recovery/test_damage.py",
    f"{ENGINE}.log.log": "commit log recovery/test_damage.py index/test_reader.py",
    f"{ENGINE}.log.room": "commit log staging",
    f"{ENGINE}.recovery.chain": "recovery/test_headers.py recovery/test_damage.py recovery/test_broken_files.py"
    " recovery/test_replay.py test_directories.py recovery/test_golden.py recovery/test_copies.py",
    f"{ENGINE}.recovery.replay": "recovery/test_replay.py recovery/test_headers.py delivery/test_acks.py"
    " recovery/test_damage.py recovery/test_golden.py recovery/test_batches.py delivery/test_priority.py"
    " delivery/test_times.py index/test_dynamic_groups.py commit/test_changed_cap.py commit/test_cap_after_cut.py"
    " commit/test_full_disk.py reader/test_groups.py recovery/test_broken_files.py facts",
    f"{ENGINE}.delivery.acks": "delivery/test_acks.py test_private.py delivery",
    f"{ENGINE}.delivery.leases": "delivery/test_leases.py delivery",
    f"{ENGINE}.delivery.requeue": "delivery/test_acks.py delivery/test_times.py test_transactions.py delivery",
    f"{ENGINE}.delivery.dead_letters": "delivery/test_dead_letters.py delivery/test_acks.py delivery",
    "curbstone.core.wal.replay": "recovery",
    "curbstone.core.wal.sync_group": "recovery/test_redo.py commit",
}
"""The modules, and the tests below tests/core that have to notice, in this order."""
HISTORIES = [(seed, focus) for seed, focus in enumerate(["", "", "fill", "recap", "keys", "undo", "large", "full"] * 2)]
CPU_S_MAX = 120
"""CPU seconds of the engine as it is; a mutant that takes three times as long as that is noticed."""
NOT_APPLIED = 3
NOTICED_AGAIN = 5
"""So many mutants of a module that were noticed before are tried again in each run."""
NOTICED, SURVIVED = "noticed", "survived"


class OfModule(TypedDict):
    """What became of the mutants of a module."""

    mutants: int
    """How many there are; if fewer were tried, those are a sample."""
    tried: dict[str, str]


Score = dict[str, OfModule]


class ForkedTests:
    """A plugin of pytest that does `work` where the tests that were collected would run; see `fail`."""

    def __init__(self, work: Callable[[ForkedTests], None]) -> None:
        self._work = work
        self._session: pytest.Session | None = None

    def do_work(self, tests: list[str]) -> None:
        """Collect tests and do the work."""
        options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header"]
        status = pytest.main([*options, *(str(CORE / each) for each in tests)], plugins=[self])
        assert status == pytest.ExitCode.OK, f"pytest ended with {status!r}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        assert session.items and not session.testsfailed
        self._session = session
        gc.freeze()
        self._work(self)
        return True

    def fail(self) -> bool:
        """Run the tests up to the first that fails; return whether one does."""
        session = self._session
        assert session is not None
        for item, following in zip(session.items, [*session.items[1:], None], strict=True):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                return True
        return False


def try_out(mutant: Mutant | None, tests: ForkedTests, cpu_s_max: int) -> str:
    """Return whether anything notices a mutant, in a process of its own; None is the engine as it is."""
    pid = os.fork()
    if pid == 0:
        noticed = True
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s_max, cpu_s_max))
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
            signal.alarm(cpu_s_max * 20)
            with open(os.devnull, "w", encoding="utf-8") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
                try:
                    if mutant is not None:
                        mutant.apply()
                except BaseException:
                    os._exit(NOT_APPLIED)
                noticed = tests.fail() or _histories_fail()
        finally:
            os._exit(noticed)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) != NOT_APPLIED, f"{mutant} could not be applied"
    return NOTICED if status else SURVIVED


def _histories_fail() -> bool:
    logging.getLogger("curbstone").setLevel(logging.CRITICAL + 1)
    for seed, focus in HISTORIES:
        Run(seed, faults=seed % 2 == 1, focus=focus).run()  # raises if it notices
    return False


def share(tried: dict[str, str], explained: dict[str, str]) -> float:
    """Return the share of mutants that were noticed, of those that were tried and have no explanation."""
    counted = [fate for name, fate in tried.items() if fate == NOTICED or name not in explained]
    return counted.count(NOTICED) / len(counted) if counted else 1.0


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def save(score: Score, explained: dict[str, dict[str, str]]) -> None:
    """Write the score, with the mutants of a module in order, so that a difference can be read; and its sums."""
    sums = {"mutants": 0, NOTICED: 0, "explained": 0, "unexplained": 0}
    ordered: Score = {}
    for module, of_module in sorted(score.items()):
        ordered[module] = {"mutants": of_module["mutants"], "tried": dict(sorted(of_module["tried"].items()))}
        sums["mutants"] += of_module["mutants"]
        for name, fate in of_module["tried"].items():
            is_explained = name in explained.get(module, {})
            sums[NOTICED if fate == NOTICED else "explained" if is_explained else "unexplained"] += 1
    whole = SCORE.with_suffix(".new")
    whole.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    whole.replace(SCORE)
    record("mutation", sums, is_sum=True)


def try_mutants(
    module: str, of_module: OfModule, again: list[str], seconds: float, save_now: Callable[[], None]
) -> list[str]:
    """Try mutants of a module, `again` first, and record their fates; return those that are not noticed any more."""
    mutants = {mutant.name: mutant for mutant in mutants_of(module)}
    tried = of_module["tried"]
    new = [name for name in evenly_spread(list(mutants)) if name not in tried]
    lost = []

    def work(tests: ForkedTests) -> None:
        before = _cpu_s()
        assert try_out(None, tests, CPU_S_MAX) == SURVIVED, f"the tests of {module} fail without a mutant"
        began = _cpu_s()
        cpu_s_max = 3 * ceil(began - before)
        for name in [*again, *new]:
            if _cpu_s() - began > seconds:
                break
            fate = try_out(mutants[name], tests, cpu_s_max)
            if fate == SURVIVED and tried.get(name) == NOTICED:
                lost.append(name)
            tried[name] = fate
            save_now()
            print(f"{fate:8} {module.rpartition('.')[2]}.{name}", flush=True)

    ForkedTests(work).do_work(TESTS[module].split())
    return lost


def to_try_again(module: str, of_module: OfModule, explained: dict[str, str]) -> list[str]:
    """Return tried mutants that survived without an explanation and some of the others; forget those that are gone."""
    names = {mutant.name for mutant in mutants_of(module)}
    of_module["mutants"] = len(names)
    of_module["tried"] = {name: fate for name, fate in of_module["tried"].items() if name in names}
    survivors = [name for name, fate in of_module["tried"].items() if fate == SURVIVED and name not in explained]
    noticed = [name for name, fate in of_module["tried"].items() if fate == NOTICED]
    return [*survivors, *Random().sample(noticed, min(NOTICED_AGAIN, len(noticed)))]


def evenly_spread(names: list[str]) -> list[str]:
    """Return the names ordered by the reversed bits of their places: each beginning is spread evenly over the list."""
    bits = len(names).bit_length()
    places = sorted(range(len(names)), key=lambda place: f"{place:0{bits}b}"[::-1])
    return [names[place] for place in places]


def _cpu_s() -> float:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime + time.process_time()


def main() -> int:
    """Try the mutants of the named modules, or of all; the time is shared out among them."""
    modules = [
        each for each in TESTS if not sys.argv[1:] or each.rpartition(".")[2] in sys.argv[1:] or each in sys.argv
    ]
    seconds = float(os.environ.get("CURBSTONE_MUTATION_SECONDS", "600")) / len(modules)
    sys.dont_write_bytecode = False  # each process would compile all tests again
    os.environ.setdefault("CURBSTONE_DAMAGE_STEP", "131")
    score: Score = load(SCORE)
    explained = load(EXPLAINED)
    failed = []
    for module in modules:
        of_module = score.setdefault(module, {"mutants": 0, "tried": {}})
        reasons = explained.get(module, {})
        again = to_try_again(module, of_module, reasons)
        lost = try_mutants(module, of_module, again, seconds, lambda: save(score, explained))
        save(score, explained)
        tried = of_module["tried"]
        survivors = [name for name, fate in tried.items() if fate == SURVIVED and name not in reasons]
        figures = f"{len(tried)} of {of_module['mutants']} tried, {share(tried, reasons):.1%} noticed"
        print(f"{module}: {figures}, {len(survivors)} to be explained")
        failed += [f"{module}: {name}" for name in lost]
    if failed:
        print("not noticed any more:", *failed, sep="\n  ")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
