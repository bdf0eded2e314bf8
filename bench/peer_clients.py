"""Load on other queues by their Python clients, to compare with `client_load`: aio-pika, nats-py and redis-py.

Up to `job.window` messages are unconfirmed, and each message is acknowledged separately, with the functions of these
clients. A client that is not installed is left out.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from bench.check import Checker, bodies
from bench.measure import Measurement, Target, checked, run
from bench.peer import Action, PeerJob
from bench.wire import BenchError
from bench.workers import Outcome, Stopwatch
from bench.workloads import WINDOW, Plan

ENOUGH = 30_000
PREFETCH = 100
WAIT_S_MAX = 15.0

Loads = dict[str, tuple[Action, Action]]
"""The functions that publish and consume, by the prefix of the workloads' names."""


def names(loads: Loads) -> frozenset[str]:
    """Return the names of the workloads for these loads, which are the names of ours."""
    return frozenset(f"{name}-{what}" for name in loads for what in ("publish", "consume"))


def measured(target: Target, address: tuple[str, int], loads: Loads, size: int, plan: Plan) -> Iterator[Measurement]:
    """Run each load once."""
    for name, (publish, consume) in loads.items():
        queue = f"{target.new_queue()}-{name}"
        job = PeerJob(address, queue, plan.count(ENOUGH, size), size, WINDOW, plan.seconds)
        published, timed = run(target, f"{name}-publish", size, WINDOW, [partial(publish, job)])
        took = PeerJob(address, queue, timed[0].outcome.count, size, WINDOW, plan.seconds)
        consumed, _ = run(target, f"{name}-consume", size, WINDOW, [partial(consume, took)])
        yield checked(published, consumed.tally)
        yield consumed


def versions() -> list[str]:
    """Return the names and versions of the clients that are installed."""
    packages = {"aio-pika": "aio_pika", "nats-py": "nats", "redis": "redis"}
    return [f"{package} {version(package)}" for package, module in packages.items() if find_spec(module)]


def of_rabbitmq() -> Loads:
    """aio-pika: asyncio alone."""
    return {"client": (rabbit_publish, rabbit_consume)} if find_spec("aio_pika") else {}


def of_nats() -> Loads:
    """nats-py: asyncio alone."""
    return {"client": (nats_publish, nats_consume)} if find_spec("nats") else {}


def of_redis() -> Loads:
    """redis-py, with asyncio and without."""
    if not find_spec("redis"):
        return {}
    threads = redis_publish_in_threads, redis_consume_in_threads
    return {"client": (redis_publish, redis_consume), "client-threads": threads}


def _run(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    try:
        return asyncio.run(work)
    except (OSError, TimeoutError) as error:
        raise BenchError(f"the client failed: {error or type(error).__name__}") from None


class _Window:
    """Limits the number of pending confirms."""

    def __init__(self, job: PeerJob) -> None:
        self._job = job
        self._until = time.monotonic() + job.seconds
        self._room = asyncio.Semaphore(job.window)
        self._under_way: set[asyncio.Future[Any]] = set()

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._until

    async def add(self, confirm: Awaitable[object]) -> None:
        await self._room.acquire()
        task = asyncio.ensure_future(confirm)
        self._under_way.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._under_way.discard(task)
        self._room.release()
        if task.exception() is not None:
            raise BenchError(f"a publish failed: {task.exception()}")

    async def drained(self) -> None:
        async with asyncio.timeout(WAIT_S_MAX):
            await asyncio.gather(*self._under_way)


async def _publish_all(job: PeerJob, stopwatch: Stopwatch, publish: Callable[[bytes], Awaitable[object]]) -> Outcome:
    """Publish all bodies, or until the time is over, and wait for all confirms."""
    laid_out = bodies(0, 0, job.count, job.size)
    stopwatch.start()
    window, sent = _Window(job), 0
    for body in laid_out:
        await window.add(publish(body))
        sent += 1
        if not sent % 100 and window.is_over:
            break
    await window.drained()
    stopwatch.stop()
    return Outcome(sent, sent=(sent,))


# --- aio-pika, quorum queues


def rabbit_publish(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    return _run(_rabbit_publish(job, stopwatch))


async def _rabbit_publish(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    import aio_pika

    connection = await aio_pika.connect("amqp://guest:guest@{}:{}/".format(*job.address))
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.declare_queue(job.queue, durable=True, arguments={"x-queue-type": "quorum"})

        async def publish(body: bytes) -> None:
            message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, job.queue)

        return await _publish_all(job, stopwatch, publish)


def rabbit_consume(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    return _run(_rabbit_consume(job, stopwatch))


async def _rabbit_consume(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    import aio_pika

    checker = Checker(job.size, prepare=job.count)
    connection = await aio_pika.connect("amqp://guest:guest@{}:{}/".format(*job.address))
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.get_queue(job.queue)
        stopwatch.start()
        arrived: list[bytes] = []
        async with queue.iterator(timeout=WAIT_S_MAX) as messages:
            async for message in messages:
                arrived.append(message.body)
                await message.ack()
                if len(arrived) >= min(1000, job.count - checker.distinct):
                    checker.take(arrived)
                    arrived.clear()
                    if checker.distinct >= job.count:
                        break
        stopwatch.stop()
    return Outcome(checker.received, tally=checker.tally((job.count,)))


# --- nats-py, JetStream


def nats_publish(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    return _run(_nats_publish(job, stopwatch))


async def _nats_publish(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    import nats

    connection = await nats.connect("nats://{}:{}".format(*job.address))
    stream = connection.jetstream()
    await stream.add_stream(name=job.queue, subjects=[job.queue], retention="workqueue", storage="file")
    outcome = await _publish_all(job, stopwatch, partial(stream.publish, job.queue))
    await connection.close()
    return outcome


def nats_consume(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    return _run(_nats_consume(job, stopwatch))


async def _nats_consume(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    import nats

    checker = Checker(job.size, prepare=job.count)
    connection = await nats.connect("nats://{}:{}".format(*job.address))
    taken = await connection.jetstream().pull_subscribe(job.queue, durable="bench")
    stopwatch.start()
    while checker.distinct < job.count:
        try:
            messages = await taken.fetch(PREFETCH, timeout=WAIT_S_MAX)
        except TimeoutError:
            break  # missing messages show in the tally
        for message in messages:
            await message.ack()
        checker.take([message.data for message in messages])
    stopwatch.stop()
    await connection.close()
    return Outcome(checker.received, tally=checker.tally((job.count,)))


# --- redis-py, streams: it uses a pipeline for several commands in flight


def redis_publish(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    return _run(_redis_publish(job, stopwatch))


async def _redis_publish(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    import redis.asyncio

    host, port = job.address
    laid_out = bodies(0, 0, job.count, job.size)
    async with redis.asyncio.Redis(host=host, port=port) as client:
        await client.ping()
        stopwatch.start()
        until, sent = time.monotonic() + job.seconds, 0
        while sent < job.count and time.monotonic() < until:
            some = laid_out[sent : sent + job.window]
            pipeline = client.pipeline(transaction=False)
            for body in some:
                pipeline.xadd(job.queue, {"b": body})
            await pipeline.execute()
            sent += len(some)
        stopwatch.stop()
    return Outcome(sent, sent=(sent,))


def redis_consume(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    return _run(_redis_consume(job, stopwatch))


async def _redis_consume(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    import redis.asyncio

    host, port = job.address
    checker = Checker(job.size, prepare=job.count)
    async with redis.asyncio.Redis(host=host, port=port) as client:
        await client.xgroup_create(job.queue, "g", "0")
        stopwatch.start()
        while checker.distinct < job.count:
            found: Any = await client.xreadgroup("g", "c", {job.queue: ">"}, count=PREFETCH)
            entries = _entries(found)
            if not entries:
                break  # missing messages show in the tally
            pipeline = client.pipeline(transaction=False)
            for name, _ in entries:
                pipeline.xack(job.queue, "g", name)
            await pipeline.execute()
            checker.take([fields[b"b"] for _, fields in entries])
        stopwatch.stop()
    return Outcome(checker.received, tally=checker.tally((job.count,)))


def redis_publish_in_threads(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    """The same without a loop."""
    import redis

    host, port = job.address
    laid_out = bodies(0, 0, job.count, job.size)
    with redis.Redis(host=host, port=port) as client:
        client.ping()
        stopwatch.start()
        until, sent = time.monotonic() + job.seconds, 0
        while sent < job.count and time.monotonic() < until:
            some = laid_out[sent : sent + job.window]
            pipeline = client.pipeline(transaction=False)
            for body in some:
                pipeline.xadd(job.queue, {"b": body})
            pipeline.execute()
            sent += len(some)
        stopwatch.stop()
    return Outcome(sent, sent=(sent,))


def redis_consume_in_threads(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    """The same without a loop."""
    import redis

    host, port = job.address
    checker = Checker(job.size, prepare=job.count)
    with redis.Redis(host=host, port=port) as client:
        client.xgroup_create(job.queue, "g", "0")
        stopwatch.start()
        while checker.distinct < job.count:
            found: Any = client.xreadgroup("g", "c", {job.queue: ">"}, count=PREFETCH)
            entries = _entries(found)
            if not entries:
                break  # missing messages show in the tally
            pipeline = client.pipeline(transaction=False)
            for name, _ in entries:
                pipeline.xack(job.queue, "g", name)
            pipeline.execute()
            checker.take([fields[b"b"] for _, fields in entries])
        stopwatch.stop()
    return Outcome(checker.received, tally=checker.tally((job.count,)))


def _entries(found: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Return the entries from a read of one stream, for which redis-py has two forms."""
    if not found:
        return []
    if isinstance(found, dict):
        (batches,) = found.values()
        return [entry for batch in batches for entry in batch]
    ((_, entries),) = found
    return list(entries)
