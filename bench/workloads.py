"""The workloads: which roles run, against which queue, and in what order.

Every message that is sent is consumed again and checked, also where only the sending is measured; what
is left in the queue after that is counted. Workloads that feed each other (a send and its drain) form one group.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from bench import http_load, stomp_load, ws_load
from bench.check import Tally
from bench.measure import Measurement, Target, checked, run
from bench.roles import Role
from bench.stomp_load import DrainJob, ManyJob, PingJob, SendJob

WINDOW = 1000
PRODUCERS = 16
CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """How much: a run ends at its count or its time, whichever comes first."""

    scale: float = 1.0
    seconds: float = 8.0
    most: int | None = None
    """Replaces the workloads' own counts."""

    def count(self, full: int, size: int) -> int:
        """`full` is meant for 100-byte messages; a kilobyte counts for two of them."""
        count = self.most or int(full * self.scale / (2 if size > 512 else 1))
        return max(CONNECTIONS, count)


Group = Callable[[Target, int, Plan], Iterator[Measurement]]


def send_one(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    queue = target.new_queue()
    send = _stomp_send(target, queue, size, plan.count(6_000, size), 1, plan.seconds / 2)
    yield from _checked(target, queue, "send-1", size, 1, send)


def send_many(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    queue = target.new_queue()
    send = _stomp_send(target, queue, size, plan.count(100_000, size), WINDOW, plan.seconds)
    yield from _checked(target, queue, "send-1000", size, WINDOW, send, drain="drain")


def send_varied(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    """As send-1000, but a server that remembers heads gains nothing by it."""
    queue = target.new_queue()
    count = plan.count(100_000, size)
    job = SendJob(target.account, f"/queue/{queue}", count, size, WINDOW, plan.seconds, varied=True)
    yield from _checked(target, queue, "send-varied", size, WINDOW, partial(stomp_load.send, job))


def pipe(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    """Not cut by time: the consumer has to know how many will come."""
    queue = target.new_queue()
    count = plan.count(60_000, size)
    send = _stomp_send(target, queue, size, count, WINDOW, 1e6)
    consume = partial(stomp_load.consume, _drain_job(target, queue, (count,), size))
    measured, _ = run(target, "pipe", size, WINDOW, [send, consume])
    yield _finish(target, queue, measured)


def pingpong(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    queue = target.new_queue()
    job = PingJob(target.account, f"/queue/{queue}", plan.count(4_000, size), size, plan.seconds / 2)
    measured, _ = run(target, "pingpong", size, 1, [partial(stomp_load.pingpong, job)])
    yield _finish(target, queue, measured)


def producers(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    queue = target.new_queue()
    count = plan.count(30_000, size)
    job = ManyJob(target.account, f"/queue/{queue}", count, size, PRODUCERS, plan.seconds)
    yield from _checked(target, queue, "producers-16", size, PRODUCERS, partial(stomp_load.send_from_many, job))


def websocket(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    assert target.http
    queue = target.new_queue()
    count = plan.count(100_000, size)
    job = ws_load.PublishJob(target.http, f"default/{queue}", count, size, WINDOW, plan.seconds)
    published, timed = run(target, "ws-publish", size, WINDOW, [partial(ws_load.publish, job)])
    sent = timed[0].outcome.sent
    take = ws_load.ConsumeJob(target.http, f"default/{queue}", sent, size, WINDOW)
    consumed, _ = run(target, "ws-consume", size, WINDOW, [partial(ws_load.consume, take)])
    consumed = _finish(target, queue, consumed)
    yield checked(published, consumed.tally)
    yield consumed


def posts(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    assert target.http
    queue = target.new_queue()
    job = http_load.PostJob(target.http, f"default/{queue}", plan.count(20_000, size), size, CONNECTIONS, plan.seconds)
    yield from _checked(target, queue, "http-post", size, CONNECTIONS, partial(http_load.post, job))


GROUPS: dict[tuple[str, ...], Group] = {
    ("send-1",): send_one,
    ("send-1000", "drain"): send_many,
    ("send-varied",): send_varied,
    ("pipe",): pipe,
    ("pingpong",): pingpong,
    ("producers-16",): producers,
    ("ws-publish", "ws-consume"): websocket,
    ("http-post",): posts,
}
HTTP_WORKLOADS = {"ws-publish", "ws-consume", "http-post"}
NAMES = [name for names in GROUPS for name in names]


def run_groups(target: Target, wanted: set[str], size: int, plan: Plan) -> Iterator[Measurement]:
    """The wanted workloads once, in the order of the table."""
    for names, group in GROUPS.items():
        if not wanted.isdisjoint(names) and (target.http or HTTP_WORKLOADS.isdisjoint(names)):
            yield from (measured for measured in group(target, size, plan) if measured.workload in wanted)


def _stomp_send(target: Target, queue: str, size: int, count: int, window: int, seconds: float) -> Role:
    return partial(stomp_load.send, SendJob(target.account, f"/queue/{queue}", count, size, window, seconds))


def _drain_job(target: Target, queue: str, sent: tuple[int, ...], size: int) -> DrainJob:
    return DrainJob(target.account, f"/queue/{queue}", sent, size, WINDOW)


def _checked(
    target: Target, queue: str, workload: str, size: int, batch: int, send: Role, drain: str = ""
) -> Iterator[Measurement]:
    """A send, then its drain: measured too when it has a name, always checked."""
    sent, timed = run(target, workload, size, batch, [send])
    job = _drain_job(target, queue, timed[0].outcome.sent, size)
    drained, _ = run(target, drain, size, WINDOW, [partial(stomp_load.drain, job)])
    drained = _finish(target, queue, drained)
    yield checked(sent, drained.tally)
    if drain:
        yield drained


def _finish(target: Target, queue: str, measured: Measurement) -> Measurement:
    left = target.left_in(queue)
    target.delete_queue(queue)
    return dataclasses.replace(measured, tally=measured.tally + Tally(left=left)) if left else measured
