"""The workloads: their roles, queues and order.

Every sent message is consumed and checked, even if only the sending is measured; messages left in the queue after that
are counted. Workloads that depend on each other (a send and its drain) form one group.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from bench import both_ways, client_load, http_load, mqks_load, queues_load, stomp_load, ws_load
from bench.both_ways import PacedJob
from bench.check import Tally
from bench.client_load import ClientJob
from bench.http_load import PopJob, PostJob
from bench.measure import Measurement, Target, checked, run
from bench.mqks_load import MqksJob
from bench.queues_load import QueuesJob
from bench.stomp_load import DrainJob, Label, ManyJob, PingJob, SendJob
from bench.workers import Outcome, Role, Stopwatch

WINDOW = 1000
PRODUCERS = 16
CONNECTIONS = 64
BATCHERS = 4
FANOUT = 100
DRAINS = 10
"""How many queues of the fan-out are drained concurrently."""
RATE = 5000
KEYS = 5000


@dataclass(frozen=True, slots=True)
class Plan:
    """The length of a run: it ends after its count or its time, whichever is first."""

    scale: float = 1.0
    seconds: float = 8.0
    most: int | None = None
    """Replaces the workloads' own counts."""

    def count(self, full: int, size: int) -> int:
        """Return the number of messages. `full` is for bodies of 100 bytes; a kilobyte counts as two, 64 KiB as 65."""
        count = self.most or int(full * self.scale / (1 if size <= 512 else 1 + size / 1024))
        return max(CONNECTIONS, count)


Group = Callable[[Target, int, Plan], Iterator[Measurement]]


def send_one(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    yield from _send(target, size, plan, "send-1", 6_000, 1)


def send_hundred(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    yield from _send(target, size, plan, "send-100", 60_000, 100)


def _send(target: Target, size: int, plan: Plan, name: str, full: int, window: int) -> Iterator[Measurement]:
    queue = target.new_queue()
    send = _stomp_send(target, queue, size, plan.count(full, size), window, plan.seconds / 2)
    yield from _checked(target, queue, name, size, window, send)


def send_many(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    queue = target.new_queue()
    send = _stomp_send(target, queue, size, plan.count(100_000, size), WINDOW, plan.seconds)
    yield from _checked(target, queue, "send-1000", size, WINDOW, send, drain="drain")


def send_varied(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    """Like send-1000, but with heads that defeat a cache."""
    queue = target.new_queue()
    send = _labelled_send(target, queue, size, plan, Label(b"number", sys.maxsize))
    yield from _checked(target, queue, "send-varied", size, WINDOW, send)


def send_with_keys(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    """Like send-1000 and drain, with ordering keys: one message of each key is delivered at a time."""
    queue = target.new_queue()
    name = f"keys-{KEYS}"
    send = _labelled_send(target, queue, size, plan, Label(b"x-key", KEYS))
    yield from _checked(target, queue, name, size, WINDOW, send, drain=f"{name}-drain")


def _labelled_send(target: Target, queue: str, size: int, plan: Plan, label: Label) -> Role:
    count = plan.count(100_000, size)
    job = SendJob(target.account, f"/queue/{queue}", count, size, WINDOW, plan.seconds, label=label)
    return partial(stomp_load.send, job)


def pipe(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    """Send and consume concurrently. No time limit, because the consumer must know the number of messages."""
    queue = target.new_queue()
    count = plan.count(60_000, size)
    send = _stomp_send(target, queue, size, count, WINDOW, 1e6)
    consume = partial(stomp_load.consume, _drain_job(target, queue, (count,), size))
    measured, _ = run(target, "pipe", size, WINDOW, [send, consume])
    yield _finish(target, measured, queue)


def pingpong(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    queue = target.new_queue()
    job = PingJob(target.account, f"/queue/{queue}", plan.count(4_000, size), size, plan.seconds / 2)
    measured, _ = run(target, "pingpong", size, 1, [partial(stomp_load.pingpong, job)])
    yield _finish(target, measured, queue)


def producers(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    yield from _producers(target, size, plan, "producers-16", 30_000, 1)


def producers_hundred(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    yield from _producers(target, size, plan, "producers-16x100", 100_000, 100)


def _producers(target: Target, size: int, plan: Plan, name: str, full: int, window: int) -> Iterator[Measurement]:
    queue = target.new_queue()
    count = plan.count(full, size)
    job = ManyJob(target.account, f"/queue/{queue}", count, size, PRODUCERS, plan.seconds, window)
    send = partial(stomp_load.send_from_many, job)
    yield from _checked(target, queue, name, size, PRODUCERS * window, send)


def queues_ten(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    yield from _queues(target, size, plan, 10, 60_000)


def queues_hundred(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    yield from _queues(target, size, plan, 100, 60_000)


def queues_thousand(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    yield from _queues(target, size, plan, 1000, 60_000)


def _queues(target: Target, size: int, plan: Plan, number: int, full: int) -> Iterator[Measurement]:
    names = _names(target.name_of_queue(), number)
    for name in names:
        target.declare(name)
    job = QueuesJob(target.account, names, max(1, plan.count(full, size) // number), size, WINDOW, plan.seconds)
    sent, timed = run(target, f"queues-{number}", size, WINDOW, [partial(queues_load.send_to_queues, job)])
    take = partial(queues_load.drain_queues, job, timed[0].outcome.sent)
    drained, _ = run(target, f"queues-{number}-drain", size, WINDOW, [take])
    drained = _finish(target, drained, *names)
    yield checked(sent, drained.tally)
    yield drained


def fanout(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    """Publish to an event. Published messages are counted; afterwards each queue must have each message."""
    event = target.name_of_queue()
    names = _names(event, FANOUT)
    destination = target.bind(event, names)
    job = SendJob(target.account, destination, plan.count(6_000, size), size, WINDOW, plan.seconds)
    sent, timed = run(target, f"fanout-{FANOUT}", size, WINDOW, [partial(stomp_load.send, job)])
    drains = [partial(stomp_load.drain, _drain_job(target, name, timed[0].outcome.sent, size)) for name in names]
    drained = [run(target, "", size, WINDOW, drains[at : at + DRAINS])[0] for at in range(0, FANOUT, DRAINS)]
    tally = sum((one.tally for one in drained), Tally())
    yield _finish(target, checked(sent, tally), *names)


def _names(base: str, number: int) -> list[str]:
    """Return names that all have the same length."""
    return [f"{base}-{index:03d}" for index in range(number)]


def paced(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    """Send at a fixed rate, to measure the cost and the end-to-end time of a message without saturation."""
    queue = target.new_queue()
    count = plan.count(5 * RATE, size)
    job = PacedJob(target.account, f"/queue/{queue}", count, size, RATE)
    measured, _ = run(target, f"paced-{RATE}", size, 1, [partial(both_ways.paced, job)])
    yield _finish(target, measured, queue)


def websocket(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    assert target.http
    queue = target.new_queue()
    count = plan.count(100_000, size)
    job = ws_load.PublishJob(target.http, f"default/{queue}", count, size, WINDOW, plan.seconds)
    published, timed = run(target, "ws-publish", size, WINDOW, [partial(ws_load.publish, job)])
    sent = timed[0].outcome.sent
    take = ws_load.ConsumeJob(target.http, f"default/{queue}", sent, size, WINDOW)
    consumed, _ = run(target, "ws-consume", size, WINDOW, [partial(ws_load.consume, take)])
    consumed = _finish(target, consumed, queue)
    yield checked(published, consumed.tally)
    yield consumed


def posts(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    assert target.http
    queue = target.new_queue()
    job = PostJob(target.http, f"default/{queue}", plan.count(20_000, size), size, CONNECTIONS, plan.seconds)
    yield from _checked(target, queue, "http-post", size, CONNECTIONS, partial(http_load.post, job))


def batches(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    assert target.http
    queue = target.new_queue()
    count = max(plan.count(60_000, size), BATCHERS * http_load.BATCH)
    job = PostJob(target.http, f"default/{queue}", count, size, BATCHERS, plan.seconds)
    batch = BATCHERS * http_load.BATCH
    yield from _checked(target, queue, "http-batch", size, batch, partial(http_load.post_batches, job))


def pops(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    assert target.http
    queue = target.new_queue()
    count = plan.count(10_000, size)
    _, timed = run(target, "", size, WINDOW, [_stomp_send(target, queue, size, count, WINDOW, plan.seconds)])
    job = PopJob(target.http, f"default/{queue}", timed[0].outcome.sent, size, CONNECTIONS)
    popped, _ = run(target, "http-pop", size, CONNECTIONS, [partial(http_load.pop, job)])
    yield _finish(target, popped, queue)


def mqks(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    assert target.mqks
    queue = target.new_queue()
    job = MqksJob(target.mqks, queue, plan.count(30_000, size), size, WINDOW, plan.seconds)
    published, timed = run(target, "mqks-publish", size, WINDOW, [partial(mqks_load.publish, job)])
    take = partial(mqks_load.consume, job, timed[0].outcome.sent)
    consumed, _ = run(target, "mqks-consume", size, WINDOW, [take])
    consumed = _finish(target, consumed, queue)
    yield checked(published, consumed.tally)
    yield consumed


def client(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    yield from _client(target, size, plan, "client", client_load.publish, client_load.consume)


def client_threads(target: Target, size: int, plan: Plan) -> Iterator[Measurement]:
    loads = client_load.publish_in_threads, client_load.consume_in_threads
    yield from _client(target, size, plan, "client-threads", *loads)


def _client(
    target: Target,
    size: int,
    plan: Plan,
    name: str,
    publish: Callable[[ClientJob, Stopwatch], Outcome],
    consume: Callable[[ClientJob, tuple[int, ...], Stopwatch], Outcome],
) -> Iterator[Measurement]:
    """Use the client like an application, with the client's own window for publishing."""
    assert target.http
    queue = target.new_queue()
    url = "http://{}:{}".format(*target.http)
    job = ClientJob(url, queue, plan.count(100_000, size), size, WINDOW, plan.seconds)
    published, timed = run(target, f"{name}-publish", size, WINDOW, [partial(publish, job)])
    consumed, _ = run(target, f"{name}-consume", size, WINDOW, [partial(consume, job, timed[0].outcome.sent)])
    consumed = _finish(target, consumed, queue)
    yield checked(published, consumed.tally)
    yield consumed


GROUPS: dict[tuple[str, ...], Group] = {
    ("send-1",): send_one,
    ("send-100",): send_hundred,
    ("send-1000", "drain"): send_many,
    ("send-varied",): send_varied,
    (f"keys-{KEYS}", f"keys-{KEYS}-drain"): send_with_keys,
    ("pipe",): pipe,
    ("pingpong",): pingpong,
    (f"paced-{RATE}",): paced,
    ("producers-16",): producers,
    ("producers-16x100",): producers_hundred,
    ("queues-10", "queues-10-drain"): queues_ten,
    ("queues-100", "queues-100-drain"): queues_hundred,
    ("queues-1000", "queues-1000-drain"): queues_thousand,
    (f"fanout-{FANOUT}",): fanout,
    ("ws-publish", "ws-consume"): websocket,
    ("http-post",): posts,
    ("http-batch",): batches,
    ("http-pop",): pops,
    ("mqks-publish", "mqks-consume"): mqks,
    ("client-publish", "client-consume"): client,
    ("client-threads-publish", "client-threads-consume"): client_threads,
}
CLIENT_WORKLOADS = {f"{name}-{what}" for name in ("client", "client-threads") for what in ("publish", "consume")}
KEYS_WORKLOADS = {f"keys-{KEYS}", f"keys-{KEYS}-drain"}
HTTP_WORKLOADS = {"ws-publish", "ws-consume", "http-post", "http-batch", "http-pop"}
MQKS_WORKLOADS = {"mqks-publish", "mqks-consume"}
BINDING_WORKLOADS = {f"fanout-{FANOUT}"}
NAMES = [name for names in GROUPS for name in names]
LARGE = {"send-1", "send-1000", "drain", "pipe", "ws-publish", "ws-consume", "http-post", "http-pop"}
"""The workloads that also run with bodies of 64 KiB."""
LARGE_BYTES = 16_384


def run_groups(target: Target, wanted: set[str], size: int, plan: Plan) -> Iterator[Measurement]:
    """Run the selected workloads once, in the order of the table."""
    if size >= LARGE_BYTES:
        wanted = wanted & LARGE
    for names, group in GROUPS.items():
        if not wanted.isdisjoint(names) and is_for(target, names):
            yield from (measured for measured in group(target, size, plan) if measured.workload in wanted)


def is_for(target: Target, names: tuple[str, ...]) -> bool:
    """Return whether the target supports the workload's protocol, and bindings to events if the workload needs them.

    A target with MQKS is Curbstone, which the client and ordering keys need. The null server has no STOMP over
    WebSocket.
    """
    speaks_http = bool(target.http) or HTTP_WORKLOADS.isdisjoint(names)
    is_ours = bool(target.mqks) or (MQKS_WORKLOADS | CLIENT_WORKLOADS | KEYS_WORKLOADS).isdisjoint(names)
    return speaks_http and is_ours and (target.binds or BINDING_WORKLOADS.isdisjoint(names))


def _stomp_send(target: Target, queue: str, size: int, count: int, window: int, seconds: float) -> Role:
    return partial(stomp_load.send, SendJob(target.account, f"/queue/{queue}", count, size, window, seconds))


def _drain_job(target: Target, queue: str, sent: tuple[int, ...], size: int) -> DrainJob:
    return DrainJob(target.account, f"/queue/{queue}", sent, size, WINDOW)


def _checked(
    target: Target, queue: str, workload: str, size: int, batch: int, send: Role, drain: str = ""
) -> Iterator[Measurement]:
    """Run a send, then its drain, which is always checked, and measured if `drain_name` is set."""
    sent, timed = run(target, workload, size, batch, [send])
    job = _drain_job(target, queue, timed[0].outcome.sent, size)
    drained, _ = run(target, drain, size, WINDOW, [partial(stomp_load.drain, job)])
    drained = _finish(target, drained, queue)
    yield checked(sent, drained.tally)
    if drain:
        yield drained


def _finish(target: Target, measured: Measurement, *queues: str) -> Measurement:
    """Return the measurement with the number of messages left in the queues, and delete the queues."""
    left = sum(map(target.left_in, queues))
    for queue in queues:
        target.delete_queue(queue)
    return dataclasses.replace(measured, tally=measured.tally + Tally(left=left))
