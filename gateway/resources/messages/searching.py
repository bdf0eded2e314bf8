"""Searches a queue for messages by a text, or by a filter on their headers. It changes nothing.

A call scans a bounded part of the queue, page by page, and returns where to continue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from curbstone.core.errors import BadRequest
from curbstone.core.filters import Filter, fields_of, filter_of
from curbstone.core.frames import decode_frame
from curbstone.core.headers import escape
from curbstone.core.positions import Frame, Wanted
from curbstone.gateway.http.callbacks import answer
from curbstone.gateway.limits import MIB, PEEK_BYTES_MAX, SCAN_BYTES_MAX, SCAN_MESSAGES_MAX

if TYPE_CHECKING:
    from curbstone.core.port import Queue
    from curbstone.core.values import Peeked

PAGE_BYTES = 2 * MIB
PAGE_MESSAGES = 10_000
PAGES_MAX = 10
"""The most pages that a search with a costly filter scans; such a filter gets smaller pages."""


class PageScan(NamedTuple):
    """The scan of one page: its messages and bytes, and the seqs of the matching messages."""

    messages: int
    bytes: int
    found: list[int]


class SearchResult(NamedTuple):
    """The matching messages, how much was scanned, and the seq to continue at; 0 at the end of the queue."""

    messages: list[Peeked]
    looked: int
    bytes: int
    following: int


def filter_in(query: Mapping[str, str]) -> Filter | None:
    """Return the filter in a query, or None; raise BadRequest."""
    text = query.get("filter", "")
    return filter_of(text) if text else None


def searcher(text: str, wanted: Filter | None = None) -> Callable[[list[Frame]], PageScan]:
    """Return a function that finds the messages that contain a text, ignoring ASCII case, and pass a filter.

    It runs on a worker thread.
    """
    in_body, in_headers = text.encode().lower(), escape(text).encode().lower()

    def search(frames: list[Frame]) -> PageScan:
        messages = size = 0
        found: list[int] = []
        for frame in frames:
            messages += frame.span if frame.mask is None else frame.mask.bit_count()
            size += len(frame.entries)
            entries = bytes(frame.entries).lower() if text else b""
            if in_body not in entries and in_headers not in entries:  # most frames need not be decoded
                continue
            for message, _ in decode_frame(frame):
                if text and in_body not in message.body.lower() and in_headers not in message.headers.lower():
                    continue
                if wanted is None or wanted.passes(fields_of(message.headers, message.timestamp_ms)):
                    found.append(message.seq)
        return PageScan(messages, size, found)

    return search


async def search_through(
    queue: Queue,
    search: Callable[[list[Frame]], PageScan],
    *,
    after: int,
    limit: int,
    wanted: Filter | None = None,
    state: str = "",
    group: str | None = None,
) -> SearchResult:
    """Return up to `limit` messages after seq `after` that `search` finds, in `state` (or any), of `group` (or all).

    `wanted` is the filter of `search`. The messages may exceed `PEEK_BYTES_MAX` by one message.
    """
    reading = queue.reading
    end, start = reading.next, after + 1
    found: list[Peeked] = []
    messages = size = held = 0
    count = most = PAGE_MESSAGES
    if wanted is not None:
        count = min(PAGE_MESSAGES, wanted.messages_at_once)
        most = min(SCAN_MESSAGES_MAX, PAGES_MAX * count)
    while start < end and len(found) < limit and size < SCAN_BYTES_MAX and (wanted is None or messages < most):
        page = Wanted(max(start, reading.first()), end, count, min(PAGE_BYTES, SCAN_BYTES_MAX - size))
        searched: PageScan
        _, searched, start = await answer(partial(reading.browse, page, search))
        messages, size = messages + searched.messages, size + searched.bytes
        for seq in searched.found:
            peeked: list[Peeked]
            (peeked,) = await answer(partial(queue.peek, 1, after=seq - 1, group=group))
            if not peeked or peeked[0].message.seq != seq or state not in ("", peeked[0].state):
                continue
            held += len(peeked[0].message.headers) + len(peeked[0].message.body)
            if found and (len(found) == limit or held > PEEK_BYTES_MAX):
                return SearchResult(found, messages, size, seq)
            found.append(peeked[0])
    return SearchResult(found, messages, size, start if start < end else 0)


def after_in(query: Mapping[str, str], queue: Queue) -> int:
    """Return the seq of the message after which a query begins, or 0; raise BadRequest."""
    after = query.get("after", "")
    seq = queue.parse_id(after) if after else 0
    if seq is None:
        raise BadRequest(f"bad after {after[:80]!r}: it is not the id of a message in queue {queue.name}")
    return seq


def progress_json(queue: Queue, found: SearchResult) -> bytes:
    """Return the members of a reply that report how much was scanned, each with a comma in front."""
    more = b',"next":"%b"' % queue.message_id(found.following - 1).encode() if found.following else b""
    return b',"looked":{"messages":%d,"bytes":%d}%b' % (found.looked, found.bytes, more)
