"""STOMP load over many queues: one connection sends to them in turn, another consumes from all of them.

The number of a queue is the producer in its bodies. So the check covers the order in each queue, and detects messages
of another queue.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.check import Checker, bodies
from bench.stomp_load import Account, Frames, Receipts, drain_all, read_receipts, receipt_id
from bench.window import send_window
from bench.wire import BenchError
from bench.workers import Outcome, Stopwatch

MOST_QUEUES = 1000
"""The most queues: a queue's number has three digits in a body."""


@dataclass(frozen=True, slots=True)
class QueuesJob:
    account: Account
    queues: Sequence[str]
    """The names of the queues, all of the same length."""
    each: int
    """How many messages go to each queue."""
    size: int
    window: int
    """The most unconfirmed messages over all queues."""
    seconds: float = 1e6
    silence_s: int = 15
    """The run ends after this long without a message."""


def frames_in_turn(job: QueuesJob) -> bytes:
    """Return SENDs to the queues in turn, all of the same length."""
    columns = [bodies(number, 0, job.each, job.size) for number in range(len(job.queues))]
    parts = []
    for seq in range(job.each):
        for number, queue in enumerate(job.queues):
            receipt = receipt_id(0, seq * len(job.queues) + number)
            head = b"SEND\ndestination:/queue/%s\ncontent-length:%d\n" % (queue.encode(), job.size)
            headers = job.account.send_headers
            parts.append(b"%s%sreceipt:%s\n\n%s\0" % (head, headers, receipt, columns[number][seq]))
    return b"".join(parts)


def send_to_queues(job: QueuesJob, stopwatch: Stopwatch) -> Outcome:
    """Send with a receipt for every SEND and at most `window` unconfirmed over all queues."""
    if len({len(queue) for queue in job.queues}) != 1:
        raise BenchError("the names of the queues must have the same length")
    count = job.each * len(job.queues)
    frames = frames_in_turn(job)
    receipts = Receipts(0, 0, count)
    incoming = Frames()
    wire = job.account.connect()

    def confirmed_now() -> int:
        return receipts.take(read_receipts(incoming.complete(wire.receive())))

    outcome = send_window(wire, frames, count, job.window, job.seconds, confirmed_now, stopwatch)
    whole, more = divmod(outcome.count, len(job.queues))
    sent = tuple(whole + (number < more) for number in range(len(job.queues)))
    return Outcome(outcome.count, sent, outcome.confirms)


def drain_queues(job: QueuesJob, sent: tuple[int, ...], stopwatch: Stopwatch) -> Outcome:
    """Subscribe to each queue and acknowledge the messages one by one. End with the receipt of the last ACK."""
    checker = Checker(job.size, len(job.queues))
    wire = job.account.connect(silence_s=job.silence_s)
    prefetch = max(10, job.window // len(job.queues))
    subscribes = b"".join(
        b"SUBSCRIBE\nid:%d\ndestination:/queue/%s\nack:client-individual\nprefetch-count:%d\n%s\n\0"
        % (number, queue.encode(), prefetch, job.account.subscribe_headers)
        for number, queue in enumerate(job.queues)
    )
    stopwatch.start()
    wire.send(subscribes)
    drain_all(wire, sum(sent), checker)
    stopwatch.stop()
    wire.close()
    return Outcome(checker.received, tally=checker.tally(sent))
