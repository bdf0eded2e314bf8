"""A WebSocket that is opened only to tell why it is refused (`?errors=frame`).

A page in a browser can't see the status of a refused handshake. So it gets the error in a frame, and a close code of
4000 plus the status.
"""

from __future__ import annotations

from curbstone.gateway.http.problem import Problem
from curbstone.gateway.websocket.session import SocketRequest, error_frame
from curbstone.net.websocket_port import Wire, reason_text

APPLICATION = 4000
"""The first of the close codes that applications may define."""

_ASKED = b"errors=frame"


def asks_for_frames(request: SocketRequest) -> bool:
    """Return whether the client asked for refusals in frames."""
    return _ASKED in request.query.split(b"&")


class RefusedSession:
    """Tells its problem and closes; see the module's docstring. Implements `session.Session`."""

    expires_ms = 0
    delivers = False

    def __init__(self, request: SocketRequest, problem: Problem) -> None:
        offered = request.header(b"sec-websocket-protocol").decode("latin-1").partition(",")[0].strip()
        self.subprotocol: str | None = offered or None
        """The first one offered, because a browser accepts only one it has offered."""
        self._problem = problem

    def start(self, wire: Wire) -> None:
        """Send the problem, and close."""
        wire.send(error_frame(self._problem.status, self._problem.detail))
        wire.close(APPLICATION + self._problem.status, reason_text(self._problem.detail))

    def _ignore(self, *_what: object, **_more: object) -> None:
        """Do nothing: the connection is closed already."""

    receive = too_big = refuse = hold = resume = reading = stop = closed = _ignore
