"""Server-sent events: a queue's leases as a stream, for clients that can't use a WebSocket.

Each event is one lease, with its `ackId` as the event's id. The client settles it with POST `…/messages/ack`, over any
connection. A stream has at most `limit` unsettled leases. They outlive the stream: a client that has lost its
connection can still settle them. If its next stream names the last event it saw in `Last-Event-ID`, the later leases,
which the client never saw, are requeued.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import orjson
from starlette.types import Receive, Scope, Send

from curbstone.access.connections import STREAM
from curbstone.access.rights import Right
from curbstone.core.errors import CurbstoneError, NoSuchQueue
from curbstone.core.host import Host
from curbstone.core.traffic import Traffic
from curbstone.core.values import Outcome
from curbstone.gateway.formats.message_json import Encoding, lease_json
from curbstone.gateway.http.answer_budget import account_of
from curbstone.gateway.http.callbacks import answer
from curbstone.gateway.http.client_disconnect import Bell, Disconnect
from curbstone.gateway.http.fields import Header
from curbstone.gateway.http.login import access_of, caller_of
from curbstone.gateway.http.problem import status_of
from curbstone.gateway.http.responses import NO_SNIFFING
from curbstone.gateway.limits import CLOSED_STREAMS_MAX, COUNT_MAX
from curbstone.net.budget import Waiting

if TYPE_CHECKING:
    from curbstone.access.authenticator import Authenticator
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.core.names import QueueName
    from curbstone.core.port import Queue
    from curbstone.core.port_reading import Waiter
    from curbstone.core.values import Lease

KEEP_ALIVE_MS = 15_000
RETRY_MS = 1000
"""How long a browser waits before it connects again."""

_PATIENCE_MS = 3_600_000
_HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # so that a proxy does not buffer events
    NO_SNIFFING,
)
_COMMENT = b":\n\n"
_LINE_ENDS = ("\x85".encode(), "\u2028".encode(), "\u2029".encode())


class _Sent:
    """A lease that was sent and is not settled."""

    __slots__ = ("expires_ms", "number")

    def __init__(self, number: int, expires_ms: int) -> None:
        self.number = number
        self.expires_ms = expires_ms


class EventStream:
    """One stream. `run` writes it until the client leaves, the queue is deleted or the server stops."""

    def __init__(
        self,
        streams: EventStreams,
        access: AuthorizedBroker,
        queue: Queue,
        *,
        limit: int,
        duration_ms: int,
        group: str = "",
        encoding: Encoding | None = None,
    ) -> None:
        self.streams = streams
        self.access = access
        self.queue = queue
        self._limit = limit
        self._duration_ms = duration_ms
        self._group = group
        self._encoding = encoding
        self._host = streams.host
        self._bell = Bell()
        self._waiter: Waiter | None = None
        self._room: Waiting | None = None
        """Set while the stream waits because its user's connections hold too much unread output."""
        self._output: list[bytes] = []
        self._unwritten: list[Lease] = []
        """The leases in the output that is being written."""
        self._error: CurbstoneError | None = None
        self.is_closed = False
        self._number = 0
        self.unsettled: dict[str, _Sent] = {}
        """The leases that were sent and may still be settled, by token, in the order they were sent."""
        self.last_settled: tuple[int, str] = (0, "")
        """The settled lease that was sent last, as (number, token): a client may still name it in Last-Event-ID."""

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the stream until it ends."""
        self._account = account_of(scope)
        unpause = self._account.on_pause(self._pause)
        disconnect = Disconnect(scope, receive, self.end)
        caller = self._caller = caller_of(scope, STREAM)
        unwatch = self.queue.watch(self._show_new)
        open_connection = self.streams.connections.add(
            self.access,
            caller,
            end=self._fail,
            changed=self._check,
            unacked=lambda: len(self.unsettled),
        )
        try:
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            await _write(send, b"retry: %d\n\n" % RETRY_MS)
            while not self.is_closed:
                self._ask()
                timer = self._host.call_later(self._idle_ms(), self._tick)
                await self._bell.wait()
                timer.cancel()
                if self._output and not disconnect.is_gone:
                    output, self._output = self._output, []
                    unwritten, self._unwritten = self._unwritten, []
                    await _write(send, b"".join(output))
                    if disconnect.is_gone:  # the client left before the socket took any of it
                        self._unwritten += unwritten
            await send({"type": "http.response.body", "body": self._final_event()})
        finally:
            self.streams.give_back(self.queue, self._unwritten)
            self.is_closed = True
            unwatch()
            unpause()
            if self._room is not None:
                self._room.cancel()
            open_connection.close()
            disconnect.close()
            if self._waiter:
                self._waiter.cancel()
                self._waiter = None  # otherwise it would keep this

    def _pause(self) -> None:
        """Lease no more messages: the user's connections hold too much unread output."""
        if self._waiter is not None and self._waiter.cancel():
            self._waiter = None

    def _has_room(self) -> None:
        self._room = None
        self._bell.ring()

    def _ask(self) -> None:
        """Lease as many messages as the limit has room for, unless a lease is under way."""
        self._show_new()
        if self._account.is_held:
            self._room = self._room or self._account.when_room(0, self._has_room)
            return
        room = self._limit - len(self.unsettled)
        if self._waiter is None and room > 0 and not self.is_closed:
            count = min(room, COUNT_MAX)
            try:
                self._waiter = self.access.lease(
                    *(self.queue, count, self._duration_ms, self._take, self._caller),
                    group=self._group,
                    wait_ms=_PATIENCE_MS,
                )
            except CurbstoneError as error:
                self._fail(error)

    def _take(self, leases: list[Lease] | CurbstoneError) -> None:
        self._waiter = None
        if isinstance(leases, CurbstoneError):
            self._fail(leases)
            return
        if self.is_closed:  # no client would see them
            self.queue.give_back(leases)
            return
        for lease in leases:
            self._number += 1
            self.unsettled[lease.token] = _Sent(self._number, lease.expires_ms)
            self.streams.note(lease.token, self)
            data = _in_one_line(lease_json(self.queue, lease, self._encoding))
            self._unwritten.append(lease)
            self._output.append(b"id: %b\ndata: %b\n\n" % (lease.token.encode(), data))
        self.streams.traffic.deliver([lease.delivery for lease in leases])
        self._bell.ring()

    def _idle_ms(self) -> int:
        """Return how long to wait if nothing happens: for a comment, or until a lease that fills the window expires."""
        if self._waiter is not None or not self.unsettled:
            return KEEP_ALIVE_MS
        first_ms = min(sent.expires_ms for sent in self.unsettled.values())
        return min(KEEP_ALIVE_MS, max(first_ms - self._host.now_ms(), 1))

    def _tick(self) -> None:
        self.drop_expired()
        self._output.append(_COMMENT)
        self._bell.ring()

    def _show_new(self) -> None:
        if self.queue.is_closed:
            self._fail(NoSuchQueue(f"no such queue: {self.queue.name}"))

    def _check(self) -> None:
        try:
            self.access.check(Right.RECEIVE, self.queue.name)
        except CurbstoneError as error:
            self._fail(error)

    def _fail(self, error: CurbstoneError) -> None:
        self._error = self._error or error
        self.end()

    def _final_event(self) -> bytes:
        if self._error is None:
            return b""
        error = orjson.dumps({"code": status_of(self._error), "error": str(self._error)})
        return b"event: error\ndata: %b\n\n" % error

    def end(self) -> None:
        """End the stream. Leases that were sent stay."""
        self.is_closed = True
        self._bell.ring()

    # ------------------------------------------------------------ the leases that were sent

    def settled(self, token: str) -> None:
        """Note that a lease has ended."""
        sent = self.unsettled.pop(token)
        number, before = self.last_settled
        if sent.number < number:
            self.streams.forget(token)
        else:
            self.streams.forget(before)
            self.last_settled = (sent.number, token)
        self._bell.ring()

    def drop_expired(self) -> None:
        """Forget leases that have expired."""
        now_ms = self._host.now_ms()
        for token, sent in list(self.unsettled.items()):
            if sent.expires_ms <= now_ms:
                self.settled(token)

    def sent_after(self, token: str) -> list[str]:
        """Return the tokens of unsettled leases that were sent after this one."""
        sent = self.unsettled.get(token)
        number = sent.number if sent else self.last_settled[0]
        return [other for other, its in self.unsettled.items() if its.number > number]


class EventStreams:
    """The open streams, and ended streams that still have leases."""

    def __init__(self, authenticator: Authenticator, host: Host, traffic: Traffic) -> None:
        self._authenticator = authenticator
        self.connections = authenticator.connections
        self.host = host
        self.traffic = traffic
        self.streams: dict[EventStream, None] = {}
        self.by_token: dict[str, EventStream] = {}
        """The stream of each unsettled lease."""
        authenticator.registries.ack_ids.watch_leases(self.settled)

    def login(self, scope: Scope, name: QueueName, query: Mapping[str, str]) -> AuthorizedBroker:
        """Return the access of a stream's client, which has logged in or has a ticket in its URL."""
        access = access_of(scope)
        ticket = query.get("ticket")
        return self._authenticator.use_ticket(ticket, "events", name, caller_of(scope, STREAM)) if ticket else access

    async def open(self, stream: EventStream, last_event_id: str) -> None:
        """Register a stream. If its client names the last event it saw, requeue the leases after that one.

        Raise TooMany if its user has too many streams.
        """
        self.connections.check_stream(stream.access)
        self._prune()
        earlier = self.by_token.get(last_event_id)
        self.streams[stream] = None
        if earlier is None or earlier.queue is not stream.queue or _owner(earlier) != _owner(stream):
            return
        earlier.end()
        unseen = earlier.sent_after(last_event_id)
        if unseen:
            queue = stream.queue
            await answer(lambda done: stream.access.settle_leases(queue, unseen, Outcome.NACK, done, delay_ms=0))

    def _prune(self) -> None:
        for stream in [stream for stream in self.streams if stream.is_closed]:
            stream.drop_expired()
            if not stream.unsettled:
                self._drop(stream)
        ended = [stream for stream in self.streams if stream.is_closed]
        for stream in ended[: max(len(ended) - CLOSED_STREAMS_MAX, 0)]:
            self._drop(stream)

    def _drop(self, stream: EventStream) -> None:
        del self.streams[stream]
        for token in (*stream.unsettled, stream.last_settled[1]):
            self.forget(token)

    def note(self, token: str, stream: EventStream) -> None:
        """Remember which stream sent a lease."""
        self.by_token[token] = stream

    def forget(self, token: str) -> None:
        """Forget which stream sent a lease."""
        self.by_token.pop(token, None)

    def settled(self, tokens: Iterable[str]) -> None:
        """Note that leases have ended, so that their streams have room again."""
        for token in tokens:
            stream = self.by_token.get(token)
            if stream is not None and token in stream.unsettled:
                stream.settled(token)

    def extended(self, tokens: Iterable[str], duration_ms: int) -> None:
        """Note that leases were extended, to last `duration_ms` from now."""
        expires_ms = self.host.now_ms() + duration_ms
        for token in tokens:
            stream = self.by_token.get(token)
            if stream is not None and token in stream.unsettled:
                stream.unsettled[token].expires_ms = expires_ms

    def give_back(self, queue: Queue, leases: list[Lease]) -> None:
        """Requeue leases that were never sent."""
        self.settled([lease.token for lease in leases])
        queue.give_back(leases)

    def release(self) -> None:
        """End all streams: the server is stopping."""
        for stream in list(self.streams):
            stream.end()


def _owner(stream: EventStream) -> str:
    return stream.access.identity.owner


def _in_one_line(text: bytes) -> bytes:
    """Escape the line ends that only Unicode has: many clients break lines there, although they should not."""
    for character in _LINE_ENDS:
        if character in text:
            text = text.replace(character, b"\\u%04x" % ord(character.decode()))
    return text


async def _write(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
