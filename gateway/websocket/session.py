"""What a WebSocket is made of: a session, which knows its protocol, and a wire, which knows the socket.

The wire hands whole messages to the session and writes what the session sends; neither waits for the
other. A session owns no socket, clock or task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import orjson

from curbstone.access.callers import Caller
from curbstone.access.door import Access
from curbstone.gateway.websocket.codec import Inbound, text_frame
from curbstone.net.wire import NORMAL, POLICY_VIOLATION, TOO_BIG, TRY_AGAIN, Wire, reason_text

_CODES = {401: POLICY_VIOLATION, 403: POLICY_VIOLATION, 408: POLICY_VIOLATION, 413: TOO_BIG, 503: TRY_AGAIN}
"""The close codes of errors, by their status; NORMAL for the others."""


class SocketRequest(NamedTuple):
    """The request that asks for a WebSocket."""

    path: str
    query: bytes
    headers: Sequence[tuple[bytes, bytes]]
    """Names in lower case."""
    server: tuple[str, int | None] | None
    caller: Caller
    access: Access
    """What its client may do; nobody's if a login is still to come."""
    logged_in: Callable[[str], object] = str
    """Called with the user when one logs in later."""
    is_tls: bool = False

    def header(self, name: bytes) -> bytes:
        """Return a header's value, b"" if there is none; repeated ones are joined."""
        return b", ".join([value for key, value in self.headers if key == name])


class Session(Protocol):
    """One end of a WebSocket's protocol."""

    @property
    def subprotocol(self) -> str | None:
        """What the 101 response names; None for nothing."""

    @property
    def expires_ms(self) -> int:
        """When the login that the handshake brought ends, by the wall clock; 0 for never, or for none."""

    def start(self, wire: Wire) -> None:
        """The handshake is done; from here on the wire can be used."""

    def receive(self, messages: list[Inbound]) -> None:
        """Take the whole messages of one read from the socket, at least one."""

    def too_big(self) -> None:
        """Tell the peer that its message is above the limit, and close."""

    def refuse(self, status: int, reason: str) -> None:
        """Tell the peer that what it began to send is dropped, and close: 408 it was too slow, 503 try again."""

    def hold(self) -> None:
        """The socket's buffer is full: produce no more for a while."""

    def resume(self) -> None:
        """There is room again."""

    def reading(self, on: bool) -> None:
        """Reading stopped, for whatever reason, or goes on: a peer that is not read can't be late."""

    def stop(self) -> None:
        """The server stops: finish what is under way, then close the wire with 1001."""

    def closed(self) -> None:
        """The connection has ended, or is about to; called once."""


Opener = Callable[[SocketRequest], Session]
"""Makes the session for a request; raises Problem or CurbstoneError to refuse it."""


def error_frame(code: int, text: str) -> bytes:
    """Return an error as this protocol tells it."""
    return text_frame(orjson.dumps({"code": code, "error": text}))


def close_for(wire: Wire, status: int, text: str) -> None:
    """Close behind an error, whose text is the reason that a close frame has room for."""
    wire.close(_CODES.get(status, NORMAL), reason_text(text))
