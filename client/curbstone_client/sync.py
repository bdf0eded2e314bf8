"""The client for threads, without an event loop. It has the same names as `curbstone_client`, without `await`.

Threads may share a client. After a fork, the child's copy of a client makes its own connections. gevent and eventlet
work, because the client only uses sockets, locks and threads of the standard library.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from curbstone_client import base, content
from curbstone_client.consuming import PREFETCH, Subscription
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
from curbstone_client.publishing import Publisher, Stored
from curbstone_client.sync_link import Connection
from curbstone_client.sync_messages import Batch, Batches, Confirm, Ended, LockedConsumer, Message, Messages, wait_for
from curbstone_client.sync_queue import Event, Queue, Transaction
from curbstone_client.sync_worker import Worker, run_until_signal
from curbstone_client.worker import Handler

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


H = TypeVar("H", bound=Handler)


class Client(base.ClientBase[Queue]):
    """A client of one server. Use `with Client(…) as client`, or call `connect` and `close`."""

    _workers: list[Worker]
    _publisher: Publisher[Confirm]
    _consumer: LockedConsumer

    def _set_up(self) -> None:
        """Set up the state of a client without connections: a new one, or the copy in a forked child."""
        _clients.add(self)
        self.lock = threading.RLock()
        self._room = threading.Condition(self.lock)
        self._replied = threading.Condition(self.lock)
        self._replies: dict[str, Message | None] = {}
        self._replying: Subscription | None = None
        self._stop = threading.Event()
        self._out: Connection | None = None
        self._in: Connection | None = None
        self._make_links(Confirm, self)
        self._links[1].role = self._consumer = LockedConsumer(self._links[1], Message, partial(Ended, self), owner=self)

    # ------------------------------------------------------------ life

    def connect(self) -> None:
        """Connect. Raise CantConnect or NotAllowed. If the connection is lost later, the client reconnects."""
        self._publishing().wait_up()

    def close(self, timeout: float = base.CLOSE_TIMEOUT_S) -> None:
        """Stop the workers, wait at most `timeout` seconds for outstanding confirms and acks, and disconnect."""
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
            self.close(0)  # otherwise the connection's thread would continue to connect
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------ queues and events

    def queue(self, name: str) -> Queue:
        """Return the queue of that name, `queue` or `project/queue`. The server creates the queue on first use."""
        return Queue(self, name, self.destination(name))

    def event(self, name: str) -> Event:
        """Return the event of that name. Its messages are copied to every queue bound to it and to every subscriber."""
        return Event(self, name, self.topic(name))

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call the HTTP interface and return the JSON of the reply. Raise ClientError if the call fails."""
        return self._http.call(method, path, body)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all messages sent so far are confirmed or refused; raise the first refusal that no `Confirm` has
        raised.
        """
        with self.lock:
            outcome = self._flushing()
        if not wait_for(outcome, self.lock, timeout):
            raise Unknown(f"some messages were not confirmed within {timeout:g} s")
        outcome.check()

    def settled(self, name: str, poll: float = 0.05, timeout: float | None = None) -> bool:
        """Wait until the queue has no message that is ready, delivered or delayed. Meant for tests of applications.

        Return False if it still has one after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        queue = self.queue(name)
        while (info := queue.info())["rdy"] + info["wip"] + info["delayed"]:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(poll)
        return True

    def transaction(self, *messages: Message) -> Transaction:
        """Return a transaction that acks these messages: `with client.transaction(message) as tx: tx.publish(…)`."""
        return Transaction(self, messages)

    # ------------------------------------------------------------ workers

    def worker(
        self, queue: str, *, group: str | None = None, parallel: int = 1, prefetch: int | None = None
    ) -> Callable[[H], H]:
        """Decorate a handler of a queue's messages, which `run` then calls in `parallel` threads.

        `sync_worker.Worker` says how deliveries end. `group` names a consumer group of the queue. `prefetch` is how
        many unsettled messages the client holds, by default twice `parallel`.
        """

        def register(handler: H) -> H:
            self._workers.append(Worker(self, queue, handler, group, parallel, prefetch))
            return handler

        return register

    def run(self) -> None:
        """Run the workers until SIGTERM, SIGINT or `stop`; then let running handlers finish, and close the client."""
        self._consuming().wait_up()
        try:
            run_until_signal(self._workers, self._stop)
        finally:
            self.close()

    # ------------------------------------------------------------ for the classes beside this one

    def send(
        self, destination: str, body: content.Body, more: str, type: str | None, seq: int | None, is_keyed: bool
    ) -> Confirm:
        """Send a message without waiting for its confirm. Wait only while the window is full."""
        with self.lock:
            if self._out is None or self._is_closed:
                self._publishing()
            publisher = self._publisher
            while not publisher.has_room:
                publisher.on_room = self._room.notify_all
                self._room.wait()
                self._check_open()
            return publisher.send(publisher.series(destination, is_keyed=is_keyed), body, more, type, seq)

    def subscribe(
        self, destination: str, prefetch: int, headers: dict[str, str] | None = None, *, acked: bool = True
    ) -> Messages:
        """Subscribe to a destination and return its messages."""
        with self.lock:
            self._consuming()
            subscription = self._consumer.subscribe(destination, prefetch, headers, acked=acked)
            return Messages(self._consumer, subscription, self.lock)

    def answer(self, message: Message, result: content.Body) -> None:
        """Send a reply to the sender of a request."""
        named, data = base.answer_headers(message, result)
        with self.lock:
            sent = self._consumer.send(named, data)
        sent.result()

    def commit(self, sends: Sequence[tuple[dict[str, str], bytes]], messages: Sequence[Message]) -> None:
        """Send messages and ack others atomically. All of it is on disk when this returns."""
        self._consuming().wait_up()
        with self.lock:
            outcome = self._consumer.commit(sends, messages)
        outcome.result()

    def request(self, destination: str, body: content.Body, timeout: float, headers: dict[str, str]) -> Message:
        """Send a message and return its reply. Raise Unknown if there is none within `timeout` seconds."""
        self._consuming().wait_up()
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

    def _declare(self, name: str, options: Mapping[str, Any]) -> Queue:
        self.call("PUT", self.queue_path(name), options)
        return self.queue(name)

    def _publishing(self) -> Connection:
        with self.lock:
            self._check_open()
            if self._out is None:
                self._out = Connection(self._links[0], self.lock, self.tls_of, self.connect_timeout, "publishing")
            return self._out

    def _consuming(self) -> Connection:
        with self.lock:
            self._check_open()
            if self._in is None:
                self._in = Connection(self._links[1], self.lock, self.tls_of, self.connect_timeout, "consuming")
            return self._in

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
        """Reset the client in a forked child, because the connections and everything sent belong to the parent."""
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
