"""The history of the charts: the file `charts` in the data directory.

Only charts depend on it. So damage of it does not prevent a start, it is never synced, and it is not in backups.
"""

from __future__ import annotations

from curbstone.access.authenticator import Authenticator
from curbstone.cluster import ServedEngine
from curbstone.core.engine.broker import Broker
from curbstone.core.host import Host
from curbstone.gateway.resources.metrics.chart_file import FILE_BYTES, File
from curbstone.gateway.resources.metrics.recorder import Recorder

NAME = "charts"


def recorder(broker: ServedEngine, authenticator: Authenticator, host: Host) -> Recorder | None:
    """Return the recorder of the local engine; None for another one, which has no data directory."""
    if not isinstance(broker, Broker):
        return None
    disk = broker.disk

    def open_file(create: bool) -> File | None:
        try:
            file = disk.open(NAME)
        except FileNotFoundError:
            return disk.open(NAME, create=True) if create else None
        if file.size() > FILE_BYTES:  # it is not a file of this module
            file.truncate(0)
        return file

    return Recorder(authenticator, host, open_file)
