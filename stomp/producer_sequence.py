"""SENDs of numbered producers: reads the number of each message, so that the engine can recognize repeats.

`x-producer` names the producer. The message's number is `x-seq`, or else the last part of the receipt, after a dot:
this way, all SENDs of a client have the same head except for the receipt. If an application's own numbers have gaps,
`x-after` gives the number before this one, or 0 if there must be none, as for the first message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from curbstone.core.message import Message
from curbstone.core.values import Numbered
from curbstone.stomp import header_values
from curbstone.stomp.codec import Head
from curbstone.stomp.destinations import Destination, Kind
from curbstone.stomp.errors import ProtocolError

NUMBER_MAX = 10**15 - 1
PRODUCER, SEQ, AFTER = HEADERS = ("x-producer", "x-seq", "x-after")

NO_NUMBER = "a SEND with x-producer has an x-seq, or a receipt whose last part, behind a dot, is its number"


class Wish(NamedTuple):
    """What the head of one SEND says of its number, in `x-seq` and `x-after`; None for a missing header."""

    seq: int | None
    after: int | None


class Piece(NamedTuple):
    """Messages with consecutive numbers, and their receipts."""

    messages: list[Message]
    receipts: list[bytes | None]
    numbered: Numbered


def wish_of(head: Head, destination: Destination) -> Wish | None:
    """Return the `x-seq` and `x-after` of a SEND, or None without them; raise ProtocolError if it can't be numbered."""
    if destination.kind is not Kind.QUEUE or destination.private:
        raise ProtocolError("only what is sent to a queue can be numbered", head.lines[PRODUCER])
    if "transaction" in head.headers:
        raise ProtocolError("a SEND of a transaction can't be numbered", head.lines[PRODUCER])
    seq = header_values.number(head, SEQ, 1, NUMBER_MAX)
    after = header_values.number(head, AFTER, 0, NUMBER_MAX)
    return None if seq is None and after is None else Wish(seq, after)


def pieces(
    producer: bytes, messages: list[Message], receipts: list[bytes | None], wishes: dict[int, Wish]
) -> Iterable[Piece]:
    """Cut a producer's messages of one read, for one queue, where their numbers have gaps; raise ProtocolError."""
    if not wishes and (first := _number(receipts[0])) and receipts == _in_a_row(receipts[0], first, len(receipts)):
        return [Piece(messages, receipts, Numbered(producer, first, first - 1))]
    return _cut(producer, messages, receipts, wishes)


def _in_a_row(receipt: bytes | None, first: int, count: int) -> list[bytes]:
    """Return the receipts that a client sends if its numbers are consecutive, which is true of nearly every read."""
    assert receipt is not None
    lane = receipt[: receipt.rfind(b".") + 1]
    return [b"%b%d" % (lane, number) for number in range(first, first + count)]


def _cut(
    producer: bytes, messages: list[Message], receipts: list[bytes | None], wishes: dict[int, Wish]
) -> Iterable[Piece]:
    numbers = [_number(receipt) if at not in wishes else 0 for at, receipt in enumerate(receipts)]
    for at, wish in wishes.items():
        numbers[at] = _number(receipts[at]) if wish.seq is None else wish.seq
    starts = [0]
    starts += [
        at
        for at in range(1, len(numbers))
        if numbers[at] != numbers[at - 1] + 1 or (at in wishes and wishes[at].after not in (None, numbers[at - 1]))
    ]
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        first = numbers[start]
        after = wishes[start].after if start in wishes else None
        if after is not None and after >= first:
            raise ProtocolError(f"x-after {after} is not below the number {first}")
        numbered = Numbered(producer, first, first - 1 if after is None else after)
        yield Piece(messages[start:end], receipts[start:end], numbered)


def _number(receipt: bytes | None) -> int:
    digits = b"" if receipt is None else receipt[receipt.rfind(b".") + 1 :]
    if not digits.isdigit() or len(digits) > len(str(NUMBER_MAX)) or not (number := int(digits)):
        raise ProtocolError(NO_NUMBER, receipt or b"")
    return number
