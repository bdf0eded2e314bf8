"""The whole server on simulated sockets: STOMP, MQKS and the gateway as `curbstone serve` puts them together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, cast

from curbstone.access.authenticator import OpenAuthenticator
from curbstone.core.engine.broker import Broker
from curbstone.gateway.app import create_app
from curbstone.gateway.server import GatewayServer
from curbstone.gateway.settings import GatewaySettings
from curbstone.mqks.limits import Limits as MqksLimits
from curbstone.mqks.server import MqksServer
from curbstone.net.tcp import TcpServer
from curbstone.stomp.limits import Limits as StompLimits
from curbstone.stomp.server import StompServer
from tests.kit.simulated import SimHost
from tests.sim.history import Violation
from tests.sim.server_client import ALLOWED
from tests.sim.server_net import SimLoop

STOMP, MQKS, HTTP = 1, 2, 3
"""The ports they listen on."""


class Server:
    """One life of the server on a broker."""

    def __init__(self, broker: Broker, host: SimHost, loop: SimLoop, *, narrow: bool) -> None:
        """`narrow`: with limits so small that clients are not read again and again."""
        stomp, mqks = StompLimits(), MqksLimits()
        if narrow:
            stomp = StompLimits(unconfirmed_max=10, unconfirmed_bytes_max=4000, output_bytes_max=3000)
            mqks = MqksLimits(unconfirmed_max=10, unconfirmed_bytes_max=4000, output_bytes_max=3000)
        self._broker = broker
        self._host = host
        self._loop = loop
        authenticator = OpenAuthenticator(broker, host)
        self._servers: list[tuple[int, TcpServer | GatewayServer]] = [
            (STOMP, StompServer(authenticator, host, limits=stomp)),
            (MQKS, MqksServer(authenticator, host, limits=mqks)),
            (HTTP, GatewayServer(create_app(authenticator, host, GatewaySettings()))),
        ]

    def start(self) -> None:
        for port, server in self._servers:
            self._loop.finish(server.start(("127.0.0.1", port)))

    def stop(self, then: Callable[[], None]) -> None:
        """Take leave of all clients, then close the broker, then call `then`."""

        async def stop() -> None:
            await asyncio.gather(*(server.stop() for _, server in self._servers))
            self._broker.shutdown(then)

        self._loop.create_task(stop())


class _Listen(logging.Handler):
    """Finds in the log what must not be there: an exception that escaped, and a refusal without a reason."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, Exception):
            error.add_note(f"in the log: {record.getMessage()}")
            self.found.append(error)
        elif record.name == "curbstone.mqks":
            text = record.getMessage()
            if not any(word in text for word in ALLOWED):
                self.found.append(Violation(f"an MQKS client was refused: {text}"))


@contextmanager
def listening() -> Iterator[list[BaseException]]:
    """While it lasts, what the log tells that must not be is in the list, and nothing of the log is shown."""
    handler = _Listen()
    loggers = [logging.getLogger(name) for name in ("curbstone", "uvicorn", "asyncio")]
    before = [(logger, logger.propagate, logger.level) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.WARNING)
    try:
        yield handler.found
    finally:
        for logger, propagate, level in before:
            logger.removeHandler(handler)
            logger.propagate = propagate
            logger.setLevel(level)


@contextmanager
def running(loop: SimLoop) -> Iterator[None]:
    """While it lasts, this is the running event loop."""
    asyncio._set_running_loop(cast(Any, loop))
    try:
        yield
    finally:
        asyncio._set_running_loop(None)


def salts(rng: Random) -> Callable[[], int]:
    """Return what gives the engine its salts."""
    return lambda: rng.randrange(1 << 32)
