"""The event loop services that pika needs, based on asyncio's own transports.

pika's own implementation reads only 4 KiB with each call; asyncio's transports read much more.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

from pika.adapters.utils import nbio_interface

from curbstone.rabbit.amqp.socket_filter import SocketFilter


class _Timer(nbio_interface.AbstractTimerReference):  # type: ignore[misc]
    def __init__(self, handle: asyncio.TimerHandle) -> None:
        self._handle = handle

    def cancel(self) -> None:
        self._handle.cancel()


class _Task(nbio_interface.AbstractIOReference):  # type: ignore[misc]
    """A task under way. `on_done` gets its result or exception, unless it is cancelled before."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], on_done: Callable[[Any], None]
    ) -> None:
        self._task = loop.create_task(work)
        self._on_done = on_done
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            self._on_done(task.exception() or task.result())

    def cancel(self) -> bool:
        return self._task.cancel()


class IoServices(nbio_interface.AbstractIOServices):  # type: ignore[misc]
    """The services for one connection. Once it is established, its bytes pass through `socket_filter`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.socket_filter: SocketFilter

    def get_native_ioloop(self) -> asyncio.AbstractEventLoop:
        """Return the loop."""
        return self._loop

    def run(self) -> None:
        """Refuse. Only pika's own tests call this, `stop` and `close`, to run their own loop."""
        raise RuntimeError("a connection must not run, stop or close the server's event loop")

    stop = close = run

    def add_callback_threadsafe(self, callback: Callable[..., None]) -> None:
        self._loop.call_soon_threadsafe(callback)

    def call_later(self, delay: float, callback: Callable[..., None]) -> _Timer:
        return _Timer(self._loop.call_later(delay, callback))

    def getaddrinfo(
        self,
        host: str,
        port: int,
        on_done: Callable[..., None],
        family: int = 0,
        socktype: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> _Task:
        found = self._loop.getaddrinfo(host, port, family=family, type=socktype, proto=proto, flags=flags)
        return _Task(self._loop, found, on_done)

    def connect_socket(
        self, sock: socket.socket, resolved_addr: tuple[str, int], on_done: Callable[[BaseException | None], None]
    ) -> _Task:
        return _Task(self._loop, self._loop.sock_connect(sock, resolved_addr), on_done)

    def create_streaming_connection(
        self,
        protocol_factory: Callable[[], Any],
        sock: socket.socket,
        on_done: Callable[[Any], None],
        ssl_context: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> _Task:
        async def connect() -> tuple[SocketFilter, Any]:
            self.socket_filter = SocketFilter(self._loop.call_soon, protocol_factory())
            name = server_hostname if ssl_context is not None else None
            await self._loop.create_connection(
                lambda: self.socket_filter, sock=sock, ssl=ssl_context, server_hostname=name
            )
            return self.socket_filter, self.socket_filter.get_protocol()

        return _Task(self._loop, connect(), on_done)
