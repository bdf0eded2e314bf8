"""Figures in the format of Prometheus, with names like RabbitMQ's. Imported at the first scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from curbstone.core.names import QueueName
from curbstone.core.positions import Backlog
from curbstone.gateway.resources.metrics.figures import (
    BUILD,
    BY_PRIORITY,
    BY_PROTOCOL,
    HELD_BACK,
    PYTHON,
    QUEUE_GAUGES,
    SECONDS_TO_FULL,
    TOTALS,
    VERSION,
    HistogramFigures,
    QueueFigures,
    Snapshot,
)

_QUEUE_LABELS = ("project", "queue")
_GROUP_GAUGES = {
    "lag": ("lag", "Messages that a named group has not settled"),
    "messages_ready": ("rdy", "Messages that can be delivered to a named group now"),
    "messages_unacked": ("wip", "Messages delivered to a named group and unsettled"),
    "messages_delayed": ("delayed", "Messages to be delivered to a named group later"),
}


def encode_metrics(
    now: Snapshot, shown: Sequence[QueueFigures], groups: Sequence[tuple[QueueName, Backlog]], accept: str
) -> tuple[bytes, str]:
    """Return the figures in a format that `accept` allows, and its media type. May be called in any thread.

    Only the queues in `shown` have figures of their own.
    """
    encode, content_type = choose_encoder(accept)
    return encode(_registry(_Exposition(now, shown, groups))), content_type


TERM = "One more than the number of times that a copy of this server was promoted"
STANDINGS = ("local", "alone", "joining", "sync", "waiting")
"""The values of `ReplicationFigures.confirms`."""


class _Exposition:
    """All figures of one moment, as a collector of prometheus-client."""

    def __init__(
        self, now: Snapshot, shown: Sequence[QueueFigures], groups: Sequence[tuple[QueueName, Backlog]]
    ) -> None:
        self.now = now
        self.shown = shown
        self.groups = groups

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        if self.now.is_whole:
            yield from self._of_the_server()
            yield from self._of_commits()
            yield from self._by_protocol()
            yield from self._of_logins()
            yield from self._of_followers()
        yield from self._by_queue()
        yield from self._by_group()

    def _of_the_server(self) -> Iterator[Metric]:
        now = self.now
        yield GaugeMetricFamily("curbstone_up", "Whether messages are accepted (see /readyz)", float(now.is_healthy))
        yield build_info()
        mode = GaugeMetricFamily("curbstone_sync_info", "When commits are made durable", labels=("mode",))
        mode.add_metric((now.sync,), 1)
        yield mode
        engine = GaugeMetricFamily("curbstone_engine_info", "The storage engine", labels=("name", "version"))
        engine.add_metric((now.engine.name, now.engine.version), 1)
        yield engine
        yield GaugeMetricFamily("curbstone_queues", "Queues", len(now.queues))
        left_out = len(now.queues) - len(self.shown)
        yield GaugeMetricFamily("curbstone_queues_left_out", "Queues without figures of their own here", left_out)
        yield GaugeMetricFamily("curbstone_staged_transactions", "Transactions staged or being committed", now.staged)
        yield GaugeMetricFamily("curbstone_staged_bytes", "Bytes of their parts on disk", now.staged_bytes)
        for name, count in now.held.items():
            yield GaugeMetricFamily(f"curbstone_{name}", f"{QUEUE_GAUGES[name]}, all queues", count)
        for name, (field, text) in TOTALS.items():
            yield CounterMetricFamily(f"curbstone_{name}", f"{text}, all queues", now.totals[field])

    def _of_commits(self) -> Iterator[Metric]:
        commits, sync = self.now.commits, self.now.sync
        yield histogram(commits.took_us, "curbstone_commit_duration_seconds", "Time a commit took", sync, 1_000_000)
        yield histogram(commits.messages, "curbstone_commit_batch_messages", "Messages in a commit", sync)
        if commits.sync_us is not None:
            text = "Time that one sync of a file took"
            yield histogram(commits.sync_us, "curbstone_sync_duration_seconds", text, sync, 1_000_000)
        yield CounterMetricFamily("curbstone_syncs", "Syncs that made commits durable", commits.syncs)
        yield CounterMetricFamily("curbstone_commits_failed", "Commits that failed on the disk", commits.failed)
        text = "Bytes of redo files that a start could not replay completely (see curbstone repair)"
        yield GaugeMetricFamily("curbstone_redo_kept_bytes", text, commits.redo_bytes_kept)
        text = "Damaged stretches of the journal of transactions that the start found"
        yield GaugeMetricFamily("curbstone_journal_damaged", text, commits.journal_damage)

    def _by_protocol(self) -> Iterator[Metric]:
        for name, (field, text) in BY_PROTOCOL.items():
            family = CounterMetricFamily(f"curbstone_protocol_{name}", f"{text}, by protocol", labels=("protocol",))
            for protocol, numbers in self.now.protocols.items():
                family.add_metric((protocol,), numbers[field])
            yield family
        opened = GaugeMetricFamily("curbstone_connections", "Open connections", labels=("protocol",))
        for protocol, count in self.now.connections.items():
            opened.add_metric((protocol,), count)
        yield opened
        away = CounterMetricFamily("curbstone_connections_refused", "Refused connections", labels=("reason",))
        for reason, count in self.now.refused_connections.items():
            away.add_metric((reason,), count)
        yield away
        yield from self._of_buffers()
        text = "Requests and frames that were refused"
        refused = CounterMetricFamily("curbstone_refusals", text, labels=("protocol", "reason"))
        for protocol, reasons in self.now.refusals.items():
            for reason, count in reasons.items():
                refused.add_metric((protocol, reason), count)
        yield refused

    def _of_buffers(self) -> Iterator[Metric]:
        buffered = self.now.buffered
        text = "Unfinished input and unread output of all connections, in memory"
        yield GaugeMetricFamily("curbstone_buffered_bytes", text, buffered.bytes)
        yield GaugeMetricFamily("curbstone_buffered_limit_bytes", "Its limit (--max-buffered)", buffered.bytes_max)
        text = "Users whose connections have reached their share of it"
        yield GaugeMetricFamily("curbstone_buffered_users_held", text, buffered.users_held)
        text = "Connections ended because of it"
        ended = CounterMetricFamily("curbstone_buffered_connections_ended", text, labels=("reason",))
        for reason, count in buffered.ended.items():
            ended.add_metric((reason,), count)
        yield ended

    def _of_logins(self) -> Iterator[Metric]:
        logins = CounterMetricFamily("curbstone_logins", "Logins, by outcome", labels=("protocol", "outcome"))
        for (protocol, outcome), count in self.now.logins.items():
            logins.add_metric((protocol, outcome), count)
        yield logins
        denied = CounterMetricFamily("curbstone_denied", "Calls that lacked a right", labels=("right",))
        for right, count in self.now.denied.items():
            denied.add_metric((right,), count)
        yield denied
        text = "Connections and requests delayed because of a user's rate"
        held_back = CounterMetricFamily("curbstone_held_back", text, labels=("protocol",))
        for protocol, count in self.now.held_back.items():
            held_back.add_metric((protocol,), count)
        yield held_back

    def _of_followers(self) -> Iterator[Metric]:
        figures = self.now.followers
        if figures is None:
            return
        yield GaugeMetricFamily("curbstone_followers", "Attached followers", len(figures.followers))
        lag_bytes = max((each.lag_bytes for each in figures.followers), default=0)
        text = "Unsent bytes of the slowest follower"
        yield GaugeMetricFamily("curbstone_follower_lag_bytes", text, lag_bytes)
        standbys = [each for each in figures.followers if each.is_standby]
        text = "Standbys with a complete copy, which could take over"
        yield GaugeMetricFamily("curbstone_standbys_usable", text, sum(each.is_usable for each in standbys))
        text = "Unacknowledged bytes of the standby that is behind most"
        behind = max((figures.position - each.acknowledged for each in standbys), default=0)
        yield GaugeMetricFamily("curbstone_standby_unacknowledged_bytes", text, behind)
        yield GaugeMetricFamily("curbstone_term", TERM, figures.term)
        text = "Whether confirms wait for a standby (local: no), and its state: 1 for the current one"
        confirms = GaugeMetricFamily("curbstone_confirms", text, labels=("standing",))
        for standing in STANDINGS:
            confirms.add_metric((standing,), standing == figures.confirms)
        yield confirms
        if (lease := figures.lease) is not None:
            text = "How long the server may still confirm without a renewal of its lease"
            yield GaugeMetricFamily("curbstone_lease_valid_seconds", text, lease.valid_ms / 1000)
            text = "Standbys in the lease, which may take over if the server fails"
            yield GaugeMetricFamily("curbstone_lease_standbys", text, lease.standbys)
            text = "Failed calls to the lease store"
            yield CounterMetricFamily("curbstone_lease_failures", text, lease.failures)
        text = "The most unsent bytes of a follower (--standby-backlog)"
        yield GaugeMetricFamily("curbstone_follower_backlog_bytes", text, figures.backlog_bytes)
        text = "Bytes sent to followers"
        yield CounterMetricFamily("curbstone_follower_sent_bytes", text, figures.sent_bytes)
        text = "Full copies begun for followers"
        yield CounterMetricFamily("curbstone_follower_copies", text, figures.copies)
        text = "Followers that resumed without a full copy"
        yield CounterMetricFamily("curbstone_follower_resumes", text, figures.resumes)
        yield CounterMetricFamily("curbstone_follower_cut_off", "Followers cut off as too slow", figures.cut_off)

    def _by_queue(self) -> Iterator[Metric]:
        shown = self.shown
        for name, text in QUEUE_GAUGES.items():
            gauge = GaugeMetricFamily(f"curbstone_queue_{name}", text, labels=_QUEUE_LABELS)
            for queue in shown:
                gauge.add_metric(queue.name, queue.gauges[name])
            yield gauge
        filling = GaugeMetricFamily("curbstone_queue_seconds_to_full", SECONDS_TO_FULL, labels=_QUEUE_LABELS)
        for queue in shown:
            if queue.to_full_s is not None:
                filling.add_metric(queue.name, queue.to_full_s)
        yield filling
        ranked = GaugeMetricFamily(
            "curbstone_queue_messages_by_priority", BY_PRIORITY, labels=(*_QUEUE_LABELS, "priority")
        )
        for queue in shown:
            for priority, count in sorted(queue.by_priority.items()):
                ranked.add_metric((*queue.name, str(priority)), count)
        yield ranked
        limited = GaugeMetricFamily("curbstone_queue_held_back", HELD_BACK, labels=(*_QUEUE_LABELS, "why"))
        for queue in shown:
            for why, count in queue.held_back.items():
                limited.add_metric((*queue.name, why), count)
        yield limited
        for name, (field, text) in TOTALS.items():
            counter = CounterMetricFamily(f"curbstone_queue_{name}", text, labels=_QUEUE_LABELS)
            for queue in shown:
                counter.add_metric(queue.name, queue.counters[field])
            yield counter

    def _by_group(self) -> Iterator[Metric]:
        labels = (*_QUEUE_LABELS, "group", "declared")
        for name, (field, text) in _GROUP_GAUGES.items():
            gauge = GaugeMetricFamily(f"curbstone_group_{name}", text, labels=labels)
            for queue, backlog in self.groups:
                gauge.add_metric((*queue, backlog.group, str(backlog.declared).lower()), getattr(backlog, field))
            yield gauge


def build_info() -> Metric:
    """Return the versions of the server and its build."""
    build = GaugeMetricFamily("curbstone_build_info", "The running version", labels=("version", "python", "build"))
    build.add_metric((VERSION, PYTHON, BUILD), 1)
    return build


def histogram(figures: HistogramFigures, name: str, text: str, sync: str = "", unit: float = 1) -> Metric:
    """Return a histogram with Prometheus's cumulative buckets. Values are divided by `unit`.

    `sync` is the value of a label of that name; "" for none.
    """
    texts = [str(bound / unit) for bound in figures.bounds] + ["+Inf"]
    family = HistogramMetricFamily(name, text, labels=("sync",) if sync else ())
    buckets = list(zip(texts, accumulate(figures.counts), strict=True))
    family.add_metric((sync,) if sync else (), buckets, figures.sum / unit)
    return family


def _registry(exposition: _Exposition) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(exposition)
    if exposition.now.is_whole:
        ProcessCollector(registry=registry)
    return registry
