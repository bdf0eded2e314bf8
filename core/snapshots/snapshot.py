"""Finds which files, and how much of them, a backup of a data directory must hold to be opened as it is now.

A snapshot is taken while no job is under way (`core.host.AsyncioHost.submit_alone`), so nothing is half done. Whoever
takes it first lets the disk catch up (`Broker.disk.catch_up`), so that everything that was confirmed is in the files,
and then copies or links the files that `contents` names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from curbstone.core.engine.broker import Broker
from curbstone.core.engine.directories import QUEUES, TWIN_SUFFIX
from curbstone.core.staging.files import ROOT as STAGING
from curbstone.core.transactions.tx_log import JOURNAL


class Content(NamedTuple):
    """A file, or a directory with everything in it. It may not exist."""

    path: str
    size: int | None = None
    """How many of its bytes count; None for all."""
    is_rewritten: bool = False
    """Whether these bytes may be overwritten later. Then the file has to be copied before another job runs."""


def contents(broker: Broker) -> list[Content]:
    """Return what a data directory must hold to be opened, later and elsewhere, as it is at this instant.

    This is to be called while no job is under way, and none has ended whose callback was not called yet. Every change
    to what is on disk has to keep this contract: a data directory that holds just these files, each cut to its `size`,
    recovers to a state with everything that was confirmed before the call, and with each transaction whole or not at
    all. Until `pin` is undone, no code changes the bytes up to `size` of files that are not `is_rewritten`: a file may
    be appended to, renamed, cut behind these bytes, or unlinked, but not overwritten. So a hard link keeps them.
    """
    found: list[Content] = []
    for queue in broker.queues():
        if queue.state.broken:  # what it has in memory can't be trusted
            found.append(Content(queue.log.directory))
        elif queue.meta_writer.is_open:
            found.append(Content(f"{queue.log.directory}/meta"))
            found += [Content(segment.path, segment.end) for segment in queue.log.segments]
    found += [Content(f"{QUEUES}/{uid}{suffix}") for uid in broker.left for suffix in ("", TWIN_SUFFIX)]
    journal_bytes = broker.tx_log.needed_until
    if journal_bytes:
        found.append(Content(JOURNAL, journal_bytes, is_rewritten=True))
    # Redo files are left out: once the disk has caught up, the segments have everything that is in them.
    # Staged parts and markers are complete files when they get their names; ids are added as whole records.
    found.append(Content(STAGING))
    return found


def pin(broker: Broker) -> Callable[[], None]:
    """Keep all files that are part of a log now from being overwritten; return the function that ends this.

    Several pins may overlap. Each is ended by its own function alone, which does nothing if it is called again.
    """
    logs = [queue.log for queue in broker.queues()]
    for log in logs:
        log.pin()

    def unpin() -> None:
        nonlocal logs
        pinned, logs = logs, []
        for log in pinned:
            log.unpin()

    return unpin
