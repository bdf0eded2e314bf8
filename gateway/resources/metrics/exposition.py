"""Figures in the format of Prometheus, with names like RabbitMQ's. Imported at the first scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

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
        yield gauge("curbstone_up", "Whether messages are accepted (see /readyz)", now.is_healthy)
        yield build_info()
        yield gauge("curbstone_sync_info", "When commits are made durable", {(now.sync,): 1}, "mode")
        engine = {(now.engine.name, now.engine.version): 1}
        yield gauge("curbstone_engine_info", "The storage engine", engine, "name", "version")
        yield gauge("curbstone_queues", "Queues", len(now.queues))
        yield gauge(
            "curbstone_queues_left_out", "Queues without their own figures here", len(now.queues) - len(self.shown)
        )
        yield gauge("curbstone_staged_transactions", "Transactions staged or being committed", now.staged)
        yield gauge("curbstone_staged_bytes", "Bytes of their parts on disk", now.staged_bytes)
        for name, count in now.held.items():
            yield gauge(f"curbstone_{name}", f"{QUEUE_GAUGES[name]}, all queues", count)
        for name, (field, text) in TOTALS.items():
            yield counter(f"curbstone_{name}", f"{text}, all queues", now.totals[field])

    def _of_commits(self) -> Iterator[Metric]:
        commits, sync = self.now.commits, self.now.sync
        yield histogram(commits.took_us, "curbstone_commit_duration_seconds", "Time a commit took", sync, 1_000_000)
        yield histogram(commits.messages, "curbstone_commit_batch_messages", "Messages in a commit", sync)
        if commits.sync_us is not None:
            text = "Time that one sync of a file took"
            yield histogram(commits.sync_us, "curbstone_sync_duration_seconds", text, sync, 1_000_000)
        yield counter("curbstone_syncs", "Syncs that made commits durable", commits.syncs)
        yield counter("curbstone_commits_failed", "Commits that failed on the disk", commits.failed)
        text = "Bytes of redo files that a start could not replay completely (see curbstone repair)"
        yield gauge("curbstone_redo_kept_bytes", text, commits.redo_bytes_kept)
        text = "Damaged stretches of the journal of transactions that the start found"
        yield gauge("curbstone_journal_damaged", text, commits.journal_damage)

    def _by_protocol(self) -> Iterator[Metric]:
        now = self.now
        for name, (field, text) in BY_PROTOCOL.items():
            counts = {(protocol,): numbers[field] for protocol, numbers in now.protocols.items()}
            yield counter(f"curbstone_protocol_{name}", f"{text}, by protocol", counts, "protocol")
        yield gauge("curbstone_connections", "Open connections", _one_label(now.connections), "protocol")
        yield counter(
            "curbstone_connections_refused", "Refused connections", _one_label(now.refused_connections), "reason"
        )
        yield from self._of_buffers()
        refusals = {
            (protocol, reason): count for protocol, reasons in now.refusals.items() for reason, count in reasons.items()
        }
        yield counter("curbstone_refusals", "Requests and frames that were refused", refusals, "protocol", "reason")

    def _of_buffers(self) -> Iterator[Metric]:
        buffered = self.now.buffered
        text = "Unfinished input and unread output of all connections, in memory"
        yield gauge("curbstone_buffered_bytes", text, buffered.bytes)
        yield gauge("curbstone_buffered_limit_bytes", "Its limit (--max-buffered)", buffered.bytes_max)
        yield gauge(
            "curbstone_buffered_users_held", "Users whose connections have reached their share", buffered.users_held
        )
        text = "Connections ended because of it"
        yield counter("curbstone_buffered_connections_ended", text, _one_label(buffered.ended), "reason")

    def _of_logins(self) -> Iterator[Metric]:
        yield counter("curbstone_logins", "Logins, by outcome", self.now.logins, "protocol", "outcome")
        yield counter("curbstone_denied", "Calls that lacked a right", _one_label(self.now.denied), "right")
        text = "Connections and requests delayed because of a user's rate"
        yield counter("curbstone_held_back", text, _one_label(self.now.held_back), "protocol")

    def _of_followers(self) -> Iterator[Metric]:
        figures = self.now.followers
        if figures is None:
            return
        standbys = [each for each in figures.followers if each.is_standby]
        lag_bytes = max((each.lag_bytes for each in figures.followers), default=0)
        behind = max((figures.position - each.acknowledged for each in standbys), default=0)
        yield gauge("curbstone_followers", "Attached followers", len(figures.followers))
        yield gauge("curbstone_follower_lag_bytes", "Unsent bytes of the slowest follower", lag_bytes)
        text = "Standbys with a complete copy, which could take over"
        yield gauge("curbstone_standbys_usable", text, sum(each.is_usable for each in standbys))
        text = "Unacknowledged bytes of the standby that is behind most"
        yield gauge("curbstone_standby_unacknowledged_bytes", text, behind)
        yield gauge("curbstone_term", TERM, figures.term)
        text = "Whether confirms wait for a standby (local: no), and its state: 1 for the current one"
        states = {(standing,): standing == figures.confirms for standing in STANDINGS}
        yield gauge("curbstone_confirms", text, states, "standing")
        if (lease := figures.lease) is not None:
            text = "How long the server may still confirm without a renewal of its lease"
            yield gauge("curbstone_lease_valid_seconds", text, lease.valid_ms / 1000)
            text = "Standbys in the lease, which may take over if the server fails"
            yield gauge("curbstone_lease_standbys", text, lease.standbys)
            yield counter("curbstone_lease_failures", "Failed calls to the lease store", lease.failures)
        text = "The most unsent bytes of a follower (--standby-backlog)"
        yield gauge("curbstone_follower_backlog_bytes", text, figures.backlog_bytes)
        yield counter("curbstone_follower_sent_bytes", "Bytes sent to followers", figures.sent_bytes)
        yield counter("curbstone_follower_copies", "Full copies begun for followers", figures.copies)
        yield counter("curbstone_follower_resumes", "Followers that resumed without a full copy", figures.resumes)
        yield counter("curbstone_follower_cut_off", "Followers cut off as too slow", figures.cut_off)

    def _by_queue(self) -> Iterator[Metric]:
        shown = self.shown
        for name, text in QUEUE_GAUGES.items():
            yield gauge(
                f"curbstone_queue_{name}", text, {queue.name: queue.gauges[name] for queue in shown}, *_QUEUE_LABELS
            )
        filling = {queue.name: queue.to_full_s for queue in shown if queue.to_full_s is not None}
        yield gauge("curbstone_queue_seconds_to_full", SECONDS_TO_FULL, filling, *_QUEUE_LABELS)
        by_priority = {
            (*queue.name, str(priority)): count
            for queue in shown
            for priority, count in sorted(queue.by_priority.items())
        }
        yield gauge("curbstone_queue_messages_by_priority", BY_PRIORITY, by_priority, *_QUEUE_LABELS, "priority")
        held_back = {(*queue.name, why): count for queue in shown for why, count in queue.held_back.items()}
        yield gauge("curbstone_queue_held_back", HELD_BACK, held_back, *_QUEUE_LABELS, "why")
        for name, (field, text) in TOTALS.items():
            counts = {queue.name: queue.counters[field] for queue in shown}
            yield counter(f"curbstone_queue_{name}", text, counts, *_QUEUE_LABELS)

    def _by_group(self) -> Iterator[Metric]:
        for name, (field, text) in _GROUP_GAUGES.items():
            counts = {
                (*queue, backlog.group, str(backlog.declared).lower()): getattr(backlog, field)
                for queue, backlog in self.groups
            }
            yield gauge(f"curbstone_group_{name}", text, counts, *_QUEUE_LABELS, "group", "declared")


def gauge(name: str, text: str, values: float | Mapping[Any, float], *labels: str) -> Metric:
    """Return a gauge with one value, or with `values` by the values of these labels."""
    return _family(GaugeMetricFamily, name, text, values, labels)


def counter(name: str, text: str, values: float | Mapping[Any, float], *labels: str) -> Metric:
    """Return a counter with one value, or with `values` by the values of these labels."""
    return _family(CounterMetricFamily, name, text, values, labels)


def _family(
    kind: Callable[..., Any],
    name: str,
    text: str,
    values: float | Mapping[Any, float],
    labels: tuple[str, ...],
) -> Metric:
    family: Metric = kind(name, text, labels=labels)
    for label_values, value in values.items() if isinstance(values, Mapping) else [((), values)]:
        family.add_metric(label_values, value)  # type: ignore[attr-defined]
    return family


def _one_label(counts: Mapping[str, int]) -> dict[tuple[str], int]:
    return {(key,): count for key, count in counts.items()}


def build_info() -> Metric:
    """Return the versions of the server and its build."""
    return gauge(
        "curbstone_build_info", "The running version", {(VERSION, PYTHON, BUILD): 1}, "version", "python", "build"
    )


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
