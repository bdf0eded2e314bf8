"""The big backlog: queues very many small messages, measures memory and disk, kills and restarts, drains some."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import stomp_load
from bench.check import Checker, Tally
from bench.measure import Target
from bench.server import Server, curbstone_command
from bench.stomp_load import Account, DrainJob, SendJob
from bench.wire import BenchError
from bench.workers import Outcome, Stopwatch, run_roles

WINDOW = 10_000
BLOCK = 200_000
DRAIN = 100_000
SIZE = 100
QUEUE = "backlog"
# Per message on disk: the body, and a generous allowance for headers and records.
ALLOWANCE = 200


def run(console: Console, folder: Path, count: int) -> tuple[dict[str, Any], Tally]:
    data = folder / "backlog"
    cap = count * (SIZE + ALLOWANCE) + (1 << 30)
    if shutil.disk_usage(folder).free < cap + (1 << 30):
        raise BenchError(f"not enough room in {folder} for {count:,} messages (at most {cap / 1e9:.1f} GB)")
    command = curbstone_command(data, cap)
    server = Server(command, folder / "backlog.log")
    figures: dict[str, Any] = {"messages": count}
    try:
        figures["rss_before_mb"] = server.rss() / 1e6
        _fill(console, server, count, figures)
        figures["rss_after_mb"] = server.rss() / 1e6
        figures["peak_rss_mb"] = server.peak_rss() / 1e6
        figures["directory_mb"] = directory_bytes(data) / 1e6
        figures["directory_bytes_per_message"] = directory_bytes(data) / count
        console.print("killing it with SIGKILL, starting again")
        server.kill()
        server = Server(command, folder / "backlog.log")
        figures["restart_s"] = server.start_s
        figures["restart_cpu_s"] = server.cpu_s()
        figures["rss_after_restart_mb"] = server.rss() / 1e6
        figures["peak_rss_of_restart_mb"] = server.peak_rss() / 1e6
        tally = _drain_some(server, count, figures)
        figures["rss_after_drain_mb"] = server.rss() / 1e6
        return figures, tally
    finally:
        server.stop()


def directory_bytes(folder: Path) -> int:
    """Return the disk usage of the files, in whole blocks."""
    return sum(state.st_blocks * 512 for state in _states(folder))


def file_bytes(folder: Path) -> int:
    """Return the total size of the files, which a queue's cap limits."""
    return sum(state.st_size for state in _states(folder))


def _states(folder: Path) -> Iterator[os.stat_result]:
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # compaction may remove files meanwhile
            if path.is_file():
                yield path.stat()


def _fill(console: Console, server: Server, count: int, figures: dict[str, Any]) -> None:
    started, cpu = time.monotonic(), server.cpu_s()

    def say(sent: int) -> None:
        if sent % (BLOCK * 5) == 0 or sent == count:
            rate = sent / (time.monotonic() - started)
            console.print(f"{sent:,} queued, {rate:,.0f}/s, RSS {server.rss() / 1e6:.0f} MB")

    fill(Account(server.stomp), QUEUE, count, say)
    figures["queued_per_s"] = count / (time.monotonic() - started)
    figures["server_cpu_us_per_message"] = (server.cpu_s() - cpu) / count * 1e6


def fill(account: Account, queue: str, count: int, say: Callable[[int], None] = lambda sent: None) -> None:
    """Send messages in blocks, each by a new sender, so that the generator needs little memory, too."""
    sent = 0
    while sent < count:
        size = min(BLOCK, count - sent)
        job = SendJob(account, f"/queue/{queue}", size, SIZE, WINDOW, 1e6, first=sent)
        run_roles([partial(stomp_load.send, job)], time_limit_s=300, on_start=lambda: None)
        sent += size
        say(sent)


def _drain_some(server: Server, count: int, figures: dict[str, Any]) -> Tally:
    """Drain the first messages, which must be as they were sent, and check the number of those left."""
    target = Target("curbstone", server, Account(server.stomp), server.http)
    found = target.left_in(QUEUE)
    drained = min(DRAIN, count)
    job = DrainJob(target.account, f"/queue/{QUEUE}", (drained,), SIZE, 1000)
    timed = run_roles([partial(drain_first, job)], time_limit_s=300, on_start=lambda: None)[0]
    figures["drained"] = drained
    figures["drained_per_s"] = drained / (timed.ended_ns - timed.started_ns) * 1e9
    left = target.left_in(QUEUE)
    tally = timed.outcome.tally or Tally()
    wrong = max(abs(found - count), abs(left - (count - drained)))
    figures["found_after_restart"] = found
    figures["left_after_drain"] = left
    return tally + Tally(left=wrong) if wrong else tally


def drain_first(job: DrainJob, stopwatch: Stopwatch) -> Outcome:
    """Settle exactly the first messages. Other deliveries are requeued when the connection closes."""
    total = sum(job.sent)
    checker = Checker(job.size, prepare=total)
    wire = job.account.connect()
    incoming = stomp_load.Frames()
    stopwatch.start()
    stomp_load.subscribe(wire, job)
    while checker.received < total:
        arrived = stomp_load.read_messages(incoming.complete(wire.receive()))[: total - checker.received]
        if not arrived:
            continue
        acks, bodies = zip(*arrived, strict=True)
        checker.take(bodies)
        wire.send(stomp_load.ack_frames(acks, last=checker.received == total))
    while stomp_load.LAST_ACK not in incoming.complete(wire.receive()):
        pass
    stopwatch.stop()
    wire.close()
    return Outcome(checker.received, tally=checker.tally(job.sent))
