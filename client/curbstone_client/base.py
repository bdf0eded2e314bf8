"""The part of a client that both shells share: its settings, the names of queues, and calls of the HTTP interface.

Nothing here waits or has a socket.
"""

from __future__ import annotations

import enum
import os
import ssl
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, Unpack

from curbstone_client import calls, content, login
from curbstone_client.address import Address, parse
from curbstone_client.consuming import Consumer
from curbstone_client.errors import Closed, Unknown
from curbstone_client.link import Link
from curbstone_client.login import Token
from curbstone_client.message import BaseMessage
from curbstone_client.outcome import Outcome
from curbstone_client.publishing import WINDOW, WINDOW_BYTES, Confirm, Publisher

OnFull = Literal["wait", "raise"]


class Keep(enum.Enum):
    """The type of `KEEP`."""

    KEEP = "KEEP"

    def __repr__(self) -> str:
        return self.name


KEEP = Keep.KEEP
"""The value of a queue option that is not given: a new queue gets the default, an existing one keeps its value."""

Declared = TypeVar("Declared")
"""What a shell's `declare` returns: the queue, or a coroutine that returns it."""


CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 10.0

REPLIES = "/temp-queue/replies"
"""The temporary queue for the replies to a client's requests. It belongs to the connection."""

DEFAULT_URL = "http://localhost:8080"


@dataclass(frozen=True, slots=True)
class Stats:
    """The counters of a client. All count messages, except `reconnects`."""

    sent: int
    confirmed: int
    resent: int
    delivered: int
    stale: int
    reconnects: int


class ClientBase(ABC, Generic[Declared]):
    """The settings of a client, and its calls of the HTTP interface."""

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        project: str = "default",
        token: Token = None,
        connect_timeout: float = CONNECT_TIMEOUT_S,
        producer: str | None = None,
        on_full: OnFull = "wait",
        window: int = WINDOW,
        window_bytes: int = WINDOW_BYTES,
        tls: ssl.SSLContext | None = None,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        """Nothing is connected before first use.

        - `url`: the server's HTTP address, such as http://localhost:8080, or stomp://host:61613. If it is a list, the
          addresses are tried in turn. The default is the environment's CURBSTONE_URL, or else a server on this machine.
        - `project`: the project of queue names without one.
        - `token`: the token to log in, or a function that returns it; see `login.Token`.
        - `connect_timeout`: how many seconds to wait for the first connection before CantConnect is raised.
        - `producer`: a name for an application that numbers its messages itself with `seq`. A message that it publishes
          again after a restart, with the same `seq`, is stored once.
        - `on_full`: whether publishing to a full queue waits for space ("wait") or raises `QueueFull` ("raise").
        - `window`, `window_bytes`: the maximum number of unconfirmed messages, and of their bytes.
        - `ca_file`: a PEM file with the CA of the server's certificate. The default is the environment's
          CURBSTONE_CA_FILE, or the CAs that the machine trusts.
        - `tls`: an `ssl.SSLContext` to use instead of `ca_file`.
        """
        if tls is not None and ca_file is not None:
            raise ValueError("give either tls or ca_file, not both")
        urls = [url] if isinstance(url, str) else url or [os.environ.get("CURBSTONE_URL") or DEFAULT_URL]
        self.addresses: list[Address] = [parse(each) for each in urls]
        self.project = project
        self.connect_timeout = connect_timeout
        self._token = token
        if not callable(token):
            login.current(token)  # raises ValueError now, not at the first connection
        self._tls = tls
        self._ca_file = ca_file or os.environ.get("CURBSTONE_CA_FILE")
        self._producer = producer
        self._on_full = on_full
        self._window = window
        self._window_bytes = window_bytes
        self._http = calls.Http(self.addresses, lambda: login.current(token), self.tls_of)
        self._workers: list[Any] = []
        self._set_up()

    def __repr__(self) -> str:
        return f"<client of {', '.join(map(str, self.addresses))}>"

    _stop: Any
    """The shell's event that `stop` sets."""
    _publisher: Publisher[Any]
    _consumer: Consumer[Any]

    @abstractmethod
    def _set_up(self) -> None:
        """Set up the state of a shell."""

    def _make_links(self, confirm: type[Confirm], owner: Any = None) -> None:
        """Create the links for publishing and for consuming."""
        self._is_closed = False
        self._links = [Link(self.addresses, self._token), Link(self.addresses, self._token)]
        self._links[0].role = self._publisher = Publisher(
            self._links[0],
            confirm,
            owner=owner,
            producer=self._producer,
            waits_when_full=self._on_full == "wait",
            window=self._window,
            window_bytes=self._window_bytes,
        )

    def stop(self) -> None:
        """Make `run` return. Call this in the event loop, or with threads from any of them."""
        self._stop.set()

    @property
    def stats(self) -> Stats:
        """The counters of this client."""
        publisher, consumer = self._publisher, self._consumer
        return Stats(
            publisher.sent,
            publisher.confirmed,
            publisher.resent,
            consumer.delivered_count,
            consumer.stale,
            sum(max(0, link.ups - 1) for link in self._links),
        )

    def end(self, messages: Any) -> None:
        """End the subscription of these messages now."""
        self._consumer.unsubscribe(messages.subscription)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the client is closed")

    def _flushing(self) -> Outcome:
        """Return the outcome of all messages sent so far."""
        outcome = Outcome()
        self._publisher.flush(outcome)
        return outcome

    @abstractmethod
    def _declare(self, name: str, options: Mapping[str, Any]) -> Declared:
        """Create the queue if it does not exist, and set these options."""

    def declare(
        self,
        name: str,
        *,
        cap: int | str | Keep = KEEP,
        max_message_size: int | str | Keep = KEEP,
        ttl: float | Keep = KEEP,
        max_tries: int | Keep = KEEP,
        dead_letter: str | Keep = KEEP,
        nack_delay: float | Keep = KEEP,
        nack_delay_max: float | Keep = KEEP,
        lease: float | Keep = KEEP,
        groups: Sequence[str] | Keep = KEEP,
        overflow: Literal["refuse", "drop-oldest"] | Keep = KEEP,
        unused: float | None | Keep = KEEP,
        undo: float | Keep = KEEP,
        idempotency_window: float | Keep = KEEP,
        oldest_every: int | Keep = KEEP,
        in_flight: int | Keep = KEEP,
        rate: float | Keep = KEEP,
        burst: int | Keep = KEEP,
        key_limit: int | Keep = KEEP,
        key_rate: float | Keep = KEEP,
        key_burst: int | Keep = KEEP,
        fair: bool | Keep = KEEP,
        schema: Mapping[str, Any] | None | Keep = KEEP,
        paused: bool | Keep = KEEP,
        publish_paused: bool | Keep = KEEP,
    ) -> Declared:
        """Create the queue if it does not exist, set the given options, and return the queue.

        Sizes are in bytes or as in "10MiB", durations in seconds; 0 means none.

        - `cap`: the maximum size of the queue on disk. `max_message_size`: the maximum size of a body.
        - `ttl`: after how long messages expire.
        - `max_tries`: the maximum number of deliveries. `dead_letter`: the queue for dead messages.
        - `nack_delay`: the delay of a nacked message. If `nack_delay_max` is larger, the delay doubles with each try,
          up to this.
        - `lease`: how long a message that is leased over HTTP may stay unsettled.
        - `groups`: the consumer groups, each of which gets all messages.
        - `overflow`: whether a full queue refuses new messages, or drops its oldest.
        - `unused`: after how long without a consumer the queue is deleted; None for never.
        - `undo`: how long settled messages can be restored.
        - `idempotency_window`: how long the queue keeps idempotency keys, at most 7 days.
        - `oldest_every`: every Nth delivery is the oldest message, whatever its priority.
        - `in_flight`: the maximum number of messages in flight per group.
        - `rate`: the maximum deliveries per second and group. `burst`: the maximum burst after a pause.
        - `key_limit`: the maximum number of messages of a key in flight; 1, the default, keeps their order.
        - `key_rate`, `key_burst`: as `rate` and `burst`, for each key.
        - `fair`: whether the next message is one of the key with the fewest messages in flight.
        - `schema`: the JSON Schema that bodies must satisfy; None for none.
        - `paused`, `publish_paused`: whether the queue delivers nothing, and whether it accepts nothing.
        """
        given = locals()
        names = given.keys() - {"self", "name"}
        return self._declare(name, {option: given[option] for option in names if given[option] is not KEEP})

    def tls_of(self, address: Address) -> ssl.SSLContext | None:
        """Return the TLS context of a connection, or None if it is not encrypted.

        The CA file is read each time, because it may have been replaced.
        """
        if not address.is_tls or self._tls is not None:
            return self._tls if address.is_tls else None
        try:
            return ssl.create_default_context(cafile=self._ca_file)
        except OSError as error:
            raise OSError(f"{self._ca_file} has no usable certificates: {error.strerror or error}") from error

    def split(self, name: str) -> tuple[str, str]:
        """Return the project and the name of `queue` or `project/queue`. Raise ValueError for any other form."""
        project, slash, queue = name.partition("/")
        if not slash:
            project, queue = self.project, name
        if not project or not queue or "/" in queue:
            raise ValueError(f"bad queue name {name!r}: expected queue or project/queue")
        return project, queue

    def destination(self, queue: str) -> str:
        """Return the STOMP destination of a queue."""
        return "/queue/{}/{}".format(*self.split(queue))

    def topic(self, event: str) -> str:
        """Return the STOMP destination of an event."""
        return "/topic/{}/{}".format(*self.split(event))

    def queue_path(self, queue: str, more: str = "") -> str:
        """Return the HTTP path of a queue, or of `more` below it."""
        return calls.queue_path(*self.split(queue), more)

    def producer_path(self, queue: str) -> str:
        """Return the HTTP path of this client's producer in a queue. Raise ValueError if the client has no producer."""
        if self._producer is None:
            raise ValueError("last_seq needs a client with a producer: Client(…, producer=NAME)")
        return self.queue_path(queue, f"/producers/{self._producer}")


def send_headers(
    destination: str, body: content.Body, type: str | None = None, **options: Unpack[content.Options]
) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of a SEND outside of a `Series`: in a transaction, a request or a reply."""
    data, kind = content.encode(body)
    named = {"destination": destination, "content-length": str(len(data))}
    if (type or kind) is not None:
        named["content-type"] = str(type or kind)
    return named | content.named(**options), data


def no_answer(timeout: float) -> Unknown:
    """Return the error of a request without a reply in time, whether it was confirmed or not."""
    return Unknown(f"no answer within {timeout:g} s")


def answer_headers(message: BaseMessage[Any], result: content.Body) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of the reply to a message. Raise ValueError if the sender expects none."""
    if message.reply_to is None:
        raise ValueError("this message has no reply-to: its sender expects no reply")
    named, data = send_headers(message.reply_to, result)
    if correlation := message.raw_headers.get("correlation-id"):
        named["correlation-id"] = correlation
    return named, data
