"""STOMP over WebSocket: the same sessions as over TCP, with messages in place of a byte stream.

The gateway owns the socket, and encodes and decodes WebSocket frames. `curbstone/serve.py` passes it the
`StompSockets`.

Input is one stream: a STOMP frame may be spread over several messages, and a message may hold several frames. Output
has one STOMP frame (or heart-beat) in each message, which every client can read. Messages are text or binary, like the
client's first one, but a frame that is not UTF-8 is always a binary message.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from curbstone.core.errors import BadRequest
from curbstone.core.names import QueueName, parse_queue_name
from curbstone.core.traffic import Traffic
from curbstone.net.peer import source_of
from curbstone.net.repeats import BriefLog
from curbstone.net.websocket_port import (
    GOING_AWAY,
    NORMAL,
    POLICY_VIOLATION,
    PROTOCOL_ERROR,
    TOO_BIG,
    TRY_AGAIN,
    WebSocketPort,
    reason_text,
)
from curbstone.stomp import frames
from curbstone.stomp.errors import ProtocolError, one_line
from curbstone.stomp.limits import Limits
from curbstone.stomp.session import Session
from curbstone.stomp.tick_timer import TickTimer

if TYPE_CHECKING:
    from curbstone.access.authenticator import Authenticator
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.access.caller import Caller
    from curbstone.core.host import Host

SUBPROTOCOLS = ("v12.stomp", "v11.stomp", "v10.stomp")
"""The newest first. The subprotocol does not decide the version; CONNECT does."""

log = logging.getLogger("curbstone.stomp")

Encode = Callable[[bytes], bytes]
"""Encodes a payload as a WebSocket message."""


class Request(Protocol):
    """The request that asks for a WebSocket."""

    @property
    def access(self) -> AuthorizedBroker:
        """The access of a login in the handshake; anonymous if there was none."""

    @property
    def caller(self) -> Caller:
        """Where the request comes from."""

    @property
    def logged_in(self) -> Callable[[str], object]:
        """To be called with the user's name if the login follows the handshake."""

    def header(self, name: bytes) -> bytes:
        """Return a header's value, b"" if there is none; repeated ones are joined with commas."""


class StompSockets:
    """Opens STOMP sessions on WebSockets."""

    def __init__(
        self,
        authenticator: Authenticator,
        host: Host,
        *,
        text: Encode,
        binary: Encode,
        limits: Limits | None = None,
        single_queue: QueueName | str | None = None,
        name: str = "curbstone",
        greeting: tuple[str, ...] = (),
    ) -> None:
        """`name` is the server header of CONNECTED: name, slash, version. `greeting` are more of its header lines."""
        self.authenticator = authenticator
        self.host = host
        self.text = text
        self.binary = binary
        self.limits = limits or Limits()
        self.single_queue = parse_queue_name(single_queue) if isinstance(single_queue, str) else single_queue
        self.sync = authenticator.everyone.health().sync
        self.name = name
        self.greeting = greeting
        self.traffic = Traffic()
        """The counters of all its connections."""
        self.failures = BriefLog(host.call_later, log)
        """Logs why connections failed."""

    def open(self, request: Request) -> StompSocket:
        """Return the session for a request; raise BadRequest if it offers subprotocols but none of STOMP's.

        Other subprotocols beside one of STOMP's are ignored, and never echoed, because some contain a token.
        """
        offered = {name.strip() for name in request.header(b"sec-websocket-protocol").decode("latin-1").split(",")}
        chosen = next((name for name in SUBPROTOCOLS if name in offered), None)
        if chosen is None and offered != {""}:
            raise BadRequest(f"the WebSocket subprotocol must be one of {', '.join(SUBPROTOCOLS)}, or none")
        return StompSocket(self, request, chosen)


class StompSocket:
    """One connection. The owner of the socket calls the public methods, all from the event loop."""

    delivers = True

    def __init__(self, sockets: StompSockets, request: Request, subprotocol: str | None) -> None:
        self._sockets = sockets
        self._access = request.access
        self._caller = request.caller._replace(protocol="stomp-websocket")
        self._logged_in = request.logged_in
        self._subprotocol = subprotocol
        self._host = sockets.host
        self._wire: WebSocketPort
        self._session: Session
        self._name = secrets.token_hex(8)
        self._is_text: bool | None = None
        self._close_code = 0
        self._closed = False
        self._pulse: TickTimer

    @property
    def subprotocol(self) -> str | None:
        """The subprotocol for the handshake's response; None for none."""
        return self._subprotocol

    @property
    def expires_ms(self) -> int:
        """When the login in the handshake expires, in ms since the epoch; 0 if it never does or there was none."""
        return self._access.identity.expires_ms

    def start(self, wire: WebSocketPort) -> None:
        """Start the session: the handshake is done, and the wire can be used."""
        self._wire = wire
        sockets = self._sockets
        wire.limit_unsent(sockets.limits.output_bytes_max)
        self._session = Session(
            sockets.authenticator,
            self._access,
            sockets.limits,
            self._changed,
            caller=self._caller,
            name=self._name,
            now_ms=self._host.now_ms(),
            sync=sockets.sync,
            server=sockets.name,
            greeting=sockets.greeting,
            single_queue=sockets.single_queue,
            sniffs=False,
            traffic=sockets.traffic,
        )
        self._pulse = TickTimer(self._host, self._session.tick)
        self._pulse.check()
        self._session.on_connected = self._on_connected

    def _on_connected(self, user: str) -> None:
        self._pulse.check()  # CONNECT may have changed the interval
        self._logged_in(user)

    def receive(self, messages: Sequence[tuple[bool, bytes]]) -> None:
        """Handle the messages of one read, each as (is text, payload)."""
        session = self._session
        if session.ending:
            return
        if self._is_text is None:
            self._is_text = messages[0][0]
        data = messages[0][1] if len(messages) == 1 else b"".join([payload for _, payload in messages])
        session.receive(data, self._host.now_ms(), self._host.wall_ms())
        self._wire.keeps(session.unfinished_bytes)
        if session.congested:
            self._wire.pause()

    def too_big(self) -> None:
        """Refuse a message that is larger than the listener reads."""
        self._close_code = self._close_code or TOO_BIG
        self._session.refuse(ProtocolError("the WebSocket message is too large"))

    def refuse(self, status: int, reason: str) -> None:
        """End because the listener dropped an unfinished message. `status` 503 means that the client may try again."""
        self._close_code = self._close_code or (TRY_AGAIN if status == 503 else POLICY_VIOLATION)
        self._session.refuse(ProtocolError(reason))

    def pause(self) -> None:
        """Pause deliveries: the socket is full."""
        self._session.pause()

    def resume(self) -> None:
        """Resume deliveries: the socket takes output again."""
        if not self._session.ending:
            self._session.resume()

    def reading(self, on: bool) -> None:
        """Note that reading stopped, or continues."""
        if not self._session.ending:
            self._session.reading(on, self._host.now_ms())

    def stop(self) -> None:
        """Wait for pending commits, then send an ERROR: the server is stopping."""
        self._close_code = self._close_code or GOING_AWAY
        self._session.shut_down("the server is shutting down")

    def closed(self) -> None:
        """The connection has ended, or is about to."""
        self._closed = True
        self._pulse.stop()
        self._session.connection_lost()

    def _changed(self, more_bytes: int) -> None:
        """The session has output, or has ended."""
        if not self._closed:
            self._wire.at_flush(self._flush, more_bytes)

    def _flush(self) -> None:
        if self._closed:
            return
        session = self._session
        if output := session.take_output():
            self._wire.send(self._messages(b"".join(output)))
        if session.closing:
            self._close()
        elif not session.congested:
            self._wire.resume()

    def _messages(self, data: bytes) -> bytes:
        """Return the session's output as WebSocket messages."""
        text, binary = self._sockets.text, self._sockets.binary
        if self._session.joined:
            return binary(data)
        if self._is_text is False:
            return b"".join([binary(frame) for frame in frames.split(data)])
        if data.isascii():
            return b"".join([text(frame) for frame in frames.split(data)])
        return b"".join([text(frame) if _is_utf8(frame) else binary(frame) for frame in frames.split(data)])

    def _close(self) -> None:
        """Close after the last frame. The close code corresponds to the failure in the ERROR."""
        failure = self._session.failure
        code = self._close_code or self._session.failed_by_rule and PROTOCOL_ERROR or POLICY_VIOLATION
        if not failure:
            code = NORMAL
        else:
            self._sockets.failures.info(self._caller, source_of(self._caller.address), one_line(failure))
        self._wire.close(code, reason_text(failure))


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
