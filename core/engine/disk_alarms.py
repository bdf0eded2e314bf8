"""Failures of the disk that are not over yet: noted where they happen, ended by the next success.

While there are any, the server may not be able to take every message, so it is not ready, and health says why. A matter
is logged when it begins and when it ends, but not for each attempt in between.

A queue finds out by itself whether it can write again. Other things, such as new queues, options and transactions, are
only tried when a client asks for them. While the server is not ready, perhaps no client will. So a probe file is
written from time to time to find out whether the disk works again.
"""

from __future__ import annotations

import logging
from contextlib import closing, suppress

from curbstone.core.disk import NO_SPACE, Disk
from curbstone.core.host import BeginWrite, Host, Job, JobDone

PROBE_MS = 1000
PROBE_NAME = "probe"
PROBE_BYTES = 4096

logger = logging.getLogger("curbstone.core")


class DiskAlarms:
    """What is wrong now, by matter, in the order in which it began."""

    def __init__(self, host: Host, disk: Disk) -> None:
        self._host = host
        self._disk = disk
        self._texts: dict[str, str] = {}
        self._failing: set[str] = set()
        self._probed: set[str] = set()
        """The matters that are over when the probe file has been written."""
        self._probes = False
        self.is_stopping = False
        self.faults: list[Exception] = []
        """Unexpected exceptions. They are logged (see `core.engine.fault_barrier`), and tests look at them here."""

    def __bool__(self) -> bool:
        return bool(self._texts)

    @property
    def is_disk_failing(self) -> bool:
        """Whether calls to the disk fail, for another reason than that it is full."""
        return bool(self._failing)

    def note(self, matter: str, text: str, *, is_failure: bool = False) -> None:
        """Note that something has failed, and why. `is_failure`: the disk has failed, and is not only full."""
        if matter not in self._texts:
            logger.error("%s: %s", matter, text, extra={"matter": matter})
        self._texts[matter] = text
        if is_failure:
            self._failing.add(matter)
        else:
            self._failing.discard(matter)

    def over(self, matter: str) -> None:
        """Clear an alarm: the file works again, or is not needed any more."""
        self._probed.discard(matter)
        self._failing.discard(matter)
        if self._texts.pop(matter, None) is not None:
            logger.info("%s: recovered", matter, extra={"matter": matter})

    def ended(self, matter: str, error: BaseException | None) -> None:
        """Note how a job has ended.

        An OSError is a failure of the disk, unless it only says that a file exists, or does not. A job that ends well
        does not end the matter, because it may not have synced anything.
        """
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError | FileExistsError):
            self.note(matter, f"the disk failed: {error}", is_failure=error.errno not in NO_SPACE)
            self._probed.add(matter)
            self._probe_later()

    @property
    def reasons(self) -> list[str]:
        """What is wrong now, one line for each matter."""
        return [f"{matter}: {text}" for matter, text in self._texts.items()]

    def _probe_later(self) -> None:
        if not self._probes:
            self._probes = True
            self._host.call_later(PROBE_MS, self._probe)

    def _probe(self) -> None:
        if not self._probed or self.is_stopping:
            self._probes = False
            return

        def done(_: object, error: BaseException | None) -> None:
            self._probes = False
            if error is not None:
                self._probe_later()
                return
            for matter in list(self._probed):
                self.over(matter)

        self._host.submit(self._write, done)

    def _write(self) -> None:
        with suppress(FileNotFoundError):
            self._disk.remove(PROBE_NAME)
        with closing(self._disk.open(PROBE_NAME, create=True)) as file:
            file.write(0, [bytes(PROBE_BYTES)])
            file.sync()
        self._disk.remove(PROBE_NAME)
        self._disk.sync_dir("")


class AlarmingHost:
    """A host that notes how its jobs end, all as one matter. Implements `core.host.Host`."""

    def __init__(self, host: Host, alarms: DiskAlarms, matter: str) -> None:
        self._host = host
        self._alarms = alarms
        self._matter = matter
        self.now_ms = host.now_ms
        self.now_us = host.now_us
        self.wall_ms = host.wall_ms
        self.call_soon = host.call_soon
        self.call_later = host.call_later

    def submit(self, job: Job, done: JobDone, begin: BeginWrite | None = None) -> None:

        def ended(result: object, error: BaseException | None) -> None:
            self._alarms.ended(self._matter, error)
            done(result, error)

        self._host.submit(job, ended, begin)
