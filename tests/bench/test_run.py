"""The tool as a whole, against its sink; and that it notices a server that does not keep its promise."""

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import stomp_load, syncs
from bench.__main__ import ROOT, parse
from bench.check import Tally
from bench.measure import Measurement
from bench.results import Results, rows_of
from bench.roles import Gate
from bench.server import Server
from bench.stats import Percentiles
from bench.stomp_load import Account, DrainJob, SendJob
from bench.workloads import NAMES

CLEAN = dataclasses.asdict(Tally())
STRACE_TABLE = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 98.00    0.010000         100       100           fdatasync
  2.00    0.000200          50         4         1 fsync
------ ----------- ----------- --------- --------- ----------------
100.00    0.010200          98       104         1 total
"""


def test_strace_counts_are_read_by_call() -> None:
    assert syncs.parse(STRACE_TABLE) == {"fdatasync": 100, "fsync": 4}


def test_all_workloads_and_the_limit_run_when_none_are_named() -> None:
    assert parse([]).names == {*NAMES, "disk", "ceiling"}


@pytest.mark.parametrize("arguments", [["--workload", "sned"], ["--size", "8"], ["--count", "0"]])
def test_a_bad_argument_is_refused_before_anything_starts(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)


def test_every_workload_is_clean_against_the_sink(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    arguments = ["--quick", "--size", "64", "--count", "640", "--json", str(report), "--dir", str(tmp_path)]
    command = [sys.executable, "-m", "bench", "--workload", "ceiling", *arguments]
    subprocess.run(command, cwd=ROOT, check=True, timeout=100, stdout=subprocess.DEVNULL)
    rows = json.loads(report.read_text())["ceilings"]
    assert [row["workload"] for row in rows] == NAMES
    assert all(row["tally"] == {**CLEAN, "received": 640} for row in rows)
    assert list(tmp_path.iterdir()) == [report]


class OpenGate(Gate):
    """Lets a role run right here instead of in a process of its own."""

    def __init__(self) -> None:
        pass

    def open(self) -> int:
        return time.perf_counter_ns()

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("bodies[:50] + bodies[51:] + bodies[-1:]", Tally(received=100, lost=1, duplicate=1)),
        ("bodies[:50] + [bodies[50][:-1] + b'?'] + bodies[51:]", Tally(received=100, lost=1, corrupt=1)),
        ("bodies[:50] + bodies[51:52] + bodies[50:51] + bodies[52:]", Tally(received=100, reordered=1)),
        ("bodies", Tally(received=100)),
    ],
    ids=["lost and duplicate", "corrupt", "reordered", "none"],
)
def test_a_server_that_damages_messages_is_found_out(fault: str, expected: Tally, tmp_path: Path) -> None:
    program = f"""
from bench import sink
put = sink.Queue.put
sink.Queue.put = lambda self, bodies: put(self, {fault})
sink.main()
"""
    server = Server([sys.executable, "-c", program], tmp_path / "log", ROOT)
    try:
        account = Account(server.stomp)
        stomp_load.send(SendJob(account, "/queue/a", 100, 100, 100, 10), OpenGate())
        outcome = stomp_load.drain(DrainJob(account, "/queue/a", (100,), 100, 100, silence_s=1), OpenGate())
    finally:
        server.stop()
    assert outcome.tally == expected


def results_with(tally: Tally) -> Results:
    measured = Measurement("send-1", 100, 100, 2.0, 1, None, None, 1.0, 1.0, None, 1.0, 0.1, 0.0, 1, tally)
    return Results(rows_of([measured]), [], [], {}, {}, {}, [], {})


def test_a_damaged_message_makes_the_result_unclean() -> None:
    assert results_with(Tally(received=100)).clean
    assert not results_with(Tally(received=100, lost=1)).clean
    assert not results_with(Tally(received=100, duplicate=1)).clean
    assert not results_with(Tally(received=100, corrupt=1)).clean
    assert not results_with(Tally(received=100, reordered=1)).clean
    assert not results_with(Tally(received=100, left=1)).clean


def test_a_row_holds_the_medians_of_its_runs() -> None:
    run = Measurement(
        "send-1", 100, 100, 2.0, 1, Percentiles(1, 2, 3), None, 1.0, 1.0, None, 1.0, 0.1, 0.0, 1, Tally(1)
    )
    runs = [dataclasses.replace(run, seconds=seconds) for seconds in (1.0, 2.0, 5.0)]
    (row,) = rows_of(runs)
    assert (row.per_s, row.slowest, row.fastest, row.runs) == (50, 20, 100, 3)
    assert row.confirms == Percentiles(1, 2, 3)
    assert row.tally == Tally(received=3)
