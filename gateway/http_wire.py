"""uvicorn's HTTP protocol with what it lacks: limits on the head, deadlines, and our WebSockets."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from curbstone.gateway.app import Gateway
from curbstone.gateway.problem import Problem, problem_body, problem_headers
from curbstone.gateway.settings import HEAD_BYTES_MAX, HEAD_FIELDS_MAX
from curbstone.gateway.socket_wire import SocketWire, shake_hands
from curbstone.gateway.sockets import SocketRequest

HEAD_S_MAX = 10
"""How long a request's head may take to come; also how long a new connection may stay silent."""

BODY_S_MAX = 60
"""How long its body may take."""

LINGER_S_MAX = 2
"""How long a refused client may take to see the answer."""

_NEVER = math.inf


class HttpWire(HttpToolsProtocol):
    """One connection. `check` is called each second and ends what takes too long."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: Any = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._deadline = _NEVER
        self._in_head = False
        self._in_body = False
        self._head_bytes = 0
        self._is_new_head = False
        self._refusal: Problem | None = None
        self._is_deaf = False

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._deadline = self.loop.time() + HEAD_S_MAX

    def data_received(self, data: bytes) -> None:
        """Parse what came; count what belongs to a head that is not whole yet, which the parser does not show."""
        if self._is_deaf:
            return
        self._unset_keepalive_if_required()
        self._is_new_head = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, MemoryError):
                self._refuse(Problem(503, "there is not enough memory for this request"))
            else:
                self.send_400_response("Invalid HTTP request received.")
        else:
            if self._in_head and not self._is_new_head:
                self._head_bytes += len(data)
                if self._head_bytes > HEAD_BYTES_MAX:
                    self._refuse(Problem(431, f"the request's head is larger than {HEAD_BYTES_MAX} bytes"))

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_head = self._is_new_head = True
        self._head_bytes = 0
        self._deadline = self.loop.time() + HEAD_S_MAX

    def on_url(self, url: bytes) -> None:
        """A piece of the request target."""
        super().on_url(url)
        if len(self.url) > HEAD_BYTES_MAX:
            self._stop_parsing(Problem(414, f"the request target is larger than {HEAD_BYTES_MAX} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One whole header field."""
        super().on_header(name, value)
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > 2 * HEAD_BYTES_MAX or len(self.headers) > HEAD_FIELDS_MAX:
            self._stop_parsing(Problem(431, f"more than {HEAD_FIELDS_MAX} header fields or {HEAD_BYTES_MAX} bytes"))

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._in_head = False
        self._in_body = True
        self._deadline = self.loop.time() + BODY_S_MAX
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is whole."""
        self._in_body = False
        self._deadline = _NEVER
        super().on_message_complete()

    def _stop_parsing(self, problem: Problem) -> None:
        self._refusal = problem
        raise ValueError(problem.detail)  # out of the parser's callback; the parser makes it an HttpParserError

    def send_400_response(self, msg: str) -> None:
        """The parser gave up: refuse the request and close."""
        self._refuse(self._refusal or Problem(400, msg))

    def _refuse(self, problem: Problem) -> None:
        """Answer with an error and end the connection.

        Only our half is closed at once. What the peer still sends is dropped until it sees the answer: closing
        on unread data would reset the connection, and the answer would be lost with it.
        """
        if self._is_deaf or self.transport.is_closing():
            return
        self._is_deaf = True
        self._deadline = self.loop.time() + LINGER_S_MAX
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:
                cycle.keep_alive = False  # a good request is being answered; what is bad came behind it
                return
            cycle.disconnected = True
            cycle.message_event.set()
        elif self._in_body:
            self.transport.close()  # the request was answered before its body came, such as with 413
            return
        self.transport.write(closing_response(problem))
        self.transport.write_eof()

    def _upgrade(self, rest: bytes) -> None:
        """Hand the connection over to a WebSocket."""
        target = httptools.parse_url(self.url)
        request = SocketRequest(unquote(target.path.decode("ascii")), target.query or b"", self.headers, self.server)
        gateway = cast(Gateway, self.app)
        shaken = shake_hands(request, self.scope["method"], gateway.open_socket)
        if isinstance(shaken, Problem):
            self._refuse(shaken)
            return
        response, session = shaken
        self.connections.discard(self)
        wire = SocketWire(
            self.transport, session, gateway.message_bytes_max, self.connections, self.loop, gateway.unfinished
        )
        self.transport.set_protocol(wire)  # type: ignore[arg-type]  # asyncio asks for the methods only
        wire.begin(response, rest)

    def _should_upgrade_to_ws(self) -> bool:
        return True

    def abort(self) -> None:
        """Cut the connection."""
        self.transport.abort()

    def check(self, now: float) -> None:
        """End a request that takes too long to come; `now` is the loop's time."""
        if now <= self._deadline:
            return
        if self._is_deaf:
            self.transport.abort()
        else:
            self._refuse(Problem(408, "the request took too long to come"))


def closing_response(problem: Problem) -> bytes:
    """Return a whole HTTP response that ends the connection."""
    body = problem_body(problem)
    lines = [b"HTTP/1.1 %d %b" % (problem.status, HTTPStatus(problem.status).phrase.encode())]
    lines += [name + b": " + value for name, value in problem_headers(problem)]
    lines += [b"content-length: %d" % len(body), b"connection: close", b"", body]
    return b"\r\n".join(lines)
