"""Replication to standbys and other followers, as far as a server needs it when it starts.

Without `--standby-backlog`, and in a directory that was never a copy, nothing of `curbstone.standby` is imported.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from curbstone.cluster import ServedEngine
from curbstone.core.disk import Disk
from curbstone.core.engine.broker import Broker
from curbstone.core.errors import DataDirectoryError
from curbstone.core.host import AsyncioHost
from curbstone.gateway.resources.server.standby import NoFollowers, Source
from curbstone.settings import Settings

if TYPE_CHECKING:
    from curbstone.standby.fault import FaultWatch
    from curbstone.standby.followers import Followers

TICK_MS = 500
STANDBY = "the standby"
log = logging.getLogger("curbstone")

FOLDER = "standby"
"""The directory of the state files, in the data directory."""


class Ending:
    """Shuts down a server that was replaced by another one: from then on it confirms nothing."""

    def __init__(self, host: AsyncioHost, end: Callable[[], object]) -> None:
        """`end` is called once, on the loop's thread."""
        self.has_begun = False
        self.freeze, self.thaw = host.freeze, host.thaw
        self._loop = asyncio.get_running_loop()
        self._end = end

    def __call__(self, term: int) -> None:
        """Shut down, because a server with this term has replaced this one. Called on any thread."""
        self.end_for(f"a copy of this server was promoted (term {term}) and has replaced it")

    def end_for(self, reason: str) -> None:
        """Shut down. Called on any thread."""
        log.error("%s; this server shuts down", reason)
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self.freeze()
        self.has_begun = True
        self._end()


def shipping_disk(disk: Disk, host: AsyncioHost, settings: Settings) -> Disk:
    """Return the disk for the engine: the same one, or one whose changes are sent to followers.

    Raise DataDirectoryError if the directory is a copy that was not promoted.
    """
    if FOLDER in disk.list_dir(""):
        from curbstone.standby.state_files import StateFiles

        files = StateFiles(disk, b"")
        if files.state.server and not files.state.is_server:
            raise DataDirectoryError(
                f"the data directory {settings.data} is a copy of another server: run curbstone standby on it, or"
                f" promote it with curbstone promote {settings.data}"
            )
        files.close()
    if not settings.standby_backlog:
        return disk
    from curbstone.standby.shipping import ShippingDisk
    from curbstone.standby.stream import Stream

    found = ShippingDisk(disk, Stream(host.wall_ms, settings.standby_backlog))
    if settings.lease:
        from curbstone.standby.lease_keeper import acquired

        found.lease = acquired(disk, settings)
    return found


def skip_ids(broker: Broker) -> None:
    """Prevent that ids which clients may have seen before a promotion are reused. Blocks; called before serving."""
    names = broker.disk.list_dir("")
    if FOLDER not in names and "ids" not in names:
        return
    from curbstone.standby.ids import skip_ids as skip

    skip(broker)


def followers_of(
    broker: ServedEngine, host: AsyncioHost, settings: Settings, end: Callable[[], object] | None = None
) -> tuple[Source, Ending]:
    """Return the source of followers, and what shuts the server down; by default that ends the process."""
    ending = Ending(host, end or partial(signal.raise_signal, signal.SIGTERM))
    if settings.engine is not None:
        reason = "followers need a server with the local engine; the messages of this one are in the cluster"
        return NoFollowers(reason), ending
    if not settings.standby_backlog:
        return NoFollowers("followers are not enabled on this server: start it with --standby-backlog 64MiB"), ending
    from curbstone.standby.followers import Followers
    from curbstone.standby.shipping import ShippingDisk
    from curbstone.standby.state_files import server_state_files

    assert isinstance(broker, Broker)
    disk = broker.disk.inner
    assert isinstance(disk, ShippingDisk)
    files = server_state_files(disk.inner)
    lease = disk.lease
    followers = Followers(disk.stream, disk.inner, host.wall_ms, files, ending, lease)
    followers.has_failed = lambda: disk.has_failed
    if settings.confirm_with == "standby":
        from curbstone.standby.barrier import StandbyBarrier

        patience_s = settings.standby_patience
        barrier = StandbyBarrier(
            disk.stream,
            host.now_ms,
            host.wake,
            patience_ms=None if patience_s is None else int(patience_s * 1000),
            syncs_always=settings.sync.kind == "always",
            is_alone=not files.state.believed,
            record_alone=followers.record_alone,
            may_continue_alone=followers.may_continue_alone,
        )
        host.barrier = barrier
        followers.set_barrier(barrier)
    if lease is not None:
        from curbstone.standby.lease import LeaseBarrier

        host.barrier = LeaseBarrier(lease.holder, host.barrier)
    fault = None
    if settings.failover_on_fault is not None:
        from curbstone.standby.fault import FaultWatch

        after_ms = int(settings.failover_on_fault * 1000)
        fault = FaultWatch(followers, after_ms, lambda: broker.alarms.is_disk_failing, host.now_ms)
    _tick(host, followers, broker, ending, fault)
    return followers, ending


def _tick(
    host: AsyncioHost,
    followers: Followers,
    broker: Broker,
    ending: Ending,
    fault: FaultWatch | None,
    has_waited: bool = False,
) -> None:
    """Check the timeouts every `TICK_MS`, as long as the server runs."""
    if broker.shared.is_stopping or ending.has_begun:
        return
    followers.tick()
    is_waiting = followers.confirms == "waiting"
    if not is_waiting:
        broker.alarms.over(STANDBY)
    elif has_waited:
        broker.alarms.note(STANDBY, "not in sync, and nothing is confirmed until it is")
    if fault is not None:
        fault.tick()
    host.call_later(TICK_MS, partial(_tick, host, followers, broker, ending, fault, is_waiting))
