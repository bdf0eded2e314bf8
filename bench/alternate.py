"""Compares the latency of builds in alternating rounds: `python -m bench.alternate old=PROGRAM new=PROGRAM`.

A PROGRAM is the curbstone command of a build. Each build has several servers in sequence, because the memory layout of
a process can change the result by a tenth; each round measures each build. The output has the smallest and the median
latency of the rounds, and figures that other programs affect less than times: CPU, and how often the server's threads
blocked (voluntary context switches) or were interrupted, all for each message.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.server import CAP, Server, curbstone_command
from bench.stomp_load import Account, send_frames
from bench.wire import BenchError

WARM_UP = 300
SWITCHES = re.compile(r"^(non)?voluntary_ctxt_switches:\s+(\d+)$", re.MULTILINE)


@dataclass
class Build:
    """The measurements of one build."""

    name: str
    program: str | None
    rounds: list[float] = field(default_factory=list)
    """The median latency of each round in µs."""
    slowest: list[float] = field(default_factory=list)
    """The 99th percentile of each round in µs."""
    cpu_us: list[float] = field(default_factory=list)
    blocked: list[float] = field(default_factory=list)
    interrupted: list[float] = field(default_factory=list)

    def row(self) -> str:
        return (
            f"| {self.name} | {min(self.rounds):.0f} | {median(self.rounds):.0f} | {median(self.slowest):.0f} "
            f"| {median(self.cpu_us):.0f} | {median(self.blocked):.2f} | {median(self.interrupted):.2f} |"
        )


HEAD = """| build | p50 µs, best round | median of rounds | p99 µs | CPU µs | blocked | interrupted |
|---|---:|---:|---:|---:|---:|---:|"""


def switches(pid: int) -> tuple[int, int]:
    """Return how often the threads of a process have blocked and were interrupted."""
    blocked = interrupted = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for involuntary, count in SWITCHES.findall((thread / "status").read_text()):
            if involuntary:
                interrupted += int(count)
            else:
                blocked += int(count)
    return blocked, interrupted


def round_trips(server: Server, count: int, size: int) -> list[int]:
    """Send messages, each after the previous confirm; return the latencies in ns, sorted."""
    wire = Account(server.stomp).connect()
    frames = memoryview(send_frames("/queue/alternate", 0, 0, count, size))
    length = len(frames) // count
    times = []
    for n in range(count):
        started = time.perf_counter_ns()
        wire.send(frames[n * length : (n + 1) * length])
        wire.receive_until(b"\0\n")
        times.append(time.perf_counter_ns() - started)
    wire.close()
    return sorted(times)


def measure(build: Build, server: Server, count: int, size: int) -> None:
    """Add one round to the measurements of a build."""
    cpu_s, (blocked, interrupted) = server.cpu_s(), switches(server.pid)
    times = round_trips(server, count, size)
    cpu_s, (blocked_now, interrupted_now) = server.cpu_s() - cpu_s, switches(server.pid)
    build.rounds.append(times[count // 2] / 1000)
    build.slowest.append(times[count * 99 // 100] / 1000)
    build.cpu_us.append(cpu_s * 1e6 / count)
    build.blocked.append((blocked_now - blocked) / count)
    build.interrupted.append((interrupted_now - interrupted) / count)


def compare(builds: Sequence[Build], folder: Path, *, servers: int, rounds: int, count: int, size: int) -> None:
    """Measure builds in turn."""
    for life in range(servers):
        running: list[tuple[Build, Server]] = []
        try:
            for build in builds:
                own = folder / f"{build.name}-{life}"
                own.mkdir()
                command = curbstone_command(own / "data", CAP, program=build.program)
                running.append((build, Server(command, own / "log", own)))
                round_trips(running[-1][1], WARM_UP, size)
            for number in range(rounds):
                for build, server in running if (life + number) % 2 == 0 else reversed(running):
                    measure(build, server, count, size)
        finally:
            for _build, server in running:
                server.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.alternate", description=__doc__)
    parser.add_argument("builds", nargs="+", metavar="NAME=PROGRAM", help="a build's name and its curbstone command")
    parser.add_argument("--servers", type=int, default=5, help="servers of each build (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="rounds with each server (default: %(default)s)")
    parser.add_argument("--count", type=int, default=500, help="messages in a round (default: %(default)s)")
    parser.add_argument("--size", type=int, default=100, help="bytes of a body (default: %(default)s)")
    parser.add_argument("--dir", type=Path, help="a folder on the disk to measure (default: the temporary one)")
    known = parser.parse_args(arguments)
    builds = [Build(name, program or None) for name, _, program in (each.partition("=") for each in known.builds)]
    with tempfile.TemporaryDirectory(prefix="curbstone-alternate-", dir=known.dir) as folder:
        compare(builds, Path(folder), servers=known.servers, rounds=known.rounds, count=known.count, size=known.size)
    print(HEAD, *(build.row() for build in builds), sep="\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        print(f"bench.alternate: {error}", file=sys.stderr)
        sys.exit(1)
