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
    """The confirm of one message that was sent: `stored = await confirm` returns once the message is on disk."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Stored]:
        if not self.done:
            yield from ended(self)
        return self.stored()


class Client(base.ClientBase):
    """A client of one server, for one event loop.

    Use `async with Client(…) as client`, or call `connect` and `close`.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        """Take the settings of `base.ClientBase`. No connection is made, and no loop is needed, before first use."""
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
        """Connect. Raise CantConnect after `connect_timeout` seconds, or NotAllowed if the login is wrong.

        If the connection is lost later, the client connects again by itself.
        """
        await self._publishing().wait_up(self.connect_timeout)

    async def close(self, timeout: float = base.CLOSE_TIMEOUT_S) -> None:
        """Stop the workers, wait for outstanding confirms and acks, and end the connections.

        The confirms and acks that have not come after `timeout` seconds end as `Unknown`.
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
            await self.close(0)  # otherwise the connection's task would go on dialling
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def stats(self) -> base.Stats:
        """Counts of what this client has done so far."""
        return self._stats(self._publisher, self._consumer)

    # ------------------------------------------------------------ queues and events

    def queue(self, name: str) -> Queue:
        """Return the queue of that name, `queue` or `project/queue`. The server creates the queue on first use."""
        return Queue(self, name, self.destination(name))

    def event(self, name: str) -> Event:
        """Return the event of that name.

        A message published to an event is copied to every queue bound to the event and to every subscriber.
        """
        return Event(self, name, self.topic(name))

    async def declare(self, name: str, **options: Any) -> Queue:
        """Create the queue if it does not exist, and set these options, such as `max_tries` and `dead_letter`."""
        await self.call("PUT", self.queue_path(name), options)
        return self.queue(name)

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call the HTTP interface and return the JSON of the reply. Raise ClientError if the call fails."""
        return await asyncio.to_thread(self._http.call, method, path, body)

    async def flush(self) -> None:
        """Wait until every message sent so far has been confirmed or refused.

        Raise the first refusal that nobody has seen through its `Confirm`.
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
        """Return a transaction that acks these messages and publishes others, all or nothing.

        Use it as `async with client.transaction(message) as tx: tx.publish(…)`.
        """
        return Transaction(self, messages)

    # ------------------------------------------------------------ workers

    def worker(
        self, queue: str, *, parallel: int = 1, timeout: float | None = None, prefetch: int | None = None
    ) -> Callable[[Handler], Handler]:
        """Decorate a handler of a queue's messages; `run` starts it. `aio_worker.Worker` says how deliveries end.

        At most `parallel` messages are handled at once. `timeout` is in seconds; None means no limit. `prefetch` is how
        many unsettled messages the client holds, by default twice `parallel`.
        """

        def register(handler: Handler) -> Handler:
            self._workers.append(Worker(self, queue, handler, parallel, timeout, prefetch))
            return handler

        return register

    async def run(self) -> None:
        """Run the workers until SIGTERM, SIGINT or `stop`; then let running handlers finish, and close the client."""
        await self._consuming().wait_up(self.connect_timeout)
        try:
            await run_until_signal(self._workers, self._stop)
        finally:
            await self.close()

    def stop(self) -> None:
        """Make `run` return. Call this in the event loop."""
        self._stop.set()

    # ------------------------------------------------------------ for the classes beside this one

    async def send(self, lane: Lane, body: content.Body, more: str, type: str | None, seq: int | None) -> Confirm:
        """Send one message, without waiting for its confirm. Wait only while the window is full."""
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
        """Subscribe to a destination and return its messages."""
        self._consuming()
        return Messages(self._consumer, self._consumer.subscribe(destination, prefetch, headers, acked=acked))

    def end(self, messages: Messages) -> None:
        """End a subscription now."""
        self._consumer.unsubscribe(messages.subscription)

    async def answer(self, message: Message, result: content.Body) -> None:
        """Send an answer to the sender of a request."""
        await self._consumer.send(*base.answer_headers(message, result))

    async def connected_to_consume(self) -> Consumer[Ended]:
        """Return the consumer, connected."""
        await self._consuming().wait_up(self.connect_timeout)
        return self._consumer

    async def request(self, destination: str, body: content.Body, timeout: float, headers: dict[str, str]) -> Message:
        """Send a message and return its answer. Raise Unknown if none came within `timeout` seconds."""
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
        """Wait until the window has room. All callers that wait share one future."""
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
    """A queue or an event: something that messages can be published to."""

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
        """Send a message and return its `Confirm`, without waiting for the confirm itself.

        Awaiting `send` waits only while the window is full. A str is sent as text, bytes as they are, and everything
        else as JSON; `type` replaces the content type that follows from this. `delay` and `ttl` are in seconds.
        Messages with the same `key` are delivered one at a time, in order. `seq` is the message's number; a client with
        a `producer` gives one to each message for a queue, in ascending order.
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
        """Publish a message; it is on disk when this returns. The parameters are those of `send`.

        Raise Refused if the server refuses the message. Raise Unknown if no confirm came within `timeout` seconds: the
        message may still be stored.
        """
        confirm = await self.send(body, type=type, headers=headers, delay=delay, ttl=ttl, key=key, seq=seq)
        if timeout is None:
            return await confirm
        try:
            async with asyncio.timeout(timeout):
                return await confirm
        except TimeoutError:
            raise Unknown(f"no confirm within {timeout:g} s; it may come yet") from None


class Queue(_Target):
    """A queue, as one client uses it."""

    def consume(self, prefetch: int = PREFETCH, *, group: str | None = None) -> Messages:
        """Subscribe to the queue and return its messages.

        Use it as `async for message in queue.consume(): async with message: …`. `prefetch` is how many deliveries may
        be unsettled at once. `group` names an independent reader of the queue.
        """
        headers = {"x-ks-group": group} if group else {}
        return self.client.subscribe(self.destination, prefetch, headers)

    def batches(self, size: int, wait: float = 1.0, *, group: str | None = None) -> Batches:
        """Subscribe to the queue and return its messages in batches of at most `size`.

        A batch is smaller if `wait` seconds have passed since its first message came.
        """
        return Batches(self.consume(2 * size, group=group), size, wait)

    async def request(
        self, body: content.Body, *, timeout: float = 30, headers: Mapping[str, str] | None = None
    ) -> Message:
        """Send a message and return the answer, which is the value that a worker's handler returned.

        Raise Unknown if no answer came within `timeout` seconds.
        """
        return await self.client.request(self.destination, body, timeout, dict(headers or {}))

    async def last_seq(self) -> int | None:
        """Return the last `seq` of this client's producer that the queue has stored, or None if it has stored none."""
        try:
            found = await self.client.call("GET", self.client.producer_path(self.name))
        except NoSuchQueue:  # 404 says that either the queue or the producer is unknown
            return None
        return int(found["seq"])

    async def info(self) -> dict[str, Any]:
        """Return the counts of the queue's messages, and its options, as the HTTP interface has them."""
        found: dict[str, Any] = await self._call("GET")
        return found

    async def pause(self, *, deliver: bool = True, publish: bool = False) -> dict[str, Any]:
        """Pause the queue until `resume`: deliver nothing, and with `publish=True` refuse new messages.

        Return what is paused now.
        """
        paused: dict[str, Any] = await self._call("POST", "/pause", {"deliver": deliver, "publish": publish})
        return paused

    async def resume(self) -> dict[str, Any]:
        """End what `pause` began, and return what is paused now."""
        paused: dict[str, Any] = await self._call("POST", "/resume")
        return paused

    async def undo(self, **wishes: Any) -> dict[str, Any]:
        """Bring back messages that were acked, popped or purged, if the queue's log still has them.

        `wishes` are the fields of the HTTP call: `limit`, `within` (seconds), `id` and `group`.
        """
        undone: dict[str, Any] = await self._call("POST", "/undo", wishes)
        return undone

    async def purge(self, *, keep: bool = False) -> dict[str, Any]:
        """Drop all messages that are ready or delayed, and return how many those were.

        The messages are erased from the disk, unless `keep=True` keeps them for `undo`.
        """
        purged: dict[str, Any] = await self._call("POST", "/purge", {"keep": keep})
        return purged

    async def redrive(self, **wishes: Any) -> dict[str, Any]:
        """Move dead letters back to the queues they came from.

        `wishes` are the fields of the HTTP call, such as `to` and `limit`.
        """
        moved: dict[str, Any] = await self._call("POST", "/redrive", wishes)
        return moved

    async def delete(self) -> None:
        """Delete the queue and all it holds."""
        await self._call("DELETE")

    async def _call(self, method: str, more: str = "", body: Any = None) -> Any:
        return await self.client.call(method, self.client.queue_path(self.name, more), body)


class Event(_Target):
    """An event, as one client uses it."""

    def subscribe(self, prefetch: int = PREFETCH) -> Messages:
        """Return the messages that are published from now on. Those published during a lost connection are missed."""
        return self.client.subscribe(self.destination, prefetch, acked=False)


class Transaction(base.Sends):
    """Messages to publish and messages to ack, all or nothing. They are committed at the end of the `with` block."""

    def __init__(self, client: Client, messages: Sequence[Message]) -> None:
        super().__init__(client.destination)
        self._client = client
        self._messages = messages

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit; all of it is on disk when this returns.

        If the block raised or the commit failed, nothing is committed and the messages are given back.
        """
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
