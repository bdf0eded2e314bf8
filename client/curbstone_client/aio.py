"""The client for asyncio. `curbstone_client.sync` has the same names for threads."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any

from curbstone_client import base, content
from curbstone_client.aio_link import SMALL_BATCH, Connection
from curbstone_client.aio_messages import Batches, Ended, Message, Messages, ended, until_ended
from curbstone_client.aio_worker import Handler, Worker, run_until_signal
from curbstone_client.consuming import PREFETCH, Consumer, Subscription
from curbstone_client.errors import ClientError, Closed, NoSuchQueue, Unknown
from curbstone_client.link import Link
from curbstone_client.outcome import Outcome
from curbstone_client.publishing import Confirm as BaseConfirm
from curbstone_client.publishing import Lane, Publisher, Stored


class Confirm(BaseConfirm):
    """One message on its way: `stored = await confirm`."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Stored]:
        if not self.done:
            yield from ended(self)
        return self.stored()


class Client(base.ClientBase):
    """A client of one server, for one event loop. `async with Client(…) as client`, or `connect` and `close`."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        """See `base.ClientBase`. Nothing is connected, and no loop is needed, before first use."""
        super().__init__(*args, **settings)
        self._workers: list[Worker] = []
        self._stop = asyncio.Event()
        self._room: asyncio.Future[None] | None = None
        self._replies: dict[str, asyncio.Future[Message]] = {}
        self._replying: Subscription | None = None
        self._is_closed = False
        self._out: Connection | None = None
        self._in: Connection | None = None
        out_link, in_link = Link(self.addresses, self._token), Link(self.addresses, self._token)
        self._links = [out_link, in_link]
        self._publisher: Publisher[Confirm] = Publisher(
            out_link,
            Confirm,
            producer=self._producer,
            waits_when_full=self._on_full == "wait",
            window=self._window,
            window_bytes=self._window_bytes,
        )
        self._consumer: Consumer[Ended] = Consumer(in_link, Message, Ended)
        out_link.role = self._publisher
        in_link.role = self._consumer

    # ------------------------------------------------------------ life

    async def connect(self) -> None:
        """Connect; raise CantConnect or NotAllowed. Later connections are made by themselves."""
        await self._publishing().wait_up(self.connect_timeout)

    async def close(self, timeout: float = base.CLOSE_TIMEOUT_S) -> None:
        """Wait for the confirms of what was sent and acked, at most `timeout` seconds, and end the connections."""
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
            await self.close(0)  # else its task goes on dialling for nobody
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def stats(self) -> base.Stats:
        """What this client has done so far."""
        return self._stats(self._publisher, self._consumer)

    # ------------------------------------------------------------ queues and events

    def queue(self, name: str) -> Queue:
        """Return the queue of that name, `queue` or `project/queue`; it is made on first use."""
        return Queue(self, name, self.destination(name))

    def event(self, name: str) -> Event:
        """Return the event of that name: what is published has a copy for each queue bound to it and each
        subscriber.
        """
        return Event(self, name, self.topic(name))

    async def declare(self, name: str, **options: Any) -> Queue:
        """Make the queue if it is not there, and set these options of it, such as max_tries and dead_letter."""
        await self.call("PUT", self.queue_path(name), options)
        return self.queue(name)

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """Make a call of the HTTP interface, and return its JSON; raise ClientError."""
        return await asyncio.to_thread(self._http.call, method, path, body)

    async def flush(self) -> None:
        """Wait until all that was sent so far is on disk; raise the first refusal that nobody was told of."""
        outcome = self._flushing()
        await until_ended(outcome)
        outcome.check()

    async def settled(self, name: str, poll: float = 0.05) -> None:
        """Wait until nothing in a queue is ready, in hand or delayed: for tests of applications."""
        while True:
            info = await self.queue(name).info()
            if not info["rdy"] + info["wip"] + info["delayed"]:
                return
            await asyncio.sleep(poll)

    def transaction(self, *messages: Message) -> Transaction:
        """Publish and ack these messages, all or nothing: `async with client.transaction(message) as tx`."""
        return Transaction(self, messages)

    # ------------------------------------------------------------ workers

    def worker(
        self, queue: str, *, parallel: int = 1, timeout: float | None = None, prefetch: int | None = None
    ) -> Callable[[Handler], Handler]:
        """Register a handler of a queue's messages; `run` starts it. See `aio_worker.Worker`."""

        def register(handler: Handler) -> Handler:
            self._workers.append(Worker(self, queue, handler, parallel, timeout, prefetch))
            return handler

        return register

    async def run(self) -> None:
        """Run the workers until SIGTERM, SIGINT or `stop`, finish what is in hand, and close."""
        await self._consuming().wait_up(self.connect_timeout)
        try:
            await run_until_signal(self._workers, self._stop)
        finally:
            await self.close()

    def stop(self) -> None:
        """End `run`."""
        self._stop.set()

    # ------------------------------------------------------------ for the classes beside this one

    async def send(self, lane: Lane, body: content.Body, more: str, type: str | None, seq: int | None) -> Confirm:
        """Send one message; wait only while the window is full."""
        connection = self._out or self._publishing()
        publisher = self._publisher
        while not publisher.has_room:
            connection.flush()
            await self._room_again()
            if self._is_closed:
                raise Closed("the client is closed")
        confirm = publisher.send(lane, body, more, type, seq)
        if not publisher.sent % SMALL_BATCH:
            connection.flush()
            await asyncio.sleep(0)
        return confirm

    def lane(self, destination: str) -> Lane:
        """See `Publisher.lane`."""
        return self._publisher.lane(destination)

    def subscribe(
        self, destination: str, prefetch: int, headers: dict[str, str] | None = None, *, acked: bool = True
    ) -> Messages:
        """Return what comes from a destination."""
        self._consuming()
        return Messages(self._consumer, self._consumer.subscribe(destination, prefetch, headers, acked=acked))

    def end(self, messages: Messages) -> None:
        """End a subscription now."""
        self._consumer.unsubscribe(messages.subscription)

    async def answer(self, message: Message, result: content.Body) -> None:
        """Send an answer to whoever sent the message and waits for it."""
        await self._consumer.send(*base.answer_headers(message, result))

    async def connected_to_consume(self) -> Consumer[Ended]:
        """Return the consumer, connected."""
        await self._consuming().wait_up(self.connect_timeout)
        return self._consumer

    async def request(self, destination: str, body: content.Body, timeout: float, headers: dict[str, str]) -> Message:
        """Send a message and return its answer; raise Unknown if none came in time."""
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

    def _publishing(self) -> Connection:
        if self._is_closed:
            raise Closed("the client is closed")
        if self._out is None:
            self._out = Connection(self._links[0], self.tls_of)
            self._out.start()
        return self._out

    def _consuming(self) -> Connection:
        if self._is_closed:
            raise Closed("the client is closed")
        if self._in is None:
            self._in = Connection(self._links[1], self.tls_of)
            self._in.start()
        return self._in

    def _flushing(self) -> Outcome:
        outcome = Outcome()
        self._publisher.flush(outcome)
        return outcome

    async def _room_again(self) -> None:
        """Wait until the window has room; those who wait share one future."""
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


class _Target:
    """What can be published to."""

    def __init__(self, client: Client, name: str, destination: str) -> None:
        self.client = client
        self.name = name
        self.destination = destination
        self._lane = client.lane(destination)

    def send(
        self,
        body: content.Body,
        *,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | None = None,
        ttl: float | None = None,
        key: str | None = None,
        seq: int | None = None,
    ) -> Awaitable[Confirm]:
        """Send a message, and return its `Confirm` without waiting for it; `await` waits only while the window is full.

        dict and list are JSON, str is text, bytes go as they are. `delay` and `ttl` are seconds. `key`:
        messages of one key are delivered one at a time, in order. `seq`: its number, of a client with a `producer` of
        its own.
        """
        is_plain = not (type or headers or delay) and ttl is None and key is None
        more = "" if is_plain else content.lines(type, headers, delay, ttl, key)
        return self.client.send(self._lane, body, more, type, seq)

    async def publish(
        self,
        body: content.Body,
        *,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | None = None,
        ttl: float | None = None,
        key: str | None = None,
        seq: int | None = None,
        timeout: float | None = None,
    ) -> Stored:
        """Publish a message; it is on disk when this returns. Raise Refused, or Unknown after `timeout` seconds."""
        confirm = await self.send(body, type=type, headers=headers, delay=delay, ttl=ttl, key=key, seq=seq)
        if timeout is None:
            return await confirm
        try:
            async with asyncio.timeout(timeout):
                return await confirm
        except TimeoutError:
            raise Unknown(f"no confirm within {timeout:g} s; it may come yet") from None


class Queue(_Target):
    """A queue of one client."""

    def consume(self, prefetch: int = PREFETCH, *, group: str | None = None) -> Messages:
        """Return what comes: `async for message in queue.consume(): async with message: …`."""
        headers = {"x-ks-group": group} if group else {}
        return self.client.subscribe(self.destination, prefetch, headers)

    def batches(self, size: int, wait: float = 1.0, *, group: str | None = None) -> Batches:
        """Return what comes, as lists of at most `size`; a smaller one after `wait` seconds."""
        return Batches(self.consume(2 * size, group=group), size, wait)

    async def request(
        self, body: content.Body, *, timeout: float = 30, headers: Mapping[str, str] | None = None
    ) -> Message:
        """Send a message and return the answer: what the handler of a worker returned."""
        return await self.client.request(self.destination, body, timeout, dict(headers or {}))

    async def last_seq(self) -> int | None:
        """Return the last `seq` of this client's producer that is stored in the queue; None where it knows of none."""
        try:
            found = await self.client.call("GET", self.client.producer_path(self.name))
        except NoSuchQueue:  # or it knows no such producer
            return None
        return int(found["seq"])

    async def info(self) -> dict[str, Any]:
        """Return what the queue holds, and its options."""
        found: dict[str, Any] = await self._call("GET")
        return found

    async def pause(self, *, deliver: bool = True, publish: bool = False) -> dict[str, Any]:
        """Deliver nothing until `resume`, and with `publish` take nothing in; return what is so now."""
        paused: dict[str, Any] = await self._call("POST", "/pause", {"deliver": deliver, "publish": publish})
        return paused

    async def resume(self) -> dict[str, Any]:
        """End what `pause` began; return what is so now."""
        paused: dict[str, Any] = await self._call("POST", "/resume")
        return paused

    async def undo(self, **wishes: Any) -> dict[str, Any]:
        """Let come back what was acked, popped or purged and is in the log (`limit`, `within`, `id`, `group`)."""
        undone: dict[str, Any] = await self._call("POST", "/undo", wishes)
        return undone

    async def purge(self, *, keep: bool = False) -> dict[str, Any]:
        """Remove what is not in hand, and erase it unless it is to `keep` for an undo; return how much that was."""
        purged: dict[str, Any] = await self._call("POST", "/purge", {"keep": keep})
        return purged

    async def redrive(self, **wishes: Any) -> dict[str, Any]:
        """Send dead letters back to where they came from; see the HTTP interface for `to` and `limit`."""
        moved: dict[str, Any] = await self._call("POST", "/redrive", wishes)
        return moved

    async def delete(self) -> None:
        """Delete the queue and all it holds."""
        await self._call("DELETE")

    async def _call(self, method: str, more: str = "", body: Any = None) -> Any:
        return await self.client.call(method, self.client.queue_path(self.name, more), body)


class Event(_Target):
    """An event of one client."""

    def subscribe(self, prefetch: int = PREFETCH) -> Messages:
        """Return what is published from now on; what is published while there is no connection is missed."""
        return self.client.subscribe(self.destination, prefetch, acked=False)


class Transaction(base.Sends):
    """Sends and acks that happen together or not at all."""

    def __init__(self, client: Client, messages: Sequence[Message]) -> None:
        super().__init__(client.destination)
        self._client = client
        self._messages = messages

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, on disk when this returns; if the block raised nothing happens, and the messages go back."""
        if error is None:
            try:
                consumer = await self._client.connected_to_consume()
                await consumer.commit(self.sends, self._messages)
                return
            except ClientError as refused:
                self._give_back(refused)
                raise
        self._give_back(error)

    def _give_back(self, error: BaseException) -> None:
        for message in self._messages:
            if not message.is_stale:
                message.give_back(error)
