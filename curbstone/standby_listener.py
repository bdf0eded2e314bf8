"""Serves the status of a standby over HTTP, on a separate thread and event loop, until the standby ends."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from curbstone.access.reloading import Reloads
from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.host import AsyncioHost
from curbstone.gateway.resources.server.standby_status import StandbyStatus
from curbstone.gateway.server import GatewayServer
from curbstone.net.acceptor import Acceptor
from curbstone.net.address import Address
from curbstone.net.connection_limits import Admission, Bounds
from curbstone.net.peer import Networks
from curbstone.server_certificates import certificates_of
from curbstone.settings import Settings

log = logging.getLogger("curbstone")

CONNECTIONS_MAX = 256
THREADS = 1
"""For reading certificates again."""


class StandbyListener:
    """A context manager that listens during its block."""

    def __init__(self, settings: Settings, addresses: Sequence[Address], status: StandbyStatus) -> None:
        self._settings = settings
        self._addresses = addresses
        self._status = status
        self._loop: asyncio.AbstractEventLoop
        self._is_over: asyncio.Event
        self._failure: CurbstoneError | None = None
        self._is_open = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="curbstone-status", daemon=True)

    def __enter__(self) -> Self:
        """Raise CurbstoneError if it can't listen."""
        self._thread.start()
        self._is_open.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_over = asyncio.Event()
        host = AsyncioHost(self._loop, THREADS)
        try:
            server = await self._listening(host)
            self._is_open.set()
            await self._is_over.wait()
            await server.stop()
            await server.acceptor.close()
        except CurbstoneError as error:
            self._failure = error
        finally:
            self._is_open.set()
            host.close()

    async def _listening(self, host: AsyncioHost) -> GatewayServer:
        settings = self._settings
        bounds = Bounds(address=settings.max_connections_per_address)
        acceptor = Acceptor(
            Admission(lambda: CONNECTIONS_MAX, bounds=bounds),
            certificates_of(host, settings, Reloads()),
            Networks(settings.trusted_proxy),
        )
        server = GatewayServer(self._status, acceptor)
        for address in self._addresses:
            try:
                host_name, port = await server.start(address)
            except OSError as error:
                await server.stop()
                reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
                raise Unavailable(
                    f"the standby's status can't be served on {address}: {reason}; see --status-addr"
                ) from error
            log.info("the standby's status is at %s", address._replace(host=host_name, port=port))
        return server
