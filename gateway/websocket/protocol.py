"""The transport side of a WebSocket: handshake, reads, writes, pings, deadlines, and the end.

It drives a `session.Session` directly from the event loop's callbacks, with one call for each read and one write for
each turn. Its rules hold for every subprotocol: a message must be complete in time, the unfinished messages of all
peers together are bounded, and only the latest ping is answered, when there is room.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.server import ServerProtocol

from curbstone.core.errors import CurbstoneError
from curbstone.gateway.http.problem import Problem, problem_of
from curbstone.gateway.limits import CLOSE_S_MAX, DEAD_AFTER_S, MESSAGE_BYTES_PER_S, MESSAGE_S_MAX, PING_AFTER_S
from curbstone.gateway.websocket.codec import PING, Frames
from curbstone.gateway.websocket.session import Opener, RefusedSession, Session, SocketRequest, wants_refusal_in_frame
from curbstone.net.budget import REFUSED, Account
from curbstone.net.fair_reader import Turns
from curbstone.net.receive_deadline import ReceiveDeadline
from curbstone.net.stream import TurnStream

if TYPE_CHECKING:
    import asyncio

PIECES_MAX = 1000
"""The most pings, pongs and tiny fragments in one read. More are a flood, and the connection is aborted."""


def refusing(error: CurbstoneError) -> Opener:
    """Return an opener that raises this error."""

    def refuse(_request: SocketRequest) -> NoReturn:
        raise error

    return refuse


def accept_handshake(request: SocketRequest, method: str, open_session: Opener) -> tuple[bytes, Session] | Problem:
    """Return the 101 response and the session, or the problem that refuses the handshake."""
    if method != "GET":
        return Problem(405, "open a WebSocket with GET", ((b"allow", b"GET"),))
    headers = Headers([(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.fields.all])
    response = ServerProtocol().accept(Request(request.path, headers))
    if response.status_code != 101:
        hints = tuple(
            (name.lower().encode(), value.encode())
            for name, value in response.headers.raw_items()
            if name.lower() in ("upgrade", "sec-websocket-version")
        )
        return Problem(response.status_code, (response.body or b"bad handshake").decode().strip(), hints)
    session = opened(request, open_session)
    if isinstance(session, Problem):
        return session
    if session.subprotocol:
        response.headers["Sec-WebSocket-Protocol"] = session.subprotocol
    if session.expires_ms:
        response.headers["X-Login-Expires"] = str(session.expires_ms)
    return response.serialize(), session


def opened(request: SocketRequest, open_session: Opener) -> Session | Problem:
    """Return the session for a request, or the problem that refuses it; by request, that is sent in a frame."""
    try:
        return open_session(request)
    except (Problem, CurbstoneError) as error:
        problem = problem_of(error)
        return RefusedSession(request, problem) if wants_refusal_in_frame(request) else problem


class WebSocketProtocol(TurnStream):
    """One WebSocket: an asyncio protocol and a `net.websocket_port.WebSocketPort`. `check` is called each second."""

    def __init__(
        self,
        transport: asyncio.Transport,
        session: Session,
        message_bytes_max: int,
        connections: set[Any],
        loop: asyncio.AbstractEventLoop,
        account: Account,
        turns: Turns,
    ) -> None:
        """`account` counts the bytes that the connection holds; `turns` are the process's."""
        super().__init__(loop, turns, account)
        self._transport = transport
        self._session: Session | None = session
        self._frames = Frames(message_bytes_max)
        self._connections = connections
        self._loop = loop
        self._output: list[bytes] = []
        self._before_flush: Callable[[], None] | None = None
        self._is_held = False
        self.leave: Callable[[], None] | None = None
        """Called when the connection is closed."""
        self._kept_bytes = 0
        """The bytes that the session holds of incomplete input."""
        self._message = ReceiveDeadline(MESSAGE_S_MAX * 1000, MESSAGE_BYTES_PER_S)
        self._heard_at = loop.time()
        self._pinged = False
        self._close_by = 0.0

    @property
    def unfinished_bytes(self) -> int:
        """The bytes that it holds of an incomplete message."""
        return self._frames.unfinished_bytes

    def begin(self, response: bytes, rest: bytes) -> None:
        """Send the 101 response and start the session; `rest` is input that arrived after the handshake."""
        self._connections.add(self)
        self._transport.write(response)
        assert self._session
        self._session.start(self)
        self._account.set_holder(self)
        if rest:
            self.data_received(rest)

    # ------------------------------------------------------------ what the loop calls

    def data_received(self, data: bytes) -> None:
        """Take input from the socket, and stop reading if there is too much of it."""
        self._intake.receive(data)
        if self.is_full or self._intake.is_waiting:
            self._adjust_flow()

    def take(self, data: bytes) -> None:
        """See `fair_reader.Receiver`. Hands the complete messages to the session, together."""
        if self._transport.is_closing():
            return
        frames = self._frames
        messages = frames.receive(data)
        self._heard_at = self._loop.time()
        self._pinged = False
        if messages and self._session:
            self._session.receive(messages)
        if frames.too_big and self._session:
            self._session.too_big()
        if frames.is_closed:
            self._end_session()
        begun = frames.unfinished_bytes
        if begun or self._message.is_begun:
            self._message.unfinished(begun, frames.is_another, round(self._heard_at * 1000))
        if (size := begun + self._kept_bytes) or self._account.input:
            self._account.hold_input(size, frames.is_another)
        if frames.pieces > PIECES_MAX:
            self._transport.abort()
            return
        # Pongs and the close frame are sent at the end of the turn, like all output.
        self.changed()

    def eof_received(self) -> None:
        """End the session: the peer has closed its half, so deliveries would be lost. None closes the connection."""
        self._end_session()

    def connection_lost(self, _error: Exception | None) -> None:
        """The connection is closed: release everything that belongs to it."""
        self._connections.discard(self)
        if self.leave:
            self.leave()
        self._intake.close()
        self._frames.drop()
        self._end_session()

    def check(self, now: float) -> None:
        """Ping a silent peer, or end the connection at a deadline; `now` is the loop's time."""
        if self._close_by:
            if now > self._close_by:
                self._transport.abort()
        elif not self.is_reading:
            self._heard_at = now  # the peer is not silent: we do not read
        elif now - self._heard_at > DEAD_AFTER_S:
            self._transport.abort()
        elif self._message.is_late(round(now * 1000)):
            self._refuse(408, f"no complete message within {MESSAGE_S_MAX} s")
        elif now - self._heard_at > PING_AFTER_S and not self._pinged:
            self._pinged = True
            self._transport.write(PING)

    def shutdown(self) -> None:
        """Stop the session: the server stops."""
        if self._session:
            self._session.stop()

    def evict(self) -> None:
        self._refuse(503, REFUSED)

    # ------------------------------------------------------------ what the session calls

    def send(self, frames: bytes) -> None:
        if self._session:
            self._output.append(frames)
            self.changed(len(frames))

    def close(self, code: int, reason: str = "") -> None:
        if self._session is None:
            return
        self._frames.close(code, reason)
        self._end_session()
        self.changed()

    def at_flush(self, fn: Callable[[], None], more_bytes: int = 0) -> None:
        self._before_flush = fn
        self.changed(more_bytes)

    def limit_unsent(self, bytes_max: int) -> None:
        self._unsent_bytes_max = bytes_max

    def keeps(self, size: int) -> None:
        self._kept_bytes = size

    def pause(self) -> None:
        self._is_held = True
        self._adjust_flow()

    def resume(self) -> None:
        self._is_held = False
        self._adjust_flow()

    # ------------------------------------------------------------ inside

    def _pause_deliveries(self) -> None:
        if self._session and (self.is_full or self._session.delivers):
            self._session.pause()

    def _resume_deliveries(self) -> None:
        if self._session:
            self._session.resume()
        self.changed()  # a pong may have waited for this

    def _has_too_much(self) -> bool:
        return self._is_held

    def reading(self, on: bool) -> None:
        self._message.reading(on, round(self._loop.time() * 1000))
        if self._session:
            self._session.reading(on)

    def _refuse(self, status: int, reason: str) -> None:
        """Refuse the message that the peer has begun, and close."""
        if self._session:
            self._message.unfinished(0, True, 0)
            self._session.refuse(status, reason)

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._account.hold_input(0)
            self._close_by = self._loop.time() + CLOSE_S_MAX
            self._unsent_bytes_max = sys.maxsize
            self.resume()  # so that the peer's close frame is read
            session.closed()

    def _flush(self) -> None:
        before, self._before_flush = self._before_flush, None
        if before is not None:
            before()
        self._flush_due = False  # output from `before` is part of this flush
        self._gathered_bytes = 0
        output, self._output = self._output, []
        frames = self._frames
        if frames.is_pinged and not self.is_full:
            output.append(frames.take_pong())
        if frames.is_closed:
            output.append(frames.take_output())
        data = b"".join(output)
        if self._transport.is_closing():
            return
        if data:
            self._transport.write(data)
            if self.is_full:
                self._account.hold_output(self._transport.get_write_buffer_size())
        if frames.peer_closed:
            self._transport.close()
        elif not self.is_reading:
            self._adjust_flow()
