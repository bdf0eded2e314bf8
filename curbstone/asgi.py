"""Curbstone as an ASGI application with the engine in process, for other ASGI servers or to mount in applications.

    from curbstone.asgi import create_app
    app = create_app(data="curbstone-data", users="users.toml")

The engine starts and stops with the application's lifespan. See docs/embedding.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from curbstone import charts
from curbstone.access.reloading import Reloads
from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.host import AsyncioHost
from curbstone.gateway.asgi import AsgiGateway, refuse
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.resources.metrics.figures import Process
from curbstone.net.address import Address
from curbstone.serve import (
    ENGINE_STOP_S,
    WHOLE_S,
    admission_of,
    authenticator_of,
    gateway_of,
    open_engine,
)
from curbstone.settings import LISTENERS, OPTIONS, Settings, SettingsError, load
from curbstone.waiting import one_of

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

NOT_RUNNING = "the engine is not running: the application's lifespan has not started, or has ended"

_OF_SERVE = {
    *("stomp_addr", "http_addr", "mqks_addr", "tls_cert", "tls_key", "tls_client_ca", "trusted_proxy", "plaintext"),
    *("lease", "lease_ttl", "failover_lag", "failover_on_fault", "advertise"),
    *("engine", "engine_password_file", "engine_ca", "engine_prefix", "log_level", "log_format"),
}
"""The settings that only `curbstone serve` has: listeners, TLS, a lease, a cluster as the engine, the process's log."""

log = logging.getLogger("curbstone")


def create_app(**settings: Any) -> App:
    """Return Curbstone as an ASGI application; raise SettingsError.

    Settings have the names of the options of `curbstone serve` with underscores (`data`, `users`, `max_message_size`);
    those that are not given are taken from `CURBSTONE_*` variables. Without `users`, `insecure=True` is needed, because
    the application can't see at which addresses it is served.
    """
    for name in settings:
        if name in _OF_SERVE:
            raise SettingsError(f"{name} is only for `curbstone serve`; an ASGI application has no such setting")
        if name not in OPTIONS:
            known = ", ".join(option for option in OPTIONS if option not in _OF_SERVE)
            raise SettingsError(f"unknown setting {name!r}; there are {known}")
    # Listeners in the environment are for `curbstone serve`. A loopback address passes all checks of addresses.
    found = load({**settings, **dict.fromkeys(LISTENERS, ""), "http_addr": "127.0.0.1:0"})
    if found.engine is not None:
        raise SettingsError("engine is only for `curbstone serve`; an ASGI application keeps messages in its `data`")
    if found.users is None and not found.insecure:
        raise SettingsError(
            "without a login, and an ASGI application can't see at which addresses it is served; give"
            " users=FILE (see curbstone access init), or insecure=True if only trusted clients can reach it"
        )
    # Other machines may be able to reach it, so with users, the contracts need a login.
    return App(replace(found, http_addr=(Address("0.0.0.0", 0),)))


class App:
    """Curbstone as an ASGI application; see `create_app`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.gateway: AsgiGateway | None = None
        """The application that serves while the engine runs."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an ASGI connection. Before the lifespan has started, requests are answered with 503."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self.gateway is None:
            await refuse(Problem(503, NOT_RUNNING), scope, receive, send)
        else:
            await self.gateway(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self, _parent: object = None) -> AsyncIterator[None]:
        """Run the engine: the `lifespan` of an application that this one is mounted in.

        Raise CurbstoneError if the engine can't start, for example because another process has locked the data
        directory.
        """
        if self.gateway is not None:
            raise Unavailable("the engine of this application is running already")
        settings = self._settings
        host = AsyncioHost(asyncio.get_running_loop())
        whole = asyncio.Event()
        try:
            broker = open_engine(host, settings, whole)
        except BaseException:
            host.close()
            raise
        ends: list[Callable[[], None]] = []
        gateway: AsgiGateway | None = None
        try:
            await one_of(whole, timeout_s=WHOLE_S)
            reloads = Reloads()
            authenticator = authenticator_of(broker, host, settings, reloads, ends)
            admission = admission_of(broker, host, settings)
            process = Process(refused_connections=lambda: admission.refused, budget=admission.budget)
            recorder = charts.recorder(broker, authenticator, host)
            gateway = AsgiGateway(
                gateway_of(broker, authenticator, host, settings, reloads, process=process, recorder=recorder),
                admission,
            )
            if recorder is not None:
                recorder.start()
                ends.append(recorder.stop)
            self.gateway = gateway
            yield
        finally:
            self.gateway = None
            if gateway is not None:
                await gateway.stop()
            closed = asyncio.Event()
            broker.shutdown(closed.set)
            is_clean = await one_of(closed, timeout_s=ENGINE_STOP_S)
            for end in ends:
                end()
            if is_clean:
                host.close()
            else:
                log.error("commits did not finish within %d s; they were not confirmed", ENGINE_STOP_S)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Run the engine for a server: the lifespan protocol of ASGI."""
        await receive()  # lifespan.startup
        running = self.lifespan()
        try:
            await running.__aenter__()
        except CurbstoneError as error:
            await send({"type": "lifespan.startup.failed", "message": f"curbstone: {error}"})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()  # lifespan.shutdown
        await running.__aexit__(None, None, None)
        await send({"type": "lifespan.shutdown.complete"})
