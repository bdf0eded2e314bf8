"""The client for threads: no event loop. The same names as `curbstone_client`, without `await`.

Threads may share a client. After a fork the child's client has connections of its own. gevent and eventlet work, for
nothing here but sockets, locks and threads of the standard library is used.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from curbstone_client import base, content
from curbstone_client.consuming import PREFETCH, Consumer, Subscription
from curbstone_client.errors import (
    CantConnect,
    ClientError,
    Closed,
    NoSuchQueue,
    NotAllowed,
    NotSupported,
    QueueFull,
    Refused,
    Reject,
    Retry,
    Stale,
    TooLarge,
    Unknown,
)
from curbstone_client.link import Link
from curbstone_client.outcome import Outcome
from curbstone_client.publishing import Confirm as BaseConfirm
from curbstone_client.publishing import Publisher, Stored
from curbstone_client.sync_link import Connection
from curbstone_client.sync_messages import Batch, Batches, Ended, Message, Messages, wait_for
from curbstone_client.sync_worker import Handler, Worker, run_until_signal

__all__ = [
    "Batch",
    "Batches",
    "CantConnect",
    "Client",
    "ClientError",
    "Closed",
    "Confirm",
    "Ended",
    "Event",
    "Message",
    "Messages",
    "NoSuchQueue",
    "NotAllowed",
    "NotSupported",
    "Queue",
    "QueueFull",
    "Refused",
    "Reject",
    "Retry",
    "Stale",
    "Stored",
    "TooLarge",
    "Transaction",
    "Unknown",
]


class Confirm(BaseConfirm):
    """One message on its way."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> Stored:
        """Wait until it is on disk; raise what it was refused for, or Unknown after `timeout` seconds."""
        if not self.done:
            client = self.lane.owner
            assert isinstance(client, Client)
            if not wait_for(self, client.lock, timeout):
                raise Unknown(f"no confirm within {timeout:g} s; it may come yet")
        return self.stored()


class Client(base.ClientBase):
    """A client of one server. `with Client(…) as client`, or `connect` and `close`."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        """See `base.ClientBase`. Nothing is connected and no thread is made before first use."""
        super().__init__(*args, **settings)
        self._workers: list[Worker] = []
        self._set_up()
        _clients.add(self)

    def _set_up(self) -> None:
        """Begin: at first, and after a fork in the child."""
        self.lock = threading.RLock()
        self._room = threading.Condition(self.lock)
        self._replied = threading.Condition(self.lock)
        self._replies: dict[str, Message | None] = {}
        self._replying: Subscription | None = None
        self._stop = threading.Event()
        self._is_closed = False
        self._out: Connection | None = None
        self._in: Connection | None = None
        out_link, in_link = Link(self.addresses, self._token), Link(self.addresses, self._token)
        self._links = [out_link, in_link]
        self._publisher: Publisher[Confirm] = Publisher(
            out_link,
            Confirm,
            owner=self,
            producer=self._producer,
            waits_when_full=self._on_full == "wait",
            window=self._window,
            window_bytes=self._window_bytes,
        )
        self._consumer: Consumer[Ended] = Consumer(in_link, Message, self._new_ended, owner=self)
        out_link.role = self._publisher
        in_link.role = self._consumer

    # ------------------------------------------------------------ life

    def connect(self) -> None:
        """Connect; raise CantConnect or NotAllowed. Later connections are made by themselves."""
        self._publishing().wait_up(self.connect_timeout)

    def close(self, timeout: float = base.CLOSE_TIMEOUT_S) -> None:
        """Wait for the confirms of what was sent and acked, at most `timeout` seconds, and end the connections."""
        with self.lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._room.notify_all()
        deadline = time.monotonic() + timeout
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            worker.drained()
        with self.lock:
            waiting = [self._flushing(), *self._consumer.settled_all()] if self._out else self._consumer.settled_all()
        for outcome in waiting:
            wait_for(outcome, self.lock, deadline - time.monotonic())
        with self.lock:
            self._publisher.close()
            self._consumer.close()
        for connection in (self._out, self._in):
            if connection is not None:
                connection.close()

    def __enter__(self) -> Client:
        try:
            self.connect()
        except ClientError:
            self.close(0)  # else its thread goes on dialling for nobody
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def stats(self) -> base.Stats:
        """What this client has done so far."""
        return self._stats(self._publisher, self._consumer)

    # ------------------------------------------------------------ queues and events

    def queue(self, name: str) -> Queue:
        """Return the queue of that name, `queue` or `project/queue`; it is made on first use."""
        return Queue(self, name, self.destination(name))

    def event(self, name: str) -> Event:
        """Return the event of that name: a copy for each queue bound to it, and for each subscriber."""
        return Event(self, name, self.topic(name))

    def declare(self, name: str, **options: Any) -> Queue:
        """Make the queue if it is not there, and set these options of it, such as max_tries and dead_letter."""
        self.call("PUT", self.queue_path(name), options)
        return self.queue(name)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Make a call of the HTTP interface, and return its JSON; raise ClientError."""
        return self._http.call(method, path, body)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was sent so far is on disk; raise the first refusal that nobody was told of."""
        with self.lock:
            outcome = self._flushing()
        if not wait_for(outcome, self.lock, timeout):
            raise Unknown(f"not all was confirmed within {timeout:g} s")
        outcome.check()

    def settled(self, name: str, poll: float = 0.05) -> None:
        """Wait until nothing in a queue is ready, in hand or delayed: for tests of applications."""
        while True:
            info = self.queue(name).info()
            if not info["rdy"] + info["wip"] + info["delayed"]:
                return
            time.sleep(poll)

    def transaction(self, *messages: Message) -> Transaction:
        """Publish and ack these messages, all or nothing: `with client.transaction(message) as tx`."""
        return Transaction(self, messages)

    # ------------------------------------------------------------ workers

    def worker(self, queue: str, *, parallel: int = 1, prefetch: int | None = None) -> Callable[[Handler], Handler]:
        """Register a handler of a queue's messages; `run` starts it. See `sync_worker.Worker`."""

        def register(handler: Handler) -> Handler:
            self._workers.append(Worker(self, queue, handler, parallel, prefetch))
            return handler

        return register

    def run(self) -> None:
        """Run the workers until SIGTERM, SIGINT or `stop`, finish what is in hand, and close."""
        self._consuming().wait_up(self.connect_timeout)
        try:
            run_until_signal(self._workers, self._stop)
        finally:
            self.close()

    def stop(self) -> None:
        """End `run`; from any thread."""
        self._stop.set()

    # ------------------------------------------------------------ for the classes beside this one

    def send(self, destination: str, body: content.Body, more: str, type: str | None, seq: int | None) -> Confirm:
        """Send one message; wait only while the window is full."""
        with self.lock:
            if self._out is None or self._is_closed:
                self._publishing()
            publisher = self._publisher
            while not publisher.has_room:
                publisher.on_room = self._room.notify_all
                self._room.wait()
                if self._is_closed:
                    raise Closed("the client is closed")
            return publisher.send(publisher.lane(destination), body, more, type, seq)

    def subscribe(
        self, destination: str, prefetch: int, headers: dict[str, str] | None = None, *, acked: bool = True
    ) -> Messages:
        """Return what comes from a destination."""
        with self.lock:
            self._consuming()
            subscription = self._consumer.subscribe(destination, prefetch, headers, acked=acked)
            return Messages(self._consumer, subscription, self.lock)

    def answer(self, message: Message, result: content.Body) -> None:
        """Send an answer to whoever sent the message and waits for it."""
        named, data = base.answer_headers(message, result)
        with self.lock:
            sent = self._consumer.send(named, data)
        sent.result()

    def commit(self, sends: Sequence[tuple[dict[str, str], bytes]], messages: Sequence[Message]) -> None:
        """Send and ack, all or nothing; on disk when this returns."""
        self._consuming().wait_up(self.connect_timeout)
        with self.lock:
            outcome = self._consumer.commit(sends, messages)
        outcome.result()

    def request(self, destination: str, body: content.Body, timeout: float, headers: dict[str, str]) -> Message:
        """Send a message and return its answer; raise Unknown if none came in time."""
        self._consuming().wait_up(self.connect_timeout)
        correlation = uuid.uuid4().hex
        named, data = base.send_headers(destination, body, headers=headers)
        deadline = time.monotonic() + timeout
        try:
            with self.lock:
                if self._replying is None:
                    self._replying = self._consumer.subscribe(base.REPLIES, PREFETCH, acked=False)
                    self._replying.on_arrival = self._take_replies
                self._replies[correlation] = None
                sent = self._consumer.send(named | {"reply-to": base.REPLIES, "correlation-id": correlation}, data)
            if not wait_for(sent, self.lock, timeout):
                raise base.no_answer(timeout)
            sent.check()
            with self.lock:
                while (reply := self._replies[correlation]) is None:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise base.no_answer(timeout)
                    self._replied.wait(left)
                return reply
        finally:
            del self._replies[correlation]

    # ------------------------------------------------------------ inside

    def _publishing(self) -> Connection:
        with self.lock:
            if self._is_closed:
                raise Closed("the client is closed")
            if self._out is None:
                self._out = Connection(self._links[0], self.lock, self.tls_of, "publishing")
            return self._out

    def _consuming(self) -> Connection:
        with self.lock:
            if self._is_closed:
                raise Closed("the client is closed")
            if self._in is None:
                self._in = Connection(self._links[1], self.lock, self.tls_of, "consuming")
            return self._in

    def _new_ended(self) -> Ended:
        return Ended(self)

    def _flushing(self) -> Outcome:
        outcome = Outcome()
        self._publisher.flush(outcome)
        return outcome

    def _take_replies(self) -> None:
        subscription = self._replying
        assert subscription is not None
        subscription.on_arrival = self._take_replies
        while subscription.inbox:
            message: Message = subscription.inbox.popleft()
            correlation = message.raw_headers.get("correlation-id", "")
            if correlation in self._replies:
                self._replies[correlation] = message
        self._replied.notify_all()

    def _after_fork(self) -> None:
        """In the child: what the parent sent is the parent's, and so are its connections."""
        for connection in (self._out, self._in):
            if connection is not None:
                connection.forget()
        self._set_up()


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class _Target:
    """What can be published to."""

    def __init__(self, client: Client, name: str, destination: str) -> None:
        self.client = client
        self.name = name
        self.destination = destination

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
    ) -> Confirm:
        """Send a message, and return its `Confirm` without waiting for it; wait only while the window is full.

        dict and list are JSON, str is text, bytes go as they are. `delay` and `ttl` are seconds. `key`:
        messages of one key are delivered one at a time, in order. `seq`: its number, of a client with a `producer` of
        its own.
        """
        is_plain = not (type or headers or delay) and ttl is None and key is None
        more = "" if is_plain else content.lines(type, headers, delay, ttl, key)
        return self.client.send(self.destination, body, more, type, seq)

    def publish(
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
        return self.send(body, type=type, headers=headers, delay=delay, ttl=ttl, key=key, seq=seq).result(timeout)


class Queue(_Target):
    """A queue of one client."""

    def consume(self, prefetch: int = PREFETCH, *, group: str | None = None) -> Messages:
        """Return what comes: `for message in queue.consume(): with message: …`."""
        headers = {"x-ks-group": group} if group else {}
        return self.client.subscribe(self.destination, prefetch, headers)

    def batches(self, size: int, wait: float = 1.0, *, group: str | None = None) -> Batches:
        """Return what comes, as lists of at most `size`; a smaller one after `wait` seconds."""
        return Batches(self.consume(2 * size, group=group), size, wait)

    def request(self, body: content.Body, *, timeout: float = 30, headers: Mapping[str, str] | None = None) -> Message:
        """Send a message and return the answer: what the handler of a worker returned."""
        return self.client.request(self.destination, body, timeout, dict(headers or {}))

    def last_seq(self) -> int | None:
        """Return the last `seq` of this client's producer that is stored in the queue; None where it knows of none."""
        try:
            found = self.client.call("GET", self.client.producer_path(self.name))
        except NoSuchQueue:  # or it knows no such producer
            return None
        return int(found["seq"])

    def info(self) -> dict[str, Any]:
        """Return what the queue holds, and its options."""
        found: dict[str, Any] = self._call("GET")
        return found

    def pause(self, *, deliver: bool = True, publish: bool = False) -> dict[str, Any]:
        """Deliver nothing until `resume`, and with `publish` take nothing in; return what is so now."""
        paused: dict[str, Any] = self._call("POST", "/pause", {"deliver": deliver, "publish": publish})
        return paused

    def resume(self) -> dict[str, Any]:
        """End what `pause` began; return what is so now."""
        paused: dict[str, Any] = self._call("POST", "/resume")
        return paused

    def undo(self, **wishes: Any) -> dict[str, Any]:
        """Let come back what was acked, popped or purged and is in the log (`limit`, `within`, `id`, `group`)."""
        undone: dict[str, Any] = self._call("POST", "/undo", wishes)
        return undone

    def purge(self, *, keep: bool = False) -> dict[str, Any]:
        """Remove what is not in hand, and erase it unless it is to `keep` for an undo; return how much that was."""
        purged: dict[str, Any] = self._call("POST", "/purge", {"keep": keep})
        return purged

    def redrive(self, **wishes: Any) -> dict[str, Any]:
        """Send dead letters back to where they came from; see the HTTP interface for `to` and `limit`."""
        moved: dict[str, Any] = self._call("POST", "/redrive", wishes)
        return moved

    def delete(self) -> None:
        """Delete the queue and all it holds."""
        self._call("DELETE")

    def _call(self, method: str, more: str = "", body: Any = None) -> Any:
        return self.client.call(method, self.client.queue_path(self.name, more), body)


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

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, on disk when this returns; if the block raised nothing happens, and the messages go back."""
        if error is None:
            try:
                self._client.commit(self.sends, self._messages)
                return
            except ClientError as refused:
                self._give_back(refused)
                raise
        self._give_back(error)

    def _give_back(self, error: BaseException) -> None:
        for message in self._messages:
            if not message.is_stale:
                message.give_back(error)
