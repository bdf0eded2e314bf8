"""The message numbers of a publishing WebSocket that is a numbered producer (`?producer=`); repeats are stored once.

The first frame has the producer's last number in the queue. Each message has the number after that of the message
before. `seq` in its metadata gives it another number. If an application's own numbers have gaps, `after` gives the
number before this one. A refused message keeps its number: the messages after it are refused, too, until another
message is stored under that number, or a message skips it with `after`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from curbstone.access.producer_sequence import number, numbered, runs
from curbstone.core.errors import BadRequest, CurbstoneError, NumberGap
from curbstone.core.message import Message
from curbstone.core.values import Numbered
from curbstone.gateway.formats.idempotency import MEMBER
from curbstone.gateway.http.problem import status_of
from curbstone.gateway.websocket.codec import text_frame

if TYPE_CHECKING:
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.core.port import Queue

_SEQ, _AFTER = "seq", "after"
MEMBERS = (MEMBER, _SEQ, _AFTER)
"""Further members that the metadata of such a producer may have. Each is refused by its own rule."""

REPEATED = text_frame(b'{"duplicate":true}')
"""Confirms a message that had been stored before and was not stored again."""


class ProducerSequence:
    """The numbered producer of one connection."""

    def __init__(self, access: AuthorizedBroker, queue: Queue, name: str) -> None:
        """Raise BadRequest for a bad name, NotSupported if the engine keeps no numbers."""
        self._access = access
        self._queue = queue
        self._name = name
        self._producer = access.producer(name)
        self._given: dict[int, tuple[object, object]] = {}
        """(`seq`, `after`) in metadata, by the `id()` of messages that are not published yet."""
        self._next = 1
        queue.last_number(self._producer)

    def begin(self, end: Callable[[CurbstoneError], None]) -> bytes:
        """Claim the producer for this connection and return the first frame.

        `end` is called if another connection claims the producer.
        """
        self._producing = self._access.producing(end)
        self._producing.claim(self._producer, self._queue.name)
        last = self._queue.last_number(self._producer)
        seq = 0 if last is None else last.number
        self._next = seq + 1
        return text_frame(orjson.dumps({"producer": self._name, _SEQ: seq}))

    def leave(self) -> None:
        """Release the producer: the connection is over."""
        self._producing.release()

    def note(self, message: Message, fields: Mapping[str, Any]) -> None:
        """Note the numbers in a message's metadata; raise BadRequest."""
        if MEMBER in fields:
            raise BadRequest(f"a numbered producer must not send an {MEMBER}")
        if _SEQ in fields or _AFTER in fields:
            self._given[id(message)] = fields.get(_SEQ), fields.get(_AFTER)

    def skip(self, fields: Mapping[str, Any]) -> None:
        """Assign a number to a message with these metadata, which was refused before it was published."""
        try:
            self._next = number(_SEQ, fields.get(_SEQ, self._next), 1) + 1
        except BadRequest:
            self._next += 1

    def runs(self, messages: list[Message]) -> Iterator[tuple[list[Message], Numbered | CurbstoneError]]:
        """Yield messages in runs of consecutive numbers; a message with a bad number by itself, with the error."""
        good: list[Message] = []
        numbers: list[Numbered] = []
        for message in messages:
            seq, after = self._given.pop(id(message), (None, None))
            try:
                own = number(_SEQ, self._next if seq is None else seq, 1)
                one = numbered(_AFTER, self._producer, own, None if after is None else number(_AFTER, after, 0))
            except CurbstoneError as error:
                yield from [(good[start:end], numbers[start]) for start, end in runs(numbers)]
                good, numbers = [], []
                self.skip({} if seq is None else {_SEQ: seq})
                yield [message], error
                continue
            good.append(message)
            numbers.append(one)
            self._next = own + 1
        yield from [(good[start:end], numbers[start]) for start, end in runs(numbers)]


def gap_frame(error: NumberGap) -> bytes:
    """Return the frame that refuses a message whose predecessor is not stored; the connection continues."""
    return text_frame(orjson.dumps({"code": status_of(error), "error": str(error), "expected": error.expected}))
