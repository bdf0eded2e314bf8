"""The part of the port for staged transactions; `core.port` has the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from curbstone.core.errors import CurbstoneError
from curbstone.core.names import QueueName
from curbstone.core.values import NOBODY, TTL_MS_MAX, Done, StagedStatus


class StagedPart(Protocol):
    """A part that is on disk."""

    @property
    def messages(self) -> int:
        """How many messages it has."""

    @property
    def size(self) -> int:
        """Bytes of its frames."""


class Upload(Protocol):
    """A part of a staged transaction that is coming in."""

    @property
    def is_behind(self) -> bool:
        """Whether the disk has not kept up with what came. Then call `when_written` before you feed more."""

    def feed(self, data: bytes) -> None:
        """Take a piece of the frames, cut anywhere. After any error it raises, call `cancel`."""

    def when_written(self, on_done: Done) -> None:
        """Call back when the disk has caught up, or with the reason why it can't."""

    def finish(self, on_done: Callable[[CurbstoneError | None, StagedPart | None], None]) -> None:
        """End the part, which must be complete. `on_done(None, part)` is called when it is on disk."""

    def cancel(self) -> None:
        """Drop the part, unless it is finished already."""


class Staging(Protocol):
    """Staged transactions: parts that are put on disk, and a commit that publishes them all at once."""

    @property
    def bytes(self) -> int:
        """The bytes that all parts count for, including those that are coming in."""

    @property
    def bytes_max(self) -> int:
        """The most bytes that they may count for."""

    def __len__(self) -> int:
        """Return how many transactions there are."""

    def upload(
        self,
        project: str,
        identifier: str,
        part: str,
        message_bytes_max: int,
        *,
        ttl_ms_max: int = TTL_MS_MAX,
        owner: str = NOBODY,
        check: Callable[[QueueName], None] | None = None,
    ) -> Upload:
        """Begin to stage a part. It consists of frames, such as those that `core.frames.encode_frame` makes.

        No body may be larger than `message_bytes_max`, no ttl longer than `ttl_ms_max`. Each `owner` has identifiers of
        its own. `check` is called for each queue in the part, and raises to refuse it.
        """

    def commit(
        self,
        project: str,
        identifier: str,
        parts: Sequence[str] | None,
        on_done: Callable[[CurbstoneError | None, bool, int], None],
        *,
        content: str = "",
        owner: str = NOBODY,
        check: Callable[[QueueName], None] | None = None,
    ) -> None:
        """Publish parts in this order, or all of them if `parts` is None.

        `content` is what a transaction of a series is about: a commit that repeats a number with another content is a
        Conflict. `on_done(error, whether the commit had been requested before, messages)`. `check` is called for each
        queue.
        """

    def drop(self, project: str, identifier: str, on_done: Done, *, owner: str = NOBODY) -> None:
        """Drop a transaction, if it exists; raise AlreadyCommitted or Conflict if it is too late."""

    def status(self, project: str, identifier: str, *, owner: str = NOBODY) -> StagedStatus:
        """Return the state of a transaction and its parts; raise NoSuchTransaction."""
