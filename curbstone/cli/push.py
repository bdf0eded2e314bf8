"""`curbstone push`: sends a queue's messages as webhooks.

It is an ordinary consumer, so the server itself opens no outgoing connections.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from curbstone.cli.client import Client as HttpClient
from curbstone.cli.client import queue_of, tls_to
from curbstone.cli.connection import login_token, server_url
from curbstone.cli.options import Queue
from curbstone.core.names import QueueName
from curbstone.exit_codes import FAILED, NO_QUEUE, UNREACHABLE, WRONG, CommandFailed


def push(
    queue: Queue,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="The URL to which each message is sent by POST")],
    secret_file: Annotated[
        Path | None, typer.Option("--secret-file", metavar="FILE", help="The secret to sign with: whsec_… or any text")
    ] = None,
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", min=1, max=1000, help="The maximum number of concurrent requests")
    ] = 4,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long to wait for a response")
    ] = 15,
    rate: Annotated[
        float,
        typer.Option("--rate", metavar="N", min=0, help="The maximum number of messages per second; 0 for no limit"),
    ] = 0,
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="Also send to addresses that are not public, such as 127.0.0.1")
    ] = False,
) -> None:
    """Send each message of a queue to a URL, until SIGTERM.

    If the response is 2xx, the message is acked. If it is 4xx, except 408, 425 and 429, the message is dead-lettered.
    In all other cases it is retried, after 1, 2, 4 … 300 s or the time in Retry-After. Headers and signature follow
    Standard Webhooks.
    """
    from curbstone.cli.webhook import Failed, Refused, Sender, Target, secret_of

    try:
        from curbstone_client.errors import CantConnect, ClientError, Reject, Retry, end_of
        from curbstone_client.sync import Client, Message
    except ImportError:
        raise CommandFailed(
            "push needs the Python client: pip install ./client in a checkout of Curbstone", FAILED
        ) from None

    try:
        secret = secret_of(secret_file.read_text(encoding="utf-8")) if secret_file else None
    except OSError as error:
        raise CommandFailed(f"{error.filename}: {error.strerror}", WRONG) from None
    target = Target(url, secret, timeout, allow_private)
    own = threading.local()
    pace = Pace(rate)

    def send(message: Message) -> None:
        if not hasattr(own, "sender"):
            own.sender = Sender(target)
        pace.wait()
        try:
            own.sender.send(message)
        except Refused as refused:
            raise Reject(str(refused)) from None
        except Failed as failed:
            delay_s = failed.retry_after
            if delay_s is None:
                delay_s = end_of(failed, message.tries).delay or 0
            print(f"curbstone: {message.id} is retried in {delay_s:.0f} s: {failed}", file=sys.stderr)
            raise Retry(delay_s, str(failed)) from None

    name = queue_of(queue)
    _check_exists(name)
    # The token is read for each connection, because its file may be replaced while this runs.
    client = Client(server_url().split(","), token=login_token, tls=tls_to(server_url()))
    client.worker(str(name), parallel=parallel)(send)
    try:
        client.run()
    except CantConnect as error:
        raise CommandFailed(str(error), UNREACHABLE) from None
    except ClientError as error:
        raise CommandFailed(str(error), FAILED) from None


def _check_exists(queue: QueueName) -> None:
    """Raise CommandFailed if the queue is missing, because a subscription would create it."""
    try:
        with HttpClient() as http:
            http.queue("GET", queue)
    except CommandFailed as error:
        if error.code == NO_QUEUE:
            raise


class Pace:
    """Limits how many calls of `wait` return each second. Thread-safe."""

    def __init__(self, rate: float) -> None:
        self._gap_s = 1 / rate if rate else 0.0
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Wait until it is the caller's turn."""
        if not self._gap_s:
            return
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + self._gap_s
        time.sleep(turn - now)
