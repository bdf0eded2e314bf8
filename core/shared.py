"""What the queues of one server have in common: the machine they run on, and what is counted for all of them."""

from __future__ import annotations

from curbstone.core.disk import Disk
from curbstone.core.host import Host
from curbstone.core.options import SyncMode
from curbstone.core.schemas import NoSchemas, Schemas
from curbstone.core.stats import Commits
from curbstone.core.troubles import Troubles
from curbstone.core.values import Leased

CACHE_BYTES_MAX = 64 * 1024 * 1024


class Cache:
    """The memory that the newest messages of all queues of a server may take together."""

    def __init__(self) -> None:
        self.bytes_max = CACHE_BYTES_MAX
        self.bytes = 0


class Shared:
    """See the module's docstring."""

    def __init__(self, host: Host, disk: Disk, sync: SyncMode) -> None:
        self.schemas: Schemas = NoSchemas()
        """What makes rules of schemas; who opens a broker may give it another."""
        self.host = host
        self.disk = disk
        self.sync = sync
        self.syncs_always = sync.kind == "always"
        self.cache = Cache()
        self.troubles = Troubles(host, disk)
        self.commits = Commits()
        self.leased = Leased()
        self.is_stopping = False
        self.is_synced = False
        """Whether what a process before this one left is on disk, and not only in the system's memory."""
