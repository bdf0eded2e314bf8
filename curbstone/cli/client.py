"""The HTTP client of the commands. Every failure is a `CommandFailed`.

httpx is imported only where it is used, because importing it takes longer than everything else, and the server does not
need it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from curbstone.cli.connection import CA_FILE_VARIABLE, CERT_FILE_VARIABLE, login, server_url
from curbstone.core.errors import BadRequest
from curbstone.core.names import QueueName, parse_queue_name
from curbstone.exit_codes import FAILED, NO_QUEUE, UNREACHABLE, WRONG, CommandFailed

if TYPE_CHECKING:
    import ssl

    import httpx

TIMEOUT_S = 60
TOO_FAST = "#too-fast"

_PLAIN_ERRORS = "{} answered {}: {}"


class Client:
    """Calls to one server."""

    def __init__(self, url: str = "") -> None:
        """Call the server at `url`, or else the one of the settings."""
        import httpx

        url = url or server_url()

        self.url = url.rstrip("/") if "://" in url else f"http://{url.rstrip('/')}"
        if "@" in re.split(r"[/?#]", self.url.partition("://")[2], maxsplit=1)[0]:
            # The URL is not shown, because its password would then be in terminals and logs.
            raise CommandFailed(
                "bad server address: no user or password in it; a token goes into a file, see --token-file", WRONG
            )
        try:
            # Environment variables for proxies are ignored, because the server is most often on this machine.
            self._http = httpx.Client(
                base_url=self.url, timeout=TIMEOUT_S, trust_env=False, headers=login(), verify=tls_to(self.url) or True
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise CommandFailed(f"bad server address {url!r}: {error}", WRONG) from None

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Return the reply. Raise CommandFailed if it is an error."""
        import httpx

        try:
            reply = self._http.request(method, path, **options)
        except (httpx.TransportError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise unreachable(self.url, error) from None
        if reply.status_code < 400:
            return reply
        raise refused(reply)

    @contextmanager
    def stream(self, method: str, path: str, **options: Any) -> Iterator[Iterator[bytes]]:
        """Yield the body of a reply as it comes. Raise CommandFailed as `call` does, also while the body is read."""
        import httpx

        try:
            with self._http.stream(method, path, **options) as reply:
                if reply.status_code >= 400:
                    reply.read()
                    raise refused(reply)
                yield reply.iter_raw()
        except (httpx.TransportError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise unreachable(self.url, error) from None

    def queue(self, method: str, queue: QueueName, path: str = "", **options: Any) -> httpx.Response:
        """Call a path below that of a queue."""
        return self.call(method, path_of(queue) + path, **options)

    def publish(
        self, queue: QueueName, path: str, *, waiting: Callable[[float], object] = lambda _s: None, **options: Any
    ) -> httpx.Response:
        """Publish. If the user has reached its rate, wait as long as the server says, and publish again.

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
        why = error.strerror if not isinstance(error, ssl.SSLError) else "it holds no certificate that can be used"
        raise CommandFailed(f"can't use {found[name]}: {why}", WRONG) from None
    return context


def unreachable(url: str, error: Exception) -> CommandFailed:
    """Return the error for a server that could not be reached."""
    hint = "; name the authority of its certificate with --ca-file" if "CERTIFICATE_VERIFY_FAILED" in str(error) else ""
    return CommandFailed(f"can't reach {url}: {error or type(error).__name__}{hint}", UNREACHABLE)


class Refused(CommandFailed):
    """The server answered with an error."""

    def __init__(self, status: int, reason: str, kind: str = "", retry_after: float = 1.0) -> None:
        super().__init__(reason, NO_QUEUE if status == 404 else FAILED)
        self.status = status
        self.kind = kind
        """The `type` of the problem document."""
        self.retry_after = retry_after
        """After how many seconds to try again, if that may help."""


def refused(reply: httpx.Response) -> Refused:
    """Return the error that a reply stands for."""
    told = reply.headers.get("retry-after", "")
    kind = str(_problem_in(reply).get("type", ""))
    return Refused(reply.status_code, reason_in(reply), kind, float(told) if told.isdigit() else 1.0)


def queue_of(text: str) -> QueueName:
    """Return the name of the queue given as `queue` or `project/queue`. Raise CommandFailed for a bad name."""
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


def reason_in(reply: httpx.Response) -> str:
    """Return the reason that an error reply gives."""
    detail = _problem_in(reply).get("detail")
    if detail is None:
        return _PLAIN_ERRORS.format(reply.url, reply.status_code, reply.reason_phrase)
    return f"{detail}; give a token with --token-file FILE" if detail == "a login is needed" else str(detail)


def _problem_in(reply: httpx.Response) -> dict[str, Any]:
    try:
        problem = json.loads(reply.content)
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}
