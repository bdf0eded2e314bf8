"""A WebSocket that is opened only to say why it is refused, with `?errors=frame`.

A page in a browser can't see the status of a refused handshake. It gets the error as a frame, and a close code of
4000 and the status.
"""

from __future__ import annotations

from curbstone.gateway.http.problem import Problem
from curbstone.gateway.websocket.session import SocketRequest, error_frame
from curbstone.net.wire import Wire, reason_text

APPLICATION = 4000
"""Close codes from here on are the application's to give."""

_ASKED = b"errors=frame"


def asks_for_frames(request: SocketRequest) -> bool:
    """Return whether a refusal is to be told in a frame."""
    return _ASKED in request.query.split(b"&")


class RefusedSession:
    """See the module's docstring. Implements `session.Session`."""

    expires_ms = 0

    def __init__(self, request: SocketRequest, problem: Problem) -> None:
        offered = request.header(b"sec-websocket-protocol").decode("latin-1").partition(",")[0].strip()
        self.subprotocol: str | None = offered or None
        """The first that is offered: a browser takes no other answer."""
        self._problem = problem

    def start(self, wire: Wire) -> None:
        """Say it, and close."""
        wire.send(error_frame(self._problem.status, self._problem.detail))
        wire.close(APPLICATION + self._problem.status, reason_text(self._problem.detail))

    def _ignore(self, *_what: object, **_more: object) -> None:
        """Do nothing: it is closed already, whatever the peer sends or the server does."""

    receive = too_big = refuse = hold = resume = reading = stop = closed = _ignore
