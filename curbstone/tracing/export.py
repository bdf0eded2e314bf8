"""Sends spans to a collector by OTLP over HTTP, from a thread of the SDK.

The environment variables of the SDK apply: `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER` and
its `_ARG`, `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_BSP_…`. If the collector can't be reached, spans are lost and log lines
are written, but no message is lost.
"""

from __future__ import annotations

import threading

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Tracer

from curbstone import __version__

FLUSH_S_MAX = 0.9


class Export:
    """The export of spans to one collector."""

    def __init__(self, url: str) -> None:
        ours = Resource.create({"service.name": "curbstone", "service.version": __version__})
        self._provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces")
        self._provider.add_span_processor(BatchSpanProcessor(exporter))

    @property
    def tracer(self) -> Tracer:
        """Return the tracer, which makes spans."""
        return self._provider.get_tracer("curbstone", __version__)

    def close(self) -> None:
        """Send the remaining spans, for as long as a stop may wait."""
        thread = threading.Thread(target=self._provider.shutdown, name="curbstone-spans", daemon=True)
        thread.start()
        thread.join(FLUSH_S_MAX)
