"""What both shells have in common: the settings of a client, names of queues, and how handlers' failures end."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from curbstone_client import calls, content, login
from curbstone_client.address import Address, parse
from curbstone_client.consuming import Consumer
from curbstone_client.errors import Reject, Retry, Unknown
from curbstone_client.link import Link
from curbstone_client.login import Token
from curbstone_client.message import BaseMessage
from curbstone_client.publishing import WINDOW, WINDOW_BYTES, Publisher

_chance = Random()
"""Our own: whoever seeds the common one gets the same numbers with and without us."""

OnFull = Literal["wait", "raise"]

CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 10.0
RETRY_DELAY_S_MAX = 300.0

REPLIES = "/temp-queue/replies"
"""Where the answers to a client's requests come; it is the connection's own."""

DEFAULT_URL = "http://localhost:8080"


@dataclass(frozen=True, slots=True)
class Stats:
    """What a client has done so far."""

    sent: int
    confirmed: int
    resent: int
    delivered: int
    stale: int
    reconnects: int


class ClientBase:
    """Settings, and the two connections, without their sockets."""

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
        """`url`: of the server's HTTP, such as http://localhost:8080, or stomp://host:61613; several are tried in turn.

        Without one it is CURBSTONE_URL of the environment, or that of a server on this machine. `token` may be a
        function, asked at each connection. `producer`: a name for an application that numbers its messages itself, so
        that what it publishes again after a restart, with the same `seq`, is stored once. `on_full`: whether
        publishing to a full queue waits for room, or raises `QueueFull`. `ca_file`: who signed the server's
        certificate, in PEM; else CURBSTONE_CA_FILE of the environment, else whom the machine trusts. `tls` in its place
        says all of how to encrypt.
        """
        if tls is not None and ca_file is not None:
            raise ValueError("give tls or ca_file: a context says itself whom it trusts")
        urls = [url] if isinstance(url, str) else url or [os.environ.get("CURBSTONE_URL") or DEFAULT_URL]
        self.addresses: list[Address] = [parse(each) for each in urls]
        self.project = project
        self.connect_timeout = connect_timeout
        self._token = token
        if not callable(token):
            login.current(token)  # raises for what is none
        self._tls = tls
        self._ca_file = ca_file or os.environ.get("CURBSTONE_CA_FILE")
        self._producer = producer
        self._on_full = on_full
        self._window = window
        self._window_bytes = window_bytes
        self._http = calls.Http(self.addresses, lambda: login.current(token), self.tls_of)
        self._links: list[Link] = []

    def _stats(self, publisher: Publisher[Any], consumer: Consumer[Any]) -> Stats:
        return Stats(
            publisher.sent,
            publisher.confirmed,
            publisher.resent,
            consumer.delivered_count,
            consumer.stale,
            sum(max(0, link.ups - 1) for link in self._links),
        )

    def tls_of(self, address: Address) -> ssl.SSLContext | None:
        """Return how to encrypt a connection; None where it is not to be. The file is read each time: it is renewed."""
        if not address.is_tls or self._tls is not None:
            return self._tls if address.is_tls else None
        try:
            return ssl.create_default_context(cafile=self._ca_file)
        except OSError as error:
            raise OSError(f"{self._ca_file} has no certificates to trust: {error.strerror or error}") from error

    def split(self, name: str) -> tuple[str, str]:
        """Return project and name of `queue` or `project/queue`; raise ValueError."""
        project, slash, queue = name.partition("/")
        if not slash:
            project, queue = self.project, name
        if not project or not queue or "/" in queue:
            raise ValueError(f"a queue is named queue or project/queue, not {name!r}")
        return project, queue

    def destination(self, queue: str) -> str:
        """Return what STOMP calls a queue."""
        return "/queue/{}/{}".format(*self.split(queue))

    def topic(self, event: str) -> str:
        """Return what STOMP calls an event."""
        return "/topic/{}/{}".format(*self.split(event))

    def queue_path(self, queue: str, more: str = "") -> str:
        """Return the path of a queue over HTTP."""
        return calls.queue_path(*self.split(queue), more)

    def producer_path(self, queue: str) -> str:
        """Return the path of what the server knows of this client's producer; raise ValueError."""
        if self._producer is None:
            raise ValueError("only a client with a producer can ask for its last seq: Client(…, producer=NAME)")
        return self.queue_path(queue, f"/producers/{self._producer}")


def send_headers(
    destination: str,
    body: content.Body,
    type: str | None = None,
    headers: Mapping[str, str] | None = None,
    delay: float | None = None,
    ttl: float | None = None,
    key: str | None = None,
) -> tuple[dict[str, str], bytes]:
    """Return headers and body of a SEND outside of a lane: in a transaction, a request, an answer."""
    data, kind = content.encode(body)
    named = {"destination": destination, "content-length": str(len(data))}
    if (type or kind) is not None:
        named["content-type"] = str(type or kind)
    return named | content.named(headers, delay, ttl, key), data


class Sends:
    """What a transaction is to send."""

    def __init__(self, destination: Callable[[str], str]) -> None:
        self._destination = destination
        self.sends: list[tuple[dict[str, str], bytes]] = []

    def publish(
        self,
        queue: str,
        body: content.Body,
        *,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | None = None,
        ttl: float | None = None,
        key: str | None = None,
    ) -> None:
        """Add a message; it is sent with the commit."""
        self.sends.append(send_headers(self._destination(queue), body, type, headers, delay, ttl, key))


def no_answer(timeout: float) -> Unknown:
    """Return what a request ends with that nobody answered in time, whether it was confirmed or not."""
    return Unknown(f"no answer within {timeout:g} s")


def answer_headers(message: BaseMessage, result: content.Body) -> tuple[dict[str, str], bytes]:
    """Return headers and body of the SEND that answers a message; raise ValueError if nobody waits for one."""
    if message.reply_to is None:
        raise ValueError("nobody waits for an answer to this message")
    named, data = send_headers(message.reply_to, result)
    if correlation := message.raw_headers.get("correlation-id"):
        named["correlation-id"] = correlation
    return named, data


@dataclass(frozen=True, slots=True)
class End:
    """How the delivery of a handler that raised ends."""

    reject: bool
    delay: float | None
    reason: str


def end_of(error: BaseException, tries: int) -> End:
    """Return how a delivery ends whose handler raised this: back after 1, 2, 4 … 300 s, give or take 15 %."""
    if isinstance(error, Reject):
        return End(True, None, str(error) or "rejected")
    if isinstance(error, Retry):
        return End(False, error.delay, str(error))
    delay = min(RETRY_DELAY_S_MAX, 2.0 ** min(tries, 20)) * _chance.uniform(0.85, 1.15)
    return End(False, delay, f"{type(error).__name__}: {error}")


def poison_warning(queue: str, info: Mapping[str, Any]) -> str | None:
    """Return what to log of a queue where a message that always fails comes again for ever."""
    options = info.get("options", info)
    if options.get("max_tries") or options.get("dead_letter"):
        return None
    return f"queue {queue} has neither max_tries nor dead_letter: a message that always fails comes again for ever"
