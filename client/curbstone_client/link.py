"""One connection to a server, with reconnects. It has no socket and no clock: bytes in, bytes out.

    down ──opened──▶ opening ──CONNECTED──▶ up ──lost──▶ down

The owner of the socket connects to `address()` and calls `opened`. From then on it calls `receive` with received bytes,
sends what `take_output` returns whenever `changed` was called, calls `tick` at the time `due`, and closes the
connection once `failure` is set. It calls `lost` for each connection that ended or could not be made, and reconnects
after the number of seconds that `lost` returns. Times are passed in, as seconds of a monotonic clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from curbstone_client import login, websocket
from curbstone_client.address import Address
from curbstone_client.errors import CantConnect, ClientError, NotAllowed, Refused, refusal
from curbstone_client.wire import Delivery, Other, Parser, Receipts, WireError, connect, frame, parse_head

log = logging.getLogger("curbstone_client")

NUMBERS = "numbers"
FEATURES = f"refusals,ids,window,joined,{NUMBERS}"
"""The extensions of STOMP that this client requests. It also works with a server that has none of them."""

BEAT_S = 10
"""In each such interval both sides send something, at least a heart-beat."""
SILENT_S_MAX = 20
"""A connection over which nothing arrives for so long is closed."""

_chance = Random()
"""A separate generator, so that an application that seeds the global one is not affected."""

RETRY_S_MIN = 0.05
RETRY_S_MAX = 5.0
REFUSED_RETRY_S = 30.0
"""After so long a login that was refused is retried, because the server's users file may have changed."""
RENEW_AFTER = 0.8
"""A login is renewed after this part of its remaining time."""
RENEW_S_MIN, RENEW_AGAIN_S = 1.0, 5.0
_RENEWAL = b"token"
"""The receipt of the renewal of a login."""
_LF = b"\n"


class Role(Protocol):
    """The use of a connection: the publishing of a client, or its consuming."""

    def up(self) -> None:
        """The connection is up. Write the frames that have to be sent first."""

    def down(self) -> None:
        """The connection is lost."""

    def unreachable(self, error: ClientError) -> None:
        """The first connection has failed. End everything with this error."""

    def collect(self) -> None:
        """The output is about to be sent. Append the buffered frames."""

    def receipts(self, pieces: list[bytes]) -> None:
        """RECEIPT frames arrived; the pieces are those of `wire.Receipts`."""

    def delivered(self, deliveries: list[Delivery]) -> None:
        """MESSAGE frames arrived."""

    def failed(self, receipt: bytes | None, error: ClientError) -> None:
        """The server ended the connection with an ERROR. `receipt` is that of the refused frame, if it had one."""

    def tick(self, now: float) -> float:
        """Handle timeouts, and return when to call again."""


class Link:
    """The state of one connection with reconnects."""

    def __init__(self, addresses: Sequence[Address], token: login.Token = None) -> None:
        self._addresses = addresses
        self._turn = 0
        self._token = token
        self.role: Role
        self.changed: Callable[[], None] = lambda: None
        """Set by the shell. Called when the output becomes non-empty, and when `failure` is set."""
        self.came_up: Callable[[], None] = lambda: None
        """Set by the shell. Called at each CONNECTED."""
        self.wanted: Callable[[], None] = lambda: None
        """Set by the shell. Called when something waits for the first connection; it calls `give_up` later."""
        self.ask: Callable[[], None] = lambda: None
        """Set by the shell. Called to renew the login: it calls `token`, which may block, then `renew`."""
        self.output: list[bytes] = []
        """Frames to send. The role may append to it, and then calls `changed` if the frame is the first."""
        self.is_up = False
        self.features: frozenset[str] = frozenset()
        self.body_bytes_max = 0
        """The maximum size of a body at the server; 0 if unknown."""
        self.is_closing = False
        """Set by the shell when the client is closed, so that the end of the connection is not reported."""
        self.term = 0
        """The highest term of the servers that it was connected to. Each promotion of a standby increases it."""
        self.ups = 0
        self.failure: ClientError | None = None
        """Why the shell must close this connection; None otherwise."""
        self.last_failure: ClientError | None = None
        """Why the last connection ended or could not be made."""
        self.refused: NotAllowed | None = None
        """The error of a login that the server refused; None after one that it accepted."""
        self.now = 0.0
        """The latest time that was passed in."""
        self.due = 0.0
        """When the shell must call `tick`. The role may set it to an earlier time."""
        self._retry_s = RETRY_S_MIN
        self._reset()

    def _reset(self) -> None:
        self._parser = Parser()
        self._decoder: websocket.Decoder | None = None
        self._key = b""
        self._hello = b""
        self._answer = b""
        self._raw: list[bytes] = []
        self._is_open = False
        self._received_at = 0.0
        self._sent = False
        self._renew_at = 0.0
        self._is_renewing = False

    # ------------------------------------------------------------ what the shell calls

    def address(self) -> Address:
        """Return the address to connect to. It is the next one after each loss."""
        return self._addresses[self._turn % len(self._addresses)]

    @property
    def asks_for_token(self) -> bool:
        """Whether `token` calls the application, so that it may block."""
        return callable(self._token)

    def token(self) -> str | None:
        """Return the token to log in with, which the shell passes to `opened`. Raise what `login.current` raises."""
        return login.current(self._token)

    def opened(self, token: str | None, now: float) -> None:
        """A socket is connected to `address()`: begin to log in."""
        self._reset()
        self.failure = None
        self._received_at = self.now = self.due = now
        self._is_open = True
        address = self.address()
        beats = f"{BEAT_S * 1000},{BEAT_S * 1000}"
        headers = {"accept-version": "1.2", "host": address.host, "heart-beat": beats, "x-features": FEATURES}
        if token and not address.is_websocket:
            headers |= {"login": "", "passcode": token}
        hello = connect(headers)
        if address.is_websocket:
            self._key = websocket.new_key()
            self._raw.append(websocket.request(address.authority, f"{address.path}/stomp", self._key, token))
            self._hello = hello
        else:
            self._raw.append(hello)
        self.changed()

    def receive(self, data: bytes, now: float) -> None:
        """Process received bytes. Raise nothing; if they are invalid, `failure` is set."""
        self._received_at = self.now = now
        if self.failure is not None:
            return
        try:
            self._take(self._payload(data))
        except ClientError as error:
            self._fail(error)
        except (WireError, websocket.BadFrame) as error:
            self._fail(CantConnect(str(error)))

    def take_output(self) -> bytes:
        """Return the bytes to send now, once."""
        if self.is_up:
            self.role.collect()
            if self.output:
                data = self.output[0] if len(self.output) == 1 else b"".join(self.output)
                self.output.clear()
                self._raw.append(data if self._decoder is None else websocket.encode(data))
        if not self._raw:
            return b""
        raw, self._raw = self._raw, []
        self._sent = True
        return raw[0] if len(raw) == 1 else b"".join(raw)

    def tick(self, now: float) -> None:
        """Send heart-beats, close a silent connection, call the role, and renew the login, if due."""
        self.now = now
        if self._is_open:
            if now - self._received_at > SILENT_S_MAX:
                self._fail(CantConnect(f"nothing received from the server for {SILENT_S_MAX} s"))
            elif self.is_up and not self._sent:
                self._raw.append(_LF if self._decoder is None else websocket.encode(_LF))
                self.changed()
            self._sent = False
        self.due = min(now + BEAT_S / 4, self.role.tick(now))
        if self._renew_at and self._renew_at <= now:
            self._renew_at = 0.0
            self.ask()
        elif self._renew_at:
            self.due = min(self.due, self._renew_at)

    def renew(self, token: str | None) -> None:
        """Log in with another token while the connection continues. None means there is none yet: retry soon."""
        if not self.is_up:
            return
        if not token:
            self._renew_in(RENEW_AGAIN_S)
            return
        data = token.encode()
        headers = {"destination": "/session/token", "receipt": _RENEWAL.decode(), "content-length": str(len(data))}
        self._is_renewing = True
        self.write(frame("SEND", headers, data))

    def lost(self, reason: str, now: float) -> float:
        """The connection ended or could not be made. Return after how many seconds to reconnect."""
        failure = self.last_failure = self.failure or CantConnect(f"{self.address()}: {reason}")
        what = "lost the connection to" if self.is_up else "can't connect to"
        report = f"{what} {self.address()}: {self.failure or reason}"
        self.failure = None
        self._is_open = False
        wait = self._wait_after(failure)
        is_raised = isinstance(failure, NotAllowed) and not self.ups  # by everything that waits for the connection
        if not (self.is_closing or is_raised):
            log.warning("%s; next attempt in %.1f s", report, wait)
        if self.is_up:
            self.is_up = False
            self.output.clear()
            self.role.down()
        self._turn += 1
        if isinstance(failure, NotAllowed):
            self.refused = self.refused or failure
            if not self.ups:
                self.role.unreachable(failure)
        return wait

    def not_connected(self, seconds: float) -> CantConnect:
        """Return the error for a first connection that was not made within `seconds`."""
        return CantConnect(f"not connected within {seconds:g} s: {self.last_failure or 'no reply'}")

    def give_up(self, seconds: float) -> None:
        """End everything that waits for the first connection, unless it was made within `seconds`."""
        if not self.ups:
            self.role.unreachable(self.not_connected(seconds))

    # ------------------------------------------------------------ what the role calls

    def want(self) -> None:
        """Something waits for a connection. For the first connection there is a timeout."""
        if self.ups:
            return
        if self.refused is not None:
            self.role.unreachable(self.refused)
        else:
            self.wanted()

    def write(self, frame: bytes) -> None:
        """Add a frame to the output. Call this only while `is_up`."""
        self.output.append(frame)
        if len(self.output) == 1:
            self.changed()

    # ------------------------------------------------------------ inside

    def _wait_after(self, failure: ClientError) -> float:
        wait, self._retry_s = self._retry_s * _chance.uniform(0.5, 1.0), min(RETRY_S_MAX, self._retry_s * 2)
        if isinstance(failure, NotAllowed):
            return wait if self.asks_for_token else REFUSED_RETRY_S
        return max(wait, failure.retry_after or 0) if isinstance(failure, CantConnect) else wait

    def _fail(self, error: ClientError) -> None:
        if self.failure is None:
            self.failure = error
            self.changed()

    def _payload(self, data: bytes) -> bytes:
        """Return the STOMP bytes in received bytes, which are WebSocket frames at a WebSocket address."""
        if self._key:
            self._answer += data
            rest = websocket.response(self._answer, self._key)
            if rest is None:
                return b""
            self._key = b""
            self._decoder = websocket.Decoder()
            self._raw.append(websocket.encode(self._hello))
            self.changed()
            data = rest
        decoder = self._decoder
        if decoder is None:
            return data
        payload = decoder.feed(data)
        if decoder.replies:
            self._raw += decoder.replies
            decoder.replies.clear()
            self.changed()
        return payload

    def _take(self, data: bytes) -> None:
        role = self.role
        deliveries: list[Delivery] = []
        for item in self._parser.feed(data):
            if type(item) is tuple:
                deliveries.append(item)
                continue
            if deliveries:
                role.delivered(deliveries)
                deliveries = []
            if isinstance(item, Receipts):
                self._retry_s = RETRY_S_MIN
                role.receipts(self._others(item.pieces) if self._is_renewing else item.pieces)
            elif isinstance(item, Other):
                self._other(item)
        if deliveries:
            self._retry_s = RETRY_S_MIN
            role.delivered(deliveries)
        if self._decoder is not None and self._decoder.close_reason is not None:
            self._fail(CantConnect(f"the server closed: {self._decoder.close_reason}"))

    def _others(self, pieces: list[bytes]) -> list[bytes]:
        """Process the receipt of a renewal, if there is one; return the other receipts."""
        others = []
        for piece in pieces:
            receipt, _, more = piece.partition(b"\n")
            if receipt != _RENEWAL:
                others.append(piece)
                continue
            self._is_renewing = False
            headers = parse_head(more)
            if "x-error-code" in headers:
                self._renew_in(RENEW_AGAIN_S)
            else:
                self._renew_before(headers)
        return others

    def _renew_before(self, headers: dict[str, str]) -> None:
        """Set the time to renew the login, if it expires and a function can return another token."""
        left_ms = headers.get("x-expires-in", "")
        if left_ms.isdigit() and self.asks_for_token:
            self._renew_in(max(RENEW_S_MIN, int(left_ms) / 1000 * RENEW_AFTER))

    def _renew_in(self, seconds: float) -> None:
        self._renew_at = self.now + seconds
        self.due = min(self.due, self._renew_at)

    def _other(self, other: Other) -> None:
        headers = other.headers
        if other.command == "CONNECTED" and not self.is_up:
            term = int(headers.get("x-term", "0"))
            if 0 < term < self.term:
                raise WireError(f"another server, of term {self.term}, has replaced it, which has term {term}")
            self.term = max(self.term, term)
            self.features = frozenset(headers.get("x-features", "").split(",")) - {""}
            self.body_bytes_max = int(headers.get("x-body-max", "0"))
            self.is_up = True
            self.refused = None
            self.ups += 1
            self._renew_before(headers)
            log.info("connected to %s", self.address())
            self.role.up()
            self.came_up()
        elif other.command == "ERROR":
            error = error_of(
                headers, other.body.decode("utf-8", "replace") or headers.get("message", "no reason given")
            )
            receipt = headers.get("receipt-id")
            if self.is_up:
                self.role.failed(receipt.encode() if receipt is not None else None, error)
                self._fail(CantConnect(f"the server ended the connection: {error}"))
            else:
                retry_after = error.retry_after if isinstance(error, Refused) else None
                self._fail(error if isinstance(error, NotAllowed) else CantConnect(str(error), retry_after))
        else:
            raise WireError(f"the server sent {other.command} out of turn")


def error_of(headers: dict[str, str], text: str) -> ClientError:
    """Return the error of a refusal: an ERROR, or a RECEIPT with `x-error-code`."""
    code = headers.get("x-error-code", "400")
    retry = headers.get("retry-after", "")
    return refusal(int(code) if code.isdigit() else 400, text.strip(), float(retry) if retry.isdigit() else None)
