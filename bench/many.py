"""Many connections with one request in flight on each, in one process."""

import select
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from bench.roles import Gate, Outcome
from bench.stats import Weighted, percentiles
from bench.wire import BenchError, Wire

SILENCE_S = 30


class Line(ABC):
    """One connection and the requests it will send, laid out in a row, each of the same length."""

    def __init__(self, wire: Wire, requests: bytes, count: int) -> None:
        self.wire = wire
        self.count = count
        self.sent = 0
        self.sent_at = 0
        self._requests = memoryview(requests)
        self._length = len(requests) // count

    def next(self, now: int) -> None:
        at = self.sent * self._length
        self.sent_at = now
        self.wire.send(self._requests[at : at + self._length])
        self.sent += 1

    @abstractmethod
    def confirmed(self) -> bool:
        """Reads once; True when the request in flight is confirmed. Raises BenchError on any other answer."""


def run_lines(lines: Sequence[Line], gate: Gate, seconds: float) -> Outcome:
    by_file = {line.wire.fileno(): line for line in lines}
    poll = select.epoll()
    for file in by_file:
        poll.register(file, select.EPOLLIN)
    times: Weighted = []
    deadline = gate.open() + int(seconds * 1e9)
    for line in lines:
        line.next(time.perf_counter_ns())
    busy = len(lines)
    while busy:
        ready = poll.poll(SILENCE_S)
        if not ready:
            raise BenchError(f"the server sent nothing for {SILENCE_S} s")
        for file, _ in ready:
            line = by_file[file]
            if not line.confirmed():
                continue
            now = time.perf_counter_ns()
            times.append((now - line.sent_at, 1))
            if line.sent < line.count and now < deadline:
                line.next(now)
            else:
                busy -= 1
    gate.close()
    sent = tuple(line.sent for line in lines)
    return Outcome(sum(sent), sent, percentiles(times))
