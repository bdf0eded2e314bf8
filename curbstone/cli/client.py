"""The HTTP client of the commands. Every failure is a `CommandFailed`."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from curbstone.cli.connection import CA_FILE_VARIABLE, CERT_FILE_VARIABLE, login, server_url
from curbstone.core.errors import BadRequest
from curbstone.core.names import QueueName, parse_queue_name
from curbstone.exit_codes import FAILED, NO_QUEUE, UNREACHABLE, WRONG, CommandFailed
from curbstone.http_client import ERRORS, Connection, Reply

if TYPE_CHECKING:
    import ssl
    from http.client import HTTPResponse

TIMEOUT_S = 60
TOO_FAST = "#too-fast"
PIECE_BYTES = 64 * 1024


class Client:
    """Calls to one server."""

    def __init__(self, url: str = "") -> None:
        """Call the server at `url`, by default the configured one. Of several, the first that serves is called."""
        urls = [_checked(each.strip()) for each in (url or server_url()).split(",")]
        self._headers = login()
        for self.url in urls:
            try:
                self._connection = Connection(self.url, timeout_s=TIMEOUT_S, tls=tls_to(self.url))
            except ValueError as error:
                raise CommandFailed(f"bad server address {self.url!r}: {error}", WRONG) from None
            if self.url != urls[-1]:
                with suppress(*ERRORS):
                    reply = self._connection.request("GET", "/readyz")
                    if _member(reply, "status") != "standby":
                        break
                    self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, object] | None = None,
        json: object = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = TIMEOUT_S,
    ) -> Reply:
        """Return the reply. Raise CommandFailed if it is an error.

        `json` is a value to send as JSON, `content` a body to send as it is. `timeout` limits each read, in seconds.
        """
        headers = {**self._headers, **(headers or {})}
        if json is not None:
            content, headers["content-type"] = _encode(json), "application/json"
        try:
            reply = self._connection.request(
                method, path, query=params, body=content, headers=headers, timeout_s=timeout
            )
        except ERRORS as error:
            raise unreachable(self.url, error) from None
        if reply.status < 400:
            return reply
        raise refused(self.url + path, reply)

    @contextmanager
    def stream(self, method: str, path: str, json: object, timeout: float = TIMEOUT_S) -> Iterator[Iterator[bytes]]:
        """Yield the body of a reply as it arrives. Raise CommandFailed as `call` does, also while the body is read.

        `timeout` limits each read, in seconds.
        """
        headers = {**self._headers, "content-type": "application/json"}
        content = _encode(json)
        with ExitStack() as until_read:
            try:
                reply = until_read.enter_context(
                    self._connection.stream(method, path, body=content, headers=headers, timeout_s=timeout)
                )
                if reply.status >= 400:
                    raise refused(self.url + path, Reply(reply.status, reply.reason, reply.headers, reply.read()))
            except ERRORS as error:
                raise unreachable(self.url, error) from None
            yield self._pieces(reply)  # outside of the try: errors of the caller are not those of the connection

    def _pieces(self, reply: HTTPResponse) -> Iterator[bytes]:
        try:
            while piece := reply.read1(PIECE_BYTES):
                yield piece
        except ERRORS as error:
            raise unreachable(self.url, error) from None

    def interrupt(self) -> None:
        """Abort the call in progress, as if the connection was lost. May be called on another thread."""
        self._connection.interrupt()

    def queue(self, method: str, queue: QueueName, path: str = "", **options: Any) -> Reply:
        """Call a path below that of a queue."""
        return self.call(method, path_of(queue) + path, **options)

    def publish(
        self, queue: QueueName, path: str, *, waiting: Callable[[float], object] = lambda _s: None, **options: Any
    ) -> Reply:
        """Publish. If the rate limit of the user is reached, wait as long as the server says, and retry.

        `waiting` is called with the seconds of each wait.
        """
        while True:
            try:
                return self.queue("POST", queue, path, **options)
            except Refused as error:
                if not error.kind.endswith(TOO_FAST):
                    raise
                waiting(error.retry_after)
                time.sleep(error.retry_after)

    def json(self, method: str, queue: QueueName, path: str = "", **options: Any) -> Any:
        """Call a path below that of a queue, and return the JSON of the reply."""
        return self.queue(method, queue, path, **options).json()


def _checked(url: str) -> str:
    """Return the address of a server in full. Raise CommandFailed if it has a password."""
    if "@" in re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0]:
        # The URL is not shown, because its password would then be in terminals and logs.
        raise CommandFailed(
            "bad server address: it must not have a user or password; put a token into a file, see --token-file", WRONG
        )
    return url.rstrip("/") if "://" in url else f"http://{url.rstrip('/')}"


def tls_to(url: str) -> ssl.SSLContext | None:
    """Return the TLS context of a connection to the server, or None if it is not encrypted. Raise CommandFailed."""
    if not url.startswith("https:"):
        return None
    import ssl

    found = {name: os.environ.get(name) for name in (CA_FILE_VARIABLE, CERT_FILE_VARIABLE)}
    authorities, certificate = found.values()
    name = CA_FILE_VARIABLE
    try:
        context = ssl.create_default_context(cafile=authorities or None)
        name = CERT_FILE_VARIABLE
        if certificate:
            context.load_cert_chain(certificate)
    except OSError as error:  # SSLError is an OSError, too
        why = error.strerror if not isinstance(error, ssl.SSLError) else "it has no usable certificate"
        raise CommandFailed(f"can't use {found[name]}: {why}", WRONG) from None
    return context


def unreachable(url: str, error: Exception) -> CommandFailed:
    """Return the error for a server that could not be reached."""
    hint = "; give the CA of its certificate with --ca-file" if "CERTIFICATE_VERIFY_FAILED" in str(error) else ""
    return CommandFailed(f"can't reach {url}: {error or type(error).__name__}{hint}", UNREACHABLE)


class Refused(CommandFailed):
    """The server has replied with an error."""

    def __init__(self, status: int, reason: str, kind: str = "", retry_after: float = 1.0) -> None:
        super().__init__(reason, NO_QUEUE if status == 404 else FAILED)
        self.status = status
        self.kind = kind
        """The `type` of the problem document."""
        self.retry_after = retry_after
        """After how many seconds to retry, if that may help."""


def refused(url: str, reply: Reply) -> Refused:
    """Return the error of a reply from a URL."""
    retry_after = reply.headers.get("retry-after", "")
    reason = _member(reply, "detail") or f"{url} answered {reply.status}: {reply.reason}"
    if reason == "a login is needed":
        reason += "; give a token with --token-file FILE"
    return Refused(reply.status, reason, _member(reply, "type"), float(retry_after) if retry_after.isdigit() else 1.0)


def queue_of(text: str) -> QueueName:
    """Parse the name of a queue, `queue` or `project/queue`. Raise CommandFailed."""
    try:
        return parse_queue_name(text)
    except BadRequest as error:
        raise CommandFailed(str(error), WRONG) from None


def path_of(queue: QueueName) -> str:
    """Return the HTTP path of a queue."""
    return f"/v2/{queue.project}/queues/{quote(queue.queue, safe='')}"


def socket_url(url: str, queue: QueueName, query: str) -> str:
    """Return the URL of a queue's WebSocket."""
    return f"{url.replace('http', 'ws', 1)}{path_of(queue)}/messages?{query}"


def _member(reply: Reply, name: str) -> str:
    """Return a member of the JSON object in a reply, or "" if it has none."""
    try:
        found = reply.json()
    except ValueError:
        return ""
    return str(found.get(name, "")) if isinstance(found, dict) else ""


def _encode(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
