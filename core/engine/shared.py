"""What all queues of one server share: the machine that they run on, and what is counted for all of them."""

from __future__ import annotations

from curbstone.core.disk import Disk
from curbstone.core.engine.disk_alarms import DiskAlarms
from curbstone.core.engine.slices import Slices
from curbstone.core.engine.syncer import Syncer
from curbstone.core.host import Host
from curbstone.core.options import SyncMode
from curbstone.core.schemas import Checks, NoSchemas, Schemas
from curbstone.core.stats import Commits
from curbstone.core.values import Leased

CACHE_BYTES_MAX = 64 * 1024 * 1024


class Cache:
    """How much memory the cached messages of all queues take together, and may take."""

    def __init__(self) -> None:
        self.bytes_max = CACHE_BYTES_MAX
        self.bytes = 0


class Shared:
    def __init__(self, host: Host, disk: Disk, sync: SyncMode) -> None:
        self.schemas: Schemas = NoSchemas()
        """Makes rules of schemas. The code that opens a broker may replace it."""
        self.checks = Checks(host)
        self.slices = Slices(host)
        self.host = host
        self.syncer = Syncer()
        """The broker sets it before it makes queues. Without a broker, as in a dry recovery, there are no commits."""
        # Named once, for each time makes an object, and each of many queues keeps them.
        self.now_ms = host.now_ms
        self.now_us = host.now_us
        self.wall_ms = host.wall_ms
        self.started_ms = host.now_ms()
        self.disk = disk
        self.sync = sync
        self.syncs_always = sync.kind == "always"
        self.cache = Cache()
        self.alarms = DiskAlarms(host, disk)
        self.commits = Commits()
        self.leased = Leased()
        self.is_stopping = False
        self.is_synced = False
        """Whether everything that an earlier process wrote is durable, and not only in the system's memory."""
