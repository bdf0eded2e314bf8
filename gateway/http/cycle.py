"""One request and its answer, as uvicorn's cycle with two things more: an early answer, and pauses that are kept."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Flow(FlowControl):
    """Reading goes on only where nothing that was read waits for its turn."""

    is_full = False

    def hold(self) -> None:
        """Read no more until `release`, whoever asks for it meanwhile."""
        self.is_full = True
        self.pause_reading()

    def release(self) -> None:
        """Reading may go on."""
        self.is_full = False

    def resume_reading(self) -> None:
        """Read on, unless it is held."""
        if not self.is_full:
            super().resume_reading()


class Outlet:
    """What a cycle sees of the transport. Closing is the connection's: there may be something unread."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, transport: Any, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class Cycle(RequestResponseCycle):
    """One request and its answer."""

    before_early_answer: Callable[[Cycle], None]
    """Called when an answer begins before the request's body is whole; it may end the keeping alive."""

    def send(self, message: Any) -> Coroutine[Any, Any, None]:
        """See ASGI."""
        if self.more_body and not self.response_started:
            self.before_early_answer(self)
        return super().send(message)
