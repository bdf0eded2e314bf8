"""Figures for Prometheus, with names like RabbitMQ's.

Nothing is counted here: the engine and the protocols count in plain numbers, which are read when somebody
asks. Figures of each queue are bounded in number; the totals are of all queues, also of deleted ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, islice
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from starlette.types import Receive, Scope, Send

from curbstone.access.rights import Right
from curbstone.core.names import QueueName
from curbstone.core.stats import Commits, Histogram, Stats
from curbstone.core.traffic import Traffic
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.long_poll import in_thread
from curbstone.gateway.http.reply import reply

if TYPE_CHECKING:
    from curbstone.access.door import Access
    from curbstone.access.gate import Gate
    from curbstone.core.port import Queue
    from curbstone.core.positions import Backlog

QUEUES_MAX = 1000
"""The most queues that have figures of their own: the first ones by name."""
GROUPS_MAX = 1000
"""The most named groups that have figures, of all queues together: who publishes may name any number."""

_QUEUE_LABELS = ("project", "queue")
_QUEUE_GAUGES = {
    "messages_ready": "Messages that can be delivered now",
    "messages_unacked": "Messages delivered and unsettled",
    "messages_delayed": "Messages to be delivered later",
    "disk_bytes": "What the queue takes on disk",
    "cap_bytes": "The most it may take on disk",
    "cap_used_ratio": "The part of the cap that is taken, 0 to 1",
    "consumers": "Consumers",
}
_GROUP_GAUGES = {
    "ready": "Messages that can be delivered to a named group now",
    "unacked": "Messages delivered to a named group and unsettled",
    "delayed": "Messages to be delivered to a named group later",
}
_TOTALS = {
    "messages_published": ("published", "Messages on disk and confirmed"),
    "messages_delivered": ("delivered", "Deliveries"),
    "messages_redelivered": ("redelivered", "Deliveries of messages delivered before"),
    "messages_acknowledged": ("acked", "Messages settled by their consumers"),
    "messages_returned": ("released", "Deliveries given back: nack, end of a lease or of a connection"),
    "messages_rejected": ("rejected", "Deliveries rejected"),
    "messages_expired": ("expired", "Messages whose time to live ran out"),
    "messages_dead_lettered": ("dead_lettered", "Messages sent to a dead-letter queue"),
    "messages_dropped": ("dropped", "Dead messages for which there was no dead-letter queue"),
    "messages_purged": ("purged", "Messages removed by a purge"),
    "messages_lost": ("lost", "Messages that declared groups lost, at the cap or by a purge"),
}
_BY_PROTOCOL = {
    "messages_received": ("published", "Messages taken from producers"),
    "messages_confirmed": ("confirmed", "Messages confirmed to producers"),
    "messages_delivered": ("delivered", "Messages handed to consumers"),
    "messages_redelivered": ("redelivered", "Deliveries of messages delivered before"),
    "messages_acknowledged": ("acked", "Deliveries acknowledged"),
    "messages_returned": ("returned", "Deliveries given back by their consumers (nack)"),
    "messages_rejected": ("rejected", "Deliveries rejected: dead-lettered, or dropped without a dead-letter queue"),
}
_COUNTERS = tuple(field for field, _ in _TOTALS.values())


class _QueueFigures(NamedTuple):
    name: QueueName
    gauges: dict[str, float]
    counters: dict[str, int]


class _CommitFigures(NamedTuple):
    """A copy, for it is written out in another thread than the one that counts."""

    took_us: _HistogramFigures
    messages: _HistogramFigures
    syncs: int
    failed: int

    @classmethod
    def of(cls, commits: Commits) -> _CommitFigures:
        took_us, messages = _HistogramFigures.of(commits.took_us), _HistogramFigures.of(commits.messages)
        return cls(took_us, messages, commits.syncs, commits.failed)


class _HistogramFigures(NamedTuple):
    bounds: tuple[int, ...]
    counts: list[int]
    sum: int

    @classmethod
    def of(cls, histogram: Histogram) -> _HistogramFigures:
        return cls(histogram.bounds, list(histogram.counts), histogram.sum)

    def family(self, name: str, text: str, sync: str, unit: float = 1) -> Metric:
        """Return it as Prometheus wants it: each bucket with what is in those before; `unit` is of the values."""
        texts = [str(bound / unit) for bound in self.bounds] + ["+Inf"]
        family = HistogramMetricFamily(name, text, labels=("sync",))
        family.add_metric((sync,), list(zip(texts, accumulate(self.counts), strict=True)), self.sum / unit)
        return family


class Metrics:
    """The handler of `/metrics`."""

    def __init__(self, protocols: Mapping[str, Traffic]) -> None:
        self._protocols = dict(protocols)
        self._seen: dict[str, Stats] = {}
        """The counters of the queues of the last look, by uid: those of a queue deleted since are final."""
        self._gone = dict.fromkeys(_COUNTERS, 0)
        """What the deleted ones had counted: a total never falls."""

    async def get(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """GET /metrics: read here, written in a thread, which with many queues takes a while."""
        accept = next((value for name, value in scope["headers"] if name == b"accept"), b"")
        encode, content_type = choose_encoder(accept.decode("latin-1"))
        snapshot = self._look(access_of(scope))
        body = await in_thread(lambda: encode(_registry(snapshot)))
        await reply(send, 200, [(b"content-type", content_type.encode()), (b"cache-control", b"no-store")], body)

    def _look(self, access: Access) -> Snapshot:
        """Return the figures of queues that one may peek at, and those of the server with the right `metrics`."""
        queues = access.queues_with(Right.PEEK)
        if not access.identity.on_server() & Right.METRICS:
            figures, groups = _shown(queues)
            return Snapshot(figures, groups, len(queues), None)
        broker = access.broker
        everything = broker.queues()
        # Private ones count in the totals; each connection has others, so their names would be series without end.
        counted = [*everything, *broker.private_queues()]
        self._remember(counted)
        totals = {name: self._gone[name] + sum(getattr(q.stats, name) for q in counted) for name in _COUNTERS}
        held = _held(counted)
        protocols = {
            name: {field: getattr(counted, field) for field, _ in _BY_PROTOCOL.values()}
            for name, counted in self._protocols.items()
        }
        health = broker.health()
        figures, groups = _shown(queues)
        commits = _CommitFigures.of(broker.commits)
        staged = len(broker.staging), broker.staging.bytes
        logins = _LoginFigures.of(access.gate)
        whole = Whole(totals, held, protocols, commits, *staged, health.ok, health.sync, len(everything), logins)
        return Snapshot(figures, groups, len(queues), whole)

    def _remember(self, queues: list[Queue]) -> None:
        now = {queue.uid: queue.stats for queue in queues}
        for uid, stats in self._seen.items():
            if uid not in now:
                for name in _COUNTERS:
                    self._gone[name] += getattr(stats, name)
        self._seen = now


def _shown(queues: list[Queue]) -> tuple[list[_QueueFigures], list[tuple[QueueName, Backlog]]]:
    shown = sorted(queues, key=_by_name)[:QUEUES_MAX]
    groups = islice(((queue.name, backlog) for queue in shown for backlog in _backlogs(queue)), GROUPS_MAX)
    return [_figures_of(queue) for queue in shown], list(groups)


def _held(queues: list[Queue]) -> dict[str, int]:
    """Return what all queues hold together, also those without figures of their own."""
    counts = [queue.counts() for queue in queues]
    return {
        "messages_ready": sum([count.rdy for count in counts]),
        "messages_unacked": sum([count.wip for count in counts]),
        "messages_delayed": sum([count.delayed for count in counts]),
    }


def _by_name(queue: Queue) -> QueueName:
    return queue.name


def _backlogs(queue: Queue) -> Iterator[Backlog]:
    """Yield what waits for each named group; most queues have none."""
    yield from queue.reading.backlogs()


def _figures_of(queue: Queue) -> _QueueFigures:
    counts = queue.counts()
    gauges: dict[str, float] = {
        "messages_ready": counts.rdy,
        "messages_unacked": counts.wip,
        "messages_delayed": counts.delayed,
        "disk_bytes": counts.bytes,
        "cap_bytes": queue.options.cap,
        "cap_used_ratio": counts.bytes / queue.options.cap,
        "consumers": counts.consumers,
    }
    return _QueueFigures(queue.name, gauges, {field: getattr(queue.stats, field) for field, _ in _TOTALS.values()})


class _LoginFigures(NamedTuple):
    """Who came and who was refused, in numbers; never a user's name."""

    logins: list[tuple[str, str, int]]
    refused: list[tuple[str, int]]
    connections: int

    @classmethod
    def of(cls, gate: Gate) -> _LoginFigures:
        """Return the figures of a gate."""
        logins = [(protocol, outcome, count) for (protocol, outcome), count in gate.logins.items()]
        return cls(logins, list(gate.refusals.items()), len(gate.connections))

    def metrics(self) -> Iterator[Metric]:
        """Yield them as prometheus-client wants them."""
        logins = CounterMetricFamily("curbstone_logins", "Logins, by outcome", labels=("protocol", "outcome"))
        for protocol, outcome, count in self.logins:
            logins.add_metric((protocol, outcome), count)
        yield logins
        refused = CounterMetricFamily("curbstone_refused", "Calls that lacked a right", labels=("right",))
        for right, count in self.refused:
            refused.add_metric((right,), count)
        yield refused
        yield GaugeMetricFamily("curbstone_connections", "Connections that stay: all but requests", self.connections)


class Whole(NamedTuple):
    """The figures of the whole server."""

    totals: dict[str, int]
    held: dict[str, int]
    protocols: dict[str, dict[str, int]]
    commits: _CommitFigures
    staged: int
    staged_bytes: int
    is_healthy: bool
    sync: str
    queues_count: int
    logins: _LoginFigures

    def metrics(self) -> Iterator[Metric]:
        """Yield them as prometheus-client wants them."""
        yield GaugeMetricFamily("curbstone_up", "Whether messages are taken (see /readyz)", float(self.is_healthy))
        mode = GaugeMetricFamily("curbstone_sync_info", "When commits are made durable", labels=("mode",))
        mode.add_metric((self.sync,), 1)
        yield mode
        yield GaugeMetricFamily("curbstone_queues", "Queues", self.queues_count)
        yield GaugeMetricFamily("curbstone_staged_transactions", "Transactions staged or being committed", self.staged)
        yield GaugeMetricFamily("curbstone_staged_bytes", "What their parts take on disk", self.staged_bytes)
        for name, count in self.held.items():
            yield GaugeMetricFamily(f"curbstone_{name}", f"{_QUEUE_GAUGES[name]}, all queues", count)
        for name, (field, text) in _TOTALS.items():
            yield CounterMetricFamily(f"curbstone_{name}", f"{text}, all queues", self.totals[field])
        commits = self.commits
        yield commits.took_us.family("curbstone_commit_duration_seconds", "Time a commit took", self.sync, 1_000_000)
        yield commits.messages.family("curbstone_commit_batch_messages", "Messages in a commit", self.sync)
        yield CounterMetricFamily("curbstone_syncs", "Times that commits were made durable", commits.syncs)
        yield CounterMetricFamily("curbstone_commits_failed", "Commits that the disk refused", commits.failed)
        yield from self._by_protocol()
        yield from self.logins.metrics()

    def _by_protocol(self) -> Iterator[Metric]:
        for name, (field, text) in _BY_PROTOCOL.items():
            family = CounterMetricFamily(f"curbstone_protocol_{name}", f"{text}, by protocol", labels=("protocol",))
            for protocol, numbers in self.protocols.items():
                family.add_metric((protocol,), numbers[field])
            yield family


class Snapshot(NamedTuple):
    """All figures of one moment that one may see."""

    queues: list[_QueueFigures]
    groups: list[tuple[QueueName, Backlog]]
    queues_count: int
    whole: Whole | None

    def metrics(self) -> Iterator[Metric]:
        """Yield them as prometheus-client wants them."""
        if self.whole is not None:
            yield from self.whole.metrics()
        left_out = self.queues_count - len(self.queues)
        yield GaugeMetricFamily("curbstone_queues_left_out", "Queues without figures of their own here", left_out)
        yield from self._by_queue()
        yield from self._by_group()

    def _by_group(self) -> Iterator[Metric]:
        labels = (*_QUEUE_LABELS, "group", "declared")
        for field, text in _GROUP_GAUGES.items():
            gauge = GaugeMetricFamily(f"curbstone_group_messages_{field}", text, labels=labels)
            for queue, backlog in self.groups:
                value = {"ready": backlog.rdy, "unacked": backlog.wip, "delayed": backlog.delayed}[field]
                gauge.add_metric((*queue, backlog.group, str(backlog.declared).lower()), value)
            yield gauge

    def _by_queue(self) -> Iterator[Metric]:
        for name, text in _QUEUE_GAUGES.items():
            gauge = GaugeMetricFamily(f"curbstone_queue_{name}", text, labels=_QUEUE_LABELS)
            for queue in self.queues:
                gauge.add_metric(queue.name, queue.gauges[name])
            yield gauge
        for name, (field, text) in _TOTALS.items():
            counter = CounterMetricFamily(f"curbstone_queue_{name}", text, labels=_QUEUE_LABELS)
            for queue in self.queues:
                counter.add_metric(queue.name, queue.counters[field])
            yield counter


class _Collected:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        return self._snapshot.metrics()


def _registry(snapshot: Snapshot) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_Collected(snapshot))
    if snapshot.whole is not None:
        ProcessCollector(registry=registry)
    return registry
