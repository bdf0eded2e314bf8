"""Mutation testing of the engine's commit, cap, recovery and delivery: `python -m tests.mutation.run [MODULE...]`.

Each mutant runs in a process of its own, which is forked from one that has imported everything: some simulated
histories first, then the unit tests of the module, until something notices. `score.json` beside this file says what
became of each mutant that was tried. A run continues where the last one has stopped, for CURBSTONE_MUTATION_SECONDS
(600) of CPU time: it tries again mutants that survived and a few that were noticed, and then new ones, in an order that
is random and always the same. It exits with 1 if a mutant survives that was noticed before: the score must not fall.

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
from pathlib import Path
from random import Random
from typing import Any

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
    f"{ENGINE}.recovery.chain": "recovery",
    f"{ENGINE}.recovery.replay": "recovery",
    f"{ENGINE}.delivery.acks": "delivery",
    f"{ENGINE}.delivery.leases": "delivery",
    f"{ENGINE}.delivery.requeue": "delivery",
    f"{ENGINE}.delivery.dead_letters": "delivery",
    "curbstone.core.wal.replay": "recovery",
    "curbstone.core.wal.sync_group": "recovery/test_redo.py commit",
}
"""The modules, and the tests below tests/core that have to notice."""
HISTORIES = [(seed, focus) for seed, focus in enumerate(["", "", "fill", "recap", "keys", "undo", "large", "full"] * 2)]
CPU_S_MAX = 120
NOT_APPLIED = 3
NOTICED_AGAIN = 5
"""So many mutants of a module that were noticed before are tried again in each run."""
NOTICED, SURVIVED = "noticed", "survived"
Score = dict[str, dict[str, str]]


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


def share(of_module: dict[str, str], explained: dict[str, str]) -> float:
    """Return the share of mutants that were noticed, of those that were tried and have no explanation."""
    counted = [fate for name, fate in of_module.items() if fate == NOTICED or name not in explained]
    return counted.count(NOTICED) / len(counted) if counted else 1.0


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def save(score: Score) -> None:
    """Write the score, with the mutants of a module in order, so that a difference can be read."""
    ordered = {module: dict(sorted(score[module].items())) for module in sorted(score)}
    SCORE.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def run_module(module: str, known: dict[str, str], seconds: float) -> list[str]:
    """Try mutants of a module, add to `known` what became of them, and return those that are not noticed any more."""
    mutants = {mutant.name: mutant for mutant in mutants_of(module)}
    for name in [name for name in known if name not in mutants]:
        del known[name]  # the text that it changed is gone
    new = [name for name in mutants if name not in known]
    Random(module).shuffle(new)
    again = [name for name, fate in known.items() if fate == SURVIVED]
    noticed = [name for name, fate in known.items() if fate == NOTICED]
    again += Random().sample(noticed, min(NOTICED_AGAIN, len(noticed)))
    assert try_out(None, *TESTS[module].split()) == SURVIVED, f"the tests of {module} fail without a mutant"
    lost = []
    tried = dict.fromkeys((NOTICED, SURVIVED), 0)
    began = _cpu_s()
    for name in [*again, *new]:
        if _cpu_s() - began > seconds:
            break
        fate = try_out(mutants[name], *TESTS[module].split())
        if fate == SURVIVED and known.get(name) == NOTICED:
            lost.append(name)
        known[name] = fate
        tried[fate] += name in new
        print(f"{fate:8} {module.rpartition('.')[2]}.{name}", flush=True)
    record("mutation", tried)
    return lost


def _cpu_s() -> float:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime + time.process_time()


def main() -> int:
    """Try the mutants of the named modules, or of all; the time is shared out among them."""
    modules = [
        each for each in TESTS if not sys.argv[1:] or each.rpartition(".")[2] in sys.argv[1:] or each in sys.argv
    ]
    seconds = float(os.environ.get("CURBSTONE_MUTATION_SECONDS", "600")) / len(modules)
    score, explained = load(SCORE), load(EXPLAINED)
    failed = []
    for module in modules:
        known = score.setdefault(module, {})
        reasons = explained.get(module, {})
        lost = run_module(module, known, seconds)
        save(score)
        now = share(known, reasons)
        survivors = [name for name, fate in known.items() if fate == SURVIVED and name not in reasons]
        print(f"{module}: {len(known)} tried, {now:.1%} noticed, {len(survivors)} to be explained")
        failed += [f"{module}: {name}" for name in lost]
    if failed:
        print("not noticed any more:", *failed, sep="\n  ")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
