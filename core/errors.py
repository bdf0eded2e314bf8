"""What can go wrong, as seen by those who use the engine.

Every error carries `status`, the HTTP status an adapter answers with where its
protocol has such a thing, and a text for people that names the rule broken::

    CurbstoneError
    ├── BadRequest          400  a name, option or value breaks a rule
    ├── NoSuchQueue         404  the queue does not exist (or was deleted meanwhile)
    ├── NoSuchGroup         404  the group is not declared
    ├── NoSuchTransaction   404  nothing is staged under the id, or not this part
    ├── Conflict            409  an option contradicts what the queue holds
    │   ├── AlreadyCommitted     the staged transaction has been committed
    │   ├── StagedDamaged        what was staged is damaged on the disk, and has to be staged again
    │   └── OtherReader          another program reads as the same group
    ├── KeyReused           422  an idempotency key came back with other content
    ├── StaleDelivery       410  the delivery ended before it was settled
    ├── Gone                410  what is asked for is no longer in the log
    ├── MessageTooLarge     413  larger than the queue's or the server's limit
    ├── QueueFull           507  does not fit under the queue's cap
    ├── EventRefused        (that of the first refusal) some of the queues bound to an event refused it
    └── Unavailable         503  the disk failed, or the server is stopping
        └── DataDirectoryError    the data directory can't be used at all

Any other exception out of `core` is a bug.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from curbstone.core.names import QueueName

TOLD_MAX = 3
"""Queues that a text names."""
MEMBERS_MAX = 100


class CurbstoneError(Exception):
    """Base of all errors the engine reports; `status` is the HTTP status that fits."""

    status = 500
    members: Mapping[str, object] = {}
    """What a program needs to know of it, by name."""


class BadRequest(CurbstoneError):
    """A name, option or value breaks a rule; the text names the rule."""

    status = 400


class NoSuchQueue(CurbstoneError):
    """The queue does not exist, or was deleted while the call was under way."""

    status = 404


class NoSuchGroup(CurbstoneError):
    """The group is not declared on the queue."""

    status = 404


class NoSuchTransaction(CurbstoneError):
    """Nothing is staged under the id, or a part that was named is missing."""

    status = 404


class Conflict(CurbstoneError):
    """The request contradicts the state of the queue, such as a cap below what it holds."""

    status = 409


class AlreadyCommitted(Conflict):
    """The staged transaction has been committed: nothing can be added to it, and it can't be dropped."""


class StagedDamaged(Conflict):
    """A part of a staged transaction is not what was staged any more; nothing was published."""


class OtherReader(Conflict):
    """Another program reads as the same group: what is acked by one, the other would miss.

    `acked`: up to there the group was acked, and the reader is not as far.
    """

    def __init__(self, text: str, **members: object) -> None:
        super().__init__(text)
        self.members = {"other_reader": True, **members}


class KeyReused(CurbstoneError):
    """An idempotency key came back with other content."""

    status = 422


class StaleDelivery(CurbstoneError):
    """The delivery was settled, released or ran out before this call."""

    status = 410


class Gone(CurbstoneError):
    """What is asked for is no longer in the log; `members` say from where on there is something."""

    status = 410

    def __init__(self, text: str, **members: object) -> None:
        super().__init__(text)
        self.members = members


class MessageTooLarge(CurbstoneError):
    """The message exceeds the queue's `max_message_size`, or can never fit its cap."""

    status = 413


class QueueFull(CurbstoneError):
    """The message does not fit under the cap, even after cleaning; nothing was changed."""

    status = 507


class EventRefused(CurbstoneError):
    """Some of the queues bound to an event did not take a message; `stored` others have it.

    `refused` says which, and why. Its text and `members` name no private queue, whose name is its owner's alone.
    """

    def __init__(self, refused: Mapping[QueueName, CurbstoneError], stored: int) -> None:
        self.refused = refused
        self.stored = stored
        self.status = next(iter(refused.values())).status
        told = {str(name): str(error) for name, error in refused.items() if not name.is_private}
        private = len(refused) - len(told)
        texts = [f"{name}: {text}" for name, text in told.items()]
        more = [f"{len(texts) - TOLD_MAX} more"] if len(texts) > TOLD_MAX else []
        whose = [f"{private} private to their subscribers"] if private else []
        super().__init__(
            f"{len(refused)} of {len(refused) + stored} queues bound to the event refused the message: "
            + "; ".join([*texts[:TOLD_MAX], *more, *whose])
        )
        self.members = {"stored": stored, "refused": dict(list(told.items())[:MEMBERS_MAX])}


class Unavailable(CurbstoneError):
    """The disk failed or the server is stopping; nothing of the call was confirmed."""

    status = 503


class DataDirectoryError(Unavailable):
    """The data directory can't be used: locked by another process, unreadable, or of a newer format."""


class MetaDamaged(DataDirectoryError):
    """A queue's `meta` does not match its checksum, or makes no sense."""
