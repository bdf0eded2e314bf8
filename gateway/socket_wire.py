"""The transport end of a WebSocket: the handshake, reads, writes, pings, and the end.

It drives a `sockets.Session` straight from the event loop's callbacks: one call per read, one write per turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.server import ServerProtocol

from curbstone.core.errors import CurbstoneError
from curbstone.gateway.frames import PING, Frames
from curbstone.gateway.problem import Problem, problem_of
from curbstone.gateway.sockets import Session, SocketRequest

CLOSE_S_MAX = 5
"""How long the peer may take to answer a close frame."""

PING_AFTER_S = 30
"""After so long without a word from the peer it is asked for one."""

DEAD_AFTER_S = 90
"""After so long it is taken for gone, and its unsettled messages go back."""


class Transport(Protocol):
    """What is used of an asyncio transport."""

    def write(self, data: bytes) -> object:
        """Send, or keep until the socket takes it."""

    def close(self) -> object:
        """Close once everything is sent."""

    def abort(self) -> object:
        """Close at once."""

    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""

    def pause_reading(self) -> object:
        """Read no more."""

    def resume_reading(self) -> object:
        """Go on reading."""


class Loop(Protocol):
    """What is used of an asyncio loop."""

    def time(self) -> float:
        """Seconds by a clock that never jumps."""

    def call_soon(self, fn: Callable[[], object]) -> object:
        """Call `fn` in the next turn."""


def shake_hands(
    request: SocketRequest, method: str, open_session: Callable[[SocketRequest], Session]
) -> tuple[bytes, Session] | Problem:
    """Return the 101 response and the session for it, or why there is none."""
    if method != "GET":
        return Problem(405, "a WebSocket is opened with GET", ((b"allow", b"GET"),))
    headers = Headers([(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers])
    response = ServerProtocol().accept(Request(request.path, headers))
    if response.status_code != 101:
        hints = tuple(
            (name.lower().encode(), value.encode())
            for name, value in response.headers.raw_items()
            if name.lower() in ("upgrade", "sec-websocket-version")
        )
        return Problem(response.status_code, (response.body or b"bad handshake").decode().strip(), hints)
    try:
        session = open_session(request)
    except (Problem, CurbstoneError) as error:
        return problem_of(error)
    if session.subprotocol:
        response.headers["Sec-WebSocket-Protocol"] = session.subprotocol
    return response.serialize(), session


class SocketWire:
    """One WebSocket. An asyncio protocol, and a `sockets.Wire`; `check` is called each second."""

    def __init__(
        self,
        transport: Transport,
        session: Session,
        message_bytes_max: int,
        connections: set[Any],
        loop: Loop,
    ) -> None:
        self._transport = transport
        self._session: Session | None = session
        self._frames = Frames(message_bytes_max)
        self._connections = connections
        self._loop = loop
        self._output: list[bytes] = []
        self._flush_due = False
        self._is_held = False
        self._heard_at = loop.time()
        self._pinged = False
        self._close_by = 0.0

    def begin(self, response: bytes, rest: bytes) -> None:
        """Send the 101 response and start the session; `rest` came right behind the handshake."""
        self._connections.add(self)
        self._transport.write(response)
        assert self._session
        self._session.start(self)
        if rest:
            self.data_received(rest)

    # ------------------------------------------------------------ what the loop calls

    def data_received(self, data: bytes) -> None:
        """Hand the whole messages of one read to the session, together."""
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
        # Pongs and the close frame can wait for the end of the turn, like all output.
        self._flush_soon()

    def eof_received(self) -> None:
        """The peer will send no more; returning None closes the connection."""

    def pause_writing(self) -> None:
        """The peer reads slower than the session writes."""
        if self._session:
            self._session.hold()

    def resume_writing(self) -> None:
        """The peer caught up."""
        if self._session:
            self._session.resume()

    def connection_lost(self, _error: Exception | None) -> None:
        """The connection is gone."""
        self._connections.discard(self)
        self._end_session()

    def abort(self) -> None:
        """Cut the connection."""
        self._transport.abort()

    def check(self, now: float) -> None:
        """End what does not answer; `now` is the loop's time."""
        if self._close_by:
            if now > self._close_by:
                self._transport.abort()
        elif self._is_held:
            self._heard_at = now  # it is we who do not listen
        elif now - self._heard_at > DEAD_AFTER_S:
            self._transport.abort()
        elif now - self._heard_at > PING_AFTER_S and not self._pinged:
            self._pinged = True
            self._transport.write(PING)

    def shutdown(self) -> None:
        """The server stops."""
        if self._session:
            self._session.stop()

    # ------------------------------------------------------------ what the session calls

    def send(self, frames: bytes) -> None:
        """See `sockets.Wire.send`."""
        if self._session:
            self._output.append(frames)
            self._flush_soon()

    def close(self, code: int, reason: str = "") -> None:
        """See `sockets.Wire.close`."""
        if self._session is None:
            return
        self._frames.close(code, reason)
        self._end_session()
        self._flush_soon()

    def hold(self) -> None:
        """See `sockets.Wire.hold`."""
        if not self._is_held and not self._transport.is_closing():
            self._is_held = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """See `sockets.Wire.resume`."""
        if self._is_held:
            self._is_held = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    # ------------------------------------------------------------ inside

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._close_by = self._loop.time() + CLOSE_S_MAX
            self.resume()  # to see the peer's close frame
            session.closed()

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write everything of this turn in one piece."""
        self._flush_due = False
        output, self._output = self._output, []
        output.append(self._frames.take_output())
        data = b"".join(output)
        if self._transport.is_closing():
            return
        if data:
            self._transport.write(data)
        if self._frames.peer_closed:
            self._transport.close()
