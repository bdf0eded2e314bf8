"""The gateway under another ASGI server, such as uvicorn or hypercorn, and inside other applications.

That server frames the requests and describes connections only as far as ASGI does. So each request and each WebSocket
counts as a connection here, and this module adds to the scope what the gateway's own server would add.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from curbstone.access.authorization import AuthorizedBroker
from curbstone.access.errors import Busy
from curbstone.core.errors import CurbstoneError
from curbstone.gateway.app import Gateway
from curbstone.gateway.asgi_socket import AsgiSocket
from curbstone.gateway.http.client_disconnect import GONE
from curbstone.gateway.http.fields import Fields
from curbstone.gateway.http.head import path_of
from curbstone.gateway.http.login import caller_of
from curbstone.gateway.http.problem import Problem, problem_body, problem_headers
from curbstone.gateway.http.responses import reply_problem
from curbstone.gateway.http.scope import BASE
from curbstone.gateway.limits import STOP_S_MAX
from curbstone.gateway.settings import OF_HEALTH
from curbstone.gateway.websocket.protocol import opened, refusing
from curbstone.gateway.websocket.session import Session, SocketRequest
from curbstone.net.budget import REFUSED
from curbstone.net.connection_limits import FULL, Admission, Slot
from curbstone.net.connection_set import ConnectionSet
from curbstone.net.peer import Peer, plain_host

logger = logging.getLogger("curbstone.gateway")

_CHECK_S = 1.0
"""How often the budget of the memory that clients hold is checked."""


class AsgiGateway:
    """A gateway as a complete ASGI application, except for its lifespan. Needs a running event loop."""

    def __init__(self, gateway: Gateway, admission: Admission) -> None:
        self._gateway = gateway
        self._admission = admission
        self._sockets: ConnectionSet[AsgiSocket] = ConnectionSet()
        self._loop = asyncio.get_running_loop()
        self._check()

    def _check(self) -> None:
        self._admission.budget.check()
        self._timer = self._loop.call_later(_CHECK_S, self._check)

    @property
    def waiting_requests(self) -> int:
        """The number of requests that wait for messages."""
        return self._gateway.polls.count

    async def stop(self) -> None:
        """Answer the requests that wait for messages, end all streams and WebSockets."""
        self._gateway.release()
        self._gateway.release_followers()
        await self._sockets.shut_down(STOP_S_MAX)
        self._timer.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or serve one WebSocket."""
        is_socket = scope["type"] == "websocket"
        slot = None
        try:
            own = _own_scope(scope)
            slot = self._admission.open_slot(may_be_reserve=own["path"] in OF_HEALTH and not is_socket)
            if slot is None or (refusal := slot.set_address(own["peer"].host)):
                raise Problem(503, FULL if slot is None else refusal)
            own["slot"] = slot
            if is_socket:
                await self._serve_socket(scope, own, slot, receive, send)
            else:
                await self._answer(own, slot, receive, send)
        except Problem as problem:
            await refuse(problem, scope, receive, send)
        finally:
            if slot is not None:
                slot.leave()

    async def _answer(self, own: Scope, slot: Slot, receive: Receive, send: Send) -> None:
        body = _Body(receive)
        slot.account.set_holder(body)
        own["state"] = {GONE: body.is_gone}
        if own["method"] not in ("POST", "PUT"):
            body.begin()  # so that a client that leaves is noticed before a message is taken for it
        try:
            await self._gateway(own, body.receive, send)
        finally:
            slot.account.set_aside(0)
            body.close()

    async def _serve_socket(self, scope: Scope, own: Scope, slot: Slot, receive: Receive, send: Send) -> None:
        gateway = self._gateway
        request = SocketRequest(
            own["path"], own["query_string"], own["fields"], own["server"],
            caller_of(own, "websocket"), gateway.anonymous, slot.logged_in, own["scheme"] == "https",
        )  # fmt: skip
        admitted: asyncio.Future[AuthorizedBroker | Problem | CurbstoneError] = self._loop.create_future()
        gateway.sockets.admit(request, lambda access: None if admitted.done() else admitted.set_result(access))
        access = await admitted
        session: Session | Problem
        if isinstance(access, Problem):
            session = access
        elif isinstance(access, CurbstoneError):
            session = opened(request, refusing(access))
        else:
            if access.identity.user:
                slot.logged_in(access.identity.user)
            session = opened(request._replace(access=access), gateway.sockets.open)
        if isinstance(session, Problem):
            raise session
        await receive()  # websocket.connect
        headers = [(b"x-login-expires", b"%d" % session.expires_ms)] if session.expires_ms else []
        await send({"type": "websocket.accept", "subprotocol": session.subprotocol, "headers": headers})
        socket = AsgiSocket(session, send, gateway.message_bytes_max, slot.account)
        self._sockets.add(socket)
        try:
            await socket.run(receive)
        finally:
            self._sockets.discard(socket)


class _Body:
    """The body of a request, and whether its client is gone. Implements `budget.Holder`.

    It reads one message ahead, so that it notices a disconnect of the client at any time.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ahead: asyncio.Queue[Message] = asyncio.Queue(1)
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._reading: asyncio.Task[None] | None = None
        self._is_gone = False
        self._is_refused = False

    def begin(self) -> None:
        """Begin to read."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while not self._is_gone:
            await self._may_read.wait()
            try:
                message = await self._receive()
            except Exception:
                logger.exception("the server of this application failed to read a request")
                message = {"type": "http.disconnect"}
            self._is_gone = message["type"] == "http.disconnect"
            await self._ahead.put(message)

    async def receive(self) -> Message:
        """See ASGI. Raise Busy if the body is refused because its user's connections hold too much."""
        self.begin()
        if self._is_gone and self._ahead.empty():
            return {"type": "http.disconnect"}
        message = await self._ahead.get()
        if self._is_refused:
            raise Busy(REFUSED)
        return message

    def is_gone(self) -> bool:
        """Return whether the client has left."""
        return self._is_gone

    def close(self) -> None:
        """Stop reading: the request has been answered."""
        if self._reading is not None:
            self._reading.cancel()

    def pause_input(self) -> None:
        """Read no further."""
        self._may_read.clear()

    def resume_input(self) -> None:
        """Read on."""
        self._may_read.set()

    def evict(self) -> None:
        """Refuse the body."""
        self._is_refused = True
        if self._ahead.empty():
            self._ahead.put_nowait({"type": "http.disconnect"})

    def pause_output(self) -> None:
        """Do nothing: a request waits by itself for the budget of its answer (`http.answer_budget`)."""

    resume_output = pause_output


def _own_scope(scope: Scope) -> dict[str, Any]:
    """Return the scope as the gateway reads it; raise Problem."""
    fields = Fields([(name.lower(), value) for name, value in scope["headers"]])
    raw_path = scope.get("raw_path")
    try:
        path = path_of(raw_path) if raw_path else scope["path"]
    except UnicodeDecodeError:
        raise Problem(400, "bad request: the path must be ASCII, percent-encoded") from None
    base = scope.get("root_path", "").rstrip("/")
    if base and (path == base or path.startswith(base + "/")):
        path = path[len(base) :] or "/"
    host, port = scope.get("client") or ("?", 0)
    server, server_port = scope.get("server") or ("", None)
    is_tls = scope.get("scheme") in ("https", "wss")
    length = fields.value(b"content-length")
    return {
        "type": "http",
        "http_version": scope["http_version"],
        "method": scope.get("method", "GET"),
        "scheme": "https" if is_tls else "http",
        "path": path,
        "raw_path": raw_path or b"",
        "query_string": scope.get("query_string", b""),
        "headers": fields.all,
        "fields": fields,
        "length": int(length) if length.isdigit() else -1,
        "client": (host, port),
        "server": ("", 0) if server_port is None else (server, server_port),  # a Unix socket has no port
        "peer": Peer(plain_host(host), port or 0, is_tls),
        BASE: base,
    }


async def refuse(problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a request or a WebSocket. A server that can't send a problem for a WebSocket sends a 403 of its own."""
    if scope["type"] != "websocket":
        await reply_problem(send, problem)
        return
    await receive()  # websocket.connect
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1008, "reason": problem.detail[:120]})
        return
    body = problem_body(problem)
    headers = [*problem_headers(problem), (b"content-length", b"%d" % len(body))]
    await send({"type": "websocket.http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
