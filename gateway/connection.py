"""One HTTP/1.1 connection: strict framing, limits and deadlines for heads and bodies, and bounded pipelining.

A connection works on one request at a time. Input after that request is neither parsed nor read further until the
answer is written and the client is reading it. After each answer, the other connections have their turn.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, NoReturn

import httptools

from curbstone.access.errors import Busy
from curbstone.core.errors import CurbstoneError
from curbstone.gateway.cycle import Cycle
from curbstone.gateway.handover import Handover
from curbstone.gateway.http.client_disconnect import GONE
from curbstone.gateway.http.fields import Fields
from curbstone.gateway.http.forwarded import client_of
from curbstone.gateway.http.head import framing_of, not_http, path_of, target_of
from curbstone.gateway.http.problem import Problem, closing_response, problem_of
from curbstone.gateway.http.request_boundary import RequestBoundary, new_parser, parser_behind, requests_websocket
from curbstone.gateway.limits import (
    BODY_S_MAX,
    HEAD_BYTES_MAX,
    HEAD_FIELDS_MAX,
    HEAD_S_MAX,
    KEEP_ALIVE_S,
    LINGER_BYTES_MAX,
    LINGER_S_MAX,
    SKIP_BYTES_MAX,
    UNREAD_BODY_BYTES,
)
from curbstone.gateway.settings import OF_HEALTH
from curbstone.net.budget import REFUSED
from curbstone.net.connection_limits import FULL, Slot, is_of_this_machine
from curbstone.net.linger import Linger
from curbstone.net.peer import Networks, Peer
from curbstone.net.stream import Stream

if TYPE_CHECKING:
    from curbstone.gateway.server import GatewayServer

PIECES_MAX = 100
"""How many pieces are parsed before the other connections have their turn."""

HSTS = b"strict-transport-security: max-age=31536000\r\n"

_ASGI = {"version": "3.0", "spec_version": "2.3"}

_NEVER = math.inf

_FIELDS_BYTES_MAX = 2 * HEAD_BYTES_MAX


class HttpConnection(Stream, asyncio.Protocol):
    """One connection. `check` is called each second and ends requests that take too long."""

    transport: asyncio.Transport

    def __init__(self, server: GatewayServer, loop: asyncio.AbstractEventLoop, peer: Peer, slot: Slot) -> None:
        """`slot` ends with the connection, even if it has become a WebSocket."""
        super().__init__(slot.account)
        self.server = server
        self.loop = loop
        self._parser = new_parser(self)
        self._cycle: Cycle | None = None
        """The last request whose head is complete."""
        self._answering: Cycle | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._scope: dict[str, Any] = {}
        """The ASGI scope of the last request; see `Gateway.__call__`."""
        self._deadline = _NEVER
        self._in_head = False
        self._in_body = False
        self.is_idle = False
        """Whether the connection is idle, waiting for the first byte of another request."""
        self._head_bytes = 0
        self._is_getting_on = False
        """Whether the last piece began a request or brought part of a body."""
        self._is_passed_over = False
        """Whether the head offers an upgrade to another protocol, which is ignored."""
        self._body_left = 0
        """How many bytes of the body are still missing; -1 for a chunked body."""
        self.held = b""
        """Input that waits for its turn; it is parsed from `_held_from` on."""
        self._held_from = 0
        self._boundary = RequestBoundary()
        self._problem: Problem | None = None
        """The problem that a callback of the parser found."""
        self._peer = peer
        self.slot = slot
        self._trusted = server.acceptor.trusted_proxies if peer.host in server.acceptor.trusted_proxies else None
        """All trusted proxies if the peer is one of them; else None."""
        self._is_strict = False
        """Whether answers require browsers to use only TLS from now on."""
        self._linger: Linger | None = None
        """Set when our half is closed."""
        self._is_gone = False
        self._is_stopping = False
        self._handover: Handover | None = None
        """Set while the handshake of a WebSocket is under way."""
        self._writable = asyncio.Event()
        self._writable.set()

    # ------------------------------------------------------------ what the loop calls

    def connection_made(self, transport: Any) -> None:
        self.transport = self._transport = transport
        self.server.clients.add(self)
        host, port = transport.get_extra_info("sockname", ("", 0))[:2]
        self._local = (str(host), int(port))
        is_encrypted = transport.get_extra_info("sslcontext") is not None
        self._is_strict = is_encrypted and not is_of_this_machine(self._local)
        self._account.set_holder(self)
        self._deadline = self.loop.time() + HEAD_S_MAX

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`. Notifies the request that is being answered."""
        self.server.clients.discard(self)
        self._lose()
        self.slot.leave()
        if self._linger is not None:
            self._linger.close()
        self._writable.set()
        self.transport.close()
        self._forget()

    def _forget(self) -> None:
        """Break the reference cycles of this ended connection, so that no garbage collection is needed to free it."""
        del self._parser
        self._cycle = self._answering = self._handover = None
        self._scope = {}

    def eof_received(self) -> None:
        """Close: the client has closed its half. Requests under way are not answered."""
        self._lose()

    def _lose(self) -> None:
        self._is_gone = True
        if self._answering is not None:
            self._answering.connection_lost()
        self.held = b""

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
        self.held = self.held[self._held_from :] + data if self.held else data
        self._held_from = 0
        self._parse()

    def check(self, now: float) -> None:
        """End the connection if a request arrives too slowly, or if it was idle too long. `now` is the loop's time."""
        if self._is_stopped:
            self._deadline = now + BODY_S_MAX  # a client that is not read can't be late
        if now <= self._deadline:
            return
        if self.is_idle:
            self.transport.close()
        elif self._linger is None:
            self._refuse(Problem(408, "the request did not arrive in time"))

    def shutdown(self) -> None:
        """Finish the answer under way, and close: the server stops."""
        self._is_stopping = True
        cycle = self._cycle
        if self._linger is not None or cycle is None or cycle.response_complete:
            self.transport.close()
        else:
            cycle.keep_alive = False

    # ------------------------------------------------------------ pressure, see `net.stream`

    def pause_output(self) -> None:
        """Do nothing: a request waits by itself for the budget of its answer (`http.answer_budget`)."""

    resume_output = pause_output

    def _pause_deliveries(self) -> None:
        self._writable.clear()

    def _resume_deliveries(self) -> None:
        self._writable.set()
        self.loop.call_soon(self._parse_held)

    def _is_congested(self) -> bool:
        """Return whether input must wait: some is held, or the application has not taken the body received so far."""
        if self._linger is not None:
            return False
        cycle = self._answering
        return bool(self.held or self._handover) or (cycle is not None and len(cycle.body) > UNREAD_BODY_BYTES)

    def reading(self, on: bool) -> None:
        """Do nothing: `check` looks up why reading stopped."""

    async def writable(self) -> None:
        """Wait until the socket takes output, or the connection is closed."""
        await self._writable.wait()

    def body_was_taken(self) -> None:
        """Continue reading: the application has taken the body received so far."""
        self._adjust_flow()

    # ------------------------------------------------------------ input, one request at a time

    def _parse(self) -> None:
        data = self.held
        size = len(data)
        pieces = 0
        while (start := self._held_from) < size:
            # Outside a body the next bytes are a request. It waits until the previous answer is written and read.
            if pieces == PIECES_MAX or not (self._in_body or (self._answering is None and not self.is_full)):
                self._adjust_flow()
                if not (self._in_body or self._account.input):
                    self._account.hold_input(size - start, is_complete=True)
                if self._in_head:
                    self._deadline = _NEVER  # the rest of this head may be here already
                if pieces == PIECES_MAX:
                    self.loop.call_soon(self._parse_held)
                return
            pieces += 1
            if self._in_body and self._body_left > 0:
                end = min(start + self._body_left, size)
            else:
                end = self._boundary.next(data, start, self._in_head or self._in_body)
            self._held_from = end
            if not self._feed(data[start:end], data):
                self.held = b""
                return
        self.held = b""
        if self._deadline == _NEVER and self._answering is None and not (self._in_head or self._in_body):
            self._rest()  # this was the rest of an unwanted body, or an empty line
        if self._in_body or not self.is_reading:
            self._adjust_flow()

    def _feed(self, piece: bytes, data: bytes) -> bool:
        """Parse a piece; return whether the connection continues as before.

        The parser keeps an incomplete head or trailer to itself, so its bytes are counted here.
        """
        self._is_getting_on = False
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            self._held_from -= len(piece) - upgrade.args[0]
            if not self._is_passed_over:
                self._upgrade(data[self._held_from :])
                return False
            self._is_passed_over = False
            self._parser = parser_behind(self, self._body_left)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, MemoryError):
                self._problem = Problem(503, "there is not enough memory for this request")
            self._refuse(self._problem or not_http(self._parser.get_http_version()))
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
        self._url = b""
        self._headers = []
        self._in_head = self._is_getting_on = True
        self.is_idle = False
        self._head_bytes = 0
        self._deadline = self.loop.time() + HEAD_S_MAX

    def on_url(self, url: bytes) -> None:
        """Collect a piece of the request target."""
        self._url += url
        if len(self._url) > HEAD_BYTES_MAX:
            self._stop_parsing(Problem(414, f"the request target is larger than {HEAD_BYTES_MAX} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header field. After the body it is a trailer field, which is ignored."""
        self._head_bytes += len(name) + len(value)
        headers = self._headers
        if self._in_head:
            headers.append((name.lower(), value))
        if self._head_bytes > _FIELDS_BYTES_MAX or len(headers) > HEAD_FIELDS_MAX:
            self._stop_parsing(Problem(431, f"more than {HEAD_FIELDS_MAX} header fields or {HEAD_BYTES_MAX} bytes"))

    def on_headers_complete(self) -> None:
        """Check the head, which is complete, and start to answer the request."""
        version = self._parser.get_http_version()
        method = self._parser.get_method().decode("ascii")
        fields = Fields(self._headers)
        try:
            framing = framing_of(version, fields.framing)
            raw_path, query, host = target_of(method, self._url, framing.host)
        except Problem as problem:
            self._stop_parsing(problem)
        if host and not framing.host:
            fields.put(b"host", host)
        path = path_of(raw_path)
        if self.slot.is_reserve and path not in OF_HEALTH:
            self._stop_parsing(Problem(503, FULL))
        peer = self._peer if self._trusted is None else self._client(fields, self._trusted)
        self._scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": method,
            "scheme": "https" if peer.tls else "http",
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": fields.all,
            "fields": fields,
            "length": framing.length,
            "client": (peer.host, peer.port),
            "server": self._local,
            "state": {GONE: self.is_gone},
            "peer": peer,
            "slot": self.slot,
        }
        self._in_head = False
        if self._parser.should_upgrade():
            if requests_websocket(fields.all):
                return
            self._is_passed_over = True
        self._in_body = True
        self._body_left = framing.length
        self._deadline = self.loop.time() + BODY_S_MAX
        cycle = self._cycle = Cycle(
            self._scope,
            self,
            keep_alive=version != "1.0" and self._parser.should_keep_alive() and not self.slot.is_reserve,
            expects_continue=framing.expects_continue and version != "1.0",
        )
        assert self._answering is None, "a request was parsed before its turn"
        self._answering = cycle
        cycle.task = self.loop.create_task(cycle.run(self.server.app))

    def _client(self, fields: Fields, trusted: Networks) -> Peer:
        """Return the client on whose behalf a trusted proxy sent the request."""
        try:
            return client_of(fields.all, self._peer, trusted)
        except Problem as problem:
            self._stop_parsing(problem)

    def on_body(self, body: bytes) -> None:
        """Hand a piece of the body to the request."""
        self._is_getting_on = True
        self._head_bytes = 0
        if self._body_left > 0:
            self._body_left -= len(body)
        if self._answering is not None:  # else it was answered, and the rest of its body is skipped
            self._answering.take(body)

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
        return b"date: %b\r\n%b" % (self.server.date, HSTS if self._is_strict else b"")

    def on_response_complete(self) -> None:
        """Continue after an answer is complete: with input that waits, in a later turn, or by reading more."""
        self.server.answered += 1
        self._answering = None
        self._account.hold_input(0)
        if self._linger is not None or self.transport.is_closing():
            return
        if self._in_body:
            self._deadline = self.loop.time() + LINGER_S_MAX  # the rest of the body is not wanted
        if self.held:
            self.loop.call_soon(self._parse_held)
            return
        if not self.is_reading:
            self._adjust_flow()
        if not self._in_body:
            self._rest()

    def _rest(self) -> None:
        """Become idle: wait for another request until the deadline."""
        self.is_idle = True
        self._deadline = self.loop.time() + KEEP_ALIVE_S

    def _parse_held(self) -> None:
        """Parse the input that waits, unless the connection is closing."""
        if self.held and self._linger is None and not self.transport.is_closing():
            self._parse()

    def before_early_answer(self, cycle: Cycle) -> None:
        """Make this the last answer if a large part of an unwanted body may still be missing."""
        if cycle.expects_continue or not 0 <= self._body_left <= SKIP_BYTES_MAX:
            cycle.keep_alive = False

    def end(self) -> None:
        """Close after the last answer; linger if there is unread input.

        With unread input, closing at once would reset the connection and lose the answer.
        """
        if (self._in_body or not self.is_reading) and not self._is_stopping:
            self._leave()
        else:
            self.transport.close()

    # ------------------------------------------------------------ refusals

    def _refuse(self, problem: Problem) -> None:
        """Answer with an error, and close. No answer is overtaken, because only one request is parsed at a time."""
        if self._linger is not None or self.transport.is_closing():
            return
        if self._in_body:
            cycle = self._cycle
            assert cycle is not None
            if cycle.response_complete:
                self._leave()  # the request was answered before its body had arrived
                return
            cycle.connection_lost()
            self._answering = None
            if cycle.response_started:
                self.transport.abort()
                return
        assert self._answering is None, "a refusal would overtake an answer"
        self.refuse(problem)

    def evict(self) -> None:
        """Refuse the request whose body is under way: its user's connections hold too much."""
        if self._in_body:
            self._refuse(problem_of(Busy(REFUSED)))

    def refuse(self, problem: Problem) -> None:
        """Answer with an error, and close."""
        self.transport.write(closing_response(problem))
        self._leave()

    def _leave(self) -> None:
        """Close our half. Input is dropped, within bounds, until the peer has read the answer and closes."""
        self._linger = Linger(self.transport, self.loop, LINGER_S_MAX, LINGER_BYTES_MAX)
        self.held = b""
        self._account.hold_input(0)
        self._adjust_flow()

    # ------------------------------------------------------------ WebSockets

    def _upgrade(self, rest: bytes) -> None:
        """Begin to hand the connection over to a WebSocket."""
        self._deadline = _NEVER
        try:
            self._handover = Handover(self, self._scope, self.slot, rest)
        except CurbstoneError as error:  # nothing here opens WebSockets
            self.refuse(problem_of(error))
            return
        self._adjust_flow()
        self._handover.begin()

    def is_closed(self) -> bool:
        """Return whether the client or the connection is gone."""
        return self._is_gone or self.transport.is_closing()

    def detach(self, successor: Any) -> None:
        """Give the transport to the protocol that takes over. Reading is on, and no input is kept here."""
        self.server.clients.discard(self)
        self.held = b""
        self._handover = None
        self._adjust_flow()
        self._forget()
        self.transport.set_protocol(successor)
