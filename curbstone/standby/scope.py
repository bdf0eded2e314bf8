"""Which files of a data directory are replicated.

Left out are the files of one process or one machine, and directories that a start removes unread: those of private
queues, and of deleted queues whose files are being removed.
"""

from __future__ import annotations

from curbstone.access.tokens import DIRECTORY as ACCESS
from curbstone.access.tokens import FILE as TOKENS
from curbstone.backup.source import FOLDER as BACKUP
from curbstone.core.engine.directories import GONE_SUFFIX, QUEUES
from curbstone.core.engine.disk_alarms import PROBE_NAME
from curbstone.repair.repair import DAMAGED_DIR

STATE_DIR = "standby"
"""The directory of the state files."""
CHARTS = "charts"
LOCK = "lock"
LOST = "lost+found"
"""A directory of the file system, where the data directory is the root of a volume."""
NO_DATA = frozenset({LOCK, LOST, STATE_DIR})
"""Names that do not count as data."""

_LEFT_OUT = {BACKUP, CHARTS, DAMAGED_DIR, LOCK, LOST, STATE_DIR, PROBE_NAME}
_OF_ACCESS = {"", TOKENS, f"{TOKENS}.new"}


def is_shipped(path: str) -> bool:
    """Return whether a path is replicated."""
    top, _, rest = path.partition("/")
    if top == QUEUES:
        return not is_being_removed(path)
    if top == ACCESS:  # the audit log belongs to one server
        return rest in _OF_ACCESS
    return top not in _LEFT_OUT


def is_being_removed(path: str) -> bool:
    """Return whether a path is a directory that a start removes unread, or is in one."""
    top, _, rest = path.partition("/")
    return top == QUEUES and rest.partition("/")[0].endswith(GONE_SUFFIX)


def is_at_or_below(path: str, folder: str) -> bool:
    """Return whether a path is a folder, or in it."""
    return path == folder or path.startswith(f"{folder}/")
