"""The socket of a link, with asyncio: connects, reads, writes, and reconnects."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from curbstone_client.address import Address
from curbstone_client.link import Link

_DIAL_S_MAX = 5.0
SMALL_BATCH = 256
"""After so many frames the output is sent at once, so that the server can process it while the producer continues."""


class Connection(asyncio.Protocol):
    """The successive connections of one link. Nothing is connected before `start` creates the task."""

    def __init__(self, link: Link, tls: Callable[[Address], ssl.SSLContext | None], connect_timeout: float) -> None:
        self._link = link
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._giving_up: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[str] | None = None
        self._token: str | None = None
        self._flush_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._news = asyncio.Event()
        link.changed = self._changed
        link.came_up = self._news.set
        link.wanted = self._wanted
        link.ask = self._ask
        self._asking: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ what the client calls

    def start(self) -> None:
        """Start to connect, and reconnect after each loss, until `close`."""
        if self._task is None:
            self._task = self._loop.create_task(self._run())

    async def wait_up(self) -> None:
        """Wait until the link is connected.

        Raise CantConnect after `connect_timeout` seconds, or NotAllowed as soon as the server has refused the login.
        """
        self.start()
        try:
            async with asyncio.timeout(self._connect_timeout):
                while not self._link.is_up:
                    if self._link.refused is not None:
                        raise self._link.refused
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise self._link.not_connected(self._connect_timeout) from None

    def flush(self) -> None:
        """Send the buffered output now."""
        self._flush()

    async def close(self) -> None:
        """Send the output, then close the connection."""
        if self._task is None:
            return
        self._flush()
        if self._giving_up is not None:
            self._giving_up.cancel()
        if self._asking is not None:
            self._asking.cancel()
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._ended = ended = self._loop.create_future()  # the old one was cancelled together with the task
            self._transport.close()
            await asyncio.wait([ended], timeout=1)
        self._task = None

    # ------------------------------------------------------------ what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from this class
        self._link.opened(self._token, self._loop.time())
        self._tick()

    def data_received(self, data: bytes) -> None:
        self._link.receive(data, self._loop.time())
        if self._link.due < self._timer_at:
            self._arm()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(str(error) if error else "the server closed the connection")

    # ------------------------------------------------------------ inside

    def _wanted(self) -> None:
        if self._giving_up is None:
            self._giving_up = self._loop.call_later(self._connect_timeout, self._give_up)

    def _give_up(self) -> None:
        self._giving_up = None
        self._link.give_up(self._connect_timeout)

    def _ask(self) -> None:
        self._asking = self._loop.create_task(self._renew())

    async def _renew(self) -> None:
        """Get another token in a thread, so that the connection continues in the meantime."""
        try:
            token = await asyncio.to_thread(self._link.token)
        except Exception:
            token = None  # the application's function failed; it is called again while the old login lasts
        self._link.renew(token)
        self._arm()

    async def _run(self) -> None:
        link = self._link
        while True:
            reason = await self._connect()
            wait_s = link.lost(reason, self._loop.time())
            self._news.set()
            await asyncio.sleep(wait_s)

    async def _connect(self) -> str:
        """Connect, and wait until the connection ends. Return why it ended or could not be made."""
        self._ended = self._loop.create_future()
        try:
            address = self._link.address()
            self._token = await asyncio.to_thread(self._link.token) if self._link.asks_for_token else self._link.token()
            async with asyncio.timeout(_DIAL_S_MAX):
                await self._loop.create_connection(lambda: self, address.host, address.port, ssl=self._tls(address))
        except (OSError, TimeoutError) as error:
            return str(error) or type(error).__name__
        except Exception as error:
            # An exception of the application's token function must not end the task that connects.
            return f"no token: {type(error).__name__}: {error}"
        return await self._ended

    def _changed(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_later)

    def _flush_later(self) -> None:
        self._flush_due = False
        self._flush()

    def _flush(self) -> None:
        transport = self._transport
        if transport is None:
            return
        if data := self._link.take_output():
            transport.write(data)
        if self._link.failure is not None:
            transport.close()
            self._loop.call_later(1, transport.abort)

    def _tick(self) -> None:
        if self._transport is None:
            return
        self._link.tick(self._loop.time())
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._link.due
        self._timer = self._loop.call_at(self._timer_at, self._tick)
