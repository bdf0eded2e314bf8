"""Mutation testing of the engine's commit, cap, recovery and delivery: `python -m tests.mutation.run [MODULE...]`.

Each mutant runs in a process of its own, which is forked from one that has imported everything: some simulated
histories first, then the unit tests of the module, until something notices. `score.json` beside this file says how
many mutants a module has, and what became of each one that was tried; it is saved after each mutant. A run continues
where the last one has stopped, for CURBSTONE_MUTATION_SECONDS (600) of CPU time, with one process at a time. It tries
again mutants that survived without an explanation and a few that were noticed, and then new ones, in an order in which
those that were tried are spread evenly over the module. It exits with 1 if a mutant survives that was noticed before:
the score must not fall.

A mutant that changes nothing that is promised has a reason in `explained.json`, and does not count.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
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
    f"{ENGINE}.recovery.chain": "recovery/test_headers.py test_directories.py recovery",
    f"{ENGINE}.recovery.replay": "recovery/test_headers.py delivery/test_acks.py recovery facts reader/test_groups.py",
    f"{ENGINE}.delivery.acks": "delivery test_private.py",
    f"{ENGINE}.delivery.leases": "delivery",
    f"{ENGINE}.delivery.requeue": "delivery",
    f"{ENGINE}.delivery.dead_letters": "delivery",
    "curbstone.core.wal.replay": "recovery",
    "curbstone.core.wal.sync_group": "recovery/test_redo.py commit",
}
"""The modules, and the tests below tests/core that have to notice, in this order."""
HISTORIES = [(seed, focus) for seed, focus in enumerate(["", "", "fill", "recap", "keys", "undo", "large", "full"] * 2)]
CPU_S_MAX = 60
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


def try_out(mutant: Mutant | None, *tests: str) -> str:
    """Return whether anything notices a mutant, in a process of its own; None is the engine as it is."""
    pid = os.fork()
    if pid == 0:
        noticed = True
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
            signal.alarm(CPU_S_MAX * 20)
            with open(os.devnull, "w", encoding="utf-8") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
                try:
                    if mutant is not None:
                        mutant.apply()
                except BaseException:
                    os._exit(NOT_APPLIED)
                noticed = _is_noticed(tests)
        finally:
            os._exit(noticed)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) != NOT_APPLIED, f"{mutant} could not be applied"
    return NOTICED if status else SURVIVED


def _is_noticed(tests: tuple[str, ...]) -> bool:
    logging.getLogger("curbstone").setLevel(logging.CRITICAL + 1)
    for seed, focus in HISTORIES:
        Run(seed, faults=seed % 2 == 1, focus=focus).run()  # raises if it notices
    logging.getLogger("curbstone").setLevel(logging.NOTSET)
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header"]
    with contextlib.redirect_stdout(io.StringIO()):
        return pytest.main([*options, *(str(CORE / each) for each in tests)]) != 0


def share(tried: dict[str, str], explained: dict[str, str]) -> float:
    """Return the share of mutants that were noticed, of those that were tried and have no explanation."""
    counted = [fate for name, fate in tried.items() if fate == NOTICED or name not in explained]
    return counted.count(NOTICED) / len(counted) if counted else 1.0


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def save(score: Score, explained: dict[str, dict[str, str]]) -> None:
    """Write the score, with the mutants of a module in order, so that a difference can be read; and its sums."""
    sums = {"mutants": 0, NOTICED: 0, "explained": 0, "unexplained": 0}
    for module, of_module in score.items():
        of_module["tried"] = dict(sorted(of_module["tried"].items()))
        sums["mutants"] += of_module["mutants"]
        for name, fate in of_module["tried"].items():
            is_explained = name in explained.get(module, {})
            sums[NOTICED if fate == NOTICED else "explained" if is_explained else "unexplained"] += 1
    whole = SCORE.with_suffix(".new")
    whole.write_text(json.dumps(dict(sorted(score.items())), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    whole.replace(SCORE)
    record("mutation", sums, is_sum=True)


def run_module(
    module: str, of_module: OfModule, explained: dict[str, str], seconds: float, save_now: Callable[[], None]
) -> list[str]:
    """Try mutants of a module, record what became of them, and return those that are not noticed any more."""
    mutants = {mutant.name: mutant for mutant in mutants_of(module)}
    tried = of_module["tried"]
    of_module["mutants"] = len(mutants)
    for name in [name for name in tried if name not in mutants]:
        del tried[name]  # the text that it changed is gone
    again = [name for name, fate in tried.items() if fate == SURVIVED and name not in explained]
    noticed = [name for name, fate in tried.items() if fate == NOTICED]
    again += Random().sample(noticed, min(NOTICED_AGAIN, len(noticed)))
    new = [name for name in evenly_spread(list(mutants)) if name not in tried]
    assert try_out(None, *TESTS[module].split()) == SURVIVED, f"the tests of {module} fail without a mutant"
    lost = []
    began = _cpu_s()
    for name in [*again, *new]:
        if _cpu_s() - began > seconds:
            break
        fate = try_out(mutants[name], *TESTS[module].split())
        if fate == SURVIVED and tried.get(name) == NOTICED:
            lost.append(name)
        tried[name] = fate
        save_now()
        print(f"{fate:8} {module.rpartition('.')[2]}.{name}", flush=True)
    return lost


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
        tried, reasons = of_module["tried"], explained.get(module, {})
        lost = run_module(module, of_module, reasons, seconds, lambda: save(score, explained))
        save(score, explained)
        survivors = [name for name, fate in tried.items() if fate == SURVIVED and name not in reasons]
        figures = f"{len(tried)} of {of_module['mutants']} tried, {share(tried, reasons):.1%} noticed"
        print(f"{module}: {figures}, {len(survivors)} to be explained")
        failed += [f"{module}: {name}" for name in lost]
    if failed:
        print("not noticed any more:", *failed, sep="\n  ")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
