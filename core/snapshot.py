"""What of a data directory has to be kept, so that the next start finds it as it is now.

A snapshot is taken at an instant with no job under way (`core.host.AsyncioHost.submit_alone`): nothing is half done.
Whoever takes it lets the disk catch up first (`Broker.disk.catch_up`), so that all that was confirmed is in the files,
and then copies, or links, what `contents` names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from curbstone.core.broker import Broker
from curbstone.core.directories import QUEUES, TWIN_SUFFIX
from curbstone.core.staging.files import ROOT as STAGING
from curbstone.core.writing.journal import JOURNAL


class Content(NamedTuple):
    """A file, or a directory with all that is in it; there may be none."""

    path: str
    size: int | None = None
    """How many of its bytes count; None for all there are."""
    is_rewritten: bool = False
    """Whether these bytes change in place later on: then it has to be copied before another job runs."""


def contents(broker: Broker) -> list[Content]:
    """Return what a data directory must hold to be opened, later and elsewhere, as it is at this instant.

    The contract, which every change of what is on disk keeps: called with no job under way or to be told of, it names
    files such that a data directory with just these, each cut to its `size`, recovers to a state that has everything
    that was confirmed before the call, and each transaction whole or not at all. Until `hold` is undone, the bytes up
    to `size` of what is not `is_rewritten` are changed by nobody: a file may be appended to, renamed, cut behind these
    bytes, or removed by its name, but not be written over; so a hard link keeps them.
    """
    found: list[Content] = []
    for queue in broker.queues():
        if queue.state.broken:  # what it has in memory can't be believed
            found.append(Content(queue.log.directory))
        elif queue.meta_writer.is_open:
            found.append(Content(f"{queue.log.directory}/meta"))
            found += [Content(segment.path, segment.end) for segment in queue.log.segments]
    found += [Content(f"{QUEUES}/{uid}{suffix}") for uid in broker.left for suffix in ("", TWIN_SUFFIX)]
    journal_bytes = broker.journal.needed_until
    if journal_bytes:
        found.append(Content(JOURNAL, journal_bytes, is_rewritten=True))
    # What redo files say is in the segments, too, once the disk has caught up: they are for a crash.
    # Parts and markers are files that are put in place whole; of the ids that were committed, whole records are added.
    found.append(Content(STAGING))
    return found


def hold(broker: Broker) -> Callable[[], None]:
    """See to it that no file that is part of a log now is written over; return what ends that."""
    logs = [queue.log for queue in broker.queues()]
    for log in logs:
        log.is_held = True

    def release() -> None:
        for log in logs:
            log.is_held = False

    return release
