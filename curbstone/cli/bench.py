"""`curbstone bench`: a short load test of a running server, in a queue of its own that is deleted afterwards.

One WebSocket publishes, another consumes and settles. The command prints the throughput, the latency of a confirm
(which is a commit to disk), and the end-to-end latency of a message. The load generator shares the machine and is
written in Python, so the figures are a check of the server, not its limits.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from curbstone.cli.client import Client, socket_url, tls_to
from curbstone.cli.connection import login
from curbstone.cli.options import Json
from curbstone.cli.output import console, print_json, table
from curbstone.core.names import QueueName
from curbstone.exit_codes import FAILED, UNREACHABLE, CommandFailed

if TYPE_CHECKING:
    from rich.table import Table

BARS = " ▁▂▃▄▅▆▇█"
PICTURE_COLUMNS = 60
TICK_S = 0.1
QUANTILES = (50, 90, 99, 99.9, 100)
STAMP_BYTES = 8


@dataclass
class Run:
    """The measurements so far. Times are in seconds."""

    count: int
    started_s: float
    ended_s: float = 0
    sent: int = 0
    confirms_s: list[float] = field(default_factory=list)
    travels_s: list[float] = field(default_factory=list)
    history: deque[int] = field(default_factory=lambda: deque(maxlen=PICTURE_COLUMNS))
    """How many messages arrived in each tick."""

    @property
    def rate(self) -> float:
        """Return how many messages a second were delivered."""
        return len(self.travels_s) / max((self.ended_s or time.perf_counter()) - self.started_s, 1e-9)

    def picture(self) -> str:
        """Return the throughput over time as bars."""
        most = max(self.history, default=0) or 1
        return "".join([BARS[round(number / most * (len(BARS) - 1))] for number in self.history])


def bench(
    count: Annotated[
        int, typer.Option("--count", "-n", metavar="N", min=1, max=10_000_000, help="The number of messages")
    ] = 10_000,
    size: Annotated[int, typer.Option("--size", metavar="BYTES", min=STAMP_BYTES, help="The bytes of each body")] = 200,
    window: Annotated[
        int,
        typer.Option("--window", metavar="N", min=1, max=100_000, help="The maximum number of unconfirmed messages"),
    ] = 100,
    as_json: Json = False,
) -> None:
    """Send messages through the server and show throughput and latencies."""
    queue = QueueName("default", f"bench-{secrets.token_hex(4)}")
    run = Run(count, time.perf_counter())
    with Client() as client:
        client.queue("PUT", queue)
        try:
            asyncio.run(_bench(client.url, queue, run, size, window, show=not as_json))
        finally:
            client.queue("DELETE", queue)
    if as_json:
        print_json(
            {
                "messages": count,
                "bytes": size,
                "window": window,
                "seconds": round(run.ended_s - run.started_s, 4),
                "per_second": round(run.rate, 1),
                "confirm_ms": quantiles_ms(run.confirms_s),
                "travel_ms": quantiles_ms(run.travels_s),
            }
        )
    else:
        console().print(f"{count:,} messages of {size} bytes, window {window}: {run.rate:,.0f} a second")
        console().print(_table(run))


async def _bench(url: str, queue: QueueName, run: Run, size: int, window: int, *, show: bool) -> None:
    from websockets.asyncio.client import connect
    from websockets.exceptions import ConnectionClosed, InvalidHandshake
    from websockets.typing import Subprotocol

    def open_socket(kind: str, query: str) -> connect:
        return connect(
            socket_url(url, queue, query),
            subprotocols=[Subprotocol(kind)],
            compression=None,
            max_size=None,
            proxy=None,
            additional_headers=login(),
            ssl=tls_to(url),
        )

    try:
        async with open_socket("publish", "") as out, open_socket("consume", f"ack&limit={window}") as back:
            run.started_s = time.perf_counter()
            async with asyncio.TaskGroup() as tasks:
                picture = tasks.create_task(_draw(run, show))
                work = [tasks.create_task(_publish(out, run, size, window)), tasks.create_task(_consume(back, run))]
                await asyncio.wait(work, return_when=asyncio.FIRST_EXCEPTION)
                picture.cancel()
            run.ended_s = time.perf_counter()
    except* (OSError, ConnectionClosed, InvalidHandshake) as group:
        raise CommandFailed(f"the connection to {url} was lost: {_first(group)}", UNREACHABLE) from None
    except* CommandFailed as group:
        raise CommandFailed(str(_first(group)), FAILED) from None


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


async def _publish(socket: Any, run: Run, size: int, window: int) -> None:
    """Publish, with at most `window` messages unconfirmed. Confirms arrive in the order of the messages."""
    unconfirmed: deque[float] = deque()
    padding = b"x" * (size - STAMP_BYTES)
    while run.sent < run.count or unconfirmed:
        while run.sent < run.count and len(unconfirmed) < window:
            unconfirmed.append(time.perf_counter())
            await socket.send(time.perf_counter_ns().to_bytes(STAMP_BYTES, "big") + padding)
            run.sent += 1
        answer = await socket.recv()
        if answer:
            raise CommandFailed(f"a message was refused: {json.loads(answer).get('error', answer)}")
        run.confirms_s.append(time.perf_counter() - unconfirmed.popleft())


async def _consume(socket: Any, run: Run) -> None:
    while len(run.travels_s) < run.count:
        head = json.loads(await socket.recv())
        if "code" in head:
            raise CommandFailed(f"consuming ended: {head.get('error', head['code'])}")
        body: bytes = await socket.recv()
        run.travels_s.append((time.perf_counter_ns() - int.from_bytes(body[:STAMP_BYTES], "big")) / 1e9)
        await socket.send(f'{{"ackId":"{head["ackId"]}"}}')


async def _draw(run: Run, show: bool) -> None:
    """Count the messages that arrive in each tick and, on a terminal, draw them."""
    from rich.live import Live
    from rich.text import Text

    screen = console()
    seen = 0

    def tick() -> str:
        nonlocal seen
        arrived = len(run.travels_s)
        run.history.append(arrived - seen)
        seen = arrived
        return f"{run.picture()}  {arrived:,} of {run.count:,}, {run.rate:,.0f} a second"

    if not (show and screen.is_terminal):
        return
    with Live(console=screen, transient=True, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(TICK_S)
            live.update(Text(tick()), refresh=True)


def quantiles_ms(times_s: Sequence[float]) -> dict[str, float]:
    """Return the quantiles in ms, by their names."""
    ordered = sorted(times_s)
    if not ordered:
        return {}
    places = {q: max(math.ceil(q / 100 * len(ordered)) - 1, 0) for q in QUANTILES}
    return {f"p{q:g}": round(ordered[place] * 1000, 3) for q, place in places.items()}


def _table(run: Run) -> Table:

    rows = [
        [name, *[f"{value:.2f}" for value in quantiles_ms(times).values()]]
        for name, times in (("confirm (on disk)", run.confirms_s), ("end to end", run.travels_s))
    ]
    return table(("MILLISECONDS", *[f"p{q:g}" if q < 100 else "MAX" for q in QUANTILES]), rows)
