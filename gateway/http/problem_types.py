"""The kinds of problems: the `type` of each links to its paragraph on `/docs/problems`, which says what to do.

The table in docs/problems.md is made from this one by tools/ops/docs_tables.py.
"""

from __future__ import annotations

from typing import NamedTuple

from curbstone.access.errors import Busy, NoSuchToken, NotAllowed, NotLoggedIn, QuotaReached, TooFast, TooMany
from curbstone.core import errors
from curbstone.core.errors import CurbstoneError

PAGE = "/docs/problems"


class ProblemType(NamedTuple):
    """A kind of problem."""

    name: str
    status: int
    error: type[CurbstoneError] | None
    """The error of the engine or of `access` with this type; None for types that only HTTP has."""
    text: str


# fmt: off
TYPES = tuple(ProblemType(*row) for row in (
    ("bad-request", 400, errors.BadRequest,
     "A name, a parameter or the body violates the rule in `detail`. Retrying does not help."),
    ("not-logged-in", 401, NotLoggedIn,
     "A login is needed, or the one that was sent is invalid or has expired."),
    ("not-allowed", 403, NotAllowed,
     "The user lacks the right in `detail`, or the request is from a web page of an origin that is not allowed."),
    ("not-found", 404, None,
     "Nothing is at this path, or the message or lease does not exist any more."),
    ("no-such-queue", 404, errors.NoSuchQueue,
     "The queue does not exist, or has been deleted. `PUT` creates it."),
    ("no-such-group", 404, errors.NoSuchGroup,
     "The group is not declared on the queue."),
    ("no-such-transaction", 404, errors.NoSuchTransaction,
     "Nothing is staged under this id, or a part that the request names is missing."),
    ("no-such-token", 404, NoSuchToken,
     "There is no such token, or it is not yours."),
    ("wrong-verb", 405, None,
     "The path exists, but only for the methods in `Allow`."),
    ("not-acceptable", 406, None,
     "The server can't produce the requested format. `detail` says what is missing."),
    ("too-slow", 408, None,
     "The request did not arrive in time."),
    ("conflict", 409, errors.Conflict,
     "The request conflicts with the current state, such as a cap below the size of the queue. Check the state and "
     "change the request."),
    ("already-committed", 409, errors.AlreadyCommitted,
     "The staged transaction has been committed: nothing can be added, and it can't be dropped."),
    ("staged-damaged", 409, errors.StagedDamaged,
     "The staged transaction is damaged on the disk. Nothing was published; stage it again."),
    ("other-reader", 409, errors.OtherReader,
     "Another program reads as the same group; each of them needs its own group."),
    ("number-gap", 409, errors.NumberGap,
     "The message before this one of a numbered producer is not stored, so this one was not stored either. `expected` "
     "is the next number. It is 1 if the queue has no record of the producer, which then has to declare that there is "
     "no earlier message (`x-msg-after: 0`)."),
    ("gone", 410, errors.Gone,
     "These positions are no longer in the log. The members say where to continue."),
    ("stale-delivery", 410, errors.StaleDelivery,
     "The delivery has been settled or requeued, or its lease has ended."),
    ("too-large", 413, errors.MessageTooLarge,
     "A message or a body is larger than the limit in `detail`."),
    ("wrong-type", 415, None,
     "The Content-Type belongs to another path."),
    ("wrong-host", 421, None,
     "The `Host` is not a name of this server; `--http-host` adds names."),
    ("key-reused", 422, errors.KeyReused,
     "The Idempotency-Key was used before with different content. Use a new key for a new message."),
    ("schema-violation", 422, errors.SchemaViolation,
     "The body violates the queue's schema: `pointer` is the position in the body, and `rule` the violated part of "
     "the schema. Nothing was stored."),
    ("too-many", 429, TooMany,
     "A limit of the user, or of login attempts, is reached. Retry after `Retry-After`."),
    ("too-fast", 429, TooFast,
     "The user exceeds its publishing rate. Nothing was stored. Retry after `Retry-After`."),
    ("head-too-large", 431, None,
     "The head of the request has too many bytes or fields."),
    ("server-error", 500, None,
     "An error in the server; its log has the details."),
    ("not-supported", 501, errors.NotSupported,
     "This engine does not have the requested function."),
    ("unavailable", 503, errors.Unavailable,
     "The disk failed, or the server is stopping. Nothing was confirmed. Retry after `Retry-After`."),
    ("standby", 503, errors.IsStandby,
     "This is a standby, which keeps a copy of a server and serves nothing itself. `server` is the address of the "
     "server."),
    ("busy", 503, Busy,
     "Too many logins wait to be checked, or the user's clients have too much unfinished input or unread output. "
     "Retry."),
    ("queue-full", 507, errors.QueueFull,
     "The message does not fit under the queue's cap and was not stored. Retry after others are settled, or raise the "
     "cap."),
    ("publish-paused", 507, errors.PublishPaused,
     "The queue accepts no messages until its option `publish_paused` is false. Nothing was stored."),
    ("quota-reached", 507, QuotaReached,
     "The project has reached its quota of queues or bytes."),
    ("event-refused", 507, errors.EventRefused,
     "Some queues bound to the event refused the message; `refused` says which and why. All others have stored it. "
     "The status is that of the first refusal."),
))
# fmt: on
"""In the order of their status. The first kind of a status is that of all problems of the status without a kind."""

_BY_ERROR = {kind.error: kind for kind in TYPES if kind.error is not None}
_BY_STATUS = {kind.status: kind for kind in reversed(TYPES)}


def kind_of(error: CurbstoneError | None) -> ProblemType | None:
    """Return the kind of an error: that of its class, or of the nearest base class that has one."""
    return next((_BY_ERROR[each] for each in type(error).__mro__ if each in _BY_ERROR), None)


def type_of(status: int, error: CurbstoneError | None = None) -> str:
    """Return the `type` of a problem with this status and error; `about:blank` if it has none."""
    kind = kind_of(error) or _BY_STATUS.get(status)
    return f"{PAGE}#{kind.name}" if kind else "about:blank"
