"""Extensions that a client can ask for with `x-features` on CONNECT, and RECEIPTs that refuse. Pure.

- `refusals`: a frame that can't be carried out is answered by a RECEIPT that says why, and the connection goes on.
- `ids`: the RECEIPT of a SEND contains the message's id.
- `window`: a SUBSCRIBE with an id that is in use changes that subscription's window.
- `joined`: over a WebSocket, frames that are sent together form one message.
- `numbers`: numbered producers, see `producer_sequence.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from curbstone.access.errors import Busy, NotAllowed, NotLoggedIn, TooMany
from curbstone.core.errors import (
    BadRequest,
    Conflict,
    CurbstoneError,
    EventRefused,
    KeyReused,
    MessageTooLarge,
    NoSuchQueue,
    NotSupported,
    NumberGap,
    QueueFull,
    SchemaViolation,
    StaleDelivery,
    Unavailable,
)
from curbstone.core.headers import escape
from curbstone.stomp.errors import ProtocolError

REFUSALS, IDS, WINDOW, JOINED, NUMBERS = "refusals", "ids", "window", "joined", "numbers"
FEATURES = (REFUSALS, IDS, WINDOW, JOINED, NUMBERS)

_CODES: dict[type[CurbstoneError], int] = {
    BadRequest: 400,
    NotLoggedIn: 401,
    NotAllowed: 403,
    NoSuchQueue: 404,
    Conflict: 409,
    StaleDelivery: 410,
    MessageTooLarge: 413,
    KeyReused: 422,
    SchemaViolation: 422,
    TooMany: 429,
    NotSupported: 501,
    Busy: 503,
    Unavailable: 503,
    QueueFull: 507,
}
"""The code of each error of the engine, the same as over HTTP. An error that is not listed has its base class's code.
"""

RETRY_AFTER_S = {503: 5, 507: 1}
"""After how many seconds a request may be tried again that failed for want of room, or of a working disk."""


class NotUnsettled(ProtocolError):
    """An ACK or NACK names a delivery that has ended or never existed."""


def offered(text: str) -> frozenset[str]:
    """Return the known ones of the features that a CONNECT asks for."""
    return frozenset(part.strip() for part in text.split(",")).intersection(FEATURES)


def code_of(error: CurbstoneError | NotUnsettled) -> int:
    """Return the code of an error. If several queues refused an event, it is the first one's."""
    if isinstance(error, NotUnsettled):
        return 410
    if isinstance(error, EventRefused):
        return code_of(next(iter(error.refused.values())))
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), 500)


def retry_after_of(error: CurbstoneError | NotUnsettled) -> int:
    """Return after how many seconds the request may be tried again; 0 if that is of no use."""
    return error.wait_s if isinstance(error, TooMany) else RETRY_AFTER_S.get(code_of(error), 0)


def error_headers(error: CurbstoneError) -> tuple[str, ...]:
    """Return the header lines of an ERROR that tell a program the code and when to try again."""
    retry_s = retry_after_of(error)
    return (f"x-error-code:{code_of(error)}", *((f"retry-after:{retry_s}",) if retry_s else ()))


def refusals(receipts: Iterable[bytes], error: CurbstoneError | NotUnsettled) -> bytes:
    """Return RECEIPTs that say why the frames were not carried out."""
    code = code_of(error)
    retry_s = retry_after_of(error)
    retry = f"retry-after:{retry_s}\n" if retry_s else ""
    text = escape(str(error) or type(error).__name__)
    expected = f"x-expected:{error.expected}\n" if isinstance(error, NumberGap) else ""
    rest = f"x-error-code:{code}\nx-error:{text}\n{retry}{expected}\n\0\n".encode("utf-8", "backslashreplace")
    return b"".join([b"RECEIPT\nreceipt-id:%b\n%b" % (receipt, rest) for receipt in receipts])


def repeats(receipts: Iterable[bytes]) -> bytes:
    """Return the RECEIPTs of SENDs whose numbers were stored before."""
    return b"".join([b"RECEIPT\nreceipt-id:%b\nx-duplicate:true\n\n\0\n" % receipt for receipt in receipts])


def receipts_with_ids(receipts: Iterable[bytes | None], uid: str, first_seq: int) -> bytes:
    """Return the RECEIPTs, with message ids, of the SENDs that asked for one; their messages have consecutive seqs."""
    start = f"\nx-msg-id:{uid}-".encode()
    return b"".join(
        [
            b"RECEIPT\nreceipt-id:%b%b%d\n\n\0\n" % (receipt, start, seq)
            for seq, receipt in enumerate(receipts, first_seq)
            if receipt is not None
        ]
    )
