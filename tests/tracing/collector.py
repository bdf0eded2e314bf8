"""A collector of spans for tests: it takes OTLP over HTTP, and remembers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

WAIT_S = 60


class Collector:
    """Listens on a port of this machine until it is left."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self._news = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces", self.path
                collector._take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _take(self, request: Any) -> None:
        with self._news:
            for resource in request.resource_spans:
                attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
                self.services.add(attributes["service.name"])
                for scope in resource.scope_spans:
                    self.spans += scope.spans
            self._news.notify_all()

    def wait(self, name: str, wanted: Callable[[list[Any]], bool]) -> list[Any]:
        """Return the spans whose name begins so, once they are as wanted."""

        def found() -> list[Any]:
            return [span for span in self.spans if span.name.startswith(name)]

        with self._news:
            assert self._news.wait_for(lambda: wanted(found()), WAIT_S), [span.name for span in self.spans]
            return found()
