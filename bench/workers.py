"""Runs each client role in its own process, all started by one signal, so that they run in parallel.

A role prepares everything (connection, frames, expected bodies) and only then starts its stopwatch.
"""

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from bench.check import Tally
from bench.stats import Percentiles
from bench.wire import BenchError

_CONTEXT = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a role: the messages that it sent, or received and settled."""

    count: int
    sent: tuple[int, ...] = ()
    """How many messages were sent, by producer."""
    confirms: Percentiles | None = None
    deliveries: Percentiles | None = None
    """The times from send to arrival at the consumer."""
    tally: Tally | None = None
    parts: tuple[int, ...] = ()
    """The number of messages in each second, if the role counts them."""


@dataclass(frozen=True, slots=True)
class Timed:
    outcome: Outcome
    started_ns: int
    ended_ns: int
    cpu_ns: int


class Stopwatch:
    """Makes a role wait for the common start, and notes its times."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.started_ns = self.ended_ns = self.cpu_ns = 0

    def start(self) -> int:
        """Wait for the signal. Return the start from time.perf_counter_ns, the same clock in all processes."""
        gc.collect()
        gc.disable()
        self._pipe.send("ready")
        self._pipe.recv()
        self.cpu_ns = -time.process_time_ns()
        self.started_ns = time.perf_counter_ns()
        return self.started_ns

    def stop(self) -> None:
        self.ended_ns = time.perf_counter_ns()
        self.cpu_ns += time.process_time_ns()


Role = Callable[[Stopwatch], Outcome]


def run_roles(roles: Sequence[Role], *, time_limit_s: float, on_start: Callable[[], None]) -> list[Timed]:
    """Run all roles concurrently. `on_start` is called when all are ready, before the signal. Raise BenchError."""
    deadline = time.monotonic() + time_limit_s
    running = [_start(role) for role in roles]
    try:
        for process, pipe in running:
            _answer(process, pipe, deadline)
        on_start()
        for _, pipe in running:
            pipe.send("go")
        return [_answer(process, pipe, deadline) for process, pipe in running]
    finally:
        for process, pipe in running:
            process.kill()
            process.join()
            pipe.close()


def _start(role: Role) -> tuple[BaseProcess, Connection]:
    here, there = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_main, args=(role, there), daemon=True)
    process.start()
    there.close()
    return process, here


def _answer(process: BaseProcess, pipe: Connection, deadline: float) -> Any:
    if not pipe.poll(max(0.0, deadline - time.monotonic())):
        raise BenchError("the run took longer than its time limit")
    try:
        answer = pipe.recv()
    except EOFError:
        process.join()
        raise BenchError(f"a client process died (exit code {process.exitcode})") from None
    if isinstance(answer, BenchError):
        raise answer
    return answer


def _main(role: Role, pipe: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the handler inherited from the parent would stop the server
    stopwatch = Stopwatch(pipe)
    try:
        outcome = role(stopwatch)
        pipe.send(Timed(outcome, stopwatch.started_ns, stopwatch.ended_ns, stopwatch.cpu_ns))
    except BenchError as error:
        pipe.send(error)
    except KeyboardInterrupt:
        pass
    except OSError as error:
        pipe.send(BenchError(str(error)))
    os._exit(0)  # without running the exit handlers inherited from the parent
