"""A client that behaves as the document says the reference client of MQKS does. Written from that document.

It pings at an interval, reconnects when the connection ends, starts its consumers again with new ids and the
words of the last --update, and sends again what was not confirmed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress

OnMessage = Callable[[str, str, int, str], Awaitable[None]]
"""(msg_id, event, retry, data)"""


class Consumer:
    """What a consumer is restarted with."""

    def __init__(self, words: str, on_message: OnMessage) -> None:
        self.words = words
        self.on_message = on_message
        self.old_ids: list[str] = []


class ReferenceClient:
    """See the module's docstring. `address()` is asked anew for each connection."""

    def __init__(self, address: Callable[[], tuple[str, int]], ping_s: float = 15, reconnect_s: float = 1) -> None:
        self._address = address
        self._ping_s = ping_s
        self._reconnect_s = reconnect_s
        self._numbers = itertools.count(1)
        self._unconfirmed: dict[str, tuple[str, asyncio.Future[None]]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._task = asyncio.ensure_future(self._run())
        self.consumers: dict[str, Consumer] = {}
        self.pongs = 0
        self.connections = 0
        self.errors: list[str] = []

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def publish(self, event: str, data: str) -> asyncio.Future[None]:
        """Return what is done when the message is confirmed."""
        return self._confirmed(self._new_id("m"), f"publish --confirm {event} {data}")

    def consume(self, words: str, on_message: OnMessage) -> asyncio.Future[None]:
        consumer_id = self._new_id("c")
        self.consumers[consumer_id] = Consumer(words, on_message)
        return self._send_consume(consumer_id, words)

    def ack(self, consumer_id: str, msg_id: str) -> asyncio.Future[None]:
        return self._confirmed(self._new_id("a"), f"ack --confirm {consumer_id} {msg_id}")

    def _new_id(self, kind: str) -> str:
        return f"{kind}{next(self._numbers)}"

    def _send_consume(self, consumer_id: str, words: str) -> asyncio.Future[None]:
        return self._confirmed(consumer_id, f"consume --confirm {words}")

    def _confirmed(self, request_id: str, rest: str) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unconfirmed[request_id] = (rest, future)
        self._write(f"{request_id} {rest}")
        return future

    def _write(self, line: str) -> None:
        if self._writer is not None:
            self._writer.write(f"{line}\n".encode())

    async def _run(self) -> None:
        while True:
            with suppress(OSError):
                await self._connection()
            await asyncio.sleep(self._reconnect_s)

    async def _connection(self) -> None:
        reader, writer = await asyncio.open_connection(*self._address())
        self._writer = writer
        self.connections += 1
        pinging = asyncio.ensure_future(self._ping())
        try:
            self._restart()
            while line := await reader.readline():
                await self._on_line(line.decode().removesuffix("\n"))
        finally:
            self._writer = None
            pinging.cancel()
            writer.close()

    def _restart(self) -> None:
        """Start the consumers again under new ids, then send again what was not confirmed."""
        old, self.consumers = self.consumers, {}
        waiting, self._unconfirmed = self._unconfirmed, {}
        for old_id, consumer in old.items():
            new_id = self._new_id("c")
            consumer.old_ids.append(old_id)
            self.consumers[new_id] = consumer
            future = self._send_consume(new_id, consumer.words)
            if old_id in waiting:
                _, first = waiting.pop(old_id)
                future.add_done_callback(lambda _, first=first: first.set_result(None))  # type: ignore[misc]
        for request_id, (rest, future) in waiting.items():
            if rest.startswith("ack"):  # the message comes again
                future.set_result(None)
                continue
            self._unconfirmed[request_id] = (rest, future)
            self._write(f"{request_id} {rest}")

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(self._ping_s)
            self._write("ping ping reference-client")

    async def _on_line(self, line: str) -> None:
        request_id, status, data = line.split(" ", 2)
        if status == "error":
            self.errors.append(line)
        elif request_id == "ping":
            self.pongs += 1
        elif not data:
            self._unconfirmed.pop(request_id)[1].set_result(None)
        elif data.startswith("--update "):
            self.consumers[request_id].words = data.removeprefix("--update ")
        elif request_id in self.consumers:
            msg_id, properties, body = data.split(" ", 2)
            values = dict(pair.split("=", 1) for pair in properties.split(","))
            await self.consumers[request_id].on_message(msg_id, values["event"], int(values.get("retry", 0)), body)
