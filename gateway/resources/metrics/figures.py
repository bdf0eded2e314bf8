"""The server's figures at one moment, for /metrics and /v2/stats.

Nothing is counted here: the engine and the protocols keep plain counters, which are read on request.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, NamedTuple, Protocol

import curbstone.core.message
from curbstone.access.rights import Right
from curbstone.core.host import Host
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions
from curbstone.core.stats import Commits, Histogram, Stats
from curbstone.core.traffic import Traffic
from curbstone.core.values import EngineInfo
from curbstone.gateway.http.callbacks import next_turn
from curbstone.gateway.resources.metrics.rates import Filling, Rates
from curbstone.gateway.resources.queues.queues import refreshed
from curbstone.net.budget import Budget

if TYPE_CHECKING:
    from curbstone.access.authenticator import Authenticator
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.core.port import Queue
    from curbstone.core.positions import Backlog

QUEUE_GAUGES = {
    "messages_ready": "Messages that can be delivered now",
    "messages_unacked": "Messages delivered and not settled",
    "messages_delayed": "Messages to be delivered later",
    "disk_bytes": "Size of the queue on disk",
    "cap_bytes": "The largest size of the queue on disk",
    "cap_used_ratio": "The used part of the cap, 0 to 1",
    "reserved_bytes": "Bytes of the cap that no message may take: for cleaning, acks and returned messages",
    "available_bytes": "The largest message that is accepted now, at most the option max_message_size",
    "consumers": "Consumers",
    "batches_open": "Batches of messages that have not ended",
    "oldest_message_age_seconds": "Age of the oldest message that is not settled, 0 without one",
}
HELD_BACK = "Ready messages that an option of the queue holds back"
_LIMITS: Mapping[str, Callable[[QueueOptions], object]] = {
    "in_flight": lambda options: options.in_flight,
    "rate": lambda options: options.rate,
    "keys": lambda options: options.passes_over,
}
BY_PRIORITY = "Messages of a priority that are ready, delivered or delayed; of queues in which not all have the same"
SECONDS_TO_FULL = "Time until the queue is full at the growth of the last minutes; none for a queue that does not grow"
TOTALS = {
    "messages_published": ("published", "Messages on disk and confirmed"),
    "messages_refused": ("refused", "Messages refused for lack of room"),
    "messages_delivered": ("delivered", "Deliveries"),
    "messages_redelivered": ("redelivered", "Deliveries of messages delivered before"),
    "messages_acknowledged": ("acked", "Messages settled by their consumers"),
    "messages_returned": ("released", "Deliveries requeued by a nack or by the end of a lease or connection"),
    "messages_rejected": ("rejected", "Deliveries rejected"),
    "messages_expired": ("expired", "Messages whose time to live ran out"),
    "messages_dead_lettered": ("dead_lettered", "Messages sent to a dead-letter queue"),
    "messages_dropped": ("dropped", "Dead messages dropped without a dead-letter queue"),
    "messages_purged": ("purged", "Messages removed by a purge"),
    "messages_undone": ("undone", "Messages restored by an undo"),
    "messages_lost": ("lost", "Messages that declared groups lost at the cap or by a purge"),
    "messages_filtered": ("filtered", "Messages to events that the filters of its bindings excluded"),
    "messages_duplicate": ("duplicates", "Messages not stored because others had their unique names"),
    "messages_replaced": ("replaced", "Messages replaced by later ones with their name while they waited"),
    "batches_ended": ("batches_ended", "Batches that have ended, and whose reports were sent"),
    "batches_abandoned": ("batches_abandoned", "Batches dropped because they lacked messages for a week"),
    "messages_overflowed": ("overflowed", "Messages dropped at the cap for newer ones (option overflow)"),
}
RATES = {
    "messages_published_per_second": "published",
    "messages_delivered_per_second": "delivered",
    "messages_acknowledged_per_second": "acked",
}
"""Rates over the last seconds, updated whenever figures are read. Not for Prometheus, which computes its own."""
RATES_MEMORY_MS = 10_000
BY_PROTOCOL = {
    "messages_received": ("published", "Messages received from producers"),
    "messages_confirmed": ("confirmed", "Messages confirmed to producers"),
    "messages_delivered": ("delivered", "Messages delivered to consumers"),
    "messages_redelivered": ("redelivered", "Deliveries of messages delivered before"),
    "messages_acknowledged": ("acked", "Deliveries acknowledged"),
    "messages_returned": ("returned", "Deliveries requeued by their consumers (nack)"),
    "messages_rejected": ("rejected", "Deliveries rejected: dead-lettered, or dropped without a dead-letter queue"),
}
_COUNTERS = tuple(name for name, _ in TOTALS.values())


REFRESHED_MAX = 1000
"""How many queues, the first by name, are refreshed concurrently on a cluster. The others keep older counts."""
QUEUES_AT_ONCE = 100
"""How many queues are read in one turn of the loop."""


def _version() -> str:
    try:
        return version("curbstone")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"


VERSION = _version()
PYTHON = ".".join(map(str, sys.version_info[:3]))
BUILD = "source" if (curbstone.core.message.__file__ or "").endswith(".py") else "compiled"
"""Whether the hot path is compiled: see docs/install.md."""


def _none() -> Mapping[str, int]:
    return {}


def _nothing() -> None:
    return None


class ReplicationFigures(Protocol):
    """Figures of the replication stream."""

    @property
    def followers(self) -> Sequence[FollowerFigures]:
        """The attached followers."""

    @property
    def position(self) -> int:
        """The position of the end of the stream."""

    @property
    def term(self) -> int:
        """One more than the number of times that a copy was promoted."""

    @property
    def confirms(self) -> str:
        """`local` if confirms do not wait for a standby, else the state of the standby."""

    @property
    def lease(self) -> LeaseFigures | None:
        """The lease without which the server confirms nothing, if it needs one."""

    @property
    def backlog_bytes(self) -> int:
        """The most unsent bytes of a follower."""

    @property
    def copies(self) -> int:
        """How many full copies were begun."""

    @property
    def resumes(self) -> int:
        """How often a follower reconnected without a full copy."""

    @property
    def cut_off(self) -> int:
        """How many followers were too slow."""

    @property
    def sent_bytes(self) -> int:
        """The bytes sent to all followers."""


class LeaseFigures(Protocol):
    """Figures of the lease of the server."""

    @property
    def valid_ms(self) -> int:
        """How long the server may still confirm without a renewal."""

    @property
    def standbys(self) -> int:
        """How many standbys the lease names, because they have everything that is confirmed."""

    @property
    def failures(self) -> int:
        """How many calls to the lease store have failed."""


class FollowerFigures(Protocol):
    """Figures of one follower."""

    @property
    def lag_bytes(self) -> int:
        """Its unsent bytes."""

    @property
    def is_standby(self) -> bool:
        """Whether it keeps a copy that can be promoted."""

    @property
    def is_usable(self) -> bool:
        """Of a standby: whether its copy is complete."""

    @property
    def acknowledged(self) -> int:
        """Of a standby: the position up to which it has everything."""


@dataclass(frozen=True, slots=True)
class Process:
    """Figures that neither the engine nor a protocol counts, given by the code that starts the server."""

    connections: Callable[[], Mapping[str, int]] = _none
    """Open connections by protocol."""
    refused_connections: Callable[[], Mapping[str, int]] = _none
    """Connections that were refused, by the reason."""
    syncs: Histogram | None = field(default=None)
    """How long syncs of files took, in microseconds."""
    budget: Budget = field(default_factory=Budget)
    """The memory that connections hold."""
    followers: Callable[[], ReplicationFigures | None] = _nothing
    """The figures of replication; None if it is off."""


class BufferedFigures(NamedTuple):
    """The unfinished input and unread output that connections hold in memory."""

    bytes: int
    bytes_max: int
    users_held: int
    """How many users have reached their share."""
    ended: dict[str, int]
    """How many connections were ended because of it, by reason."""

    @classmethod
    def of(cls, budget: Budget) -> BufferedFigures:
        """Return a copy."""
        ended = {"input": budget.refused, "unread": budget.unread}
        return cls(budget.bytes, budget.bytes_max, budget.users_held, ended)


class QueueFigures(NamedTuple):
    """The figures of one queue."""

    name: QueueName
    gauges: dict[str, float]
    counters: dict[str, int]
    rates: dict[str, float]
    """The rates in `RATES`, and their sum as `messages_per_second`."""
    to_full_s: float | None
    refused_last_minute: int
    by_priority: dict[int, int]
    held_back: dict[str, int]
    """How many ready messages each limiting option holds back."""


class CommitFigures(NamedTuple):
    """A copy of the figures of commits, because another thread encodes them."""

    took_us: HistogramFigures
    messages: HistogramFigures
    syncs: int
    failed: int
    redo_bytes_kept: int
    journal_damage: int
    sync_us: HistogramFigures | None

    @classmethod
    def of(cls, commits: Commits, syncs: Histogram | None) -> CommitFigures:
        """Return a copy."""
        took_us, messages = HistogramFigures.of(commits.took_us), HistogramFigures.of(commits.messages)
        sync_us = HistogramFigures.of(syncs) if syncs else None
        counts = commits.syncs, commits.failed, commits.redo_bytes_kept, commits.journal_damage
        return cls(took_us, messages, *counts, sync_us)


class HistogramFigures(NamedTuple):
    """A copy of a histogram, which does not change any more."""

    bounds: tuple[int, ...]
    counts: list[int]
    sum: int

    @classmethod
    def of(cls, histogram: Histogram) -> HistogramFigures:
        """Return a copy."""
        return cls(histogram.bounds, list(histogram.counts), histogram.sum)


class Snapshot(NamedTuple):
    """All figures of one moment."""

    queues: list[QueueFigures]
    totals: dict[str, int]
    held: dict[str, int]
    protocols: dict[str, dict[str, int]]
    refusals: dict[str, dict[str, int]]
    connections: dict[str, int]
    refused_connections: dict[str, int]
    buffered: BufferedFigures
    commits: CommitFigures
    staged: int
    staged_bytes: int
    is_healthy: bool
    sync: str
    engine: EngineInfo
    logins: dict[tuple[str, str], int]
    """Logins by protocol and outcome, never by user."""
    denied: dict[str, int]
    """Refused calls, by the name of the right they lacked."""
    followers: ReplicationFigures | None
    held_back: dict[str, int]
    """By protocol, how often a user's rate stopped reading a connection or refused a request."""
    is_whole: bool
    """Whether the client may see the server's figures in addition to those of queues."""


class Figures:
    """Reads the figures of the broker, the protocols and the logins."""

    def __init__(
        self, authenticator: Authenticator, host: Host, protocols: Mapping[str, Traffic], process: Process
    ) -> None:
        self._authenticator = authenticator
        self._broker = authenticator.everyone.broker
        self._host = host
        self._protocols = dict(protocols)
        self._process = process
        self._filling = Filling()
        self._rates = Rates(RATES_MEMORY_MS)
        self._began_ms = host.now_ms()
        self._seen: dict[str, Stats] = {}
        """The counters of each queue at the last look, by uid. For a queue deleted since then they are final."""
        self._gone = dict.fromkeys(_COUNTERS, 0)
        """The sum of the deleted queues' counters, so that totals never decrease."""

    async def refresh(self, access: AuthorizedBroker) -> None:
        """On a cluster, update the counts that other servers change, before `snapshot`."""
        if access.shares_queues:
            await refreshed(access, sorted(access.queues_with(Right.PEEK), key=_by_name)[:REFRESHED_MAX])

    async def snapshot(self, access: AuthorizedBroker) -> Snapshot:
        """Return all figures, including those of the queues that the client may peek at, by name.

        With many queues this takes several turns.
        """
        queues = self._broker.queues()
        # Private queues count only in the totals: each connection has new ones, so the number of series would grow
        # without bound.
        counted = [*queues, *self._broker.private_queues()]
        self._remember(counted)
        totals = {name: self._gone[name] + sum(getattr(q.stats, name) for q in counted) for name in _COUNTERS}
        await next_turn()
        held: Counter[str] = Counter(messages_ready=0, messages_unacked=0, messages_delayed=0)
        async for queue in in_turns(counted):
            counts = queue.counts()
            held["messages_ready"] += counts.rdy
            held["messages_unacked"] += counts.wip
            held["messages_delayed"] += counts.delayed
        seen = [self._of(queue) async for queue in in_turns(sorted(access.queues_with(Right.PEEK), key=_by_name))]
        health = self._broker.health()
        staging = self._broker.staging
        return Snapshot(
            seen,
            totals,
            dict(held),
            {
                name: {each: getattr(traffic, each) for each, _ in BY_PROTOCOL.values()}
                for name, traffic in self._protocols.items()
            },
            {name: dict(traffic.refusals) for name, traffic in self._protocols.items()},
            dict(self._process.connections()),
            dict(self._process.refused_connections()),
            BufferedFigures.of(self._process.budget),
            CommitFigures.of(self._broker.commits, self._process.syncs),
            len(staging),
            staging.bytes,
            health.ok,
            health.sync,
            self._broker.engine,
            dict(self._authenticator.logins),
            dict(self._authenticator.registries.refusals),
            self._process.followers(),
            dict(self._authenticator.held_back),
            bool(access.identity.on_server() & Right.METRICS),
        )

    async def backlogs(
        self, access: AuthorizedBroker, names: Set[QueueName]
    ) -> AsyncIterator[tuple[QueueName, Backlog]]:
        """Yield the backlog of each named group of these queues, by the names of the queues. Most have none."""
        chosen = [queue for queue in access.queues_with(Right.PEEK) if queue.name in names]
        async for queue in in_turns(sorted(chosen, key=_by_name)):
            for backlog in queue.reading.backlogs():
                yield queue.name, backlog

    def _remember(self, queues: list[Queue]) -> None:
        now = {queue.uid: queue.stats for queue in queues}
        for uid, stats in self._seen.items():
            if uid not in now:
                self._filling.forget(uid)
                self._rates.forget(uid)
                for name in _COUNTERS:
                    self._gone[name] += getattr(stats, name)
        self._seen = now

    def _of(self, queue: Queue) -> QueueFigures:
        counts, space = queue.counts(), queue.space()
        cap = queue.options.cap
        age_ms = max(self._host.wall_ms() - counts.oldest_ms, 0) if counts.oldest_ms else 0
        gauges: dict[str, float] = {
            "messages_ready": counts.rdy,
            "messages_unacked": counts.wip,
            "messages_delayed": counts.delayed,
            "disk_bytes": counts.bytes,
            "cap_bytes": cap,
            "cap_used_ratio": counts.bytes / cap,
            "reserved_bytes": space.reserved,
            "available_bytes": space.available,
            "consumers": counts.consumers,
            "batches_open": len(queue.batches()),
            "oldest_message_age_seconds": age_ms / 1000,
        }
        to_full_s = self._filling.update(queue.uid, counts.bytes, cap - space.reserved, self._host.now_ms())
        if space.refused_last_minute:
            to_full_s = 0.0
        counters = {each: getattr(queue.stats, each) for each in _COUNTERS}
        rates = self._rates_of(queue.uid, counters)
        held_back = {
            why: counts.held_back if counts.limited_by == why else 0
            for why, is_set in _LIMITS.items()
            if is_set(queue.options)
        }
        return QueueFigures(
            queue.name, gauges, counters, rates, to_full_s, space.refused_last_minute, queue.by_priority(), held_back
        )

    def _rates_of(self, uid: str, counters: dict[str, int]) -> dict[str, float]:
        now_ms = self._host.now_ms()
        counted = tuple([counters[each] for each in RATES.values()])
        rates = self._rates.update(uid, counted, now_ms)
        if rates is None:  # the first reading has only the average since the start
            rates = tuple([1000 * count / max(now_ms - self._began_ms, 1000) for count in counted])
        # Rounded to thousandths, so that a rate reaches 0 within a minute after the last change.
        members = dict(zip(RATES, [round(rate, 3) for rate in rates], strict=True))
        return {**members, "messages_per_second": round(sum(rates), 3)}


async def in_turns(queues: list[Queue]) -> AsyncIterator[Queue]:
    """Yield queues, a few in each turn of the loop."""
    for place, queue in enumerate(queues, 1):
        yield queue
        if place % QUEUES_AT_ONCE == 0:
            await next_turn()


def _by_name(queue: Queue) -> QueueName:
    return queue.name
