"""Settles leases, and deliveries of other connections, that the client of a WebSocket names.

`{"ackId"}`, `{"nackId"}` and `{"rejectId"}` can name these (`access.ack_ids`); the other commands can't.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson

from curbstone.core.errors import CurbstoneError
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.websocket.codec import text_frame
from curbstone.gateway.websocket.subscription import UNKNOWN_ID, ending_of, stale_frame

if TYPE_CHECKING:
    from curbstone.core.traffic import Traffic
    from curbstone.gateway.websocket.login import SocketLogin
    from curbstone.net.websocket_port import WebSocketPort

_NAMES = ("ackId", "nackId", "rejectId")

Failed = Callable[[CurbstoneError | Problem, dict[str, Any]], None]


class ForeignAcks:
    """Settles for one socket; see the module's docstring."""

    def __init__(self, login: SocketLogin, traffic: Traffic, *, confirms: bool) -> None:
        """`confirms`: whether settling is answered."""
        self._login = login
        self._traffic = traffic
        self._confirms = confirms

    def settle(self, wire: WebSocketPort, command: dict[str, Any], failed: Failed, own: str = "") -> bool:
        """Settle the delivery or lease that a command names; return False if it names none.

        An id that begins with `own` was delivered to this socket. `failed(why, command)` is called if the command
        fails. Raise BadRequest or NotAllowed.
        """
        ack_id = next((command[name] for name in _NAMES if isinstance(command.get(name), str)), "")
        if not ack_id or (own and ack_id.startswith(own)):
            return False
        queue = self._login.holding(ack_id)
        if queue is None:
            return False
        ending = ending_of(command)

        def done(error: CurbstoneError | None, settled: int, stale: list[str]) -> None:
            self._traffic.settle(ending.outcome, settled)
            if error is not None:
                failed(error, command)
            elif self._confirms:
                wire.send(stale_frame(stale) if stale else text_frame(orjson.dumps({"settled": [ack_id]})))
            elif stale:
                failed(UNKNOWN_ID, command)

        self._login.access.settle_leases(
            queue, [ack_id], ending.outcome, done, delay_ms=ending.delay_ms, error=ending.error
        )
        return True
