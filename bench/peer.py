"""The common part of all peers: start one, wait for its port, send and drain, stop it."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.measure import Measurement, Target, checked, run
from bench.server import Process
from bench.stomp_load import Account
from bench.wire import Address, BenchError
from bench.workers import Outcome, Stopwatch
from bench.workloads import WINDOW, Plan

START_LIMIT_S = 60


@dataclass(frozen=True, slots=True)
class Subject:
    """A running peer in one configuration."""

    name: str
    measure: Callable[[int, Plan], Iterator[Measurement]]
    """Runs each of its workloads once; takes a size and a plan."""
    workloads: frozenset[str]
    note: str = ""
    """The meaning of a confirm, if it does not mean a sync."""
    version: str = ""
    """The name and version of the program."""


Running = contextlib.AbstractContextManager[list[Subject]]


@contextlib.contextmanager
def started(
    command: Sequence[str], folder: Path, address: Address, environment: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """Run a program until the block ends. The block begins when the program listens."""
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
            raise BenchError(f"the program does not listen on port {address[1]}\n{process.log_end()}")
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


Action = Callable[[PeerJob, Stopwatch], Outcome]


SENDS = frozenset({"send-1", "send-1000", "drain"})


def sends_and_drain(
    target: Target, address: Address, send: Action, drain: Action, full: int, size: int, plan: Plan
) -> Iterator[Measurement]:
    """Measure sends and a drain. `full` is the number of messages with a window of 1000."""
    for name, window, count in [("send-1", 1, plan.count(6_000, size)), ("send-1000", WINDOW, plan.count(full, size))]:
        queue = target.new_queue()
        job = PeerJob(address, queue, count, size, window, plan.seconds)
        sent, timed = run(target, name, size, window, [partial(send, job)])
        took = PeerJob(address, queue, timed[0].outcome.count, size, WINDOW, plan.seconds)
        drained, _ = run(target, "drain", size, WINDOW, [partial(drain, took)])
        yield checked(sent, drained.tally)
        if window == WINDOW:
            yield drained


def sending(name: str, process: Process, address: Address, send: Action, drain: Action, full: int) -> Subject:
    """Return a peer with its own protocol, with measurements of sends and a drain."""
    target = Target(name, process, Account(address))
    return Subject(name, partial(sends_and_drain, target, address, send, drain, full), SENDS)


Measure = Callable[[int, Plan], Iterator[Measurement]]


def together(subject: Subject, workloads: frozenset[str], more: Measure) -> Subject:
    """Return a subject with more workloads."""

    def measure(size: int, plan: Plan) -> Iterator[Measurement]:
        yield from subject.measure(size, plan)
        yield from more(size, plan)

    return replace(subject, measure=measure, workloads=subject.workloads | workloads)
