"""What a server has to do with copies of it. Without `--standby-backlog`, and in a directory that was never a copy,
nothing of `curbstone.standby` is imported."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from curbstone.cluster import ServedEngine
from curbstone.core.disk import Disk
from curbstone.core.engine.broker import Broker
from curbstone.core.errors import DataDirectoryError
from curbstone.core.host import AsyncioHost
from curbstone.gateway.resources.server.standby import NoFollowers, Source
from curbstone.settings import Settings

if TYPE_CHECKING:
    from curbstone.standby.place import Place

log = logging.getLogger("curbstone")

FOLDER = "standby"
"""What is recorded about copies, in the data directory."""


class Replacement:
    """Ends a server that another one has replaced: from then on it confirms nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: AsyncioHost, stop_asked: asyncio.Event) -> None:
        self.is_there = False
        self._loop = loop
        self._host = host
        self._stop_asked = stop_asked

    def __call__(self, term: int) -> None:
        """A server with this term has replaced this one. Called on any thread."""
        log.error("a copy of this server was promoted (term %d) and has replaced it: it serves no more", term)
        self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._host.freeze()
        self.is_there = True
        self._stop_asked.set()


def shipped(disk: Disk, host: AsyncioHost, settings: Settings) -> Disk:
    """Return the disk for the engine: the same one, or one whose changes followers receive.

    Raise DataDirectoryError if the directory is a copy that was not promoted.
    """
    if FOLDER in disk.list_dir(""):
        from curbstone.standby.place import Place

        place = Place(disk, b"")
        if place.state.server and not place.state.is_server:
            raise DataDirectoryError(
                f"the data directory {settings.data} is a copy of another server: let it follow with curbstone standby,"
                f" or make it a server with curbstone promote {settings.data}"
            )
        place.close()
    if not settings.standby_backlog:
        return disk
    from curbstone.standby.shipping import ShippingDisk
    from curbstone.standby.stream import Stream

    return ShippingDisk(disk, Stream(host.wall_ms, settings.standby_backlog))


def skip_ids(broker: Broker) -> None:
    """Have no id given again that clients may have seen before a promotion. Blocks; before anything is served."""
    names = broker.disk.list_dir("")
    if FOLDER not in names and "ids" not in names:
        return
    from curbstone.standby.ids import skip_ids as skip

    skip(broker)


def followers_of(
    broker: ServedEngine, host: AsyncioHost, settings: Settings, replaced: Callable[[int], None] | None = None
) -> Source:
    """Return what those get who follow the server. `replaced` is by default the end of the process."""
    if settings.engine is not None:
        return NoFollowers("only a server with the local engine can be followed: the messages are in the cluster")
    if not settings.standby_backlog:
        return NoFollowers("this server can't be followed: start it with --standby-backlog 64MiB")
    from curbstone.standby.followers import Followers
    from curbstone.standby.place import place_of_server
    from curbstone.standby.shipping import ShippingDisk

    disk = broker.disk.inner if isinstance(broker, Broker) else None
    assert isinstance(disk, ShippingDisk)
    place: Place = place_of_server(disk.inner)
    return Followers(disk.stream, disk.inner, host.wall_ms, place, replaced or _end_process)


def _end_process(_term: int) -> None:
    """End the process, which is not ours, because the server must not confirm anything more."""
    import signal

    signal.raise_signal(signal.SIGTERM)
