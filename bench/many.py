"""Many connections in one process, each with a few requests in flight."""

import select
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from bench.stats import Weighted, percentiles
from bench.wire import BenchError, Wire
from bench.workers import Outcome, Stopwatch

SILENCE_S = 30


class Line(ABC):
    """One connection and its prepared requests, concatenated, all of the same length."""

    def __init__(self, wire: Wire, requests: bytes, count: int, *, window: int = 1, messages: int = 1) -> None:
        """`window` is the number of requests in flight, `messages` the number of messages in each."""
        self.wire = wire
        self.count = count
        self.sent = 0
        self.messages = messages
        self.in_flight: deque[int] = deque()
        """When each request in flight was sent."""
        self._window = window
        self._requests = memoryview(requests)
        self._length = len(requests) // count

    def next(self, now: int) -> None:
        """Fill the window with requests, in one write."""
        room = min(self._window - len(self.in_flight), self.count - self.sent)
        at = self.sent * self._length
        self.in_flight.extend([now] * room)
        self.sent += room
        self.wire.send(self._requests[at : at + room * self._length])

    @abstractmethod
    def confirmed(self) -> int:
        """Read once, and return the number of newly confirmed requests, in order. Raise BenchError on a bad answer."""


def run_lines(lines: Sequence[Line], stopwatch: Stopwatch, seconds: float) -> Outcome:
    """Run all lines until their requests are confirmed. Stop sending after `seconds`."""
    by_file = {line.wire.fileno(): line for line in lines}
    poll = select.epoll()
    for file in by_file:
        poll.register(file, select.EPOLLIN)
    times: Weighted = []
    deadline = stopwatch.start() + int(seconds * 1e9)
    for line in lines:
        line.next(time.perf_counter_ns())
    busy = len(lines)
    while busy:
        ready = poll.poll(SILENCE_S)
        if not ready:
            raise BenchError(f"the server sent nothing for {SILENCE_S} s")
        for file, _ in ready:
            line = by_file[file]
            count = line.confirmed()
            if not count:
                continue
            now = time.perf_counter_ns()
            times += [(now - line.in_flight.popleft(), line.messages) for _ in range(count)]
            if line.sent < line.count and now < deadline:
                line.next(now)
            elif not line.in_flight:
                busy -= 1
    stopwatch.stop()
    for line in lines:
        line.wire.close()
    sent = tuple(line.sent * line.messages for line in lines)
    return Outcome(sum(sent), sent, percentiles(times))
