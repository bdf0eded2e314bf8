"""How the server scales: speed, memory and restart by backlog, and steady churn under a small cap."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench import backlog, both_ways, stomp_load
from bench.both_ways import ChurnJob
from bench.check import Tally
from bench.measure import Target, run
from bench.server import Server, curbstone_command
from bench.stomp_load import Account, DrainJob, SendJob
from bench.workers import run_roles

SIZE = 100
PROBE = 50_000
WINDOW = 1000
QUEUE = "deep"
CHURN_CAP = 2 << 20
"""Smaller than the messages between a message and its late ack, so that compaction has to copy late ones."""
CHURN_OUTSTANDING = 5_000
CHURN_PER_S_MAX = 100_000
"""How many messages are prepared for each second: more than can be delivered."""
WATCH_S = 0.05

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Depth:
    """The figures at one size of backlog."""

    queued: int
    sent_per_s: float
    """The rate of sending PROBE more messages, with a window of 1000."""
    drained_per_s: float
    """The rate of draining the first PROBE messages."""
    rss_mb: float
    restart_s: float
    """The time from the start after kill -9 until the server accepts connections."""
    restart_rss_mb: float
    disk_bytes: float
    """Bytes in the data directory per queued message."""

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the figures in the order of the tables' columns."""
        return (
            f"{self.queued:,}",
            f"{self.sent_per_s:,.0f}",
            f"{self.drained_per_s:,.0f}",
            f"{self.rss_mb:.0f}",
            f"{self.restart_s:.2f}",
            f"{self.restart_rss_mb:.0f}",
            f"{self.disk_bytes:.0f}",
        )


@dataclass(slots=True)
class Scaling:
    depths: list[Depth] = field(default_factory=list)
    churn: list[int] = field(default_factory=list)
    """The messages delivered in each second."""
    churn_cap: int = CHURN_CAP
    churn_bytes: int = 0
    """The largest size of the queue's directory."""


def measure(folder: Path, depths: Sequence[int], churn_s: float, probe: int, say: Say) -> tuple[Scaling, Tally]:
    scaling, tally = Scaling(), Tally()
    for queued in depths:
        say(f"a backlog of {queued:,}")
        own = folder / f"depth-{queued}"
        own.mkdir()
        depth, found = at_depth(own, queued, probe)
        scaling.depths.append(depth)
        tally += found
    if churn_s:
        say(f"churn for {churn_s:g} s in a queue of {CHURN_CAP >> 20} MiB")
        tally += churn(folder, churn_s, scaling)
    return scaling, tally


def at_depth(folder: Path, queued: int, probe: int) -> tuple[Depth, Tally]:
    command = curbstone_command(folder / "data", (queued + probe) * (SIZE + backlog.ALLOWANCE) + (1 << 30))
    server = Server(command, folder / "log")
    try:
        backlog.fill(Account(server.stomp), QUEUE, queued)
        send = SendJob(Account(server.stomp), f"/queue/{QUEUE}", probe, SIZE, WINDOW, 1e6, first=queued)
        sent = run_roles([partial(stomp_load.send, send)], time_limit_s=300, on_start=lambda: None)[0]
        rss = server.rss()
        disk = backlog.directory_bytes(folder / "data")
        server.kill()
        server = Server(command, folder / "log")
        restart_s, restart_rss = server.start_s, server.rss()
        job = DrainJob(Account(server.stomp), f"/queue/{QUEUE}", (probe,), SIZE, WINDOW)
        taken = run_roles([partial(backlog.drain_first, job)], time_limit_s=300, on_start=lambda: None)[0]
        left = Target("curbstone", server, job.account, server.http).left_in(QUEUE)
        depth = Depth(
            queued,
            probe / (sent.ended_ns - sent.started_ns) * 1e9,
            probe / (taken.ended_ns - taken.started_ns) * 1e9,
            rss / 1e6,
            restart_s,
            restart_rss / 1e6,
            disk / (queued + probe),
        )
        return depth, (taken.outcome.tally or Tally()) + Tally(left=abs(left - queued))
    finally:
        server.stop()


def churn(folder: Path, seconds: float, scaling: Scaling) -> Tally:
    """Churn one queue with a small cap, so that compaction copies late messages all the time."""
    data = folder / "churn"
    server = Server(curbstone_command(data, CHURN_CAP), folder / "churn.log")
    try:
        target = Target("curbstone", server, Account(server.stomp), server.http)
        queue = target.new_queue()
        (directory,) = [path for path in data.rglob("*") if path.is_dir() and list(path.glob("*.seg"))]
        most, over = [0], threading.Event()

        def watch() -> None:
            while not over.wait(WATCH_S):
                most[0] = max(most[0], backlog.file_bytes(directory))

        laid_out = int(seconds * CHURN_PER_S_MAX)
        job = ChurnJob(target.account, f"/queue/{queue}", seconds, SIZE, CHURN_OUTSTANDING, laid_out)
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            measured, timed = run(
                target, "churn", SIZE, WINDOW, [partial(both_ways.churn, job)], time_limit_s=seconds + 120
            )
        finally:
            over.set()
            watcher.join()
        scaling.churn = list(timed[0].outcome.parts[:-1])  # the last second is incomplete
        scaling.churn_bytes = most[0]
        over_cap = max(0, most[0] - CHURN_CAP)
        return measured.tally + Tally(left=target.left_in(queue) + over_cap)
    finally:
        server.stop()
