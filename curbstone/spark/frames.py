"""The bytes of pages and parts: frames of message entries, in the form of the log. Pure, and without Arrow.

A page of `GET …/browse` is a sequence of frames, little-endian. Each has a head, a mask (if bit i is set, entry i
belongs to the page; an empty mask means all entries), tries as pairs of entry index and number, and entries. A part of
a staged transaction is a sequence of frames of the other kind: a head, the queue's name, and entries. An entry has a
fixed start, extras, a header block (lines `name:value` with the escapes of STOMP 1.2), and the body.

Reading works on whole pages, not entry by entry. The result is the positions at which the page can be cut, so that
Arrow can copy the bytes.
"""

from __future__ import annotations

import re
import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from curbstone.core.headers import HeaderError, decode

BATCHES = "application/vnd.curbstone.batches"
JOURNAL = "application/vnd.curbstone.journal"

MESSAGES, STAGED = 1, 2
"""The kinds of frames: messages of a queue, and messages to be published."""

# bytes after this number, kind, flags, bytes of the queue's name (0 in pages), first seq, entries, bytes of mask, tries
_FRAME = struct.Struct("<IBBHQIII")
_ENTRY = struct.Struct("<IIQIHH")  # size, seq - first seq, timestamp or delay in ms, header bytes, flags, extras bytes
_PAIR = struct.Struct("<II")
_TTL = struct.Struct("<Q")
# position, seq, time in ms, count, tries, event, 0, bytes of the group's name, bytes of the body or due time in ms
_EVENT = struct.Struct("<QQQIIBBHQ")

EVENTS = {
    1: "published",
    2: "released",
    3: "settled",
    4: "rejected",
    5: "dead",
    6: "expired",
    7: "purged",
    8: "skipped",
    9: "replaced",
}


class BadPage(ValueError):
    """The server sent malformed frames. The text says what is wrong with them."""


@dataclass(slots=True)
class Page:
    """The positions of the messages in a page.

    `cuts` has three positions per entry (the start of its header block, the start of its body, and its end), and the
    end of the page. `keep` is None if all entries belong to the page. `tries` has the numbers above 0, by entry.
    `extras` has the extras of entries that have any; see `read_extras`.
    """

    seqs: array[int]
    times_ms: array[int]
    cuts: array[int]
    keep: list[bool] | None
    tries: dict[int, int]
    extras: dict[int, bytes]

    def __len__(self) -> int:
        return len(self.seqs)


@dataclass(slots=True)
class Event:
    """An event that happened to `count` messages from `seq` on; see the journal in the contract."""

    position: int
    event: str
    seq: int
    count: int
    time_ms: int
    group: str
    tries: int
    due_ms: int
    bytes: int


def read_page(data: bytes) -> Page:
    """Return the positions of the messages in a page. Raise BadPage."""
    page = Page(array("q"), array("q"), array("i"), None, {}, {})
    at, total = 0, len(data)
    try:
        while at < total:
            length, kind, _, _, first, entries, mask_bytes, tries = _FRAME.unpack_from(data, at)
            end = at + 4 + length
            if kind != MESSAGES or end > total:
                raise BadPage(f"byte {at}: a frame of kind {kind} and {length} bytes in a page of {total}")
            at += _FRAME.size
            done = len(page.seqs)
            mask, at = data[at : at + mask_bytes], at + mask_bytes
            for index, number in _PAIR.iter_unpack(data[at : at + tries * _PAIR.size]):
                page.tries[done + index] = number
            _read_entries(data, at + tries * _PAIR.size, end, (first, entries), page)
            _keep(page, mask, done, entries)
            at = end
    except struct.error as error:
        raise BadPage(f"byte {at}: {error}") from None
    page.cuts.append(total)
    return page


def _read_entries(data: bytes, at: int, end: int, head: tuple[int, int], page: Page) -> None:
    """Add the entries of one frame, between `at` and `end`. `head` is the first seq and the count of entries."""
    first, count = head
    if count and (end - at) % count == 0 and _read_alike(data, at, end, head, page):
        return
    unpack, fixed = _ENTRY.unpack_from, _ENTRY.size
    done = len(page.seqs)
    seqs: list[int] = []
    times: list[int] = []
    cuts: list[int] = []
    for _ in range(count):
        size, delta, time_ms, header_bytes, _, extras = unpack(data, at)
        seqs.append(first + delta)
        times.append(time_ms)
        block = at + fixed + extras
        if extras:
            page.extras[done + len(seqs) - 1] = data[at + fixed : block]
        body = block + header_bytes
        at += size
        if body > at:
            raise BadPage(f"byte {at - size}: an entry of {size} bytes can't hold its headers")
        cuts += (block, body, at)
    if at != end:
        raise BadPage(f"a frame's entries end at byte {at} and the frame at {end}")
    page.seqs.extend(seqs)
    page.times_ms.extend(times)
    page.cuts.extend(cuts)


def _read_alike(data: bytes, at: int, end: int, head: tuple[int, int], page: Page) -> bool:
    """Add entries that all have the same cuts, ten times as fast. If they differ, add nothing and return False.

    One slice with a step reads a byte of a field from all entries.
    """
    first, count = head
    size = (end - at) // count
    if size < _ENTRY.size:
        return False
    # These bytes determine the cuts: size, size of the headers, flags, size of the extras.
    for offset in (0, 1, 2, 3, 16, 17, 18, 19, 20, 21, 22, 23):
        if data[at + offset : end : size].count(data[at + offset]) != count:
            return False
    own_size, _, _, header_bytes, _, extras = _ENTRY.unpack_from(data, at)
    block = at + _ENTRY.size + extras
    body = block + header_bytes
    if own_size != size or body > at + size:
        return False
    if extras:
        done = len(page.seqs)
        for index in range(count):
            start = at + _ENTRY.size + index * size
            page.extras[done + index] = data[start : start + extras]
    deltas = _column(data, at + 4, end, size, 4)
    page.seqs.extend(array("q", [first + delta for delta in deltas]))
    page.times_ms.extend(_column(data, at + 8, end, size, 8))
    cuts = array("i", bytes(3 * page.cuts.itemsize * count))
    for place, start in enumerate((block, body, at + size)):
        cuts[place::3] = array("i", range(start, start + size * count, size))
    page.cuts.extend(cuts)
    return True


def _column(data: bytes, at: int, end: int, step: int, width: int) -> array[int]:
    """Return the little-endian numbers of `width` bytes at `at`, `at + step` … before `end`."""
    slices = [data[at + byte : end : step] for byte in range(width)]
    count = len(slices[-1])
    wide = bytearray(8 * count)
    for byte, one in enumerate(slices):
        wide[byte::8] = one[:count]
    numbers = array("q")
    numbers.frombytes(wide)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _keep(page: Page, mask: bytes, done: int, entries: int) -> None:
    """Note which of the last `entries` entries belong to the page."""
    if not mask:
        if page.keep is not None:
            page.keep += [True] * entries
        return
    if page.keep is None:
        page.keep = [True] * done
    bits = int.from_bytes(mask, "little")
    text = f"{bits:0{entries}b}"[::-1][:entries]
    page.keep += [bit == "1" for bit in text]


_PREFIX = "x-msg-x-"
_NAMES_WITH_A_MEANING = re.compile(r"x-.*|ce-.*|content-(type|encoding)|trace(parent|state)|", re.DOTALL)


def plain_names(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a message with its client's own names, such as `lang` for `x-msg-x-lang`.

    The prefix stays where the name has another meaning without it. If two names become equal, the first one counts.
    """
    found: dict[str, str] = {}
    for name, value in headers.items():
        plain = name.removeprefix(_PREFIX)
        found.setdefault(name if _NAMES_WITH_A_MEANING.fullmatch(plain) else plain, value)
    return found


def read_block(block: bytes) -> dict[str, str]:
    """Return the headers of a block. If a name is repeated, the first one counts."""
    found: dict[str, str] = {}
    if b"\\" in block:
        try:
            for name, value in decode(block):
                found.setdefault(name, value)
            return found
        except HeaderError:
            found.clear()  # a malformed header must not stop a pipeline, so read the block without unescaping
    for line in block.decode("utf-8", "replace").split("\n")[:-1]:
        name, _, value = line.partition(":")
        if name not in found:
            found[name] = value
    return found


def read_extras(extras: bytes) -> tuple[int, list[str] | None]:
    """Return the time or duration in ms (0 for none), and the named groups, or None. Raise BadPage."""
    try:
        names = extras[_TTL.size :].decode()
        return _TTL.unpack_from(extras)[0], names.split(",") if names else None
    except (struct.error, UnicodeDecodeError) as error:
        raise BadPage(f"extras of {len(extras)} bytes: {error}") from None


def write_extras(time_ms: int, groups: Sequence[str] | None) -> bytes:
    """Return the bytes of extras, which are empty without a time and groups."""
    return _TTL.pack(time_ms) + ",".join(groups or ()).encode() if time_ms or groups else b""


def read_events(data: bytes) -> list[Event]:
    """Return the events of a page of the journal. Raise BadPage."""
    found: list[Event] = []
    at, unpack, fixed = 0, _EVENT.unpack_from, _EVENT.size
    groups: dict[bytes, str] = {b"": ""}
    try:
        while at < len(data):
            position, seq, time_ms, count, tries, code, _, name_bytes, last = unpack(data, at)
            at += fixed
            raw = data[at : at + name_bytes]
            at += name_bytes
            group = groups.get(raw)
            if group is None:
                group = groups[raw] = raw.decode()
            due, size = (last, 0) if code == 2 else (0, last)
            found.append(Event(position, EVENTS[code], seq, count, time_ms, group, tries, due, size))
    except (struct.error, KeyError, UnicodeDecodeError) as error:
        raise BadPage(f"byte {at} of the journal: {type(error).__name__} {error}") from None
    if at != len(data):
        raise BadPage("the journal ends inside an event")
    return found


def write_part(
    queue: str,
    bodies: Sequence[bytes],
    blocks: Sequence[bytes],
    delays_ms: Iterable[int],
    extras: Sequence[bytes] | None = None,
) -> bytes:
    """Return a frame that publishes these messages to `queue` (its name without the project), in this order.

    `extras` has the ttl and groups of each message, as `write_extras` makes them, or is None if no message has any.
    """
    pack, fixed = _ENTRY.pack, _ENTRY.size
    if extras is None:
        entries = [
            pack(fixed + len(block) + len(body), index, delay, len(block), 0, 0) + block + body
            for index, (body, block, delay) in enumerate(zip(bodies, blocks, delays_ms, strict=True))
        ]
    else:
        entries = [
            pack(fixed + len(more) + len(block) + len(body), index, delay, len(block), 0, len(more))
            + more + block + body
            for index, (body, block, delay, more) in enumerate(zip(bodies, blocks, delays_ms, extras, strict=True))
        ]  # fmt: skip
    name = queue.encode()
    content = b"".join([name, *entries])
    head = _FRAME.pack(_FRAME.size - 4 + len(content), STAGED, 0, len(name), 0, len(entries), 0, 0)
    return head + content


def write_page(
    first: int,
    entries: Sequence[tuple[int, int, bytes, bytes]],
    *,
    mask: bytes = b"",
    tries: Sequence[tuple[int, int]] = (),
) -> bytes:
    """Return a frame of a page as a server would send it. An entry is seq, time in ms, header block and body."""
    packed = [
        _ENTRY.pack(_ENTRY.size + len(block) + len(body), seq - first, time_ms, len(block), 0, 0) + block + body
        for seq, time_ms, block, body in entries
    ]
    content = b"".join([mask, *(_PAIR.pack(*pair) for pair in tries), *packed])
    head = _FRAME.pack(_FRAME.size - 4 + len(content), MESSAGES, 0, 0, first, len(entries), len(mask), len(tries))
    return head + content
