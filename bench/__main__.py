"""`python -m bench`: starts the server, loads it, and prints its figures beside the limits of the machine.

The exit code is 1 if a message is lost, duplicated or changed. No figure causes a failure.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

from rich.console import Console

from bench import (
    backlog,
    charts,
    disk,
    footprint,
    login,
    memory,
    page,
    peers,
    report,
    scaling,
    spark_load,
    syncs,
    workloads,
)
from bench.disk import Limit
from bench.measure import Measurement, Target
from bench.peer import Subject
from bench.results import Pairing, Results, environment, rows_of
from bench.scaling import Scaling
from bench.server import CAP, Server, curbstone_command, sink_command
from bench.spark_figures import SparkFigures
from bench.stomp_load import Account
from bench.wire import BenchError
from bench.workloads import Plan

ROOT = Path(__file__).resolve().parent.parent
SIZES = [100, 1024, 65_536]
SIZES_QUICK = [100, 1024]
DISK, PEERS, BACKLOG, SINK, SPARK = "disk", "peers", "backlog", "ceiling", "spark"
FOOTPRINT, SCALING = "footprint", "scaling"
EXTRA = [DISK, SINK, FOOTPRINT, SCALING, PEERS, BACKLOG, SPARK]
ALL = "all"
"""All workloads except the big backlog and Spark, which can be named in addition."""
BATCHES = [1, workloads.PRODUCERS, workloads.CONNECTIONS, 256, workloads.WINDOW]
# Small enough for a traced server, which is several times slower. (A window of 1 has one sync per message.)
TRACE_PLAN = Plan(seconds=4, most=2_000)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short run of each instead of the median of three")
    parser.add_argument(
        "--workload",
        metavar="NAMES",
        action="append",
        help=f"comma-separated, from: {', '.join([*workloads.NAMES, *EXTRA, ALL])}",
    )
    parser.add_argument(
        "--size", type=int, action="append", help="bytes of a message, 16 or more (repeatable; 100, 1024)"
    )
    parser.add_argument("--count", type=int, help="messages of each run, instead of each workload's own number")
    parser.add_argument("--runs", type=int, help="runs of each workload (3; 1 with --quick)")
    parser.add_argument("--cap", type=int, default=CAP, help="the server's --cap in bytes (1 GiB)")
    parser.add_argument("--sync", default="always", help="the server's --sync (always)")
    parser.add_argument(
        "--users", action="store_true", help="run the server with users; every client logs in with a token"
    )
    parser.add_argument("--dir", type=Path, help="the folder for data directories (the system's temporary folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all results to this file")
    parser.add_argument("--charts", type=Path, metavar="DIR", help="also draw charts (SVG) into this folder")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="also write the figures between the marks of this page"
    )
    parser.add_argument("--peers", action="append", metavar="NAMES", help=f"from: {', '.join(peers.PEERS)} (all)")
    parser.add_argument("--deep", action="store_true", help="run the scaling workload up to ten million messages")
    parser.add_argument("--strace", action="store_true", help="count syncs with strace even if the server counts them")
    known = parser.parse_args(arguments)
    names = [name.strip() for names in known.workload or [] for name in names.split(",") if name.strip()]
    if unknown := set(names) - {*workloads.NAMES, *EXTRA, ALL}:
        parser.error(f"unknown workload: {', '.join(sorted(unknown))}")
    if ALL in names:
        names = [*(name for name in names if name != ALL), *workloads.NAMES, DISK, SINK, FOOTPRINT, SCALING, PEERS]
    # Workloads that are named together with "peers" run only beside the peers.
    known.alone = PEERS not in names or set(workloads.NAMES) <= set(names)
    known.names = set(names) or {*workloads.NAMES, DISK, SINK, FOOTPRINT}
    known.peers = {name.strip() for text in known.peers or [] for name in text.split(",")}
    if unknown := known.peers - set(peers.PEERS):
        parser.error(f"unknown peer: {', '.join(sorted(unknown))}")
    known.sizes = known.size or (SIZES_QUICK if known.quick else SIZES)
    if min(known.sizes) < 16 or max(known.sizes) > 1 << 20:
        parser.error("--size: from 16 to 1048576")
    if known.count is not None and known.count < 1:
        parser.error("--count: at least 1")
    if known.page and (not known.page.is_file() or page.BEGIN not in known.page.read_text(encoding="utf-8")):
        parser.error(f"--page: {known.page} has no line {page.BEGIN}")
    known.runs = known.runs or (1 if known.quick else 3)
    return known


def curbstone(server: Server) -> Target:
    account = Account(server.stomp, ("", login.token()) if login.token() else None)
    return Target("curbstone", server, account, server.http, server.mqks)


class Session:
    """The results of one invocation so far."""

    def __init__(self, known: argparse.Namespace, folder: Path, console: Console) -> None:
        self.known = known
        self.folder = folder
        self.console = console
        self.plan = Plan(0.2, 3, known.count) if known.quick else Plan(most=known.count)
        self.wanted: set[str] = known.names & set(workloads.NAMES)
        self.measured: list[Measurement] = []
        self.ceilings: list[Measurement] = []
        self.limits: list[Limit] = []
        self.traced: dict[str, float] = {}
        self.peers: list[Pairing] = []
        self.footprint: dict[str, float] = {}
        self.scaling: Scaling | None = None
        self.spark: SparkFigures | None = None
        self.backlog: dict[str, object] = {}
        self.failures: list[str] = []
        self.environment = environment(folder)

    def results(self) -> Results:
        return Results(
            rows_of(self.measured),
            rows_of(self.ceilings),
            self.limits,
            self.peers,
            self.traced,
            self.backlog,
            self.failures,
            self.environment,
            self.footprint,
            self.scaling,
            self.spark,
        )

    def run(self) -> None:
        if PEERS in self.known.names:
            self._say(f"touched {memory.touch_free() / 2**30:.1f} GiB of free memory")
        if DISK in self.known.names:
            self._attempt("bare limit", self._measure_disk)
        if self.wanted and self.known.alone:
            self._attempt("curbstone", self._measure_server)
        if SINK in self.known.names:
            self._attempt("ceiling", self._measure_ceiling)
        if FOOTPRINT in self.known.names:
            self._attempt("footprint", self._measure_footprint)
        if SCALING in self.known.names:
            self._attempt("scaling", self._measure_scaling)
        if PEERS in self.known.names:
            self._attempt("peers", self._measure_peers)
        if BACKLOG in self.known.names:
            self._attempt("backlog", self._measure_backlog)
        if SPARK in self.known.names:
            self._attempt("spark", self._measure_spark)

    def _attempt(self, what: str, step: Callable[[], None]) -> None:
        """Run a step. A failure is reported at the end, with the figures of the other steps."""
        try:
            step()
        except (BenchError, OSError) as error:
            self.failures.append(f"{what}: {error}")
            self._say(f"  failed: {what}: {str(error).splitlines()[0]}")

    def _say(self, text: str) -> None:
        self.console.print(text, style="dim", highlight=False)

    def _measure_disk(self) -> None:
        """Take the median of three rounds for each limit, to exclude a hiccup of the disk."""
        seconds = 0.1 if self.known.quick else 0.4
        kinds = [(size, batch, again) for size in self.known.sizes for batch in BATCHES for again in (False, True)]
        self._say("the bare limit of the disk")
        rounds = [
            [disk.measure(self.folder, *kind[:2], preallocated=kind[2], seconds=seconds) for kind in kinds]
            for _ in range(3)
        ]
        self.limits += [sorted(same, key=lambda one: one.messages_per_s)[1] for same in zip(*rounds, strict=True)]

    def _measure_server(self) -> None:
        for size in self.known.sizes:
            data = self.folder / f"data-{size}"
            users = login.make_users(self.folder, data) if self.known.users else []
            command = curbstone_command(data, self.known.cap, ["--sync", self.known.sync, *users])
            server = Server(command, self.folder / "server.log")
            target = curbstone(server)
            try:
                for number in range(self.known.runs):
                    self._say(f"curbstone, {size} bytes, run {number + 1} of {self.known.runs}")
                    self._run_groups(target, size, self.measured, self.plan)
                if self.known.strace or any(one.syncs is None for one in self.measured):
                    self._count_syncs(target, size)
            finally:
                server.stop()

    def _run_groups(self, target: Target, size: int, into: list[Measurement], plan: Plan) -> None:
        """Run the selected workloads once. A workload that fails does not stop the others."""
        for names in workloads.GROUPS:
            wanted = (self.wanted or set(workloads.NAMES)).intersection(names)
            if not wanted:
                continue
            try:
                for measured in workloads.run_groups(target, wanted, size, plan):
                    into.append(measured)
                    self._say(f"  {measured.workload:<18}{measured.per_s:>12,.0f}/s")
            except BenchError as error:
                self.failures.append(f"{target.name}, {'/'.join(names)}, {size} bytes: {error}")
                self._say(f"  failed: {'/'.join(names)}: {error}\n{target.process.log_end()}")
                if target.process.popen.poll() is not None:
                    raise BenchError(f"the server ended with {target.process.popen.returncode}") from error

    def _count_syncs(self, target: Target, size: int) -> None:
        """Count the syncs in a separate short pass, whose rates are not used. Do nothing if tracing is forbidden."""
        if not syncs.available():
            return
        self._say(f"counting syncs with strace, {size} bytes")
        target.trace_in = self.folder
        try:
            for measured in workloads.run_groups(target, self.wanted, size, TRACE_PLAN):
                if measured.syncs is not None:
                    self.traced[f"{measured.workload}/{size}"] = measured.syncs
        except (BenchError, subprocess.SubprocessError) as error:
            self._say(f"  no count: {error}")

    def _measure_ceiling(self) -> None:
        server = Server(sink_command(), self.folder / "sink.log", ROOT)
        target = Target("sink", server, Account(server.stomp), server.http)
        try:
            for size in self.known.sizes:
                self._say(f"the generator's ceiling, {size} bytes")
                self._run_groups(target, size, self.ceilings, Plan(seconds=4, most=self.known.count))
        finally:
            server.stop()

    def _measure_peers(self) -> None:
        """Run each peer directly after our run of the same workloads, so that other load affects both."""
        server = Server(curbstone_command(self.folder / "data-peers", self.known.cap), self.folder / "peers.log")
        target = curbstone(server)
        try:
            for subject in peers.each(self.folder, self.known.peers, self._say):
                theirs: list[Measurement] = []
                ours: list[Measurement] = []
                for number in range(self.known.runs):
                    for size in self.known.sizes:
                        self._say(f"{subject.name}, {size} bytes, run {number + 1} of {self.known.runs}, after ours")
                        self._attempt(subject.name, partial(self._pair, subject, target, size, theirs, ours))
                self.peers.append(Pairing(subject.name, subject.note, subject.version, rows_of(theirs), rows_of(ours)))
        finally:
            server.stop()

    def _pair(
        self, subject: Subject, target: Target, size: int, theirs: list[Measurement], ours: list[Measurement]
    ) -> None:
        wanted = set(subject.workloads & (self.wanted or subject.workloads))
        ours += workloads.run_groups(target, wanted, size, self.plan)
        for measured in subject.measure(size, self.plan):
            theirs.append(measured)
            self._say(f"  {measured.workload:<18}{measured.per_s:>12,.0f}/s")

    def _measure_footprint(self) -> None:
        self._say("start, memory, and CPU with idle clients")
        self.footprint = footprint.measure(self.folder, self.known.cap, 3 if self.known.quick else 10)

    def _measure_scaling(self) -> None:
        known = self.known
        deepest = known.count or 1_000_000
        depths = [0, deepest, *([10_000_000] if known.deep else [])]
        probe = min(scaling.PROBE, deepest)
        self.scaling, tally = scaling.measure(self.folder, depths, 5 if known.quick else 30, probe, self._say)
        if not tally.clean:
            self.failures.append(f"scaling: {tally}")

    def _measure_backlog(self) -> None:
        figures, tally = backlog.run(self.console, self.folder, self.known.count or 10_000_000)
        self.backlog = figures
        if not tally.clean:
            self.failures.append(f"backlog: {tally}")

    def _measure_spark(self) -> None:
        count = self.known.count or spark_load.ROWS // (10 if self.known.quick else 1)
        self._say(f"spark, {count:,} messages of {spark_load.SIZE} bytes, local[2]")
        self.spark = spark_load.run(self.folder, count, self.known.runs, self._say)


def main(arguments: Sequence[str] | None = None) -> int:
    known = parse(arguments)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 150  # for a pipe or a file; the widest table needs this much
    # SIGTERM must raise, so that finally blocks remove the folder and end every started process.
    signal.signal(signal.SIGTERM, _exit_in_order)
    with tempfile.TemporaryDirectory(prefix="curbstone-bench-", dir=known.dir) as folder:
        session = Session(known, Path(folder), console)
        try:
            session.run()
        except KeyboardInterrupt:
            session.failures.append("interrupted")
        results = session.results()
    report.show(console, results)
    if known.json:
        report.write_json(known.json, results)
    drawn = charts.draw(known.charts, results) if known.charts else []
    if known.page and results.clean:
        page.fill(known.page, results, drawn)
    elif known.page:
        console.print(f"{known.page} is unchanged, because a step failed")
    return 0 if results.clean else 1


def _exit_in_order(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
