"""What adapters may ask of an engine that stages transactions; `core.port` has the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from curbstone.core.errors import CurbstoneError
from curbstone.core.names import QueueName
from curbstone.core.values import NOBODY, TTL_MS_MAX, Done, Look


class StagedPart(Protocol):
    """A part that is on disk."""

    @property
    def messages(self) -> int:
        """How many messages it has."""

    @property
    def size(self) -> int:
        """Bytes of its frames."""


class Upload(Protocol):
    """A part of a staged transaction on its way in."""

    @property
    def is_behind(self) -> bool:
        """Whether more has come than the disk has taken: wait with `when_written`."""

    def feed(self, data: bytes) -> None:
        """Take frames, cut anywhere; raise BadRequest, MessageTooLarge, NoSuchQueue."""

    def when_written(self, on_done: Done) -> None:
        """Call back when the disk has caught up."""

    def finish(self, on_done: Callable[[CurbstoneError | None, StagedPart | None], None]) -> None:
        """The part is whole: put it on disk."""

    def cancel(self) -> None:
        """Drop what came, unless it was finished."""


class Staging(Protocol):
    """Staged transactions: parts that are put on disk, and a commit that publishes them all at once."""

    @property
    def bytes(self) -> int:
        """What all parts count for, those on their way in included."""

    @property
    def bytes_max(self) -> int:
        """The most that they may count for."""

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
        """Begin to stage a part, of frames such as `core.frames.encode_frame` makes; no message lives longer.

        Each `owner` has identifiers of its own. `check` is asked for each queue in it, and raises to refuse.
        """

    def commit(
        self,
        project: str,
        identifier: str,
        parts: Sequence[str] | None,
        on_done: Callable[[CurbstoneError | None, bool, int], None],
        *,
        owner: str = NOBODY,
        check: Callable[[QueueName], None] | None = None,
    ) -> None:
        """Publish parts in this order, all by default; `on_done(error, whether that was done before, messages)`."""

    def drop(self, project: str, identifier: str, on_done: Done, *, owner: str = NOBODY) -> None:
        """Drop what is staged, if anything is."""

    def look(self, project: str, identifier: str, *, owner: str = NOBODY) -> Look:
        """Return what there is of a transaction; raise NoSuchTransaction."""
