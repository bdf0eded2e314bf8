"""One staged transaction: its directory, its parts, and who waits for its commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from curbstone.core.errors import (
    AlreadyCommitted,
    BadRequest,
    Conflict,
    CurbstoneError,
    NoSuchTransaction,
    StagedDamaged,
    Unavailable,
)
from curbstone.core.host import Job, JobDone
from curbstone.core.staging.ground import Ground
from curbstone.core.staging.identity import Series
from curbstone.core.staging.parts import Part
from curbstone.core.values import State

ROOT = "staging"
PART_BYTES_MIN = 4096
"""What a part counts for at least: many empty ones take room, too."""

Committed = Callable[[CurbstoneError | None, bool, int], None]
"""(error, whether it had been committed before, messages)"""


class StagedTransaction:
    """See the module's docstring; `core.staging.staging` has them all."""

    def __init__(
        self, ground: Ground, hashed: bytes, label: str, project: str, on_empty: Callable[[StagedTransaction], None]
    ) -> None:
        """`on_empty` is called when nothing of it is staged any more, nor on its way in."""
        self.ground = ground
        self._on_empty = on_empty
        self.hashed = hashed
        self.label = label
        """Project and id, for people; only the hash where they are not known any more."""
        self.project = project
        """For the limits; empty where the first release staged it, which did not say."""
        self.directory = f"{ROOT}/{hashed.hex()}"
        self.state = State.STAGED
        self.parts: dict[str, Part] = {}
        self.uploads = 0
        self.touched_ms = ground.host.now_ms()
        self.waiting: list[Committed] = []
        """Who waits for the answer to a commit."""
        self.messages = 0
        """Of what is being committed."""
        self.trouble = ""
        """Why what was committed can't be put into the queues, or an empty text."""
        self.version = 0
        self.series: Series | None = None
        """Where its id is one of a series that is known: of what a crash left only a marker says it."""
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
                self.ground.disk.make_dir(path)

    def sync_directories(self) -> None:
        """Make the names in the directory durable, and its own; blocking."""
        disk = self.ground.disk
        disk.sync_dir(self.directory)
        if not self._is_durable:
            disk.sync_dir(ROOT)
            disk.sync_dir("")
            self._is_durable = True

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
        if refusal is not None:
            self.upload_ended(part.size)
            self._remove(part)
            return refusal
        earlier = self.parts.get(part.name)
        is_newer = earlier is None or earlier.version < part.version
        if is_newer:
            self.parts[part.name] = part
            self.ground.count(self.project, counted(part))
        self.upload_ended(part.size)
        gone = earlier if is_newer else part  # of two that come in at once the one that began last counts
        if gone is not None:
            self._remove(gone)
        if is_newer and earlier is not None:
            self.ground.give_back(self.project, counted(earlier))
        return None

    def _remove(self, part: Part) -> None:
        path = f"{self.directory}/{part.file}"

        def job() -> None:
            with suppress(FileNotFoundError):
                self.ground.disk.remove(path)

        self.submit(job, self.ground.ignore)

    def upload_ended(self, size: int) -> None:
        """Nothing more comes of a part; so many of its bytes are not kept."""
        self.uploads -= 1
        self.ground.give_back(self.project, size)
        self.touch()
        if self.state is State.STAGED and not self.parts and not self.uploads:
            self._on_empty(self)

    def touch(self) -> None:
        """Somebody called: its time starts anew."""
        self.touched_ms = self.ground.host.now_ms()

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

    def stuck(self, trouble: str) -> None:
        """What was committed can't be put into the queues, or can again where the text is empty."""
        self.trouble = trouble
        if trouble:
            self.answer(self.stuck_error(), 0)

    def stuck_error(self) -> CurbstoneError:
        """Return what is told to who asks for the commit meanwhile."""
        return Unavailable(f"transaction {self.label} is committed and can't be put into its queues: {self.trouble}")

    @property
    def reasons(self) -> list[str]:
        """What is wrong with it."""
        damaged = [part.file for part in self.parts.values() if part.is_damaged and self.state is State.STAGED]
        told = [f"transaction {self.label}: {file} is damaged, and has to be staged again" for file in damaged]
        return [f"transaction {self.label} is committed and waits: {self.trouble}"] if self.trouble else told

    def answer(self, error: CurbstoneError | None, messages: int) -> None:
        """Tell all who wait for the commit; the first asked for it, the others repeated it."""
        waiting, self.waiting = self.waiting, []
        for place, on_done in enumerate(waiting):
            self.ground.host.call_soon(partial(on_done, error, place > 0, messages))


def counted(part: Part) -> int:
    """Return what a part counts for in the limit of all that is staged."""
    return max(part.size, PART_BYTES_MIN)
