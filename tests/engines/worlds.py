"""The worlds that an engine is tested in: the local one on a simulated disk, the one on a cluster on a model of the
broker, and on a real node. Tests speak to the port alone, and wait for what is to happen.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from curbstone.core.errors import CurbstoneError
from curbstone.core.host import AsyncioHost
from curbstone.core.message import Delivery, Message
from curbstone.core.names import QueueName, queue_name
from curbstone.core.options import MIB, QueueOptions
from curbstone.core.orders import orders_of
from curbstone.core.port import Broker, Consumer, Queue
from curbstone.rabbit.amqp.address import parse
from curbstone.rabbit.amqp.connection import PikaConnector
from curbstone.rabbit.engine import Engine
from curbstone.schemas import JsonSchemas
from curbstone.tracing.engine import traced
from tests.engines.model import ModelBroker
from tests.kit.lab import Lab
from tests.kit.simulated import SimHost

START_MS = 1_790_000_000_000
PATIENCE_MS = 60_000
_names = itertools.count(1)
DEFAULTS = QueueOptions(cap=MIB, max_message_size=MIB)


class Peer:
    """A consumer that remembers what it got."""

    def __init__(self, world: World, queue: Queue, **options: Any) -> None:
        self.deliveries: list[Delivery] = []
        self.errors: list[CurbstoneError] = []
        self._world = world
        options.setdefault("window", 100)
        self.consumer: Consumer = queue.subscribe(self.deliveries.extend, on_closed=self.errors.append, **options)

    @property
    def bodies(self) -> list[str]:
        return [delivery.message.body.decode() for delivery in self.deliveries]

    def expect(self, *bodies: str) -> None:
        """Wait until these have come, and nothing else."""
        self._world.wait_until(lambda: len(self.deliveries) >= len(bodies))
        assert self.bodies == list(bodies)

    def seqs(self, *bodies: str) -> list[int]:
        """Return the seqs of the last deliveries of these bodies."""
        by_body = {delivery.message.body.decode(): delivery.message.seq for delivery in self.deliveries}
        return [by_body[body] for body in bodies]

    def settle(self, how: str, *bodies: str, **more: Any) -> None:
        """Settle the last deliveries of these bodies, and wait until that is done."""
        call: Any = getattr(self.consumer, how)
        (error,) = self._world.answer(lambda done: call(self.seqs(*bodies), **more, on_done=done))
        assert error is None, error


class World(Protocol):
    """An engine, and time."""

    broker: Broker
    name: str

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Let things happen until this is so; fail where it takes too long."""

    def now_ms(self) -> int:
        """The wall clock."""

    def close(self) -> None:
        """End it."""

    def answer(self, call: Callable[[Callable[..., None]], object]) -> tuple[Any, ...]:
        """Return what the one callback gets."""
        answers: list[tuple[Any, ...]] = []
        call(lambda *given: answers.append(given))
        self.wait_until(lambda: answers)
        return answers[0]

    def fresh(self) -> QueueName:
        """Return a name that no queue has."""
        return queue_name(f"q{next(_names)}.{secrets.token_hex(3)}")

    def queue(self, **options: object) -> Queue:
        name = self.fresh()
        (error,) = self.answer(lambda done: self.broker.declare(name, options, done))
        assert error is None, error
        return self.broker.get(name)

    def publish(self, queue: Queue, *bodies: str, **extras: Any) -> list[int]:
        """Publish, and return the seqs; fail where one is refused."""
        messages = [Message(body.encode(), extras.pop("headers", b""), orders_of(**extras)) for body in bodies]
        left = len(messages)
        seqs: list[int] = []

        def done(error: CurbstoneError | None, first: int, count: int) -> None:
            nonlocal left
            assert error is None, error
            left -= count
            seqs.extend(range(first, first + count))

        queue.publish(messages, done)
        self.wait_until(lambda: not left)
        return seqs

    def pop(self, queue: Queue, **more: Any) -> Delivery | None:
        (delivery,) = self.answer(lambda done: queue.pop(done, **more))
        if isinstance(delivery, CurbstoneError):
            raise delivery
        taken: Delivery | None = delivery
        return taken

    def take(self, queue: Queue, count: int = 0, **more: Any) -> list[Delivery]:
        """Take all there is; so many have to come, however slow the machine is, and more may, as `more` says."""
        found: list[Delivery] = []
        patiently = {**more, "wait_ms": PATIENCE_MS // 2}
        while (delivery := self.pop(queue, **(patiently if len(found) < count else more))) is not None:
            found.append(delivery)
        return found

    def bodies(self, queue: Queue, count: int = 0, **more: Any) -> list[str]:
        """Take all there is, as `take` does, and return the bodies."""
        return [delivery.message.body.decode() for delivery in self.take(queue, count, **more)]

    def ready(self, queue: Queue, count: int, group: str = "") -> None:
        """Wait until so many are ready."""

        for _ in range(PATIENCE_MS // 20):
            self.answer(queue.refresh)
            if queue.counts(group).rdy == count:
                return
            self.pause()
        raise AssertionError(f"{queue.counts(group)} instead of {count} ready")

    def pause(self) -> None:
        end_ms = self.now_ms() + 20
        self.wait_until(lambda: self.now_ms() >= end_ms)

    def peer(self, queue: Queue, **options: Any) -> Peer:
        """Return a consumer that takes part."""
        peer = Peer(self, queue, **options)
        opened: list[bool] = []
        peer.consumer.when_open(lambda: opened.append(True))
        self.wait_until(lambda: opened)
        return peer


class LocalWorld(World):
    """The local engine, on a simulated disk."""

    name = "local"

    def __init__(self) -> None:
        self.lab = Lab()
        self.lab.broker.shared.schemas = JsonSchemas()
        self.broker: Broker = self.lab.broker

    def wait_until(self, condition: Callable[[], object]) -> None:
        self.lab.settle()
        for _ in range(PATIENCE_MS // 10):
            if condition():
                return
            self.lab.pass_time(10)
        raise AssertionError("it did not come")

    def now_ms(self) -> int:
        return self.lab.host.wall_ms()

    def close(self) -> None:
        self.lab.shutdown()


class TracedWorld(LocalWorld):
    """The local engine with spans around it: nobody sees a difference."""

    name = "traced"

    def __init__(self) -> None:
        super().__init__()
        self.spans = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.broker = traced(self.lab.broker, self.lab.host, provider.get_tracer("test"))


class GatewayWorld(World):
    """Engines on one broker: `gateway` adds another one."""

    engines: list[Engine]

    def started(self, engine: Engine) -> Engine:
        """Add an engine, once it is ready."""
        self.engines.append(engine)
        ready: list[bool] = []
        engine.start(lambda: ready.append(True))
        self.wait_until(lambda: ready)
        return engine

    def close(self) -> None:
        for engine in self.engines:
            ended: list[bool] = []
            engine.shutdown(lambda ended=ended: ended.append(True))  # type: ignore[misc]
            self.wait_until(lambda ended=ended: ended)  # type: ignore[misc]


class ModelWorld(GatewayWorld):
    """An engine on the model of a broker."""

    name = "model"

    def __init__(self) -> None:
        self.host = SimHost(Random(0), START_MS)
        self.model = ModelBroker(self.host)
        self.engines: list[Engine] = []
        self.engine = self.gateway()
        self.broker: Broker = self.engine

    def gateway(self) -> Engine:
        """Start one more gateway, or the first."""
        engine = Engine(self.host, self.model, defaults=DEFAULTS, first_number=1, schemas=JsonSchemas())
        return self.started(engine)

    def pass_time(self, ms: int) -> None:
        """Let time pass, and all that is due happen in its order."""
        end_ms = self.host.now_ms() + ms
        self.host.settle()
        while self.host.timers and self.host.timers[0][0] <= end_ms:
            self.host.pass_time(max(self.host.timers[0][0] - self.host.now_ms(), 0))
            self.host.settle()
        self.host.pass_time(end_ms - self.host.now_ms())
        self.host.settle()

    def wait_until(self, condition: Callable[[], object]) -> None:
        self.host.settle()
        for _ in range(PATIENCE_MS // 5):
            if condition():
                return
            self.pass_time(5)
        raise AssertionError("it did not come")

    def now_ms(self) -> int:
        return self.host.wall_ms()


class NodeWorld(GatewayWorld):
    """An engine on a real node."""

    name = "node"

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self.host = AsyncioHost(self._loop, threads=1)
        self.engines: list[Engine] = []
        self.engine = self.gateway()
        self.broker: Broker = self.engine

    def gateway(self) -> Engine:
        """Start one more gateway, or the first; all tests share what they share, under a prefix of their own."""
        prefix = f"{secrets.token_hex(4)}/" if not self.engines else self.engines[0].names.prefix
        connector = PikaConnector(parse(self._url), self._loop)
        engine = Engine(self.host, connector, prefix=prefix, defaults=DEFAULTS, schemas=JsonSchemas())
        return self.started(engine)

    def wait_until(self, condition: Callable[[], object]) -> None:
        async def wait() -> None:
            async with asyncio.timeout(PATIENCE_MS / 1000):
                while not condition_met():
                    await asyncio.sleep(0.002)

        def condition_met() -> bool:
            return bool(condition())

        if not condition_met():
            self._loop.run_until_complete(wait())

    def now_ms(self) -> int:
        return self.host.wall_ms()

    def close(self) -> None:
        super().close()
        self.wait_until(
            lambda: not any(engine.engine.nodes for engine in self.engines)
        )  # their sockets are closed, too
        self._loop.run_until_complete(asyncio.sleep(0.05))
        self.host.close()
        self._loop.close()
