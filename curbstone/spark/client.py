"""The HTTP client of the driver and the executors, with one kept connection and retries.

All calls are idempotent: reads have no side effects, acks are cumulative, a part replaces itself, and a commit is
identified by its transaction. So a call is retried for up to `retry_s` seconds while the server can't be reached, is
starting or stopping (503), or has no room (507). If the user exceeds its rate, the call waits as long as the server
says. An object belongs to one thread; a pickled copy has no connection. No error text contains the token.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode
from zlib import crc32

from curbstone import http_client
from curbstone.core.errors import BadRequest
from curbstone.core.names import QueueName, parse_queue_name
from curbstone.spark.failure import PipelineError, Refused, Unreachable

RETRIED = {502, 503, 504, 507}
TOO_FAST = "#too-fast"
CHECKSUM = "X-Curbstone-Crc32"
PAUSE_S_FIRST, PAUSE_S_MAX = 0.05, 2.0


class Secret:
    """A text that `repr` and `str` do not show."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "***" if self._text else "none"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


@dataclass(frozen=True, slots=True)
class Address:
    """The server's address, and for how long to retry. `token` may be empty."""

    url: str
    token: Secret
    request_s: float = 60.0
    retry_s: float = 60.0
    ca_file: str = ""
    """A file with trusted authorities; empty for those that the machine trusts."""


class Reply(http_client.Reply):
    """A reply that is no error."""

    def json(self) -> dict[str, Any]:
        found = json.loads(self.body)
        if not isinstance(found, dict):
            raise PipelineError("the server's reply is not a JSON object")
        return found

    def number(self, header: str) -> int:
        """Return the number in a header, which must be present."""
        text = self.headers.get(header, "")
        if not text.isdecimal():
            raise PipelineError(f"the server's reply has no header {header}")
        return int(text)


def queue_path(queue: str) -> str:
    """Return the HTTP path of `project/queue`. Raise PipelineError for a bad name."""
    name = checked_name(queue)
    return f"/v2/{name.project}/queues/{quote(name.queue, safe='')}"


def checked_name(queue: str, project: str = "default") -> QueueName:
    """Return the name of a queue given as `queue` or `project/queue`. Raise PipelineError for a bad name."""
    try:
        return parse_queue_name(queue, project)
    except BadRequest as error:
        raise PipelineError(str(error)) from None


def check_ca_file(path: str) -> None:
    """Raise PipelineError if a file has no certificates in it."""
    try:
        ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as error:
        reason = "it holds no certificates" if isinstance(error, ssl.SSLError) else error.strerror
        raise PipelineError(f"option caFile={path!r}: {reason}") from None


class Client:
    """The calls to one server."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._connection: http_client.Connection | None = None

    def __getstate__(self) -> Address:
        return self.address

    def __setstate__(self, address: Address) -> None:
        self.address = address
        self._connection = None

    def call(
        self,
        method: str,
        path: str,
        query: dict[str, Any] | None = None,
        *,
        body: bytes = b"",
        kind: str = "application/json",
        accept: str = "application/json",
        extra_s: float = 0,
    ) -> Reply:
        """Return the reply. Raise Refused for an error, and Unreachable if all retries failed.

        `extra_s` is added to the timeout for a request that waits on the server.
        """
        if query:
            path += "?" + urlencode(query)
        headers = {"Accept": accept}
        if body:
            headers["Content-Type"] = kind
        if token := self.address.token.reveal():
            headers["Authorization"] = f"Bearer {token}"
        give_up = time.monotonic() + self.address.retry_s
        backoff = http_client.Backoff(PAUSE_S_FIRST, PAUSE_S_MAX)
        while True:
            try:
                reply = self._once(method, path, body, headers, self.address.request_s + extra_s)
                if reply.status < 400:
                    return reply
                failure: PipelineError
                failure = refused = _refused(reply, self.address.url)
                if str(refused.members.get("type", "")).endswith(TOO_FAST):
                    wait_s = float(reply.headers.get("Retry-After", "1"))
                    give_up += wait_s
                    time.sleep(wait_s)
                    continue
                if reply.status not in RETRIED:
                    raise failure
            except ssl.SSLCertVerificationError as error:
                self.close()
                why = f"its certificate is not trusted: {error.verify_message}"
                raise Unreachable(f"{self.address.url}: {why} (option caFile names who signed it)") from None
            except http_client.ERRORS as error:
                self.close()
                reason = str(error) or type(error).__name__
                failure = Unreachable(f"can't reach {self.address.url}: {reason}")
            pause_s = backoff.next_s()
            if time.monotonic() + pause_s > give_up:
                raise failure
            time.sleep(pause_s)

    def json(
        self, method: str, path: str, query: dict[str, Any] | None = None, value: Any = None, *, extra_s: float = 0
    ) -> dict[str, Any]:
        """Call with a JSON body or without a body, and return the JSON object of the reply."""
        body = b"" if value is None else json.dumps(value).encode()
        return self.call(method, path, query, body=body, extra_s=extra_s).json()

    def close(self) -> None:
        """Close the connection. The next call opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _once(self, method: str, path: str, body: bytes, headers: dict[str, str], timeout_s: float) -> Reply:
        """Make one attempt. If a kept connection is closed, retry immediately with a new one."""
        connection = self._open()
        was_open = connection.is_open
        try:
            found = connection.request(method, path, body=body or None, headers=headers, timeout_s=timeout_s)
        except (ConnectionError, http.client.BadStatusLine):
            if not was_open:
                raise
            connection.close()
            found = connection.request(method, path, body=body or None, headers=headers, timeout_s=timeout_s)
        return _whole(Reply(found.status, found.reason, found.headers, found.body))

    def _open(self) -> http_client.Connection:
        if self._connection is None:
            address = self.address
            is_tls = address.url.startswith("https:")
            tls = ssl.create_default_context(cafile=address.ca_file or None) if is_tls else None
            self._connection = http_client.Connection(address.url, timeout_s=address.request_s, tls=tls)
        return self._connection


def _whole(reply: Reply) -> Reply:
    """Return a reply unchanged. Raise OSError if its checksum does not match."""
    checksum = reply.headers.get(CHECKSUM)
    if checksum is not None and checksum != f"{crc32(reply.body):08x}":
        raise OSError(f"a page of {len(reply.body)} bytes was damaged in transit")
    return reply


def _refused(reply: Reply, url: str) -> Refused:
    try:
        members = json.loads(reply.body)
        reason = str(members["detail"])
    except (ValueError, KeyError, TypeError):
        return Refused(reply.status, f"{url} answered {reply.status}", {})
    return Refused(reply.status, reason, members)
