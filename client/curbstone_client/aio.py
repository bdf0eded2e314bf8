"""The client for asyncio. `curbstone_client.sync` has the same names for threads."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, TypeVar

from curbstone_client import base, content
from curbstone_client.aio_link import SMALL_BATCH, Connection
from curbstone_client.aio_messages import Confirm, Ended, Message, Messages, until_ended
from curbstone_client.aio_queue import Event, Queue, Transaction
from curbstone_client.aio_worker import Worker, run_until_signal
from curbstone_client.consuming import PREFETCH, Consumer, Subscription
from curbstone_client.errors import ClientError
from curbstone_client.publishing import Publisher
from curbstone_client.worker import Handler

H = TypeVar("H", bound=Handler)


class Client(base.ClientBase[Coroutine[Any, Any, Queue]]):
    """A client of one server, for one event loop.

    Use `async with Client(…) as client`, or call `connect` and `close`.
    """

    _workers: list[Worker]
    _publisher: Publisher[Confirm]
    _consumer: Consumer[Ended]

    def _set_up(self) -> None:
        self._stop = asyncio.Event()
        self._room: asyncio.Future[None] | None = None
        self._replies: dict[str, asyncio.Future[Message]] = {}
        self._replying: Subscription | None = None
        self._out: Connection | None = None
        self._in: Connection | None = None
        self._make_links(Confirm)
        self._links[1].role = self._consumer = Consumer(self._links[1], Message, Ended)

    # ------------------------------------------------------------ life

    async def connect(self) -> None:
        """Connect. Raise CantConnect after `connect_timeout` seconds, or NotAllowed if the login is wrong.

        If the connection is lost later, the client reconnects.
        """
        await self._publishing().wait_up()

    async def close(self, timeout: float = base.CLOSE_TIMEOUT_S) -> None:
        """Stop the workers, wait for outstanding confirms and acks, and end the connections.

        The confirms and acks that are missing after `timeout` seconds end as `Unknown`.
        """
        if self._is_closed:
            return
        self._is_closed = True
        for worker in self._workers:
            worker.stop()
        try:
            async with asyncio.timeout(timeout):
                for worker in self._workers:
                    await worker.drained()
                if self._out is not None:
                    await until_ended(self._flushing())
                for outcome in self._consumer.settled_all():
                    await until_ended(outcome)
        except TimeoutError:
            pass
        self._publisher.close()
        self._consumer.close()
        for connection in (self._out, self._in):
            if connection is not None:
                await connection.close()

    async def __aenter__(self) -> Client:
        try:
            await self.connect()
        except ClientError:
            await self.close(0)  # otherwise the connection's task would continue to connect
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------ queues and events

    def queue(self, name: str) -> Queue:
        """Return the queue of that name, `queue` or `project/queue`. The server creates the queue on first use."""
        return Queue(self, name, self.destination(name))

    def event(self, name: str) -> Event:
        """Return the event of that name.

        A message published to an event is copied to every queue bound to the event and to every subscriber.
        """
        return Event(self, name, self.topic(name))

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call the HTTP interface and return the JSON of the reply. Raise ClientError if the call fails."""
        return await asyncio.to_thread(self._http.call, method, path, body)

    async def flush(self) -> None:
        """Wait until every message sent so far has been confirmed or refused.

        Raise the first refusal that no `Confirm` has raised.
        """
        outcome = self._flushing()
        await until_ended(outcome)
        outcome.check()

    async def settled(self, name: str, poll: float = 0.05) -> None:
        """Wait until the queue has no message that is ready, delivered or delayed. Meant for tests of applications.

        The queue is asked every `poll` seconds.
        """
        while True:
            info = await self.queue(name).info()
            if not info["rdy"] + info["wip"] + info["delayed"]:
                return
            await asyncio.sleep(poll)

    def transaction(self, *messages: Message) -> Transaction:
        """Return a transaction that atomically acks these messages and publishes others.

        Use it as `async with client.transaction(message) as tx: tx.publish(…)`.
        """
        return Transaction(self, messages)

    # ------------------------------------------------------------ workers

    def worker(
        self,
        queue: str,
        *,
        group: str | None = None,
        parallel: int = 1,
        timeout: float | None = None,
        prefetch: int | None = None,
    ) -> Callable[[H], H]:
        """Decorate a handler of a queue's messages; `run` starts it. `aio_worker.Worker` says how deliveries end.

        `group` names a consumer group of the queue. At most `parallel` messages are handled at once. `timeout` is
        in seconds; None means no limit. `prefetch` is how many unsettled messages the client holds, by default twice
        `parallel`.
        """

        def register(handler: H) -> H:
            self._workers.append(Worker(self, queue, handler, group, parallel, timeout, prefetch))
            return handler

        return register

    async def run(self) -> None:
        """Run the workers until SIGTERM, SIGINT or `stop`; then let running handlers finish, and close the client."""
        await self._consuming().wait_up()
        try:
            await run_until_signal(self._workers, self._stop)
        finally:
            await self.close()

    # ------------------------------------------------------------ for the classes beside this one

    async def send(
        self, destination: str, body: content.Body, more: str, type: str | None, seq: int | None, is_keyed: bool
    ) -> Confirm:
        """Send a message without waiting for its confirm. Wait only while the window is full."""
        connection = self._out or self._publishing()
        publisher = self._publisher
        while not publisher.has_room:
            connection.flush()
            await self._room_again()
            self._check_open()
        confirm = publisher.send(publisher.series(destination, is_keyed=is_keyed), body, more, type, seq)
        if not publisher.sent % SMALL_BATCH:
            connection.flush()
            await asyncio.sleep(0)
        return confirm

    def subscribe(
        self, destination: str, prefetch: int, headers: dict[str, str] | None = None, *, acked: bool = True
    ) -> Messages:
        """Subscribe to a destination and return its messages."""
        self._consuming()
        return Messages(self._consumer, self._consumer.subscribe(destination, prefetch, headers, acked=acked))

    async def answer(self, message: Message, result: content.Body) -> None:
        """Send a reply to the sender of a request."""
        await self._consumer.send(*base.answer_headers(message, result))

    async def connected_to_consume(self) -> Consumer[Ended]:
        """Return the consumer, connected."""
        await self._consuming().wait_up()
        return self._consumer

    async def request(self, destination: str, body: content.Body, timeout: float, headers: dict[str, str]) -> Message:
        """Send a message and return its reply. Raise Unknown if there is none within `timeout` seconds."""
        consumer = await self.connected_to_consume()
        if self._replying is None:
            self._replying = consumer.subscribe(base.REPLIES, PREFETCH, acked=False)
            self._replying.on_arrival = self._replied
        correlation = uuid.uuid4().hex
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._replies[correlation] = future
        try:
            async with asyncio.timeout(timeout):
                named, data = base.send_headers(destination, body, headers=headers)
                sent = consumer.send(named | {"reply-to": base.REPLIES, "correlation-id": correlation}, data)
                await sent
                return await future
        except TimeoutError:
            raise base.no_answer(timeout) from None
        finally:
            del self._replies[correlation]

    # ------------------------------------------------------------ inside

    async def _declare(self, name: str, options: Mapping[str, Any]) -> Queue:
        await self.call("PUT", self.queue_path(name), options)
        return self.queue(name)

    def _publishing(self) -> Connection:
        self._check_open()
        if self._out is None:
            self._out = Connection(self._links[0], self.tls_of, self.connect_timeout)
            self._out.start()
        return self._out

    def _consuming(self) -> Connection:
        self._check_open()
        if self._in is None:
            self._in = Connection(self._links[1], self.tls_of, self.connect_timeout)
            self._in.start()
        return self._in

    async def _room_again(self) -> None:
        """Wait until the window has space. All waiting callers share one future."""
        if self._room is None:
            room = self._room = asyncio.get_running_loop().create_future()

            def there_is_room() -> None:
                self._room = None
                if not room.done():
                    room.set_result(None)

            self._publisher.on_room = there_is_room
        await asyncio.shield(self._room)

    def _replied(self) -> None:
        subscription = self._replying
        assert subscription is not None
        subscription.on_arrival = self._replied
        while subscription.inbox:
            message = subscription.inbox.popleft()
            future = self._replies.get(message.raw_headers.get("correlation-id", ""))
            if future is not None and not future.done():
                future.set_result(message)
