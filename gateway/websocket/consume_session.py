"""A WebSocket that consumes from one queue (subprotocol `consume`).

Each message is sent as a metadata frame and a binary payload frame, or with `encoding` as one JSON frame. With `ack`
the client settles: `{"ackId"}`, `{"ackToId"}`, `{"nackId"}`, `{"rejectId"}`. An empty frame ends the deliveries, and
`{"token"}` logs in again.

With `confirm=json` settling is answered: by `{"settled": [ids]}` when it is on disk, or by `{"stale": [ids]}` if a
delivery has ended; and `{"window"}` changes how many deliveries may be unsettled. With `lease=seconds` in addition, a
delivery ends after that time, which is reported as `stale`; `{"extendId", "seconds"}` prolongs it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from curbstone.core.errors import BadRequest, CurbstoneError, StaleDelivery
from curbstone.gateway.formats.parameters import whole_number
from curbstone.gateway.http.json_body import check_members
from curbstone.gateway.http.problem import Problem, reason_of, status_of
from curbstone.gateway.limits import WINDOW_MAX
from curbstone.gateway.websocket.codec import Inbound
from curbstone.gateway.websocket.foreign_acks import ForeignAcks
from curbstone.gateway.websocket.login import token_in
from curbstone.gateway.websocket.session import close_for, error_frame
from curbstone.gateway.websocket.subscription import ID, UNKNOWN_ID, Subscription, command_of
from curbstone.net.websocket_port import GOING_AWAY, WebSocketPort

if TYPE_CHECKING:
    from curbstone.gateway.websocket.login import SocketLogin

_PLAIN_ACK = re.compile(rf'\{{"ackId": ?"{ID}"\}}'.encode())
"""The form of nearly all commands. They are handled without a JSON parser, because that is faster."""


class ConsumeSession:
    """A socket that is one subscription and ends with it; see the module's docstring. Implements `session.Session`."""

    subprotocol = "consume"
    delivers = True

    def __init__(self, subscription: Subscription, login: SocketLogin) -> None:
        self._subscription = subscription
        self._login = login
        self._has_plain_acks = subscription.settles and not subscription.confirms
        self._foreign_acks = ForeignAcks(login, subscription.traffic, confirms=subscription.confirms)

    @property
    def expires_ms(self) -> int:
        return self._login.access.identity.expires_ms

    def start(self, wire: WebSocketPort) -> None:
        """Subscribe; deliveries begin."""
        self._wire = wire
        self._login.begin(self._fail, lambda: self._subscription.unsettled)
        self._subscription.start(wire, self._fail, self._login)

    def pause(self) -> None:
        if not self._subscription.is_closed:
            self._subscription.hold()

    def resume(self) -> None:
        if not self._subscription.is_closed:
            self._subscription.resume()

    def receive(self, messages: list[Inbound]) -> None:
        """Carry out the client's commands. The acks of one read go to the engine together."""
        subscription = self._subscription
        try:
            for is_text, data in messages:
                if subscription.is_closed:
                    return
                plain = _PLAIN_ACK.fullmatch(data) if self._has_plain_acks and is_text else None
                if plain and plain[1] == subscription.name_bytes:
                    subscription.ack(int(plain[2]))
                else:
                    self._take(is_text, data)
            subscription.flush()
        except (CurbstoneError, Problem) as error:
            subscription.flush()
            self._fail(error)

    def _take(self, is_text: bool, data: bytes) -> None:
        subscription = self._subscription
        if not data:
            subscription.pause()
            return
        command = command_of(is_text, data)
        if token := token_in(command):
            self._login.renew(token, self._wire)
        elif not subscription.settles:
            raise BadRequest("Acks can only be sent on connections without immediate acks.")
        elif subscription.confirms and "window" in command:
            check_members(command, ("window",), "a window")
            subscription.resize(whole_number("window", command["window"], 1, WINDOW_MAX))
        elif not self._foreign_acks.settle(self._wire, command, self._not_settled, subscription.name):
            subscription.carry_out(command)

    # ------------------------------------------------------------ the end

    def _not_settled(self, error: CurbstoneError | Problem, _command: object) -> None:
        self._fail(error)

    def _fail(self, error: CurbstoneError | Problem) -> None:
        """Send the client the error and close; unsettled deliveries are requeued."""
        if self._subscription.is_closed:
            return
        self._subscription.traffic.refuse(error, reason_of(error))
        if isinstance(error, StaleDelivery):
            error = UNKNOWN_ID
        self._wire.send(error_frame(status_of(error), str(error)))
        close_for(self._wire, status_of(error), str(error))

    def too_big(self) -> None:
        self._fail(Problem(413, "the message is too large for a command"))

    def refuse(self, status: int, reason: str) -> None:
        self._fail(Problem(status, reason))

    def reading(self, on: bool) -> None:
        """See `Session.reading`: nothing here has a deadline."""

    def stop(self) -> None:
        """See `Session.stop`. The engine has all earlier acks."""
        self._wire.close(GOING_AWAY, "the server is stopping")

    def closed(self) -> None:
        self._login.leave()
        self._subscription.close()
