"""`curbstone move`: moves messages from one queue to another, on one server or between two.

Messages are leased in small batches, published, and only then settled. So a crash loses nothing, and duplicates at most
one batch. Bodies and metadata stay the same; ids do not.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Annotated, Any

import typer

from curbstone.cli.client import Client, queue_of
from curbstone.cli.options import Json, complete_queue
from curbstone.cli.output import counted, print_json, progress
from curbstone.core.names import QueueName
from curbstone.exit_codes import WRONG, CommandFailed

LEASE_S = 60
WAIT_S = 20
AT_ONCE = 100


def move(
    source: Annotated[
        str,
        typer.Option("--from", metavar="QUEUE", help="The queue to move messages from", autocompletion=complete_queue),
    ],
    target: Annotated[
        str, typer.Option("--to", metavar="QUEUE", help="The queue to move them to", autocompletion=complete_queue)
    ],
    delay: Annotated[
        float,
        typer.Option(
            "--delay", metavar="SECONDS", min=0, help="How long each message waits in --to before it is delivered"
        ),
    ] = 0,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, help="The maximum number of messages to move; 0 for all")
    ] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more messages until interrupted")] = False,
    create: Annotated[bool, typer.Option("--create", help="Create the queue --to if it does not exist")] = False,
    to_server: Annotated[
        str, typer.Option("--to-server", metavar="URL", help="The server of --to, if it is another one")
    ] = "",
    as_json: Json = False,
) -> None:
    """Move messages from one queue to another, in order.

    A crash loses no message, but the last few may be moved twice.
    """
    from curbstone.cli.interruption import summing_up

    taken, given = queue_of(source), queue_of(target)
    with Client() as near, Client(to_server) as far:
        if taken == given and near.url == far.url:
            raise CommandFailed("--from and --to are the same queue", WRONG)
        if create:
            far.queue("PUT", given)
        far.queue("GET", given)  # fails before any message is taken
        info = near.json("GET", taken)
        total = None if follow else min(info["rdy"], limit or info["rdy"])
        moved = twice = 0

        def report() -> None:
            if as_json:
                print_json({"moved": moved, "maybe_twice": twice})
            else:
                print(f"{counted(moved, 'message')} moved" + (f", {twice} of them maybe twice" if twice else ""))

        with summing_up(report), progress(f"{taken} to {given}", total) as done:
            while not limit or moved < limit:
                count = min(AT_ONCE, limit - moved) if limit else AT_ONCE
                messages = _lease(near, taken, count, WAIT_S if follow else 0)
                if not messages and not follow:
                    break
                with closing(_hand_over(near, taken, far, given, messages, delay)) as handed:
                    for published, stale in handed:
                        moved += published
                        twice += stale
                        done(published)


def _lease(client: Client, queue: QueueName, count: int, wait: float) -> list[dict[str, Any]]:
    body = {"count": count, "seconds": LEASE_S, "wait": wait}
    messages: list[dict[str, Any]] = client.json("POST", queue, "/messages/lease", json=body)["messages"]
    return messages


def _hand_over(
    near: Client, taken: QueueName, far: Client, given: QueueName, messages: list[dict[str, Any]], delay: float
) -> Generator[tuple[int, int]]:
    """Publish leased messages, then settle them. Yield how many, and how many of their leases had expired before.

    Messages that were not published are released at once, so that consumers do not wait until their leases expire.
    Messages that were published are settled, even after an interruption in between.
    """
    from curbstone.cli.send import publish, publishable

    asked = {"delay": delay} if delay else {}
    left = list(messages)
    unsettled: list[str] = []

    def keep(seconds: float) -> None:
        """Extend the leases during a wait."""
        tokens = [message["ackId"] for message in left]
        near.queue("POST", taken, "/messages/extend", json={"ackIds": tokens, "seconds": seconds + LEASE_S})

    try:
        while left:
            # Large messages are published in small batches, because a batch is one commit.
            size = count = 0
            while count < len(left) and (not count or size + len(left[count]["message"]) <= 256 * 1024):
                size += len(left[count]["message"])
                count += 1
            batch = [{**publishable(message), **asked} for message in left[:count]]
            for answer in publish(far, given, batch, keep):
                ids = answer["ids"]
                unsettled = [message["ackId"] for message in left[: len(ids)]]
                left = left[len(ids) :]
                stale = near.json("POST", taken, "/messages/ack", json={"ackIds": unsettled})["stale"]
                unsettled = []
                yield len(ids), len(stale)
    finally:
        if unsettled:
            near.queue("POST", taken, "/messages/ack", json={"ackIds": unsettled})
        if left:
            tokens = [message["ackId"] for message in left]
            near.queue("POST", taken, "/messages/nack", json={"ackIds": tokens, "delay": 0})
