"""Creates the engine on a RabbitMQ cluster from the settings.

The extra `curbstone[cluster]` installs the packages it needs. Without `--engine` none of them is imported.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from curbstone import __version__
from curbstone.core.errors import CurbstoneError, NotSupported, Unavailable
from curbstone.core.host import AsyncioHost
from curbstone.core.options import QueueOptions
from curbstone.core.port import Broker
from curbstone.gateway.resources.server.backup import Archive
from curbstone.net.connection_limits import DiskAlarms
from curbstone.schemas import JsonSchemas
from curbstone.settings import Settings
from curbstone.waiting import one_of

CONNECT_S_MAX = 60
TELL_S = 5

log = logging.getLogger("curbstone")


class ServedEngine(Broker, Protocol):
    """An engine, with the methods that the server itself calls."""

    @property
    def alarms(self) -> DiskAlarms:
        """The alarms that health reports. Listeners add to them when they are full."""


class NoBackups:
    """See `gateway.resources.backup.Source`. The messages are on the cluster, so the server has nothing to back up."""

    def begin(
        self, had: Mapping[str, tuple[int, str]], on_done: Callable[[CurbstoneError | None, Archive | None], None]
    ) -> None:
        raise NotSupported("A backup needs the local engine: the messages of a cluster are on its nodes.")


def prepare(host: AsyncioHost, loop: asyncio.AbstractEventLoop, settings: Settings) -> ServedEngine:
    """Return the engine of `--engine`, not connected yet. Raise Unavailable if it can't be created."""
    try:
        from curbstone.rabbit.amqp.connection import PikaConnector
    except ImportError as error:
        raise Unavailable(f"--engine needs pika; pip install 'curbstone[cluster]' installs it ({error})") from error
    from curbstone.rabbit.engine import Engine

    assert settings.engine is not None
    address = settings.engine._replace(ca=str(settings.engine_ca) if settings.engine_ca else None)
    if settings.engine_password_file is not None:
        try:
            password = settings.engine_password_file.read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            raise Unavailable(f"can't read {settings.engine_password_file}: {error.strerror}") from error
        address = address._replace(password=password)
    logging.getLogger("pika").setLevel(logging.CRITICAL)  # the engine itself logs events of its connections
    log.info("curbstone %s, engine %s", __version__, address)
    return Engine(
        host,
        PikaConnector(address, loop),
        prefix=settings.engine_prefix,
        defaults=QueueOptions(cap=settings.cap, max_message_size=settings.max_message_size),
        max_cap=settings.max_cap,
        schemas=JsonSchemas(),
    )


async def connect(engine: ServedEngine, stop_asked: asyncio.Event) -> None:
    """Wait until the engine serves or a stop is requested. Raise Unavailable if it takes too long."""
    from curbstone.rabbit.engine import Engine

    assert isinstance(engine, Engine)
    ready = asyncio.Event()
    engine.start(ready.set)
    for _ in range(CONNECT_S_MAX // TELL_S):
        if await one_of(ready, stop_asked, timeout_s=TELL_S):
            return
        log.warning("waiting for the cluster: %s", engine.waits_for)
    raise Unavailable(f"the cluster can't be used: {engine.waits_for}")
