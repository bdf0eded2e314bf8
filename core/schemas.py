"""JSON Schemas for the bodies of a queue's messages, as the engine sees them: text in, a rule for bodies out.

The code that evaluates schemas is passed in (`curbstone.schemas`), because the engine uses only the standard
library.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from curbstone.core.errors import CurbstoneError, NotSupported, SchemaViolation
from curbstone.core.host import Host, Job, JobDone

AT_ONCE_MS = 20
"""A check that could take longer than this is made outside of the loop."""
SLICE_US = 10_000
"""After checking for so long in a turn of the loop, all queues wait for the next turn. One more check may follow."""
NO_PACKAGE = "the option schema needs a package that is missing here: pip install jsonschema-rs"
UNPLACED = SchemaViolation("the body is too large to look for the place")
"""The answer of a quick check that would need long to say what is wrong."""


class Rule(Protocol):
    """What a schema requires of bodies. Both checks return why a body is refused, or None."""

    def most_ms(self, body: bytes) -> float:
        """Return how long `check` takes at most. Usually it takes far less."""

    def check(self, body: bytes) -> CurbstoneError | None:
        """Check a body at once. The answer may be UNPLACED; then `check_apart` may find more."""

    def check_apart(self, body: bytes) -> CurbstoneError | None:
        """Check a body in another process, for a bounded time. Blocking; may be called in any thread."""


class Schemas(Protocol):
    """Makes rules of schemas."""

    def rule(self, schema: str) -> Rule:
        """Return the rule of a JSON Schema; raise BadRequest if it can't be used, NotSupported if no schema can."""


class NoSchemas:
    """The `Schemas` of an engine that can't use any."""

    def rule(self, schema: str) -> Rule:
        """Raise NotSupported."""
        raise NotSupported(NO_PACKAGE)


class BodyRule:
    """The rule of one queue. The first call of `most_ms` makes it, before any check: a start does not wait for it.

    If the schema can't be used, all bodies are refused.
    """

    __slots__ = ("_error", "_rule", "_schema", "_schemas")

    def __init__(self, schemas: Callable[[], Schemas], schema: str) -> None:
        self._schemas = schemas
        self._schema = schema
        self._rule: Rule | None = None
        self._error: CurbstoneError | None = None

    def most_ms(self, body: bytes) -> float:
        if self._rule is None:
            try:
                self._rule = self._schemas().rule(self._schema)
            except CurbstoneError as error:
                self._error = error
                return 0
        return self._rule.most_ms(body)

    def check(self, body: bytes) -> CurbstoneError | None:
        return self._error if self._rule is None else self._rule.check(body)

    def check_apart(self, body: bytes) -> CurbstoneError | None:
        return self._error if self._rule is None else self._rule.check_apart(body)


class Checks:
    """Shares out the checks of all queues: a slice of each turn of the loop, and one check at a time in a thread."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._end_us = 0
        """When the slice of this turn ends; 0 if it has not begun."""
        self._jobs: deque[tuple[Job, JobDone]] = deque()
        """Those that run or wait. They have one thread of the disk's, so that commits do not wait for them."""

    def has_time(self) -> bool:
        """Return whether this turn has time for another check."""
        now_us = self._host.now_us()
        if not self._end_us:
            self._end_us = now_us + SLICE_US
            self._host.call_soon(self._next_turn)
        return now_us < self._end_us

    def _next_turn(self) -> None:
        self._end_us = 0

    def submit(self, job: Job, done: JobDone) -> None:
        self._jobs.append((job, done))
        if len(self._jobs) == 1:
            self._begin()

    def _begin(self) -> None:
        job, done = self._jobs[0]
        self._host.submit(job, partial(self._ended, done))

    def _ended(self, done: JobDone, result: Any, error: BaseException | None) -> None:
        self._jobs.popleft()
        if self._jobs:
            self._begin()
        done(result, error)
