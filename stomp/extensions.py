"""Extensions that a client requests with `x-features` on CONNECT, and RECEIPTs that refuse.

- `refusals`: a frame that fails is answered by a RECEIPT with the reason, and the connection stays open.
- `ids`: the RECEIPT of a SEND contains the message's id.
- `window`: a SUBSCRIBE with an id that is in use changes that subscription's window.
- `joined`: over a WebSocket, frames that are sent together are one message.
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
EXTENSIONS = (REFUSALS, IDS, WINDOW, JOINED, NUMBERS)

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
"""The code of each error of the engine, the same as over HTTP. Other errors have that of their base class."""

RETRY_AFTER_S = {503: 5, 507: 1}
"""After how many seconds to retry a request that failed because of a full queue or a failing disk."""


class NotUnsettled(ProtocolError):
    """An ACK or NACK names a delivery that has ended or never existed."""


def line(agreed: frozenset[str]) -> str:
    """Return the header line that names the extensions of a connection."""
    return "x-features:" + ",".join([name for name in EXTENSIONS if name in agreed])


def known(text: str) -> frozenset[str]:
    """Return the extensions in the `x-features` of a CONNECT that the server supports."""
    return frozenset(part.strip() for part in text.split(",")).intersection(EXTENSIONS)


def code_of(error: CurbstoneError | NotUnsettled) -> int:
    """Return the code of an error. If several queues refused an event, it is the first one's."""
    if isinstance(error, NotUnsettled):
        return 410
    if isinstance(error, EventRefused):
        return code_of(next(iter(error.refused.values())))
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), 500)


def retry_after_of(error: CurbstoneError | NotUnsettled) -> int:
    """Return after how many seconds to retry the request; 0 if retrying does not help."""
    return error.wait_s if isinstance(error, TooMany) else RETRY_AFTER_S.get(code_of(error), 0)


def error_headers(error: CurbstoneError) -> tuple[str, ...]:
    """Return the header lines of an ERROR with the code and the time until a retry."""
    retry_s = retry_after_of(error)
    return (f"x-error-code:{code_of(error)}", *((f"retry-after:{retry_s}",) if retry_s else ()))


def refusals(receipts: Iterable[bytes], error: CurbstoneError | NotUnsettled) -> bytes:
    """Return RECEIPTs that give the reason why the frames failed."""
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


def duplicate(receipt: bytes, uid: str, seq: int) -> bytes:
    """Return the RECEIPT of a SEND that was not stored, because the message with this seq has its unique name.

    With `uid`, it has the id of that message.
    """
    msg_id = f"x-msg-id:{uid}-{seq}\n".encode() if uid else b""
    return b"RECEIPT\nreceipt-id:%b\n%bx-duplicate:true\n\n\0\n" % (receipt, msg_id)


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
