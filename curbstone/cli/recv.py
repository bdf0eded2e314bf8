"""`curbstone recv`: receives messages, prints them, and settles them with --ack."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from http.client import HTTPMessage
from typing import Annotated, Any

import typer

from curbstone.cli.client import Client, queue_of, refused, socket_url, tls_to, unreachable
from curbstone.cli.connection import login
from curbstone.cli.options import Json, Queue
from curbstone.cli.output import print_body, print_json
from curbstone.core.names import QueueName
from curbstone.exit_codes import NO_QUEUE, NOTHING, UNREACHABLE, CommandFailed
from curbstone.http_client import Reply

LEASE_S = 60
AT_ONCE = 100
WINDOW = 100
WINDOW_UNSETTLED = 100_000
"""Without --ack nothing is settled, so the window must be large enough for all messages that are shown."""

Shown = dict[str, Any]


def recv(
    queue: Queue,
    count: Annotated[
        int | None,
        typer.Option(
            "--count", "-n", metavar="N", min=0, help="The maximum number of messages to receive; 0 for all. Default: 1"
        ),
    ] = None,
    ack: Annotated[bool, typer.Option("--ack", help="Acknowledge each message after it was printed")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more messages until interrupted")] = False,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, max=30, help="How long to wait for the first message")
    ] = 0,
    group: Annotated[str, typer.Option("--group", help="Receive for this group")] = "",
    as_json: Json = False,
) -> int:
    """Receive messages and print their bodies.

    Without --ack, the messages return to the queue when the command ends. This counts as a delivery: a queue with
    `max_tries` may then dead-letter them. To look at messages without any effect, use `peek`.

    With --ack, a message is acknowledged only after it was printed, so nothing is lost on its way into a pipe. With
    --json, each message is printed as one line of JSON. The exit code is 5 if there was no message.
    """
    name = queue_of(queue)
    show = _show_json if as_json else _show_body
    with Client() as client:
        if follow:
            received = asyncio.run(_follow(client, name, count or 0, ack, group, show))
        else:
            received = _take(client, name, 1 if count is None else count, ack, group, wait, show)
    return 0 if received else NOTHING


def _take(
    client: Client, queue: QueueName, count: int, ack: bool, group: str, wait: float, show: Callable[[Shown], None]
) -> int:
    """Lease messages until there are no more or `count` is reached. Unsettled ones are released at the end."""
    held: list[str] = []
    received = 0
    try:
        while not count or received < count:
            body = {
                "count": min(AT_ONCE, count - received) if count else AT_ONCE,
                "seconds": LEASE_S,
                "wait": 0 if received else wait,
                "group": group,
            }
            messages = client.json("POST", queue, "/messages/lease", json=body)["messages"]
            if not messages:
                break
            held += [message["ackId"] for message in messages]
            for message in messages:
                show(message)
                received += 1
            if ack:
                client.queue("POST", queue, "/messages/ack", json={"ackIds": held})
                held = []
    finally:
        for first in range(0, len(held), AT_ONCE):
            tokens = {"ackIds": held[first : first + AT_ONCE], "delay": 0}
            client.queue("POST", queue, "/messages/nack", json=tokens)
    return received


async def _follow(
    client: Client, queue: QueueName, count: int, ack: bool, group: str, show: Callable[[Shown], None]
) -> int:
    received = 0
    async with aclosing(_deliveries(client.url, queue, WINDOW if ack else WINDOW_UNSETTLED, group)) as deliveries:
        async for message, settle in deliveries:
            await asyncio.to_thread(show, message)  # so that pings are answered while a full pipe blocks
            if ack:
                await settle()
            received += 1
            if received == count:
                break
    return received


async def _deliveries(
    url: str, queue: QueueName, window: int, group: str
) -> AsyncGenerator[tuple[Shown, Callable[[], Awaitable[None]]]]:
    """Yield messages as they arrive over a WebSocket, each with a function that settles it.

    Everything runs in one thread, because Python's TLS sometimes breaks a connection that is read in one thread and
    written in another.
    """
    from websockets.asyncio.client import connect
    from websockets.typing import Subprotocol

    address = socket_url(url, queue, f"ack&limit={window}&encoding=base64" + (f"&group={group}" if group else ""))
    with _errors_reported(url):
        async with connect(
            address,
            subprotocols=[Subprotocol("consume")],
            compression=None,
            max_size=None,
            proxy=None,
            additional_headers=login(),
            ssl=tls_to(url),
        ) as socket:
            async for frame in socket:
                message = json.loads(frame)
                if "code" in message:
                    code = NO_QUEUE if message["code"] == 404 else 1
                    raise CommandFailed(str(message.get("error", message["code"])), code)

                async def settle(ack_id: str = message["ackId"]) -> None:
                    with _errors_reported(url):
                        await socket.send(json.dumps({"ackId": ack_id}))

                yield _as_text(message), settle
            raise CommandFailed("the server closed the connection", UNREACHABLE)


@contextmanager
def _errors_reported(url: str) -> Iterator[None]:
    """Turn the errors of a connection into a `CommandFailed`."""
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

    try:
        yield
    except InvalidStatus as error:
        answer = error.response
        raise refused(
            url, Reply(answer.status_code, answer.reason_phrase, HTTPMessage(), bytes(answer.body or b""))
        ) from None
    except (OSError, ConnectionClosed, InvalidHandshake) as error:
        raise unreachable(url, error) from None


def _as_text(message: Shown) -> Shown:
    """Return a message whose body was sent as base64; the body is text if it is valid text."""
    try:
        text = base64.b64decode(message["message"]).decode()
    except UnicodeDecodeError:
        return message
    return {**{name: value for name, value in message.items() if name != "encoding"}, "message": text}


def _show_json(message: Shown) -> None:
    print_json({name: value for name, value in message.items() if name not in ("ackId", "expires")})


def _show_body(message: Shown) -> None:
    text = message["message"]
    print_body(base64.b64decode(text) if message.get("encoding") == "base64" else text.encode())
