"""One staged transaction: its directory, its parts, and who waits for its commit.

| state | on disk | what happens | it ends when |
|---|---|---|---|
| staged | parts | parts come, and replace each other | a commit is asked for; it is dropped, or idle too long |
| committing | parts | `commit.py` reserves room, reads parts back | the marker is durable; else it is staged again |
| committing | parts, marker | `apply.py` puts messages into the queues | all are there, and its id is on disk |
| committed | its id | `committed.py` remembers it | seven days are over |
| dropping | parts | the directory is removed | that is durable |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from curbstone.core.disk import Disk
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
from curbstone.core.host import Host, Job, JobDone
from curbstone.core.staging.files import ROOT, Part
from curbstone.core.staging.identity import Hash, Series
from curbstone.core.values import NOBODY, State

KEPT_SHARE = 16
"""One part in so many of what may be staged is kept for projects that stage no more than that."""
PART_BYTES_MIN = 4096
"""What a part counts for at least: many empty ones take room, too."""

CommitDone = Callable[[CurbstoneError | None, bool, int], None]
"""(error, whether it had been committed before, messages)"""

logger = logging.getLogger("curbstone.core")


class Whom(NamedTuple):
    """Who staged something, and for which project."""

    owner: str
    """NOBODY where there are no users."""
    project: str
    """Empty if the first release staged it, which did not say."""

    @property
    def counted(self) -> Whom:
        """For whom its bytes count: a user, whatever the project, or a project."""
        return Whom(self.owner, "") if self.owner else self


def whose(parts: Iterable[Part]) -> Whom:
    """Return who staged parts that were found; those of one transaction are all of the same."""
    found = next((part for part in parts if part.project), None)
    return Whom(found.owner, found.project) if found is not None else Whom(NOBODY, "")


class Ground:
    """What all staged transactions share: where they are, and how much there may be of them."""

    def __init__(self, host: Host, disk: Disk, bytes_max: int) -> None:
        self.host = host
        self.disk = disk
        self.is_stopping = False
        self.bytes = 0
        """What all parts count for, those on their way in included."""
        self.bytes_max = bytes_max
        self._by_whom: dict[Whom, int] = {}

    def take(self, whom: Whom, size: int) -> None:
        """Count bytes that come in; raise QueueFull."""
        self.check(whom, size)
        self.count(whom, size)

    def check(self, whom: Whom, size: int) -> None:
        """Raise QueueFull where so many more are too many, or would leave others nothing."""
        kept = self.bytes_max // KEPT_SHARE
        if self.bytes + size > self.bytes_max:
            raise QueueFull(f"more than {self.bytes_max} bytes are staged; see --max-staged")
        if self.bytes + size > self.bytes_max - kept and self._by_whom.get(whom.counted, 0) + size > kept:
            kind = "users" if whom.owner else "projects"
            raise QueueFull(f"the last {kept} bytes are for {kind} that stage no more than these; see --max-staged")

    def count(self, whom: Whom, size: int) -> None:
        """Count bytes that are there, or, below 0, are gone."""
        self.bytes += size
        left = self._by_whom.pop(whom.counted, 0) + size
        if left:
            self._by_whom[whom.counted] = left


class StagedTransaction:
    """See the module's docstring; `core.staging.staging` has them all."""

    def __init__(
        self, ground: Ground, hashed: Hash, label: str, whom: Whom, on_empty: Callable[[StagedTransaction], None]
    ) -> None:
        """`on_empty` is called when nothing of it is staged any more, nor on its way in."""
        self.ground = ground
        self.disk = ground.disk
        self._on_empty = on_empty
        self.hashed = hashed
        self.label = label
        """Project and id, for people; only the directory if they are not known any more."""
        self.whom = whom
        self.directory = f"{ROOT}/{hashed.hex()}"
        self.state = State.STAGED
        self.parts: dict[str, Part] = {}
        self.uploads = 0
        self.touched_ms = ground.host.now_ms()
        self.waiting: list[CommitDone] = []
        """Who waits for the answer to a commit."""
        self.messages = 0
        """Of what is being committed."""
        self.trouble = ""
        """Why what was committed can't be put into the queues, or an empty text."""
        self.version = 0
        self.series: Series | None = None
        """If it is being committed, and its id is one of a series."""
        self.is_made = False
        """Whether there may be a directory."""
        self._jobs = 0
        self._idle: list[Callable[[], None]] = []
        self._is_durable = False

    @property
    def size(self) -> int:
        """Bytes that the parts count for."""
        return sum(counted(part) for part in self.parts.values())

    # --- jobs in the directory

    @property
    def is_working(self) -> bool:
        """Whether a job is under way."""
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

        self.ground.host.submit(job, done)

    def when_idle(self, fn: Callable[[], None]) -> None:
        """Call `fn` once no job works in the directory."""
        if self._jobs:
            self._idle.append(fn)
        else:
            fn()

    def make_directory(self) -> None:
        """Make the directory, and the one it is in; blocking."""
        for path in (ROOT, self.directory):
            with suppress(FileExistsError):
                self.disk.make_dir(path)

    def sync_directories(self) -> None:
        """Make the names in the directory durable, and its own; blocking."""
        self.disk.sync_dir(self.directory)
        if not self._is_durable:
            self.disk.sync_dir(ROOT)
            self.disk.sync_dir("")
            self._is_durable = True

    def remove_file(self, name: str, before: Callable[[], None] = lambda: None) -> None:
        """Remove a file that is not needed, after `before` in the same job; the next start removes what stays."""

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
        """A part is on disk; return why it comes too late, or None."""
        refusal = self.refusal()
        needless: Part | None = part
        if refusal is None:
            earlier = self.parts.get(part.name)
            if earlier is None or earlier.version < part.version:  # of two that come in at once the later one counts
                self.parts[part.name], needless = part, earlier
                self.ground.count(self.whom, counted(part) - (counted(earlier) if earlier else 0))
        if needless is not None:
            self.remove_file(needless.file)
        self.upload_ended(part.size)
        return refusal

    def upload_ended(self, size: int) -> None:
        """Nothing more comes of a part; so many of its bytes are not kept."""
        self.uploads -= 1
        self.ground.count(self.whom, -size)
        self.touch()
        if self.state is State.STAGED and not self.parts and not self.uploads:
            self._on_empty(self)

    def touch(self) -> None:
        """Somebody called: its time starts anew."""
        self.touched_ms = self.ground.host.now_ms()

    # --- the commit

    def chosen(self, names: Sequence[str] | None) -> list[Part]:
        """Return parts by their names, in that order; all by default.

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
        """Tell all who wait for the commit; the first asked for it, the others repeated it."""
        waiting, self.waiting = self.waiting, []
        for place, on_done in enumerate(waiting):
            self.ground.host.call_soon(partial(on_done, error, place > 0, messages))

    def stuck(self, trouble: str) -> None:
        """What was committed can't be put into the queues; or, if the text is empty, it can again."""
        self.trouble = trouble
        if trouble:
            self.answer(self.stuck_error(), 0)

    def stuck_error(self) -> CurbstoneError:
        """Return what a client gets that asks for the commit meanwhile."""
        return Unavailable(f"transaction {self.label} is committed and can't be put into its queues: {self.trouble}")

    @property
    def reasons(self) -> list[str]:
        """What is wrong with it."""
        if self.trouble:
            return [f"transaction {self.label} is committed and waits: {self.trouble}"]
        damaged = [part.file for part in self.parts.values() if part.is_damaged and self.state is State.STAGED]
        return [f"transaction {self.label}: {file} is damaged, and has to be staged again" for file in damaged]


def counted(part: Part) -> int:
    """Return what a part counts for in the limit of all that is staged."""
    return max(part.size, PART_BYTES_MIN)
