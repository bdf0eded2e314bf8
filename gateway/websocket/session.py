"""The interface between a WebSocket's session (the protocol) and its wire (the socket).

The wire hands complete messages to the session and writes what the session sends. Neither waits for the other. A
session owns no socket, clock or task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import orjson

from curbstone.access.authorization import AuthorizedBroker
from curbstone.access.caller import Caller
from curbstone.gateway.http.fields import Fields
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.websocket.codec import Inbound, text_frame
from curbstone.net.websocket_port import NORMAL, POLICY_VIOLATION, TOO_BIG, TRY_AGAIN, WebSocketPort, reason_text

_CODES = {401: POLICY_VIOLATION, 403: POLICY_VIOLATION, 408: POLICY_VIOLATION, 413: TOO_BIG, 503: TRY_AGAIN}
"""The close codes of errors, by status; for all others, NORMAL."""


class SocketRequest(NamedTuple):
    """The request that asks for a WebSocket."""

    path: str
    query: bytes
    fields: Fields
    server: tuple[str, int | None] | None
    caller: Caller
    access: AuthorizedBroker
    """The client's access; anonymous before the login."""
    logged_in: Callable[[str], object] = str
    """To be called with the user's name when the login is later."""
    is_tls: bool = False

    def header(self, name: bytes) -> bytes:
        """Return a header's value, or b"" without it; repeated ones are joined."""
        return b", ".join([value for key, value in self.fields.all if key == name])


class Session(Protocol):
    """Our end of the protocol that is spoken on a WebSocket. Called from the event loop."""

    delivers: bool
    """Whether it sends deliveries. If not, it is not held because its user's connections hold too much."""

    @property
    def subprotocol(self) -> str | None:
        """The subprotocol for the 101 response; None for none."""

    @property
    def expires_ms(self) -> int:
        """When the handshake's login expires, in ms since the epoch; 0 if it never does or there was none."""

    def start(self, wire: WebSocketPort) -> None:
        """Start: the handshake is done, and the wire can be used."""

    def receive(self, messages: list[Inbound]) -> None:
        """Handle the complete messages of one read; at least one."""

    def too_big(self) -> None:
        """Report to the peer that its message is above the limit, and close."""

    def refuse(self, status: int, reason: str) -> None:
        """Refuse the peer's unfinished message, and close. 408: the peer was too slow; 503: it may try again."""

    def pause(self) -> None:
        """Stop producing output: the socket's buffer is full."""

    def resume(self) -> None:
        """Continue after `pause`: there is room again."""

    def reading(self, on: bool) -> None:
        """Note that reading stopped or continued: a peer that is not read can't be late."""

    def stop(self) -> None:
        """Finish the work under way, then close the wire with 1001: the server is stopping."""

    def closed(self) -> None:
        """The connection has ended, or is about to. Called once."""


Opener = Callable[[SocketRequest], Session]
"""Creates the session for a request; raises Problem or CurbstoneError to refuse it."""


def error_frame(code: int, text: str) -> bytes:
    """Return the frame of an error."""
    return text_frame(orjson.dumps({"code": code, "error": text}))


def close_for(wire: WebSocketPort, status: int, text: str) -> None:
    """Close after an error; its text is the reason, as far as it fits into a close frame."""
    wire.close(_CODES.get(status, NORMAL), reason_text(text))


APPLICATION = 4000
"""The first of the close codes that applications may define."""

_ASKED = b"errors=frame"


def wants_refusal_in_frame(request: SocketRequest) -> bool:
    """Return whether the client asked for refusals in frames."""
    return _ASKED in request.query.split(b"&")


class RefusedSession:
    """Sends a problem and closes. Implements `session.Session`."""

    expires_ms = 0
    delivers = False

    def __init__(self, request: SocketRequest, problem: Problem) -> None:
        offered = request.header(b"sec-websocket-protocol").decode("latin-1").partition(",")[0].strip()
        self.subprotocol: str | None = offered or None
        """The first one offered, because a browser accepts only one it has offered."""
        self._problem = problem

    def start(self, wire: WebSocketPort) -> None:
        """Send the problem, and close."""
        wire.send(error_frame(self._problem.status, self._problem.detail))
        wire.close(APPLICATION + self._problem.status, reason_text(self._problem.detail))

    def _ignore(self, *_what: object, **_more: object) -> None:
        """Do nothing: the connection is closed already."""

    receive = too_big = refuse = pause = resume = reading = stop = closed = _ignore
