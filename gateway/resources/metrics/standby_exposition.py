"""The figures of a standby in the format of Prometheus. Imported at the first scrape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from curbstone.gateway.resources.metrics.exposition import TERM, build_info, counter, gauge, histogram
from curbstone.gateway.resources.metrics.figures import HistogramFigures

if TYPE_CHECKING:
    from curbstone.gateway.resources.server.standby_status import StandbyFigures


def encode_metrics(now: StandbyFigures, accept: str) -> tuple[bytes, str]:
    """Return the figures in a format that `accept` allows, and its media type. May be called in any thread."""
    encode, content_type = choose_encoder(accept)
    registry = CollectorRegistry()
    registry.register(_Exposition(now))
    ProcessCollector(registry=registry)
    return encode(registry), content_type


class _Exposition:
    """All figures of one moment, as a collector of prometheus-client."""

    def __init__(self, now: StandbyFigures) -> None:
        self._now = now

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        now = self._now
        yield build_info()
        yield gauge("curbstone_term", TERM, now.term)
        yield gauge(
            "curbstone_standby_connected", "Whether the standby receives the server's changes", now.is_connected
        )
        text = "Whether the copy is complete enough for a server to start on it"
        yield gauge("curbstone_standby_complete", text, now.is_usable)
        text = "Whether the standby is sure to have everything confirmed, so that it can be promoted"
        yield gauge("curbstone_standby_promotable", text, now.is_promotable)
        text = "Whether the standby applies changes without syncs because it is far behind"
        yield gauge("curbstone_standby_catching_up", text, now.is_catching_up)
        yield counter(
            "curbstone_standby_applied_bytes", "Bytes received from the server and applied", now.applied_bytes
        )
        text = "Bytes that the standby lacked when the server last answered"
        yield gauge("curbstone_standby_lag_bytes", text, now.lag_bytes)
        if now.lag_ms is not None:
            text = "Time since the copy had everything that the server had"
            yield gauge("curbstone_standby_lag_seconds", text, now.lag_ms / 1000)
        text = "Bytes of the copy that were compared with the server"
        yield counter("curbstone_standby_verified_bytes", text, now.verified_bytes)
        text = "Blocks of the copy that were missing or differed from the server's"
        yield counter("curbstone_standby_different_blocks", text, now.different_blocks)
        yield gauge("curbstone_standby_disk_free_bytes", "Free bytes on the disk of the copy", now.disk_free_bytes)
        text = "Time that one sync of a file of the copy took"
        yield histogram(HistogramFigures.of(now.syncs), "curbstone_standby_sync_duration_seconds", text, unit=1_000_000)
