"""The `type` of each problem: a link to its paragraph on `/docs/problems`, which says what to do.

docs/problems.md shows the same table; a test keeps the two equal.
"""

from __future__ import annotations

from typing import NamedTuple

from curbstone.access.errors import Busy, NoSuchToken, NotAllowed, NotLoggedIn, QuotaReached, TooFast, TooMany
from curbstone.core.errors import (
    AlreadyCommitted,
    CurbstoneError,
    EventRefused,
    Gone,
    KeyReused,
    MessageTooLarge,
    NoSuchGroup,
    NoSuchQueue,
    NoSuchTransaction,
    NotSupported,
    NumberGap,
    OtherReader,
    PublishPaused,
    QueueFull,
    SchemaViolation,
    StagedDamaged,
    StaleDelivery,
    Unavailable,
)

PAGE = "/docs/problems"


class ProblemType(NamedTuple):
    """A kind of problem; `status` is the one it has in most cases."""

    name: str
    status: int
    text: str
    error: type[CurbstoneError] | None = None
    """The error of the engine or of `access` that it is made from; None for those that only HTTP has."""


TYPES = (
    ProblemType(
        "bad-request",
        400,
        "A name, a parameter or the body breaks a rule, which `detail` names. To repeat it helps nothing.",
    ),
    ProblemType(
        "not-logged-in",
        401,
        "A login is needed, or the one that was sent is not good, or no longer.",
        NotLoggedIn,
    ),
    ProblemType(
        "not-allowed",
        403,
        "Who is logged in lacks the right that `detail` names, or the page in the browser is of an origin "
        "that may not call.",
        NotAllowed,
    ),
    ProblemType(
        "not-found",
        404,
        "There is nothing at this path, or no message or lease of this name any more.",
    ),
    ProblemType(
        "no-such-queue",
        404,
        "The queue is not there, or was deleted meanwhile. `PUT` makes it.",
        NoSuchQueue,
    ),
    ProblemType(
        "no-such-group",
        404,
        "The group is not declared on the queue.",
        NoSuchGroup,
    ),
    ProblemType(
        "no-such-transaction",
        404,
        "Nothing is staged under this id, or a part that was named is missing.",
        NoSuchTransaction,
    ),
    ProblemType(
        "no-such-token",
        404,
        "There is no token of this id that one may see.",
        NoSuchToken,
    ),
    ProblemType(
        "wrong-verb",
        405,
        "The path is there, and takes the verbs that `Allow` lists.",
    ),
    ProblemType(
        "too-slow",
        408,
        "The request did not arrive in time.",
    ),
    ProblemType(
        "conflict",
        409,
        "The request contradicts what is there, such as a cap below what a queue holds. Look, then ask for "
        "something else.",
    ),
    ProblemType(
        "already-committed",
        409,
        "The staged transaction has been committed: nothing can be added, and it can't be dropped.",
        AlreadyCommitted,
    ),
    ProblemType(
        "staged-damaged",
        409,
        "What was staged is damaged on the disk. Nothing was published; stage it again.",
        StagedDamaged,
    ),
    ProblemType(
        "other-reader",
        409,
        "Another program reads as the same group; one of the two needs a group of its own.",
        OtherReader,
    ),
    ProblemType(
        "number-gap",
        409,
        "The message before this one of a numbered producer is not stored, so neither is this one. `expected` is the "
        "number that comes next; 1 where the queue does not know the producer, which then says that nothing is in "
        "front (`x-msg-after: 0`).",
        NumberGap,
    ),
    ProblemType(
        "gone",
        410,
        "These positions are no longer in the log. The members say where to go on.",
        Gone,
    ),
    ProblemType(
        "stale-delivery",
        410,
        "The delivery was settled, given back or ran out before.",
        StaleDelivery,
    ),
    ProblemType(
        "too-large",
        413,
        "A message or a body is larger than the limit that `detail` names.",
        MessageTooLarge,
    ),
    ProblemType(
        "wrong-type",
        415,
        "The Content-Type belongs to another path.",
    ),
    ProblemType(
        "wrong-host",
        421,
        "The `Host` is none of this server; `--http-host` adds names.",
    ),
    ProblemType(
        "key-reused",
        422,
        "The Idempotency-Key came before with other content. A new message needs a new key.",
        KeyReused,
    ),
    ProblemType(
        "schema-violation",
        422,
        "The body does not satisfy the queue's schema: `pointer` says where, `rule` which part of the schema it "
        "breaks. Nothing was stored.",
        SchemaViolation,
    ),
    ProblemType(
        "too-many",
        429,
        "A limit of a user, or of attempts to log in, is reached. `Retry-After` says when to try again.",
        TooMany,
    ),
    ProblemType(
        "too-fast",
        429,
        "The user publishes more in a second than its rate allows. Nothing was stored; after `Retry-After` it is "
        "taken.",
        TooFast,
    ),
    ProblemType(
        "head-too-large",
        431,
        "The head of the request has too many bytes or fields.",
    ),
    ProblemType(
        "server-error",
        500,
        "An error in the server; its log has more.",
    ),
    ProblemType(
        "not-supported",
        501,
        "This engine lacks the part that was asked for.",
        NotSupported,
    ),
    ProblemType(
        "unavailable",
        503,
        "The disk failed, or the server is stopping. Nothing was confirmed; try again after `Retry-After`.",
        Unavailable,
    ),
    ProblemType(
        "busy",
        503,
        "Too many logins wait to be checked, or the user's clients send too much that they do not finish, or do not "
        "read what they ask for. Try again.",
        Busy,
    ),
    ProblemType(
        "queue-full",
        507,
        "The message does not fit under the queue's cap. It was not stored; it fits when others are settled, "
        "or under a larger cap.",
        QueueFull,
    ),
    ProblemType(
        "publish-paused",
        507,
        "The queue takes no messages until its option `publish_paused` is false. Nothing was stored.",
        PublishPaused,
    ),
    ProblemType(
        "quota-reached",
        507,
        "The project has all that its quota allows.",
        QuotaReached,
    ),
    ProblemType(
        "event-refused",
        507,
        "Some of the queues bound to the event did not take the message; `refused` says which and why, and "
        "the others have it.",
        EventRefused,
    ),
)

_BY_ERROR = {kind.error: kind.name for kind in TYPES if kind.error is not None}
_BY_STATUS = {kind.status: kind.name for kind in reversed(TYPES) if kind.error is None} | {
    401: "not-logged-in", 403: "not-allowed", 410: "gone", 413: "too-large", 422: "key-reused", 429: "too-many",
    501: "not-supported", 503: "unavailable", 507: "queue-full",
}  # fmt: skip


def type_of(status: int, error: CurbstoneError | None = None) -> str:
    """Return the `type` of a problem with this status and error; `about:blank` if it has none."""
    name = next((_BY_ERROR[kind] for kind in type(error).__mro__ if kind in _BY_ERROR), None)
    name = name or _BY_STATUS.get(status)
    return f"{PAGE}#{name}" if name else "about:blank"
