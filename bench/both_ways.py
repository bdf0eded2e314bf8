"""Producer and consumer in one process: at a fixed rate, and as steady churn in a small queue.

Both ends use the same clock, so the end-to-end time of a message is exact.
"""

import select
import time
from collections import deque
from dataclasses import dataclass

from bench.check import Checker, Tally
from bench.stats import Weighted, percentiles
from bench.stomp_load import (
    Account,
    DrainJob,
    Frames,
    Receipts,
    ack_frames,
    read_messages,
    read_receipts,
    send_frames,
    subscribe,
)
from bench.wire import BenchError
from bench.workers import Outcome, Stopwatch

SILENCE_S = 15
BYE = b"DISCONNECT\nreceipt:bye\n\n\0"


class Duplex:
    """Two connections: one sends `count` messages with receipts, the other consumes and checks them."""

    def __init__(self, account: Account, destination: str, count: int, size: int, window: int) -> None:
        self._frames = memoryview(send_frames(destination, 0, 0, count, size, account.send_headers))
        self._length = len(self._frames) // count
        self.checker = Checker(size, prepare=count)
        self.producer = account.connect(chunk=65_536)
        self.consumer = account.connect(chunk=65_536)
        subscribe(self.consumer, DrainJob(account, destination, (count,), size, window), receipt=True)
        self._receipts = Receipts(0, 0, count)
        self._from_producer, self._from_consumer = Frames(), Frames()
        self.count = count
        self.sent = self.confirmed = 0

    @property
    def received(self) -> int:
        return self.checker.received

    @property
    def done(self) -> bool:
        return self.confirmed >= self.count and self.checker.distinct >= self.count

    def send(self, most: int) -> int:
        """Send up to `most` of the next messages in one piece, and return how many."""
        room = min(most, self.count - self.sent)
        if room > 0:
            at = self.sent * self._length
            self.producer.send(self._frames[at : at + room * self._length])
            self.sent += room
        return max(room, 0)

    def wait(self, seconds: float) -> tuple[int, list[bytes]]:
        """Wait at most `seconds`. Return how many more are confirmed, and the ack headers of messages that arrived."""
        ready, _, _ = select.select([self.producer, self.consumer], [], [], seconds)
        confirmed, acks = 0, []
        if self.producer in ready:
            whole = self._from_producer.complete(self.producer.receive())
            confirmed = self._receipts.take(read_receipts(whole)) if whole else 0
            self.confirmed += confirmed
        if self.consumer in ready:
            arrived = read_messages(self._from_consumer.complete(self.consumer.receive()))
            self.checker.take([body for _, body in arrived])
            acks = [ack for ack, _ in arrived]
        return confirmed, acks

    def check_confirmed(self, silence_s: int) -> None:
        if self.confirmed < self.sent:
            missing = self.sent - self.confirmed
            raise BenchError(f"{missing} messages are unconfirmed, and nothing arrived for {silence_s} s")

    def close(self) -> Tally:
        """Close the connections with a DISCONNECT, whose receipt means that all earlier acks are settled."""
        self.consumer.send(BYE)
        read_receipts(self.consumer.receive_until(b"\0"))
        self.producer.close()
        self.consumer.close()
        return self.checker.tally((self.sent,))


@dataclass(frozen=True, slots=True)
class PacedJob:
    account: Account
    destination: str
    count: int
    size: int
    rate: float
    """Messages a second."""
    silence_s: int = SILENCE_S
    """The run ends after this long without a message."""


def paced(job: PacedJob, stopwatch: Stopwatch) -> Outcome:
    """Send each message at its scheduled time. Latencies count from that time, so a late sender shows as latency."""
    pair = Duplex(job.account, job.destination, job.count, job.size, 1000)
    interval = 1e9 / job.rate
    confirmed_times: Weighted = []
    delivered_times: Weighted = []
    started = stopwatch.start()
    last = started
    while not pair.done:
        now = time.perf_counter_ns()
        pair.send(min(int((now - started) / interval) + 1, job.count) - pair.sent)
        due = started + pair.sent * interval
        wait = (due - time.perf_counter_ns()) / 1e9 if pair.sent < job.count else 1.0
        first_confirmed, first_received = pair.confirmed, pair.received
        confirmed, acks = pair.wait(min(max(wait, 0), 1.0))
        now = time.perf_counter_ns()
        for number in range(first_confirmed, first_confirmed + confirmed):
            confirmed_times.append((int(now - started - number * interval), 1))
        for number in range(first_received, first_received + len(acks)):
            delivered_times.append((int(now - started - number * interval), 1))
        if acks:
            pair.consumer.send(ack_frames(acks))
        if confirmed or acks:
            last = now
        elif now - last > job.silence_s * 1e9:
            pair.check_confirmed(job.silence_s)
            break  # missing messages show in the tally
    stopwatch.stop()
    tally = pair.close()
    return Outcome(pair.sent, (pair.sent,), percentiles(confirmed_times), percentiles(delivered_times), tally)


@dataclass(frozen=True, slots=True)
class ChurnJob:
    account: Account
    destination: str
    seconds: float
    size: int
    outstanding: int
    """The most messages sent and not received yet, which keeps the queue under its cap."""
    most: int
    """How many messages are prepared. The run ends when all of them were delivered, or the time is over."""
    held_back: int = 97
    """One in this many messages is acknowledged late, so that compaction has to copy live messages."""
    late_by: int = 20_000
    silence_s: int = SILENCE_S


def churn(job: ChurnJob, stopwatch: Stopwatch) -> Outcome:
    """Send and consume for a time. `parts` has the number of messages that arrived in each second."""
    pair = Duplex(job.account, job.destination, job.most, job.size, 2000)
    held: deque[tuple[int, bytes]] = deque()
    parts = [0]
    started = stopwatch.start()
    deadline = started + int(job.seconds * 1e9)
    last = started
    while True:
        now = time.perf_counter_ns()
        if now > deadline:
            pair.count = pair.sent
        if pair.done:
            break
        pair.send(min(1000 - (pair.sent - pair.confirmed), job.outstanding - (pair.sent - pair.received)))
        confirmed, acks = pair.wait(1.0)
        first = pair.received - len(acks)
        now_acked = []
        for number, ack in enumerate(acks, first):
            if number % job.held_back:
                now_acked.append(ack)
            else:
                held.append((number + job.late_by, ack))
        while held and held[0][0] <= pair.received:
            now_acked.append(held.popleft()[1])
        if now_acked:
            pair.consumer.send(ack_frames(now_acked))
        second = int((now - started) / 1e9)
        parts += [0] * (second + 1 - len(parts))
        parts[second] += len(acks)
        if confirmed or acks:
            last = now
        elif now - last > job.silence_s * 1e9:
            pair.check_confirmed(job.silence_s)
            break  # missing messages show in the tally
    stopwatch.stop()
    if held:
        pair.consumer.send(ack_frames([ack for _, ack in held]))
    return Outcome(pair.sent, (pair.sent,), tally=pair.close(), parts=tuple(parts))
