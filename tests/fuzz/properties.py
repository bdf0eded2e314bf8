"""Fuzzes the property tests with HypoFuzz, which keeps inputs that reach new branches: see `make soak-fuzz`.

All tests that use Hypothesis and no pytest fixture share CURBSTONE_FUZZ_SECONDS (300). Exits with 1 if one has failed;
the input is then in `.hypothesis`, where the next run begins with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from hypofuzz.database import FailureState, HypofuzzDatabase, test_keys_key
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.kit.results import record

TESTS = Path(__file__).parents[1]
INPUTS = Path(".hypothesis/examples")


def property_tests() -> list[str]:
    """Return the files with property tests."""
    files = sorted(TESTS.rglob("test_*.py"))
    return [str(path) for path in files if "from hypothesis import" in path.read_text(encoding="utf-8")]


def results(since: float) -> tuple[dict[str, int], list[str]]:
    """Return how many inputs each test has had in the run that began at `since`, and which tests fail."""
    database = HypofuzzDatabase(DirectoryBasedExampleDatabase(INPUTS))
    inputs: dict[str, int] = {}
    failing = []
    for key in database.fetch(test_keys_key):
        reports = [report for report in database.reports.fetch(key) if report.timestamp >= since]
        if reports:
            last = max(reports, key=lambda report: report.timestamp)
            inputs[last.nodeid] = sum(last.status_counts.values())
            if any(
                list(database.failures(state=state).fetch(key))
                for state in (FailureState.SHRUNK, FailureState.UNSHRUNK)
            ):
                failing.append(last.nodeid)
    return inputs, failing


def main() -> int:
    """Fuzz for a while, then print how many inputs each test has had."""
    began = time.time()
    program = "from hypothesis.extra.cli import main; main()"
    command = [sys.executable, "-c", program, "fuzz", "-n", "1", "--no-dashboard", "--", *property_tests()]
    # It has workers, which are not ended by a signal to it alone.
    fuzzer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        _, errors = fuzzer.communicate(timeout=float(os.environ.get("CURBSTONE_FUZZ_SECONDS", "300")))
        sys.exit(f"HypoFuzz ended by itself:\n{errors}")
    except subprocess.TimeoutExpired:
        pass
    finally:
        with suppress(ProcessLookupError):
            os.killpg(fuzzer.pid, signal.SIGKILL)
        fuzzer.wait()
    inputs, failing = results(began)
    for nodeid, count in sorted(inputs.items()):
        print(f"{count:9,} {nodeid}")
    total = sum(inputs.values())
    record("properties", {"inputs": total}, is_finding=bool(failing))
    print(f"{total:,} inputs;", f"failed: {', '.join(failing)}" if failing else "no finding")
    return bool(failing) or total == 0


if __name__ == "__main__":
    raise SystemExit(main())
