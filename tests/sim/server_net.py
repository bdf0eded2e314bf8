"""Sockets and an event loop made of memory: the real servers run on them, byte by byte as the test decides.

Only the simulated host's turns make anything happen. A listener is known by its port; `Network.connect` gives the
client's end of a connection, on which every byte moves when `push` and `read` say so.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, cast

from curbstone.gateway.websocket.protocol import WebSocketProtocol
from curbstone.net.tcp import Connection
from tests.kit.simulated import SimHost, SimTimer


class _Call:
    """A call that is due in the next turn."""

    __slots__ = ("args", "context", "fn")

    def __init__(self, fn: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context | None) -> None:
        self.fn: Callable[..., object] | None = fn
        self.args = args
        self.context = context

    def __call__(self) -> None:
        if self.fn is None:
            return
        if self.context is None:
            self.fn(*self.args)
        else:
            self.context.run(self.fn, *self.args)

    def cancel(self) -> None:
        self.fn = None


class SimLoop:
    """What the servers use of an event loop, on a simulated host. What a callback raises ends the turn it is in."""

    def __init__(self, host: SimHost) -> None:
        self.host = host
        self.factories: dict[int, Callable[[], Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def time(self) -> float:
        return self.host.now_ms() / 1000

    def get_debug(self) -> bool:
        return False

    def call_soon(self, fn: Callable[..., object], *args: Any, context: contextvars.Context | None = None) -> Any:
        call = _Call(fn, args, context)
        self.host.soon.append(call)
        return call

    def call_later(
        self, delay: float, fn: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        return self.host.call_later(round(delay * 1000), _Call(fn, args, context))

    def call_at(
        self, when: float, fn: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        return self.call_later(when - self.time(), fn, *args, context=context)

    def _timer_handle_cancelled(self, handle: SimTimer) -> None:
        pass

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=cast(Any, self))

    def create_task(self, coro: Any, **options: Any) -> Any:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=cast(Any, self), **options)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def abandon(self) -> None:
        """The process is gone: end what waits for something that will not come."""
        for task in [task for task in self._tasks if not task.done()]:
            coro = task.get_coro()
            assert coro is not None
            coro.close()
        self._tasks.clear()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tasks that a crash left unfinished are no error; others tell it in the log of their server."""

    async def create_server(self, factory: Any, host: Any = None, port: Any = None, **_options: Any) -> Any:
        self.factories[port] = factory
        return _Listener(self, port)

    def finish(self, coro: Coroutine[Any, Any, Any]) -> None:
        """Start a coroutine and continue until nothing is left to do but wait."""
        self.create_task(coro)
        self.host.settle()


class _Listener:
    """A listening socket."""

    def __init__(self, loop: SimLoop, port: int) -> None:
        self._loop = loop
        self._port = port

    @property
    def sockets(self) -> list[_Listener]:
        return [self]

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    def close(self) -> None:
        self._loop.factories.pop(self._port, None)

    async def wait_closed(self) -> None:
        pass


class SimSocket:
    """Both ends of a connection: the methods of a transport for the server, `send`, `push`, `read`… for the client.

    What the server wrote and the client has not read counts as its unsent output; above `high` bytes the server
    is told that the socket is full, below half of them that it is not.
    """

    def __init__(self, loop: SimLoop, port: int, high: int) -> None:
        self._loop = loop
        self._high = high
        self._to_server = bytearray()
        self._to_client: list[bytes] = []
        self._unread = 0
        self._is_reading = True
        self._is_full = False
        self._closing = False
        self._client_ends = False
        self._eof_given = False
        self._eof_sent = False
        self._lost_due = False
        self.is_lost = False
        """Whether the server has been told that the connection is gone."""
        self.fulls = 0
        self._protocol = loop.factories[port]()
        self._protocol.connection_made(self)

    # --- the server's side: what is used of an asyncio transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self._unread

    def write(self, data: bytes) -> None:
        assert isinstance(data, bytes | bytearray | memoryview)
        if self._closing or self.is_lost or not data:
            return
        assert not self._eof_sent, "a write behind the end of the output"
        self._to_client.append(bytes(data))
        self._unread += len(data)
        if self._unread > self._high and not self._is_full:
            self._is_full = True
            self.fulls += 1
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._eof_sent = True

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True
        if not self._unread:
            self._lose_soon()

    def abort(self) -> None:
        self._closing = True
        self._to_client.clear()
        self._unread = 0
        self._lose_soon()

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True

    def is_reading(self) -> bool:
        return self._is_reading

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def _lose_soon(self, error: Exception | None = None) -> None:
        if not self._lost_due:
            self._lost_due = True
            self._loop.call_soon(self._lose, error)

    def _lose(self, error: Exception | None) -> None:
        if not self.is_lost:
            self.is_lost = self._closing = True
            self._protocol.connection_lost(error)

    # --- the client's side

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes: the client has read all there is."""
        return not self._to_client and (self._eof_sent or self._closing)

    @property
    def serves(self) -> bool:
        """Whether the server still deals with this connection, so that what it handed out there is in hands."""
        if self._closing or self._eof_sent:
            return False
        if isinstance(self._protocol, Connection):
            return not self._protocol.session.ending
        if isinstance(self._protocol, WebSocketProtocol):
            session = self._protocol._session
            return session is not None and not getattr(session, "ending", False)
        return True

    @property
    def unsent(self) -> int:
        """How many bytes of the client are on their way."""
        return len(self._to_server)

    @property
    def unread(self) -> int:
        """How many bytes the client could read."""
        return self._unread

    @property
    def can_push(self) -> bool:
        wants = self._to_server or (self._client_ends and not self._eof_given)
        return bool(wants) and self._is_reading and not self._closing

    def send(self, data: bytes) -> None:
        self._to_server += data

    def end(self) -> None:
        """Send no more; the server sees that behind the last byte."""
        self._client_ends = True

    def die(self) -> None:
        self._to_client.clear()
        self._unread = 0
        self._lose_soon(ConnectionResetError())

    def push(self, most: int) -> None:
        """Let the server read up to `most` bytes."""
        if not self._is_reading or self._closing:
            return
        if self._to_server:
            data = bytes(self._to_server[:most])
            del self._to_server[:most]
            self._protocol.data_received(data)
        if self._client_ends and not self._to_server and not self._eof_given and not self._closing:
            self._eof_given = True
            if not self._protocol.eof_received():
                self.close()

    def read(self, most: int) -> bytes:
        """Return up to `most` bytes of what the server wrote."""
        data = b"".join(self._to_client)
        data, rest = data[:most], data[most:]
        self._to_client = [rest] if rest else []
        self._unread = len(rest)
        if self._is_full and self._unread <= self._high // 2 and not self.is_lost:
            self._is_full = False
            self._protocol.resume_writing()
        if self._closing and not self._unread:
            self._lose_soon()
        elif self._eof_sent and not self._unread and not self._client_ends:
            self.end()  # a client that sees the end closes its own half
        return data
