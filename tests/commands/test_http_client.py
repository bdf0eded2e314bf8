"""The HTTP client of commands, Spark, webhooks and key fetching: one connection that is kept, and what ends it."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from curbstone.http_client import ERRORS, Backoff, Connection, fetch, within


class Echo(BaseHTTPRequestHandler):
    """Answers with the path, and with how many requests this connection has had."""

    protocol_version = "HTTP/1.1"
    paths: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.paths.append(self.path)
        self.count = getattr(self, "count", 0) + 1
        body = b'{"requests": %d}' % self.count
        self.send_response(404 if self.path.endswith("/missing") else 200)
        self.send_header("content-length", str(len(body)))
        if self.path.endswith("/last"):
            self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection |= self.path.endswith("/bye")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Echo.paths.clear()
    yield f"http://127.0.0.1:{server.server_port}/base/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_connection_is_reused_and_replaced_when_closed(url: str) -> None:
    with closing(Connection(url, timeout_s=30)) as connection:
        assert [connection.request("GET", "/a").json()["requests"] for _ in range(2)] == [1, 2]
        assert connection.request("GET", "/missing").status == 404
        opened = connection.connect()
        assert connection.request("GET", "/bye").json() == {"requests": 4}
        assert select.select([opened], [], [], 30)[0], "the server closes"
        assert connection.request("GET", "/a").json() == {"requests": 1}


def test_connection_close_is_honoured(url: str) -> None:
    with closing(Connection(url.removesuffix("base/"), timeout_s=30)) as connection:
        assert connection.request("GET", "/last").status == 200
        assert not connection.is_open
        assert connection.request("GET", "/a").json() == {"requests": 1}


def test_paths_and_queries_are_quoted_once(url: str) -> None:
    with closing(Connection(url, timeout_s=30)) as connection:
        connection.request("GET", "/a b/ä/%2F", query={"q": "x y&z"})
    assert Echo.paths == ["/base/a%20b/%C3%A4/%2F?q=x%20y%26z"]


@pytest.mark.parametrize("bad", ["ftp://a", "http://", "localhost:8080", "http://a:0"])
def test_invalid_url_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        Connection(bad, timeout_s=1)


def test_fetch_accepts_only_200_within_the_size_limit(url: str) -> None:
    assert fetch(f"{url}a?b=c", 30, 1000, {}) == b'{"requests": 1}'
    assert fetch(f"{url}a", 30, 3, {}) == b'{"re'
    assert Echo.paths[0] == "/base/a?b=c"
    with pytest.raises(OSError, match="the server answered 404"):
        fetch(f"{url.removesuffix('base/')}missing", 30, 1000, {})


def test_slow_block_times_out() -> None:
    one, other = socket.socketpair()
    with one, other, pytest.raises(TimeoutError, match=r"it took more than 0\.05 s"), within(0.05, one):
        one.recv(1)
    with suppress(*ERRORS):
        one.close()


def test_backoff_doubles_to_a_limit_and_resets_after_success() -> None:
    backoff = Backoff(1, 5)
    assert [backoff.next_s() for _ in range(4)] == [1, 2, 4, 5]
    backoff.reset()
    assert backoff.next_s() == 1
