"""The results of one invocation: the medians of its runs, beside those of peers and the limits."""

import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import peer_clients
from bench.check import Tally
from bench.disk import Limit
from bench.measure import Measurement
from bench.scaling import Scaling
from bench.spark_figures import SparkFigures
from bench.stats import Percentiles, median_of

BUSY_CLIENT = 0.8
NOISY = 0.2
SENDS = {
    *("send-1", "send-100", "send-1000", "send-varied", "keys-5000", "pipe", "producers-16", "producers-16x100"),
    *("queues-10", "queues-100", "queues-1000", "fanout-100", "ws-publish", "http-post", "http-batch", "mqks-publish"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """The medians of one workload's runs."""

    workload: str
    size: int
    runs: int
    per_s: float
    slowest: float
    fastest: float
    batch: int
    confirms: Percentiles | None
    deliveries: Percentiles | None
    server_cpu_us: float
    client_cpu_us: float
    server_cpu_share: float
    client_cpu_share: float
    other_cpu_share: float
    syncs: float | None
    disk_bytes: float | None
    peak_rss: int
    tally: Tally


def rows_of(measured: Sequence[Measurement]) -> list[Row]:
    """Return one row for each workload and size, in the order of their first runs."""
    keys = list(dict.fromkeys((one.workload, one.size) for one in measured))
    return [_row([one for one in measured if (one.workload, one.size) == key]) for key in keys]


def _row(runs: Sequence[Measurement]) -> Row:
    def middle(values: Iterable[float | None]) -> float:
        return median_of(values) or 0.0

    rates = [one.per_s for one in runs]
    return Row(
        workload=runs[0].workload,
        size=runs[0].size,
        runs=len(runs),
        per_s=middle(rates),
        slowest=min(rates),
        fastest=max(rates),
        batch=runs[0].batch,
        confirms=_middle_percentiles([one.confirms for one in runs]),
        deliveries=_middle_percentiles([one.deliveries for one in runs]),
        server_cpu_us=middle(one.server_cpu_us for one in runs),
        client_cpu_us=middle(one.client_cpu_us for one in runs),
        server_cpu_share=middle(one.server_cpu_share for one in runs),
        client_cpu_share=middle(one.client_cpu_share for one in runs),
        other_cpu_share=middle(one.other_cpu_share for one in runs),
        syncs=median_of(one.syncs for one in runs),
        disk_bytes=median_of(one.disk_bytes for one in runs),
        peak_rss=max(one.peak_rss for one in runs),
        tally=sum((one.tally for one in runs), Tally()),
    )


def _middle_percentiles(values: Sequence[Percentiles | None]) -> Percentiles | None:
    known = [one for one in values if one]
    if not known:
        return None
    middle = [median_of(getattr(one, field) for one in known) for field in ("p50_ms", "p99_ms", "p999_ms")]
    return Percentiles(*(value or 0.0 for value in middle))


@dataclass(frozen=True, slots=True)
class Pairing:
    """The rows of a peer, and our rows of the same workloads, which ran directly before."""

    name: str
    note: str
    version: str
    theirs: list[Row]
    ours: list[Row]

    def pairs(self) -> Iterator[tuple[Row, Row]]:
        """Yield (ours, theirs) for each workload and size that both have."""
        ours = {(row.workload, row.size): row for row in self.ours}
        for row in self.theirs:
            if (row.workload, row.size) in ours:
                yield ours[row.workload, row.size], row


@dataclass(slots=True)
class Results:
    """All results of one invocation."""

    rows: list[Row]
    ceilings: list[Row]
    limits: list[Limit]
    peers: list[Pairing]
    syncs_by_strace: dict[str, float]
    """Syncs per message from a traced run, by "workload/size"."""
    backlog: dict[str, Any]
    failures: list[str]
    environment: dict[str, Any]
    footprint: dict[str, float] = field(default_factory=dict)
    scaling: Scaling | None = None
    spark: SparkFigures | None = None

    @property
    def tally(self) -> Tally:
        beside = [row for pairing in self.peers for row in pairing.ours]
        return sum((row.tally for row in [*self.rows, *beside]), self.spark.tally if self.spark else Tally())

    @property
    def clean(self) -> bool:
        beside = [row for pairing in self.peers for row in pairing.ours]
        ours = all(row.tally.clean for row in [*self.rows, *self.ceilings, *beside])
        return not self.failures and ours and (self.spark is None or self.spark.tally.clean)

    def ceiling(self, row: Row) -> Row | None:
        return next((one for one in self.ceilings if (one.workload, one.size) == (row.workload, row.size)), None)

    def limit(self, row: Row) -> Limit | None:
        """Return the bare limit for this workload, of the faster kind of file.

        Its batch is the number of messages that the workload can have in flight.
        """
        fitting = [one for one in self.limits if (one.size, one.batch) == (row.size, row.batch)]
        return max(fitting, key=lambda one: one.messages_per_s, default=None) if row.workload in SENDS else None

    def bare_sync(self, size: int) -> Percentiles | None:
        """Return the time to append and sync one message, in the faster kind of file."""
        single = [one.sync for one in self.limits if (one.size, one.batch) == (size, 1)]
        return min(single, key=lambda sync: sync.p50_ms, default=None)

    def syncs(self, row: Row) -> float | None:
        return self.syncs_by_strace.get(f"{row.workload}/{row.size}", row.syncs)


def environment(folder: Path) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "kernel": platform.release().partition("-")[0],
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "folder": str(folder),
        "file_system": file_system(folder),
        "load_before": os.getloadavg()[0],
        "clients": peer_clients.versions(),
    }


def file_system(folder: Path) -> str:
    """Return the type of the folder's file system: that of the longest mount point above it."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = [(point, kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(above, key=lambda mount: len(mount[0]), default=("", "unknown"))[1]
