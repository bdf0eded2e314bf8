"""The errors of the engine, as its users see them.

The text of every error is for users and names the rule that was broken. Which code a protocol gives to an error is the
business of its adapter. An exception out of `core` that is no `CurbstoneError` is a bug.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from curbstone.core.names import QueueName

TEXTS_MAX = 3
"""How many queues a text names."""
MEMBERS_MAX = 100
"""How many queues `members` names."""


class CurbstoneError(Exception):
    """Base of all errors the engine reports."""

    members: Mapping[str, object] = {}
    """Details of the error for programs, by name."""


class BadRequest(CurbstoneError):
    """A name, option or value breaks a rule; the text names the rule."""


class NoSuchQueue(CurbstoneError):
    """The queue does not exist, or was deleted while the call was under way."""


class NoSuchGroup(CurbstoneError):
    """The group is not declared on the queue."""


class NoSuchTransaction(CurbstoneError):
    """Nothing is staged under the id, or a part that was named is missing."""


class Conflict(CurbstoneError):
    """The request contradicts the state of the queue, such as a cap below what it holds."""


class AlreadyCommitted(Conflict):
    """The staged transaction has been committed: nothing can be added to it, and it can't be dropped."""


class StagedDamaged(Conflict):
    """A part of a staged transaction is damaged on the disk; nothing was published."""


class OtherReader(Conflict):
    """Another program reads as the same group. Each would miss the messages that the other acks.

    The member `acked` says up to where the group was acked; the reader is not as far.
    """

    def __init__(self, text: str, **members: object) -> None:
        super().__init__(text)
        self.members = {"other_reader": True, **members}


class NumberGap(Conflict):
    """The message in front of a numbered one is not stored, so this one was not stored either.

    `expected` is one above the last number stored; for a producer that is not known it is 1.
    """

    def __init__(self, expected: int) -> None:
        why = f"this producer's next number here is {expected}"
        if expected == 1:
            why = "this producer is not known here, so it begins with number 1, or says that nothing is in front"
        super().__init__(f"the messages before this one are not stored: {why}")
        self.expected = expected
        self.members = {"expected": expected}


class KeyReused(CurbstoneError):
    """An idempotency key returned with other content."""


class StaleDelivery(CurbstoneError):
    """The delivery was settled or requeued, or its lease ran out, before this call."""


class Gone(CurbstoneError):
    """The requested messages or events are no longer in the log; `members` name the first that are there."""

    def __init__(self, text: str, **members: object) -> None:
        super().__init__(text)
        self.members = members


class MessageTooLarge(CurbstoneError):
    """The message exceeds the queue's `max_message_size`, or can never fit its cap."""


class SchemaViolation(CurbstoneError):
    """A body does not satisfy the queue's schema; `members` say where, as a JSON Pointer, and which rule it breaks."""

    def __init__(self, text: str, pointer: str = "", rule: str = "") -> None:
        where = f" at {pointer}" if pointer else ""
        which = f" (rule {rule})" if rule else ""
        super().__init__(f"the body does not satisfy the queue's schema{where}: {text}{which}")
        self.text = text
        self.pointer = pointer
        self.rule = rule
        self.members = {"pointer": pointer, "rule": rule}


class QueueFull(CurbstoneError):
    """The message does not fit under the cap, even after cleaning; nothing was changed."""


class PublishPaused(QueueFull):
    """The queue takes no messages while its option `publish_paused` is set. Treat it like a full queue."""


class EventRefused(CurbstoneError):
    """Some of the queues bound to an event did not take a message; `stored` others have it.

    `refused` says which, and why. The text and `members` name no private queues, because those names are secret.
    """

    def __init__(self, refused: Mapping[QueueName, CurbstoneError], stored: int) -> None:
        self.refused = refused
        self.stored = stored
        public = {str(name): str(error) for name, error in refused.items() if not name.is_private}
        private = len(refused) - len(public)
        texts = [f"{name}: {text}" for name, text in public.items()]
        more = [f"{len(texts) - TEXTS_MAX} more"] if len(texts) > TEXTS_MAX else []
        whose = [f"{private} private to their subscribers"] if private else []
        super().__init__(
            f"{len(refused)} of {len(refused) + stored} queues bound to the event refused the message: "
            + "; ".join([*texts[:TEXTS_MAX], *more, *whose])
        )
        self.members = {"stored": stored, "refused": dict(list(public.items())[:MEMBERS_MAX])}


class NotSupported(CurbstoneError):
    """This engine lacks the requested part; the text names an engine that has it."""


class Unavailable(CurbstoneError):
    """The disk failed or the server is stopping; nothing of the call was confirmed."""

    def __init__(self, text: str, *, is_stop: bool = False) -> None:
        super().__init__(text)
        self.is_stop = is_stop
        """Whether the only reason is that the server stops, so nothing is wrong."""


def shutting_down() -> Unavailable:
    """Return the error for calls that arrive while the server stops."""
    return Unavailable("the server is shutting down", is_stop=True)


class DataDirectoryError(Unavailable):
    """The data directory can't be used: locked by another process, unreadable, or of a newer format."""


class IsStandby(Unavailable):
    """This process keeps a copy of the server at `server`, and serves nothing itself."""

    def __init__(self, server: str) -> None:
        super().__init__(f"this is a standby: it keeps a copy of the server at {server}, and serves nothing itself")
        self.members = {"server": server}


class MetaDamaged(DataDirectoryError):
    """A queue's `meta` does not match its checksum, or makes no sense."""


def client_text(error: BaseException) -> str:
    """Return the text about an exception for clients: for an error of the disk the reason, without the file's name.

    The caller has to write the rest to the server's log.
    """
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
