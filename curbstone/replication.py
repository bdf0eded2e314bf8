"""Lets others follow the server if `--standby-backlog` asks for it. Else nothing of `curbstone.standby` is imported."""

from __future__ import annotations

from curbstone.cluster import ServedEngine
from curbstone.core.disk import Disk
from curbstone.core.engine.broker import Broker
from curbstone.core.host import AsyncioHost
from curbstone.gateway.resources.server.standby import NoFollowers, Source
from curbstone.settings import Settings


def shipped(disk: Disk, host: AsyncioHost, settings: Settings) -> Disk:
    """Return the disk for the engine: the same one, or one whose changes followers receive."""
    if not settings.standby_backlog:
        return disk
    from curbstone.standby.shipping import ShippingDisk
    from curbstone.standby.stream import Stream

    return ShippingDisk(disk, Stream(host.wall_ms, settings.standby_backlog))


def followers_of(broker: ServedEngine, host: AsyncioHost, settings: Settings) -> Source:
    """Return what those get who follow the server."""
    if settings.engine is not None:
        return NoFollowers("only a server with the local engine can be followed: the messages are in the cluster")
    if not settings.standby_backlog:
        return NoFollowers("this server can't be followed: start it with --standby-backlog 64MiB")
    from curbstone.standby.followers import Followers
    from curbstone.standby.shipping import ShippingDisk

    disk = broker.disk.inner if isinstance(broker, Broker) else None
    assert isinstance(disk, ShippingDisk)
    return Followers(disk.stream, disk.inner, host.wall_ms)
