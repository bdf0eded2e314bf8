"""The headers of numbered producers over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from curbstone.access.producer_sequence import number, numbered
from curbstone.core.errors import BadRequest
from curbstone.core.values import Numbered

if TYPE_CHECKING:
    from curbstone.access.authorization import AuthorizedBroker

NUMBERED = _PRODUCER, _SEQ, _AFTER = b"x-msg-producer", b"x-msg-seq", b"x-msg-after"

DUPLICATE = b"x-msg-duplicate"


def numbered_of(access: AuthorizedBroker, named: Mapping[bytes, bytes]) -> Numbered | None:
    """Return a request's producer and the number of its first message; None without these headers. Raise BadRequest."""
    given = {name: named[name].decode("latin-1") for name in NUMBERED if name in named}
    if not given:
        return None
    if _PRODUCER not in given or _SEQ not in given:
        raise BadRequest("x-msg-producer and x-msg-seq belong together: the producer's name and its first number")
    producer = access.producer(given[_PRODUCER])
    seq = number("x-msg-seq", given[_SEQ], 1)
    after = number("x-msg-after", given[_AFTER], 0) if _AFTER in given else None
    return numbered("x-msg-after", producer, seq, after)
