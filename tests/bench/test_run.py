"""The tool as a whole, against its sink; and that it notices a server that does not keep its promise."""

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench import both_ways, http_load, queues_load, stomp_load, syncs
from bench.__main__ import ROOT, parse
from bench.check import Tally
from bench.measure import Measurement, Target
from bench.results import Results, rows_of
from bench.server import Server, curbstone_command
from bench.stats import Percentiles
from bench.stomp_load import Account, DrainJob, SendJob
from bench.workers import Stopwatch
from bench.workloads import (
    BINDING_WORKLOADS,
    CLIENT_WORKLOADS,
    FANOUT,
    KEYS_WORKLOADS,
    MQKS_WORKLOADS,
    NAMES,
    Plan,
    fanout,
)

CLEAN = dataclasses.asdict(Tally())
STRACE_TABLE = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 98.00    0.010000         100       100           fdatasync
  2.00    0.000200          50         4         1 fsync
------ ----------- ----------- --------- --------- ----------------
100.00    0.010200          98       104         1 total
"""


def test_strace_counts_are_parsed_per_call() -> None:
    assert syncs.parse(STRACE_TABLE) == {"fdatasync": 100, "fsync": 4}


def test_all_workloads_and_the_limit_run_by_default() -> None:
    assert parse([]).names == {*NAMES, "disk", "ceiling", "footprint"}


def test_workloads_outside_all_can_be_added() -> None:
    assert parse(["--workload", "all,spark"]).names == parse(["--workload", "all"]).names | {"spark"}
    assert parse(["--workload", "all,spark"]).alone


@pytest.mark.parametrize("arguments", [["--workload", "sned"], ["--size", "8"], ["--count", "0"], ["--peers", "kafka"]])
def test_a_bad_argument_is_refused_before_anything_starts(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)


# What each makes of --count 640: whole rounds over the queues, whole batches.
COUNTS = {
    "http-batch": 400,
    "queues-100": 600,
    "queues-100-drain": 600,
    "queues-1000": 1000,
    "queues-1000-drain": 1000,
}


def bench(tmp_path: Path, workloads: str, *more: str) -> dict[str, Any]:
    """Run the tool, which must end well and leave nothing but its report."""
    report = tmp_path / "report.json"
    arguments = ["--quick", "--size", "64", "--count", "640", "--json", str(report), "--dir", str(tmp_path), *more]
    command = [sys.executable, "-m", "bench", "--workload", workloads, *arguments]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300, stdout=subprocess.DEVNULL)
    assert list(tmp_path.iterdir()) == [report]
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def test_every_workload_is_clean_against_the_sink(tmp_path: Path) -> None:
    rows = bench(tmp_path, "ceiling")["ceilings"]
    beyond = MQKS_WORKLOADS | BINDING_WORKLOADS | CLIENT_WORKLOADS | KEYS_WORKLOADS
    assert [row["workload"] for row in rows] == [name for name in NAMES if name not in beyond]
    for row in rows:
        assert row["tally"] == {**CLEAN, "received": COUNTS.get(row["workload"], 640)}, row["workload"]


def test_every_workload_is_clean_against_curbstone(tmp_path: Path) -> None:
    names = [name for name in NAMES if not name.startswith("queues-1000")]  # to make and remove them takes too long
    found = bench(tmp_path, ",".join(names))
    assert found["failures"] == []
    assert [row["workload"] for row in found["rows"]] == names
    for row in found["rows"]:
        received = row["tally"]["received"]  # on a slow disk the time ends some of them, and not the count
        copies = FANOUT if row["workload"] in BINDING_WORKLOADS else 1
        assert 0 < received <= 640 * copies and received % copies == 0, row["workload"]
        assert row["tally"] == {**CLEAN, "received": received}, row["workload"]
        assert row["server_cpu_us"] > 0 and 0 < row["client_cpu_share"] <= 1.1


def test_with_users_every_client_logs_in(tmp_path: Path) -> None:
    names = ["send-100", "drain", "ws-publish", "ws-consume", "http-post", "http-pop", "mqks-publish", "client-publish"]
    found = bench(tmp_path, ",".join(names), "--users")
    assert found["failures"] == []
    assert {row["workload"] for row in found["rows"]} == set(names)
    assert all(row["tally"] == {**CLEAN, "received": row["tally"]["received"]} for row in found["rows"])


def test_cost_and_growth_are_measured(tmp_path: Path) -> None:
    found = bench(tmp_path, "footprint,scaling")
    assert found["failures"] == []
    assert found["footprint"]["idle_rss_mb"] > 10
    assert [one["queued"] for one in found["scaling"]["depths"]] == [0, 640]
    assert sum(found["scaling"]["churn"]) > 0
    assert 0 < found["scaling"]["churn_bytes"] <= found["scaling"]["churn_cap"]


class NoStopwatch(Stopwatch):
    """Lets a role run right here instead of in a process of its own."""

    def __init__(self) -> None:
        pass

    def start(self) -> int:
        return time.perf_counter_ns()

    def stop(self) -> None:
        pass


@contextmanager
def faulty_sink(fault: str, tmp_path: Path) -> Iterator[Server]:
    """A sink that keeps the value of `fault` in place of the bodies it is given."""
    program = f"""
from bench import null_server
put = null_server.Queue.put
null_server.Queue.put = lambda self, bodies: put(self, {fault})
null_server.main()
"""
    server = Server([sys.executable, "-c", program], tmp_path / "log", ROOT)
    try:
        yield server
    finally:
        server.stop()


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
def test_corrupted_messages_are_detected(fault: str, expected: Tally, tmp_path: Path) -> None:
    with faulty_sink(fault, tmp_path) as server:
        account = Account(server.stomp)
        stomp_load.send(SendJob(account, "/queue/a", 100, 100, 100, 10), NoStopwatch())
        outcome = stomp_load.drain(DrainJob(account, "/queue/a", (100,), 100, 100, silence_s=1), NoStopwatch())
    assert outcome.tally == expected


def over_queues(server: Server) -> Tally | None:
    job = queues_load.QueuesJob(Account(server.stomp), ["a", "b"], 50, 100, 100, silence_s=1)
    sent = queues_load.send_to_queues(job, NoStopwatch()).sent
    return queues_load.drain_queues(job, sent, NoStopwatch()).tally


def at_a_rate(server: Server) -> Tally | None:
    job = both_ways.PacedJob(Account(server.stomp), "/queue/a", 100, 100, 10_000, silence_s=1)
    return both_ways.paced(job, NoStopwatch()).tally


def by_batch_and_pop(server: Server) -> Tally | None:
    http_load.post_batches(http_load.PostJob(server.http, "default/a", 100, 100, 1, 10), NoStopwatch())
    return http_load.pop(http_load.PopJob(server.http, "default/a", (100,), 100, 1), NoStopwatch()).tally


@pytest.mark.parametrize("way", [over_queues, at_a_rate, by_batch_and_pop])
@pytest.mark.parametrize(
    "fault", ["[one.replace(b'000:00000000007', b'000:00000000006') for one in bodies]"], ids=["doubled"]
)
def test_other_transports_check_received_messages(
    way: Callable[[Server], Tally | None], fault: str, tmp_path: Path
) -> None:
    with faulty_sink(fault, tmp_path) as server:
        tally = way(server)
    assert tally is not None and (tally.received, tally.lost, tally.duplicate) == (100, 1, 1)


def test_body_from_another_queue_is_detected(tmp_path: Path) -> None:
    with faulty_sink("[b'001' + one[3:] for one in bodies[:1]] + bodies[1:]", tmp_path) as server:
        tally = over_queues(server)
    assert tally is not None and not tally.clean


class Meddled(Target):
    """Puts a message into the last of the queues that was not sent to the others."""

    def bind(self, event: str, queues: Sequence[str]) -> str:
        destination = super().bind(event, queues)
        stomp_load.send(SendJob(self.account, f"/queue/{queues[-1]}", 1, 64, 1, 10), NoStopwatch())
        return destination


def test_error_in_only_the_last_fan_out_queue_is_detected(tmp_path: Path) -> None:
    server = Server(curbstone_command(tmp_path / "data", 1 << 20), tmp_path / "log")
    try:
        target = Meddled("curbstone", server, Account(server.stomp), mqks=server.mqks)
        (measured,) = fanout(target, 64, Plan(most=64))
    finally:
        server.stop()
    assert (measured.count, measured.tally) == (64, Tally(FANOUT * 64 + 1, duplicate=1))


def results_with(tally: Tally) -> Results:
    measured = Measurement("send-1", 100, 100, 2.0, 1, None, None, 1.0, 1.0, None, 1.0, 0.2, 0.1, 0.0, 1, tally)
    return Results(rows_of([measured]), [], [], [], {}, {}, [], {})


def test_a_damaged_message_makes_the_result_unclean() -> None:
    assert results_with(Tally(received=100)).clean
    assert not results_with(Tally(received=100, lost=1)).clean
    assert not results_with(Tally(received=100, duplicate=1)).clean
    assert not results_with(Tally(received=100, corrupt=1)).clean
    assert not results_with(Tally(received=100, reordered=1)).clean
    assert not results_with(Tally(received=100, left=1)).clean


def test_a_row_holds_the_medians_of_its_runs() -> None:
    run = Measurement(
        "send-1", 100, 100, 2.0, 1, Percentiles(1, 2, 3), None, 1.0, 1.0, None, 1.0, 0.2, 0.1, 0.0, 1, Tally(1)
    )
    runs = [dataclasses.replace(run, seconds=seconds) for seconds in (1.0, 2.0, 5.0)]
    (row,) = rows_of(runs)
    assert (row.per_s, row.slowest, row.fastest, row.runs) == (50, 20, 100, 3)
    assert row.confirms == Percentiles(1, 2, 3)
    assert row.tally == Tally(received=3)
