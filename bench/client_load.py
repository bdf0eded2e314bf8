"""Load by the Python client, used as applications do: over `/stomp`, for asyncio and for threads."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass

from bench import login
from bench.check import Checker, bodies
from bench.wire import BenchError
from bench.workers import Outcome, Stopwatch
from curbstone_client import Client, ClientError, sync

WAIT_S_MAX = 15.0
CHECKED = 1000
"""How many messages are checked together."""


@dataclass(frozen=True, slots=True)
class ClientJob:
    url: str
    queue: str
    count: int
    size: int
    prefetch: int
    seconds: float


def publish(job: ClientJob, stopwatch: Stopwatch) -> Outcome:
    """Publish with asyncio: `send` for each message, and `flush` at the end."""
    return _run(_publish(job, stopwatch))


def consume(job: ClientJob, sent: tuple[int, ...], stopwatch: Stopwatch) -> Outcome:
    """Consume with asyncio. Each message is acked separately; this ends when all acks are on disk."""
    return _run(_consume(job, sent, stopwatch))


def _run(work: Coroutine[None, None, Outcome]) -> Outcome:
    try:
        return asyncio.run(work)
    except ClientError as error:
        raise BenchError(str(error)) from None


async def _publish(job: ClientJob, stopwatch: Stopwatch) -> Outcome:
    laid_out = bodies(0, 0, job.count, job.size)
    async with Client(job.url, token=login.token() or None) as client:
        queue = client.queue(job.queue)
        stopwatch.start()
        until = time.monotonic() + job.seconds
        sent = 0
        for body in laid_out:
            await queue.send(body)
            sent += 1
            if not sent % CHECKED and time.monotonic() > until:
                break
        await client.flush()
        stopwatch.stop()
    return Outcome(sent, sent=(sent,))


async def _consume(job: ClientJob, sent: tuple[int, ...], stopwatch: Stopwatch) -> Outcome:
    total = sum(sent)
    checker = Checker(job.size, prepare=total)
    arrived: list[bytes] = []
    async with Client(job.url, token=login.token() or None) as client:
        stopwatch.start()
        messages = client.queue(job.queue).consume(job.prefetch)
        try:
            while checker.distinct < total:
                async with asyncio.timeout(WAIT_S_MAX):
                    for _ in range(min(CHECKED, total - checker.distinct)):
                        message = await anext(messages)
                        arrived.append(message.body)
                        acked = message.ack()
                checker.take(arrived)
                arrived.clear()
            await acked
        except TimeoutError:
            checker.take(arrived)  # missing messages show in the tally
        stopwatch.stop()
    return Outcome(checker.received, tally=checker.tally(sent))


def publish_in_threads(job: ClientJob, stopwatch: Stopwatch) -> Outcome:
    """Do the same as `publish` with `curbstone_client.sync`."""
    laid_out = bodies(0, 0, job.count, job.size)
    try:
        with sync.Client(job.url, token=login.token() or None) as client:
            queue = client.queue(job.queue)
            stopwatch.start()
            until = time.monotonic() + job.seconds
            sent = 0
            for body in laid_out:
                queue.send(body)
                sent += 1
                if not sent % CHECKED and time.monotonic() > until:
                    break
            client.flush(WAIT_S_MAX)
            stopwatch.stop()
    except ClientError as error:
        raise BenchError(str(error)) from None
    return Outcome(sent, sent=(sent,))


def consume_in_threads(job: ClientJob, sent: tuple[int, ...], stopwatch: Stopwatch) -> Outcome:
    """Do the same as `consume` with `curbstone_client.sync`."""
    total = sum(sent)
    checker = Checker(job.size, prepare=total)
    arrived: list[bytes] = []
    try:
        with sync.Client(job.url, token=login.token() or None) as client:
            stopwatch.start()
            messages = client.queue(job.queue).consume(job.prefetch)
            while checker.distinct < total:
                message = messages.get(WAIT_S_MAX)
                if message is None:
                    break  # missing messages show in the tally
                arrived.append(message.body)
                acked = message.ack()
                if len(arrived) >= min(CHECKED, total - checker.distinct):
                    checker.take(arrived)
                    arrived.clear()
            acked.result(WAIT_S_MAX)
            stopwatch.stop()
    except ClientError as error:
        raise BenchError(str(error)) from None
    return Outcome(checker.received, tally=checker.tally(sent))
