"""Judges reads of the log that fail: the file may just be in the course of being removed."""

from __future__ import annotations

from collections.abc import Callable

from curbstone.core.engine.log.log import Log
from curbstone.core.host import Host

LOOK_AGAIN_MS = 1


def waits_for_drop(host: Host, log: Log, again: Callable[[], object]) -> bool:
    """Return whether it is too early to judge a read that failed; then `again` is called a little later.

    A commit that drops the oldest segment removes the file on a worker thread. The log and the runs learn of it only
    when the commit has ended. Until then they may name a file that is gone, and a failed read does not mean damage.
    """
    if not log.is_dropping:
        return False
    host.call_later(LOOK_AGAIN_MS, again)
    return True
