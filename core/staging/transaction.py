"""One staged transaction: its directory, its parts, and who waits for its commit.

| state | on disk | what happens | until |
|---|---|---|---|
| staged | parts | parts arrive; a new one replaces one of the same name | it is committed, dropped, or idle too long |
| committing | parts | `commit.py` reserves room, reads parts back | the marker is durable; else it is staged again |
| committing | parts, marker | `apply.py` puts the messages into the queues | all are there, and its id is on disk |
| committed | its id | `committed.py` remembers the id | seven days are over |
| dropping | parts | the directory is removed | that is durable |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from curbstone.core.engine.disk_alarms import AlarmingHost
from curbstone.core.engine.shared import Shared
from curbstone.core.errors import (
    AlreadyCommitted,
    BadRequest,
    Conflict,
    CurbstoneError,
    NoSuchTransaction,
    QueueFull,
    StagedDamaged,
    Unavailable,
)
from curbstone.core.host import Job, JobDone
from curbstone.core.staging.files import ROOT, Part
from curbstone.core.staging.identity import Hash, Series
from curbstone.core.values import NOBODY, State

KEPT_SHARE = 16
"""One in so many of the bytes that may be staged is kept for users or projects that stage no more than this share."""
PART_BYTES_MIN = 4096
"""The least that a part counts for, because many empty parts take room, too."""

CommitDone = Callable[[CurbstoneError | None, bool, int], None]
"""(error, whether an earlier call had requested the commit already, number of messages)"""

logger = logging.getLogger("curbstone.core")


class StagedBy(NamedTuple):
    """Who staged something, and for which project."""

    owner: str
    """The user, or NOBODY if there are no users."""
    project: str
    """Empty if the first release staged it, which did not note the project."""

    @property
    def counted(self) -> StagedBy:
        """The owner whose limit its bytes count for: the user, in all projects together; without users the project."""
        return StagedBy(self.owner, "") if self.owner else self


def stager_of(parts: Iterable[Part]) -> StagedBy:
    """Return who staged parts that were found on the disk. All parts of a transaction were staged by the same."""
    found = next((part for part in parts if part.project), None)
    return StagedBy(found.owner, found.project) if found is not None else StagedBy(NOBODY, "")


class StagingArea:
    """What all staged transactions share: host and disk, and the limit of the bytes that are staged."""

    def __init__(self, shared: Shared, bytes_max: int) -> None:
        self.shared = shared
        self.host = AlarmingHost(shared.host, shared.alarms, "staged transactions")
        self.disk = shared.disk
        self.bytes = 0
        """The bytes that all parts count for, including those that are coming in."""
        self.bytes_max = bytes_max
        self._by_owner: dict[StagedBy, int] = {}

    def take(self, staged_by: StagedBy, size: int) -> None:
        """Count bytes that arrive; raise QueueFull if there is no room for them."""
        self.check(staged_by, size)
        self.count(staged_by, size)

    def check(self, staged_by: StagedBy, size: int) -> None:
        """Raise QueueFull if `size` more bytes are too many, or would use up what is kept for others."""
        kept = self.bytes_max // KEPT_SHARE
        if self.bytes + size > self.bytes_max:
            raise QueueFull(f"more than {self.bytes_max} bytes are staged; see --max-staged")
        if self.bytes + size > self.bytes_max - kept and self._by_owner.get(staged_by.counted, 0) + size > kept:
            kind = "users" if staged_by.owner else "projects"
            raise QueueFull(f"the last {kept} bytes are for {kind} that stage no more than these; see --max-staged")

    def count(self, staged_by: StagedBy, size: int) -> None:
        """Count bytes that are there, or, as a negative number, that are gone."""
        self.bytes += size
        left = self._by_owner.pop(staged_by.counted, 0) + size
        if left:
            self._by_owner[staged_by.counted] = left


class StagedTransaction:
    """One of the transactions that `core.staging.staging` holds, from its first part until its directory is removed."""

    def __init__(
        self,
        area: StagingArea,
        hashed: Hash,
        label: str,
        staged_by: StagedBy,
        on_empty: Callable[[StagedTransaction], None],
    ) -> None:
        """`on_empty` is called when it has no part any more and none is coming in."""
        self.area = area
        self.disk = area.disk
        self._on_empty = on_empty
        self.hashed = hashed
        self.label = label
        """Project and id, for texts; or the directory, if they are not known any more."""
        self.staged_by = staged_by
        self.directory = f"{ROOT}/{hashed.hex()}"
        self.state = State.STAGED
        self.parts: dict[str, Part] = {}
        self.uploads = 0
        self.touched_ms = area.host.now_ms()
        self.waiting: list[CommitDone] = []
        """The callbacks that wait for the answer to a commit; the first one's caller was the first to request it."""
        self.messages = 0
        """How many messages are being committed."""
        self.trouble = ""
        """Why a committed transaction can't be put into its queues, or an empty text."""
        self.version = 0
        """The highest version of a part; each upload takes the next."""
        self.series: Series | None = None
        """The place in a series, once it is being committed, if its id is one of a series."""
        self.is_made = False
        """Whether the directory may exist."""
        self._jobs = 0
        self._idle: list[Callable[[], None]] = []
        """What to call when no job is under way."""
        self._is_durable = False
        """Whether the name of the directory is durable."""

    @property
    def size(self) -> int:
        return sum(counted(part) for part in self.parts.values())

    # --- jobs in the directory

    @property
    def is_working(self) -> bool:
        return bool(self._jobs)

    def submit(self, job: Job, on_done: JobDone) -> None:
        """Run a job that works in the directory."""
        self._jobs += 1
        self.is_made = True

        def done(result: object, error: BaseException | None) -> None:
            self._jobs -= 1
            on_done(result, error)
            if not self._jobs:
                idle, self._idle = self._idle, []
                for fn in idle:
                    fn()

        self.area.host.submit(job, done)

    def when_idle(self, fn: Callable[[], None]) -> None:
        """Call `fn` as soon as no job works in the directory, which may be at once."""
        if self._jobs:
            self._idle.append(fn)
        else:
            fn()

    def make_directory(self) -> None:
        """Make the directory, and the one that it is in, if they do not exist; blocking."""
        for path in (ROOT, self.directory):
            with suppress(FileExistsError):
                self.disk.make_dir(path)

    def sync_directories(self) -> None:
        """Make the names in the directory durable, and the name of the directory itself; blocking."""
        self.disk.sync_dir(self.directory)
        if not self._is_durable:
            self.disk.sync_dir(ROOT)
            self.disk.sync_dir("")
            self._is_durable = True

    def remove_file(self, name: str, before: Callable[[], None] = lambda: None) -> None:
        """Remove a file that is not needed; the job calls `before` first. If it fails, the next start removes it."""

        def job() -> None:
            before()
            with suppress(FileNotFoundError):
                self.disk.remove(f"{self.directory}/{name}")

        def done(_: object, error: BaseException | None) -> None:
            if error is not None:
                logger.warning("a staged file that is not needed can't be removed: %s", error)

        self.submit(job, done)

    # --- parts

    def refusal(self) -> CurbstoneError | None:
        """Return why nothing can be staged, or None."""
        if self.state is State.STAGED:
            return None
        if self.state is State.COMMITTED:
            return AlreadyCommitted(f"transaction {self.label} has been committed")
        if self.state is State.COMMITTING:
            return Conflict(f"transaction {self.label} is being committed")
        return Conflict(f"transaction {self.label} is being dropped")

    def check_open(self) -> None:
        """Raise why nothing can be staged."""
        refusal = self.refusal()
        if refusal is not None:
            raise refusal

    def staged(self, part: Part) -> CurbstoneError | None:
        """Add a part that is on disk now, or return why it is too late."""
        refusal = self.refusal()
        needless: Part | None = part
        if refusal is None:
            earlier = self.parts.get(part.name)
            if earlier is None or earlier.version < part.version:  # if two came in at once, the later one counts
                self.parts[part.name], needless = part, earlier
                self.area.count(self.staged_by, counted(part) - (counted(earlier) if earlier else 0))
        if needless is not None:
            self.remove_file(needless.file)
        self.upload_ended(part.size)
        return refusal

    def upload_ended(self, size: int) -> None:
        """End an upload. `size` bytes, counted while it came in, are not counted any more."""
        self.uploads -= 1
        self.area.count(self.staged_by, -size)
        self.touch()
        if self.state is State.STAGED and not self.parts and not self.uploads:
            self._on_empty(self)

    def touch(self) -> None:
        """Begin the time again after which an idle transaction is dropped."""
        self.touched_ms = self.area.host.now_ms()

    # --- the commit

    def chosen(self, names: Sequence[str] | None) -> list[Part]:
        """Return parts by their names, in that order, or all of them if `names` is None.

        Raise NoSuchTransaction, BadRequest or StagedDamaged.
        """
        if names is None:
            names = sorted(self.parts)
        if len(set(names)) != len(names):
            raise BadRequest("bad parts: one is named twice")
        for name in names:
            if name not in self.parts:
                raise NoSuchTransaction(f"transaction {self.label} has no part {name}")
            if self.parts[name].is_damaged:
                raise StagedDamaged(f"transaction {self.label}: {self.parts[name].file} is damaged; stage it again")
        return [self.parts[name] for name in names]

    def answer(self, error: CurbstoneError | None, messages: int) -> None:
        """Answer all callers that wait for the commit. The first has requested it, the others repeated that."""
        waiting, self.waiting = self.waiting, []
        for place, on_done in enumerate(waiting):
            self.area.host.call_soon(partial(on_done, error, place > 0, messages))

    def stuck(self, trouble: str) -> None:
        """Note why a committed transaction can't be put into its queues, or, with an empty text, that it can again."""
        self.trouble = trouble
        if trouble:
            self.answer(self.stuck_error(), 0)

    def stuck_error(self) -> CurbstoneError:
        """Return the answer for clients that ask for the commit meanwhile."""
        return Unavailable(f"transaction {self.label} is committed and can't be put into its queues: {self.trouble}")

    @property
    def reasons(self) -> list[str]:
        """What is wrong with it, as texts for operators."""
        if self.trouble:
            return [f"transaction {self.label} is committed and waits: {self.trouble}"]
        damaged = [part.file for part in self.parts.values() if part.is_damaged and self.state is State.STAGED]
        return [f"transaction {self.label}: {file} is damaged, and has to be staged again" for file in damaged]


def counted(part: Part) -> int:
    """Return how many bytes a part counts for in the limit of all that is staged."""
    return max(part.size, PART_BYTES_MIN)
