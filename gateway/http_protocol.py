"""uvicorn's HTTP protocol, extended by limits on the head, deadlines and bounded pipelining.

A connection works on one request at a time. Input after that request is neither parsed nor read further until the
answer is written and the client is reading it. After each answer, the other connections have their turn.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from curbstone.access.errors import Busy
from curbstone.gateway.app import Gateway
from curbstone.gateway.handover import Handover
from curbstone.gateway.http.cycle import Cycle, Flow
from curbstone.gateway.http.departure import GONE
from curbstone.gateway.http.ends import Ends
from curbstone.gateway.http.fields import Fields
from curbstone.gateway.http.forwarded import asker_of
from curbstone.gateway.http.head import framing_of, not_http, path_of, target_of
from curbstone.gateway.http.passed_over import parser_behind
from curbstone.gateway.http.problem import Problem, closing_response, problem_of
from curbstone.gateway.limits import (
    BODY_S_MAX,
    HEAD_BYTES_MAX,
    HEAD_FIELDS_MAX,
    HEAD_S_MAX,
    LINGER_BYTES_MAX,
    LINGER_S_MAX,
    SKIP_BYTES_MAX,
)
from curbstone.gateway.settings import OF_HEALTH
from curbstone.net.admission import FULL, Visit, is_of_this_machine
from curbstone.net.budget import REFUSED
from curbstone.net.linger import Linger
from curbstone.net.peer import Networks, Peer

PIECES_MAX = 100
"""How many pieces are parsed before the other connections have their turn."""

HSTS = b"strict-transport-security: max-age=31536000\r\n"

_ASGI = {"version": "3.0", "spec_version": "2.3"}

_NEVER = math.inf

_FIELDS_BYTES_MAX = 2 * HEAD_BYTES_MAX


def _nothing() -> None:
    """Do nothing: the connection is over."""


class HttpProtocol(HttpToolsProtocol):
    """One connection. `check` is called each second and ends requests that take too long."""

    flow: Flow
    cycle: Any
    """The last request whose head is complete."""
    scope: Any
    """The ASGI scope, with additions: `length` of the body (-1 for one in chunks), `peer` who asks, `visit` its
    connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        loop: Any,
        peer: Peer,
        visit: Visit,
        trusted_proxies: Networks,
    ) -> None:
        """`visit` ends with the connection, even if it has become a WebSocket."""
        super().__init__(config, server_state, {}, loop)
        self._deadline = _NEVER
        self._in_head = False
        self._in_body = False
        self._is_idle = False
        """Whether the connection is idle, waiting for the first byte of another request."""
        self._head_bytes = 0
        self._is_getting_on = False
        """Whether the last piece began a request or brought part of a body."""
        self._is_passed_over = False
        """Whether the head offers an upgrade to another protocol, which is ignored."""
        self._body_left = 0
        """How much of a body is still to come; -1 for one in chunks."""
        self._answering: Cycle | None = None
        self._held = b""
        """Input that is parsed from `_held_from` on when its turn comes."""
        self._held_from = 0
        self._ends = Ends()
        self._problem: Problem | None = None
        """The problem that a callback of the parser found."""
        self._peer = peer
        self._visit = visit
        self._account = visit.account
        self._trusted = trusted_proxies if peer.host in trusted_proxies else None
        """All trusted proxies if the peer is one of them; else None."""
        self._is_strict = False
        """Whether browsers are told to use only TLS from now on."""
        self._linger: Linger | None = None
        """Set when our half is closed."""
        self._is_gone = False
        self._is_stopping = False
        self._handover: Handover | None = None
        """Set while the handshake of a WebSocket is under way."""

    # ------------------------------------------------------------ what the loop calls

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self.client = (self._peer.host, self._peer.port)
        self.scheme = "https" if self._peer.tls else "http"
        is_encrypted = transport.get_extra_info("sslcontext") is not None
        self._is_strict = is_encrypted and not is_of_this_machine(self.server)
        self.flow = Flow(transport, self._evict)
        self._account.begin(self.flow)
        self._deadline = self.loop.time() + HEAD_S_MAX

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`. Tells the request that is being answered."""
        self.connections.discard(self)
        self._lose()
        self._visit.leave()
        if self._linger is not None:
            self._linger.close()
        self.flow.resume_writing()
        self.transport.close()
        self._forget()

    def _forget(self) -> None:
        """Break the reference cycles of this ended connection, so that no garbage collection is needed to free it."""
        self.parser = None  # type: ignore[assignment]
        self.flow.evict = _nothing
        self.cycle = self._answering = self.scope = self._handover = None

    def eof_received(self) -> None:
        """The client sends no more. The connection closes, and requests under way are not answered."""
        self._lose()

    def _lose(self) -> None:
        self._is_gone = True
        if self._answering is not None:
            self._answering.lose()
        self._held = b""

    def is_gone(self) -> bool:
        """Return whether the client has closed the connection."""
        return self._is_gone

    def data_received(self, data: bytes) -> None:
        """Parse input, or keep it until its turn."""
        if self._linger is not None:
            self._linger.dropped(len(data))
            return
        if self._handover is not None:
            self._handover.keep(data)
            return
        self._held = self._held[self._held_from :] + data if self._held else data
        self._held_from = 0
        self._parse()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().pause_writing()
        self._account.hold_output(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`. Goes on with input that was kept."""
        super().resume_writing()
        self._account.hold_output(0)
        self.loop.call_soon(self._go_on)

    def check(self, now: float) -> None:
        """End the connection if a request arrives too slowly, or if it was idle too long. `now` is the loop's time."""
        if self.flow.is_stopped:
            self._deadline = now + BODY_S_MAX  # it can't be late, because it is not read
        if now <= self._deadline:
            return
        if self._is_idle:
            self.transport.close()
        elif self._linger is None:
            self._refuse(Problem(408, "the request took too long to come"))

    def shutdown(self) -> None:
        """Finish the answer under way, and close: the server stops."""
        self._is_stopping = True
        if self._linger is not None:
            self.transport.close()
        else:
            super().shutdown()

    def abort(self) -> None:
        """Abort the connection."""
        self.transport.abort()

    # ------------------------------------------------------------ bytes, a request at a time

    def _may_begin(self) -> bool:
        """Return whether a request would be answered at once if it came now."""
        return self._answering is None and not self.flow.write_paused

    def _parse(self) -> None:
        data = self._held
        size = len(data)
        pieces = 0
        while (start := self._held_from) < size:
            if pieces == PIECES_MAX or not (self._in_body or self._may_begin()):
                self.flow.hold()
                if not (self._in_body or self._account.input):
                    self._account.hold_input(size - start, is_complete=True)
                if self._in_head:
                    self._deadline = _NEVER  # the rest of this head may be here already
                if pieces == PIECES_MAX:
                    self.loop.call_soon(self._go_on)
                return
            pieces += 1
            if self._in_body and self._body_left > 0:
                end = min(start + self._body_left, size)
            else:
                end = self._ends.next(data, start, self._in_head or self._in_body)
            self._held_from = end
            if not self._feed(data[start:end], data):
                self._held = b""
                return
        self._held = b""
        if self._deadline == _NEVER and self._answering is None and not (self._in_head or self._in_body):
            self._rest()  # this was the rest of an unwanted body, or an empty line
        if self.flow.is_full:
            self.flow.release()
            if self._answering is None or len(self._answering.body) <= HIGH_WATER_LIMIT:
                self.flow.resume_reading()

    def _feed(self, piece: bytes, data: bytes) -> bool:
        """Parse a piece; return whether the connection goes on as before.

        The parser keeps an incomplete head or trailer to itself, so its bytes are counted here.
        """
        self._is_getting_on = False
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            self._held_from -= len(piece) - upgrade.args[0]
            if not self._is_passed_over:
                self._upgrade(data[self._held_from :])
                return False
            self._is_passed_over = False
            self.parser = parser_behind(self, self._body_left)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, MemoryError):
                self._problem = Problem(503, "there is not enough memory for this request")
            self._refuse(self._problem or not_http(self.parser.get_http_version()))
            self._problem = None  # its traceback refers to this frame, and so to this connection
            return False
        if self._in_head or (self._in_body and self._body_left < 0):
            if not self._is_getting_on:
                self._head_bytes += len(piece)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(Problem(431, f"the request's head is larger than {HEAD_BYTES_MAX} bytes"))
                return False
            if self._deadline == _NEVER:
                self._deadline = self.loop.time() + HEAD_S_MAX
        return True

    # ------------------------------------------------------------ what the parser calls

    def on_message_begin(self) -> None:
        """A request begins."""
        self.url = b""
        self.headers = []
        self._in_head = self._is_getting_on = True
        self._is_idle = False
        self._head_bytes = 0
        self._deadline = self.loop.time() + HEAD_S_MAX

    def on_url(self, url: bytes) -> None:
        """Collect a piece of the request target."""
        self.url += url
        if len(self.url) > HEAD_BYTES_MAX:
            self._stop_parsing(Problem(414, f"the request target is larger than {HEAD_BYTES_MAX} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header field. After the body it is a trailer field, which is ignored."""
        self._head_bytes += len(name) + len(value)
        headers = self.headers
        if self._in_head:
            headers.append((name.lower(), value))
        if self._head_bytes > _FIELDS_BYTES_MAX or len(headers) > HEAD_FIELDS_MAX:
            self._stop_parsing(Problem(431, f"more than {HEAD_FIELDS_MAX} header fields or {HEAD_BYTES_MAX} bytes"))

    def on_headers_complete(self) -> None:
        """Check the head, which is complete, and start to answer the request."""
        version = self.parser.get_http_version()
        method = self.parser.get_method().decode("ascii")
        fields = Fields(self.headers)
        try:
            framing = framing_of(version, fields.framing)
            raw_path, query, host = target_of(method, self.url, framing.host)
        except Problem as problem:
            self._stop_parsing(problem)
        if host and not framing.host:
            fields.put(b"host", host)
        path = path_of(raw_path)
        self.scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": method,
            "scheme": self.scheme,
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": fields.all,
            "fields": fields,
            "length": framing.length,
            "client": self.client,
            "server": self.server,
            "state": {GONE: self.is_gone},
            "peer": self._peer,
            "visit": self._visit,
        }
        if self._visit.is_spare and path not in OF_HEALTH:
            self._stop_parsing(Problem(503, FULL))
        if self._trusted is not None:
            self._ask_for_others(self._trusted)
        self._in_head = False
        if self.parser.should_upgrade():
            if self._should_upgrade():
                return
            self._is_passed_over = True
        self._in_body = True
        self._body_left = framing.length
        self._deadline = self.loop.time() + BODY_S_MAX
        cycle = self.cycle = Cycle(
            self.scope,
            self,
            keep_alive=version != "1.0" and self.parser.should_keep_alive() and not self._visit.is_spare,
            wants_to_be_asked=framing.wants_to_be_asked and version != "1.0",
        )
        assert self._answering is None, "a request was parsed before its turn"
        self._answering = cycle
        cycle.task = self.loop.create_task(cycle.run(self.config.loaded_app))

    def _ask_for_others(self, trusted: Networks) -> None:
        """Set the client for which a trusted proxy asks."""
        try:
            asker = asker_of(self.headers, self._peer, trusted)
        except Problem as problem:
            self._stop_parsing(problem)
        self.scope["peer"] = asker
        self.scope["client"] = (asker.host, asker.port)
        self.scope["scheme"] = "https" if asker.tls else "http"

    def on_body(self, body: bytes) -> None:
        """Hand a piece of the body to the request."""
        self._is_getting_on = True
        self._head_bytes = 0
        if self._body_left > 0:
            self._body_left -= len(body)
        cycle = self._answering
        if cycle is None:
            return  # the request has been answered, and the rest of its body is skipped
        cycle.take(body)
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        """End the body. Ignored if the parser takes the body for another protocol's bytes."""
        if self._is_passed_over:
            return
        self._deadline = _NEVER
        if self._in_body and self._answering is not None:
            self._answering.finish()
        self._in_body = False

    def _stop_parsing(self, problem: Problem) -> NoReturn:
        self._problem = problem
        raise ValueError(problem.detail)  # ends the parser's callback; the parser turns it into an HttpParserError

    # ------------------------------------------------------------ answers

    def common_fields(self) -> bytes:
        """Return the header lines that every answer has."""
        date: bytes = self.server_state.default_headers[0][1]
        return b"date: %b\r\n%b" % (date, HSTS if self._is_strict else b"")

    def on_response_complete(self) -> None:
        """Go on after an answer is complete: with input that waits, in a later turn, or by reading more."""
        self.server_state.total_requests += 1
        self._answering = None
        self._account.hold_input(0)
        if self._linger is not None or self.transport.is_closing():
            return
        if self._in_body:
            self._deadline = self.loop.time() + LINGER_S_MAX  # the rest of the body is not wanted
        if self._held:
            self.loop.call_soon(self._go_on)
            return
        self.flow.resume_reading()
        if not self._in_body:
            self._rest()

    def _rest(self) -> None:
        """Become idle: wait for another request until the deadline."""
        self._is_idle = True
        self._deadline = self.loop.time() + self.timeout_keep_alive

    def _go_on(self) -> None:
        """Parse the input that waits, unless the connection is closing."""
        if self._held and self._linger is None and not self.transport.is_closing():
            self._parse()

    def before_early_answer(self, cycle: Cycle) -> None:
        """Make this the last answer if much is still to come of a body that may not be wanted."""
        if cycle.wants_to_be_asked or not 0 <= self._body_left <= SKIP_BYTES_MAX:
            cycle.keep_alive = False

    def end(self) -> None:
        """Close after the last answer; linger if there is unread input.

        With unread input, closing at once would reset the connection and lose the answer.
        """
        if (self._in_body or self.flow.read_paused) and not self._is_stopping:
            self._leave()
        else:
            self.transport.close()

    # ------------------------------------------------------------ refusals

    def _refuse(self, problem: Problem) -> None:
        """Answer with an error, and close. No answer is overtaken, because only one request is parsed at a time."""
        if self._linger is not None or self.transport.is_closing():
            return
        if self._in_body:
            cycle = self.cycle
            if cycle.response_complete:
                self._leave()  # the request was answered before its body had come
                return
            cycle.lose()
            self._answering = None
            if cycle.response_started:
                self.transport.abort()
                return
        assert self._answering is None, "a refusal would overtake an answer"
        self.take_leave(problem)

    def _evict(self) -> None:
        """Refuse the request whose body is under way: its user's connections hold too much."""
        if self._in_body:
            self._refuse(problem_of(Busy(REFUSED)))

    def take_leave(self, problem: Problem) -> None:
        """Answer with an error, and close."""
        self.transport.write(closing_response(problem))
        self._leave()

    def _leave(self) -> None:
        """Close our half. Input is dropped, within bounds, until the peer has read the answer and closes."""
        self._linger = Linger(self.transport, self.loop, LINGER_S_MAX, LINGER_BYTES_MAX)
        self._held = b""
        self._account.hold_input(0)
        self.flow.release()
        self.flow.resume_reading()

    # ------------------------------------------------------------ WebSockets

    def _upgrade(self, rest: bytes) -> None:
        """Begin to hand the connection over to a WebSocket."""
        self._deadline = _NEVER
        self.flow.hold()
        self._handover = Handover(self, cast(Gateway, self.app), self.scope, self._visit, rest)
        self._handover.begin()

    def is_over(self) -> bool:
        """Return whether the client or the connection is gone."""
        return self._is_gone or self.transport.is_closing()

    def let_go(self) -> None:
        """See `handover.Connection`."""
        self.connections.discard(self)
        self.flow.release()
        self.flow.resume_reading()
        self._forget()

    def _should_upgrade_to_ws(self) -> bool:
        return True
