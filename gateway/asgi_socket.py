"""Connects a WebSocket of an ASGI server, given as its `receive` and `send`, to a session."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from starlette.types import Message, Receive, Send

from curbstone.gateway.websocket.codec import Inbound, messages_in
from curbstone.gateway.websocket.session import Session
from curbstone.net.budget import REFUSED, Account
from curbstone.net.limits import WRITE_BUFFER_BYTES


class AsgiSocket:
    """One WebSocket. Implements `WebSocketPort` and `budget.Holder`; pings and deadlines are the server's."""

    def __init__(self, session: Session, send: Send, message_bytes_max: int, account: Account) -> None:
        """`account` counts the bytes that the connection holds."""
        self._session: Session | None = session
        self._send = send
        self._bytes_max = message_bytes_max
        self._account = account
        self._output: list[bytes] = []
        self._unsent_bytes = 0
        self._unsent_bytes_max = sys.maxsize
        self._before_flush: Callable[[], None] | None = None
        self._has_output = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._end: Message | None = None
        """The close, once the session has asked for it."""
        self._is_full = False
        """Whether the session is held because too much output waits."""
        self._is_paused = False
        """Whether deliveries are paused because its user holds too much."""
        self._is_stopped = False
        """Whether reading is stopped because its user holds too much."""
        self._is_held = False
        self._task: asyncio.Task[None] | None = None

    async def run(self, receive: Receive) -> None:
        """Serve the socket, which has been accepted, until it is closed."""
        assert self._session is not None
        self._task = asyncio.current_task()
        self._session.start(self)
        self._account.set_holder(self)
        both = [asyncio.ensure_future(self._read(receive)), asyncio.ensure_future(self._write())]
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            self._end_session()

    async def _read(self, receive: Receive) -> None:
        while True:
            await self._may_read.wait()
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            data = message["bytes"] if text is None else text.encode()
            if self._session is None:
                continue
            if len(data) > self._bytes_max:
                self._session.too_big()
            else:
                self._session.receive([Inbound(text is not None, data)])

    async def _write(self) -> None:
        while True:
            await self._has_output.wait()
            self._has_output.clear()
            before, self._before_flush = self._before_flush, None
            if before is not None:
                before()
            output, self._output = self._output, []
            try:
                for is_text, data in messages_in(b"".join(output)):
                    payload = {"text": data.decode()} if is_text else {"bytes": data}
                    await self._send({"type": "websocket.send", **payload})
                    self._sent(len(data))
                if not self._output:
                    self._unsent_bytes = 0
                    self._sent(0)
                    if self._end is not None:
                        await self._send(self._end)
                        return
            except OSError:  # the client is gone
                return

    def _sent(self, size: int) -> None:
        self._unsent_bytes = max(self._unsent_bytes - size, 0)
        self._adjust_flow()

    def _adjust_flow(self) -> None:
        """Pause or resume deliveries and reading, depending on what waits."""
        self._account.hold_output(self._unsent_bytes if self._unsent_bytes > WRITE_BUFFER_BYTES else 0)
        is_full = self._unsent_bytes > WRITE_BUFFER_BYTES or (self._is_full and self._unsent_bytes > 0)
        if is_full is not self._is_full:
            self._is_full = is_full
            if self._session is not None and not self._is_paused:
                (self._session.pause if is_full else self._session.resume)()
        may_read = not (self._is_held or self._is_stopped or self._unsent_bytes > self._unsent_bytes_max)
        if may_read is not self._may_read.is_set():
            (self._may_read.set if may_read else self._may_read.clear)()
            if self._session is not None:
                self._session.reading(may_read)

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._account.hold_input(0)
            self._is_held = False
            self._unsent_bytes_max = sys.maxsize
            self._adjust_flow()
            session.closed()

    # ------------------------------------------------------------ what the session calls, see `WebSocketPort`

    def send(self, frames: bytes) -> None:
        """Send encoded frames. After `close`, does nothing."""
        if self._session is not None:
            self._output.append(frames)
            self._unsent_bytes += len(frames)
            self._has_output.set()
            self._adjust_flow()

    def close(self, code: int, reason: str = "") -> None:
        """Close after everything that was sent."""
        if self._session is not None:
            self._end = {"type": "websocket.close", "code": code, "reason": reason}
            self._end_session()
            self._has_output.set()

    def at_flush(self, fn: Callable[[], None], more_bytes: int = 0) -> None:
        """Call `fn` before the output leaves."""
        self._before_flush = fn
        self._has_output.set()

    def limit_unsent(self, bytes_max: int) -> None:
        """Do not read while more than this waits to be sent."""
        self._unsent_bytes_max = bytes_max

    def keeps(self, size: int) -> None:
        """Count the bytes that the session holds of incomplete input."""
        self._account.hold_input(size)

    def pause(self) -> None:
        """Stop reading until `resume`."""
        self._is_held = True
        self._adjust_flow()

    def resume(self) -> None:
        """Continue reading."""
        self._is_held = False
        self._adjust_flow()

    # ------------------------------------------------------------ what the budget calls

    def pause_output(self) -> None:
        """Pause deliveries."""
        self._is_paused = True
        if self._session is not None and self._session.delivers:
            self._session.pause()

    def resume_output(self) -> None:
        """Continue after `pause_output`."""
        self._is_paused = False
        if self._session is not None and not self._is_full:
            self._session.resume()

    def pause_input(self) -> None:
        """Stop reading."""
        self._is_stopped = True
        self._adjust_flow()

    def resume_input(self) -> None:
        """Continue after `pause_input`."""
        self._is_stopped = False
        self._adjust_flow()

    def evict(self) -> None:
        """Refuse the unfinished message, and close."""
        if self._session is not None:
            self._session.refuse(503, REFUSED)

    # ------------------------------------------------------------ the server stops

    def shutdown(self) -> None:
        """Stop the session."""
        if self._session is not None:
            self._session.stop()

    def abort(self) -> None:
        """Close at once."""
        if self._task is not None:
            self._task.cancel()
