"""The composition root of the server: the only file that imports the engine and all the protocols.

Order of the start: lock the data directory, recover the queues, bind the listeners, print the ready line to stdout.
Order of the stop: listeners (accept no new clients, confirm the commits in progress, notify the clients), engine,
followers (which have everything by then), disk threads.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from curbstone import __version__, charts, cluster, replication
from curbstone.access.authenticator import Authenticator, OpenAuthenticator
from curbstone.access.connections import OF_USER_MAX
from curbstone.access.reloading import Reloads
from curbstone.access.users import UsersError
from curbstone.backup.source import Backups
from curbstone.cluster import ServedEngine
from curbstone.core.disk import OsDisk
from curbstone.core.engine.broker import Broker
from curbstone.core.errors import Unavailable
from curbstone.core.host import AsyncioHost, Host
from curbstone.core.options import QueueOptions
from curbstone.core.port import Broker as Engine
from curbstone.core.stats import Histogram
from curbstone.core.traffic import Traffic
from curbstone.exit_codes import REPLACED
from curbstone.gateway.app import Gateway, create_app
from curbstone.gateway.resources.messages.mq import mq_routes
from curbstone.gateway.resources.metrics.figures import BUILD, Process
from curbstone.gateway.resources.metrics.recorder import Recorder
from curbstone.gateway.resources.metrics.stats_history import history_routes
from curbstone.gateway.resources.server.backup import Source, backup_routes
from curbstone.gateway.resources.server.logins import login_routes
from curbstone.gateway.resources.server.standby import Source as Followers
from curbstone.gateway.resources.server.standby import Standby, standby_routes
from curbstone.gateway.server import GatewayServer
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.websocket.codec import binary_frame, text_frame
from curbstone.mqks.limits import Limits as MqksLimits
from curbstone.mqks.server import MqksServer
from curbstone.net.acceptor import Acceptor
from curbstone.net.address import Address
from curbstone.net.budget import Budget
from curbstone.net.connection_limits import Admission, Bounds
from curbstone.net.fair_reader import Turns
from curbstone.net.peer import Networks
from curbstone.process import logs, malloc_tuning, open_files, systemd
from curbstone.process.file_system import doubts, file_system_of, writable_by_others
from curbstone.process.gc_tuning import Collections, collection_disabled, trim_memory
from curbstone.process.stopping import SIGNALS, Stopped, stopped_by_signals
from curbstone.schemas import JsonSchemas
from curbstone.server_certificates import certificates_of
from curbstone.settings import Settings, warnings
from curbstone.stomp.limits import Limits
from curbstone.stomp.server import StompServer
from curbstone.stomp.websocket import StompSockets
from curbstone.waiting import one_of

log = logging.getLogger("curbstone")

# Together these are less than the 10 s within which a server has to stop.
WHOLE_S = 5
"""The maximum time that a start waits until transactions left incomplete by a crash are completed."""
LISTENERS_STOP_S = 6
ENGINE_STOP_S = 3

UNAUTHENTICATED_MAX, ADDRESS_UNAUTHENTICATED_MAX = 1024, 64
"""With users: the maximum number of connections without a login, in total and from one address of another machine."""

WARN_EVERY_MS = 60_000

# A disk thread that returns from a sync needs the interpreter lock to report it, and a busy event loop keeps
# the lock for a whole switch interval. The default of 5 ms is many times as long as a sync.
SWITCH_INTERVAL_S = 0.0005


class Server(Protocol):
    """The server of one protocol."""

    def connections(self) -> Mapping[str, int]:
        """Return how many clients there are, by protocol. The key "" stands for the name in the ready line."""

    async def start(self, address: Address) -> tuple[str, int]:
        """Listen at one more address. Return the bound host and port. Raise OSError."""

    async def stop(self) -> None:
        """Accept no new clients, wait for pending confirms, then notify the clients and close."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A protocol's server, with its name in the ready line and the addresses it listens at."""

    name: str
    addresses: Sequence[Address]
    server: Server


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code. Raise CurbstoneError if the server can't start."""
    logs.begin(settings.log_level, settings.log_format)
    for line in warnings():
        log.warning("%s", line)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    malloc_tuning.keep_freed()
    # All imports so far stay until the process ends, so the garbage collector need not examine them again.
    gc.freeze()
    gc.enable()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(settings))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # there is no uvloop for Windows
        return None
    return uvloop.new_event_loop


async def _serve(settings: Settings) -> int:
    loop = asyncio.get_running_loop()
    stop_asked = asyncio.Event()
    host = AsyncioHost(loop)
    broker: ServedEngine
    whole = asyncio.Event()
    try:
        with stopped_by_signals():
            broker = (
                open_engine(host, settings, whole) if settings.engine is None else cluster.prepare(host, loop, settings)
            )
            for number in SIGNALS:
                loop.add_signal_handler(number, stop_asked.set)
        if settings.engine is not None:
            await cluster.connect(broker, stop_asked)
        else:  # not longer than `WHOLE_S`, because a full disk must not prevent a start
            await one_of(whole, stop_asked, timeout_s=WHOLE_S)
    except Stopped:  # recovery may end anywhere, because the next start makes the same changes again
        log.info("stopped before all queues were recovered")
        host.close()
        return 0
    except BaseException:
        host.close()
        raise
    started: list[Listener] = []
    ends: list[Callable[[], None]] = []
    try:
        bound: list[tuple[str, Address]] = []
        reloads = Reloads()
        authenticator = authenticator_of(broker, host, settings, reloads, ends)
        acceptor = _acceptor(broker, host, settings, reloads)
        if reloads and hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, reloads.reload)
        admission = acceptor.admission
        process = Process(partial(connections_of, started), lambda: admission.refused, _syncs(broker), admission.budget)
        recorder = charts.recorder(broker, authenticator, host)
        followers, ending = replication.followers_of(broker, host, settings, stop_asked.set)
        served = _listeners(broker, authenticator, host, settings, acceptor, reloads, process, recorder, followers)
        for listener in [] if stop_asked.is_set() else served:
            started.append(listener)
            bound += [(listener.name, await _start(listener, address)) for address in listener.addresses]
        if not authenticator.wants_login:
            warn_of_open_listeners(host, started)
        if recorder is not None:
            recorder.start()
            ends.append(recorder.stop)
        Collections(host, lambda: len(broker.queues()) + len(broker.private_queues())).start()
        if not stop_asked.is_set():
            print(logs.ready_line(bound, settings.log_format), flush=True)
            systemd.notify(systemd.READY)
            systemd.keep_alive(host)
        await stop_asked.wait()
        if ending.has_begun:
            os._exit(REPLACED)  # nothing may be confirmed any more, but an ordinary stop confirms pending commits
        log.info("stopping")
        systemd.notify(systemd.STOPPING)
    finally:
        clean = await _stop(started, broker, host)
        for close in ends:
            close()
        if clean:
            host.close()  # otherwise a disk thread hangs, and waiting for it would keep the process alive
    return 0 if clean else 1


def open_engine(host: AsyncioHost, settings: Settings, whole: asyncio.Event) -> Broker:
    """Lock the data directory and recover all queues. Blocks, as no client is connected yet.

    `whole` is set when no transaction is left incomplete by a crash.
    """
    started_s = time.monotonic()
    with collection_disabled():
        disk = OsDisk(settings.data, open_files.shares(open_files.raise_limit()).files)
        broker = Broker.open(
            host,
            replication.shipping_disk(disk, host, settings),
            defaults=QueueOptions(cap=settings.cap, max_message_size=settings.max_message_size),
            sync=settings.sync,
            max_cap=settings.max_cap,
            max_staged=settings.max_staged,
            staged_ttl_ms=int(settings.staged_ttl * 1000),
        )
    broker.missing_parts.when_written(whole.set)
    broker.shared.schemas = JsonSchemas()
    replication.skip_ids(broker)
    count = len(broker.queues())
    log.info(
        "curbstone %s (%s), data in %s: %d %s recovered in %.2f s",
        __version__,
        BUILD,
        settings.data.absolute(),
        count,
        "queue" if count == 1 else "queues",
        time.monotonic() - started_s,
    )
    for reason in broker.health().reasons:
        log.warning("%s", reason)
    for reason in writable_by_others(settings.data):
        log.warning("%s", reason)
    for doubt in doubts(file_system_of(settings.data)):
        log.warning("confirmed messages may be lost: %s", doubt)
    if settings.sync.kind != "always":
        log.warning("sync is %s: a power failure can lose confirmed messages", settings.sync)
    return broker


def traced_engine(broker: Engine, host: AsyncioHost, settings: Settings, ends: list[Callable[[], None]]) -> Engine:
    """Return the engine for the protocols, which makes spans with `--otlp`. Add callbacks of the stop to `ends`."""
    if settings.otlp is None:
        return broker
    try:
        from curbstone.tracing.engine import traced
        from curbstone.tracing.export import Export
    except ImportError as error:
        raise Unavailable(f"--otlp needs OpenTelemetry; pip install 'curbstone[otel]' installs it ({error})") from error
    export = Export(settings.otlp)
    ends.append(export.close)
    return traced(broker, host, export.tracer)


def authenticator_of(
    broker: ServedEngine, host: AsyncioHost, settings: Settings, reloads: Reloads, ends: list[Callable[[], None]]
) -> Authenticator:
    """Return the authenticator of the server. It reads the users file, if there is one, before anything is served.

    Callbacks of the stop are added to `ends`.
    """
    engine = traced_engine(broker, host, settings, ends)
    if settings.users is None:
        return OpenAuthenticator(engine, host)
    from curbstone.access.user_authenticator import UserAuthenticator

    # On a cluster the data directory holds only the audit, which servers may share.
    disk = broker.disk if isinstance(broker, Broker) else OsDisk(settings.data, is_shared=True)
    authenticator = UserAuthenticator(engine, host, settings.users, settings.data, disk)
    try:
        authenticator.open()
    except UsersError as error:
        raise Unavailable(f"the users file can't be used: {error}") from error
    reloads.add(authenticator)
    return authenticator


def _acceptor(broker: ServedEngine, host: AsyncioHost, settings: Settings, reloads: Reloads) -> Acceptor:
    admission = admission_of(broker, host, settings)
    return Acceptor(admission, certificates_of(host, settings, reloads), Networks(settings.trusted_proxy))


def admission_of(broker: ServedEngine, host: AsyncioHost, settings: Settings) -> Admission:
    """Return the limits of connections and their memory."""
    budget = Budget(settings.max_buffered, _of_gateway(settings).json_bytes_max)
    budget.on_calm = lambda: host.submit(trim_memory, lambda _result, _error: None)
    return Admission(
        lambda: open_files.shares(open_files.limit()).connections,
        broker.alarms,
        Bounds(
            address=settings.max_connections_per_address,
            unauthenticated=UNAUTHENTICATED_MAX if settings.users else 0,
            address_unauthenticated=ADDRESS_UNAUTHENTICATED_MAX if settings.users else 0,
            user=OF_USER_MAX if settings.users else 0,
        ),
        budget,
    )


def connections_of(listeners: Sequence[Listener]) -> Mapping[str, int]:
    """Return how many connections there are, by protocol."""
    counts: Counter[str] = Counter()
    for listener in listeners:
        for protocol, count in listener.server.connections().items():
            counts[protocol or listener.name] += count
    return counts


def _syncs(broker: ServedEngine) -> Histogram | None:
    disk: object = broker.disk if isinstance(broker, Broker) else None
    while not isinstance(disk, OsDisk):
        if (disk := getattr(disk, "inner", None)) is None:
            return None
    return disk.sync_times.took_us


def _listeners(
    broker: ServedEngine,
    authenticator: Authenticator,
    host: AsyncioHost,
    settings: Settings,
    acceptor: Acceptor,
    reloads: Reloads,
    process: Process,
    recorder: Recorder | None,
    followers: Followers,
) -> list[Listener]:
    listeners = []
    turns = Turns(host)
    stomp = StompServer(authenticator, host, **_of_stomp(settings, followers), turns=turns, acceptor=acceptor)
    if settings.stomp_addr:
        listeners.append(Listener("stomp", settings.stomp_addr, stomp))
    mqks_limits = MqksLimits(body_bytes_max=settings.max_message_size)
    mqks = MqksServer(authenticator, host, limits=mqks_limits, turns=turns, acceptor=acceptor)
    if settings.http_addr:
        app = gateway_of(
            broker,
            authenticator,
            host,
            settings,
            reloads,
            turns=turns,
            process=process,
            recorder=recorder,
            followers=followers,
            traffic={"stomp": stomp.traffic, "mqks": mqks.registry.traffic},
        )
        listeners.append(Listener("http", settings.http_addr, GatewayServer(app, acceptor)))
    if settings.mqks_addr:
        listeners.append(Listener("mqks", settings.mqks_addr, mqks))
    return listeners


def gateway_of(
    broker: ServedEngine,
    authenticator: Authenticator,
    host: AsyncioHost,
    settings: Settings,
    reloads: Reloads,
    *,
    turns: Turns | None = None,
    process: Process | None = None,
    recorder: Recorder | None = None,
    followers: Followers | None = None,
    traffic: Mapping[str, Traffic] | None = None,
) -> Gateway:
    """Return the gateway with all its routes, and STOMP over WebSocket; `traffic` is that of other protocols."""
    mq_traffic = Traffic()
    gateway = _of_gateway(settings)
    if followers is None:
        followers, _ = replication.followers_of(broker, host, settings)
    sockets = StompSockets(authenticator, host, text=text_frame, binary=binary_frame, **_of_stomp(settings, followers))
    standby = Standby(authenticator, followers, allows_plaintext=settings.insecure)
    if process is not None:
        process = replace(process, followers=followers.figures)
    return create_app(
        authenticator,
        host,
        gateway,
        more_routes=lambda origins: [
            *login_routes(authenticator, host, reloads),
            *mq_routes(gateway, origins, settings.mq_delay, mq_traffic),
            *backup_routes(_backups(broker, host, settings)),
            *standby_routes(standby),
            *history_routes(recorder, host),
        ],
        more_sockets={"/stomp": sockets.open},
        more_traffic={**(traffic or {}), "stomp-websocket": sockets.traffic, "mq": mq_traffic},
        last_ends=[standby.release],
        turns=turns,
        process=process,
    )


def _of_stomp(settings: Settings, followers: Followers) -> dict[str, Any]:
    """Return the arguments of the two STOMP servers."""
    figures = followers.figures()
    limits = Limits(body_bytes_max=settings.max_message_size)
    return {
        "limits": limits,
        "single_queue": settings.single_queue or None,
        "name": f"curbstone/{__version__}",
        "greeting": (f"x-term:{figures.term}",) if figures is not None else (),
    }


def _of_gateway(settings: Settings) -> GatewaySettings:
    return GatewaySettings(
        max_message_size=settings.max_message_size,
        max_ttl_s=settings.max_ttl,
        default_limit=settings.default_limit,
        cors_origins=settings.cors_origin,
        hosts=(*settings.http_host, *_own_names()),
        metrics_queues=settings.metrics_queues,
        documents_are_open=settings.is_loopback,
    )


def _backups(broker: ServedEngine, host: AsyncioHost, settings: Settings) -> Source:
    return Backups(broker, host, settings.data) if isinstance(broker, Broker) else cluster.NoBackups()


def _own_names() -> tuple[str, ...]:
    """Return the local and the full host name."""
    name = socket.gethostname().partition(".")[0]
    return (socket.gethostname(), name, f"{name}.local") if name else ()


def warn_of_open_listeners(host: Host, listeners: Sequence[Listener]) -> None:
    """Warn now and every minute of listeners without a login, because a single warning may be overlooked."""
    open_to_all = [
        (listener.name, address) for listener in listeners for address in listener.addresses if not address.is_loopback
    ]
    for name, address in open_to_all:
        members = {"listener": name, "address": str(address)}
        log.warning("%s: other machines can reach %s without a login", name, address, extra=members)
    if open_to_all:
        host.call_later(WARN_EVERY_MS, lambda: warn_of_open_listeners(host, listeners))


async def _start(listener: Listener, address: Address) -> Address:
    try:
        host, port = await listener.server.start(address)
        return address._replace(host=host, port=port)
    except OSError as error:
        # The event loop's own text does not name the option, nor the address if the host is bad.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise Unavailable(f"can't listen for {listener.name} on {address}: {reason}") from error


async def _stop(started: list[Listener], broker: ServedEngine, host: AsyncioHost) -> bool:
    """Stop everything in order, each step within its time. Return whether all pending commits were confirmed."""
    goodbyes = [asyncio.ensure_future(listener.server.stop()) for listener in started]
    if goodbyes:
        _, late = await asyncio.wait(goodbyes, timeout=LISTENERS_STOP_S)
        for listener, goodbye in zip(started, goodbyes, strict=True):
            if goodbye in late:
                log.error("%s: clients did not disconnect within %d s", listener.name, LISTENERS_STOP_S)
            elif error := goodbye.exception():
                log.error("%s: stopping it failed", listener.name, exc_info=error)
    closed = asyncio.Event()
    broker.shutdown(closed.set)
    try:
        async with asyncio.timeout(ENGINE_STOP_S):
            await closed.wait()
        log.info("stopped")
    except TimeoutError:
        if host.held_back:
            text = "commits that were not confirmed, because the standby did not acknowledge them: %d"
            log.error(text, host.held_back)
        else:
            log.error("commits did not finish within %d s; they were not confirmed", ENGINE_STOP_S)
    for listener in started:
        if isinstance(listener.server, GatewayServer):
            await listener.server.stop_followers()
    return closed.is_set()
