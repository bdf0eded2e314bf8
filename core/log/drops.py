"""What a read means that fails while the file it was of is being removed."""

from __future__ import annotations

from collections.abc import Callable

from curbstone.core.host import Host
from curbstone.core.log.log import Log

LOOK_AGAIN_MS = 1


def waits_for_drop(host: Host, log: Log, again: Callable[[], object]) -> bool:
    """Return whether a read that failed says nothing yet; then `again` is called, to judge it later.

    A commit copies what is live in the oldest segment and removes its file. On the disk that is one step; the log and
    the runs know of it when the commit has ended, and until then they name a file that may be gone.
    """
    if not log.is_dropping:
        return False
    host.call_later(LOOK_AGAIN_MS, again)
    return True
