"""What the peers have in common: start one, wait for its port, send and drain, stop it."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.measure import Measurement, Target, checked, run
from bench.roles import Gate, Outcome
from bench.server import Process
from bench.wire import Address, BenchError
from bench.workloads import WINDOW, Plan

START_LIMIT_S = 60

Measured = Iterator[tuple[str, list[Measurement]]]
"""By the name of the peer in this configuration."""


@contextlib.contextmanager
def started(
    command: Sequence[str], folder: Path, address: Address, environment: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """Runs a program until the block ends; the block begins when it listens."""
    process = Process(command, folder / "log", environment=environment)
    try:
        _await_listening(process, address)
        yield process
    finally:
        process.stop()


def _await_listening(process: Process, address: Address) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=1):
            return
        if process.popen.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"it does not listen on {address[1]}\n{process.log_end()}")
        time.sleep(0.05)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class PeerJob:
    address: Address
    queue: str
    count: int
    size: int
    window: int
    seconds: float


Action = Callable[[PeerJob, Gate], Outcome]


def sends_and_drain(
    target: Target, address: Address, sizes: Sequence[int], plan: Plan, send: Action, drain: Action, full: int
) -> Iterator[Measurement]:
    """`full`: how many messages a second it can be expected to take at window 1000."""
    for size in sizes:
        for name, window, count in [
            ("send-1", 1, plan.count(6_000, size)),
            ("send-1000", WINDOW, plan.count(full, size)),
        ]:
            queue = target.new_queue()
            job = PeerJob(address, queue, count, size, window, plan.seconds)
            sent, timed = run(target, name, size, window, [partial(send, job)])
            took = PeerJob(address, queue, timed[0].outcome.count, size, WINDOW, plan.seconds)
            drained, _ = run(target, "drain", size, WINDOW, [partial(drain, took)])
            yield checked(sent, drained.tally)
            if window == WINDOW:
                yield drained
