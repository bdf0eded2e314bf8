"""SENDs of numbered producers: reads the number of each message, by which the engine recognizes repeats.

`x-producer` names the producer. The message's number is `x-seq`, or else the last part of the receipt, after a dot:
this way, all SENDs of a client have the same head except for the receipt. If an application's own numbers have gaps,
`x-after` gives the number before this one, or 0 if there must be none, as for the first message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from curbstone.access.producer_sequence import NUMBER_MAX, numbered, runs
from curbstone.core.errors import BadRequest
from curbstone.core.message import Message
from curbstone.core.values import Numbered
from curbstone.stomp import header_values
from curbstone.stomp.codec import Head
from curbstone.stomp.destinations import Destination, Kind
from curbstone.stomp.errors import ProtocolError

PRODUCER, SEQ, AFTER = HEADERS = ("x-producer", "x-seq", "x-after")

NO_NUMBER = "a SEND with x-producer needs x-seq, or a receipt whose part after the last dot is its number"


class SequenceHeaders(NamedTuple):
    """The `x-seq` and `x-after` of one SEND; None for a missing header."""

    seq: int | None
    after: int | None


class Run(NamedTuple):
    """Messages with consecutive numbers, and their receipts."""

    messages: list[Message]
    receipts: list[bytes | None]
    numbered: Numbered


def sequence_headers(head: Head, destination: Destination) -> SequenceHeaders | None:
    """Return the `x-seq` and `x-after` of a SEND, or None without them; raise ProtocolError if it can't be numbered."""
    if destination.kind is not Kind.QUEUE or destination.private:
        raise ProtocolError("only a SEND to a queue that outlives the connection can be numbered", head.lines[PRODUCER])
    if "transaction" in head.headers:
        raise ProtocolError("a SEND in a transaction can't be numbered", head.lines[PRODUCER])
    seq = header_values.number(head, SEQ, 1, NUMBER_MAX)
    after = header_values.number(head, AFTER, 0, NUMBER_MAX)
    return None if seq is None and after is None else SequenceHeaders(seq, after)


def runs_of(
    producer: bytes, messages: list[Message], receipts: list[bytes | None], given: dict[int, SequenceHeaders]
) -> Iterable[Run]:
    """Cut a producer's messages of one read, for one queue, where their numbers have gaps; raise ProtocolError.

    `given` has the headers of those messages that have any, by place in `messages`.
    """
    if not given and (first := _number(receipts[0])) and receipts == _in_a_row(receipts[0], first, len(receipts)):
        return [Run(messages, receipts, Numbered(producer, first, first - 1))]
    numbers = [_numbered(producer, receipt, given.get(at)) for at, receipt in enumerate(receipts)]
    return [Run(messages[start:end], receipts[start:end], numbers[start]) for start, end in runs(numbers)]


def _in_a_row(receipt: bytes | None, first: int, count: int) -> list[bytes]:
    """Return the receipts that a client sends if its numbers are consecutive, which is true of nearly every read."""
    assert receipt is not None
    prefix = receipt[: receipt.rfind(b".") + 1]
    return [b"%b%d" % (prefix, number) for number in range(first, first + count)]


def _numbered(producer: bytes, receipt: bytes | None, given: SequenceHeaders | None) -> Numbered:
    seq, after = given or (None, None)
    try:
        return numbered(AFTER, producer, _number(receipt) if seq is None else seq, after)
    except BadRequest as error:
        raise ProtocolError(str(error)) from None


def _number(receipt: bytes | None) -> int:
    digits = b"" if receipt is None else receipt[receipt.rfind(b".") + 1 :]
    if not digits.isdigit() or len(digits) > len(str(NUMBER_MAX)) or not (number := int(digits)):
        raise ProtocolError(NO_NUMBER, receipt or b"")
    return number
