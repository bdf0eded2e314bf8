"""Converts pages to Arrow and back. Arrow copies the bytes; Python only finds the position of each message.

The columns and their types are exactly those of `schemas`, because Spark checks them; timestamps are in microseconds,
in UTC.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from curbstone.core.headers import CONTENT_TYPE, KEY, check_key, encode
from curbstone.core.names import group_name
from curbstone.core.orders import PRIORITY, parse_priority
from curbstone.spark.columns import Columns
from curbstone.spark.frames import Event, Page, plain_names, read_block, read_extras, read_page, write_extras

TIMESTAMP = pa.timestamp("us", tz="UTC")


def int64(numbers: Sequence[int]) -> pa.Array:
    """Return an int64 array with the numbers of an `array("q")` or a list."""
    values = numbers if isinstance(numbers, array) else array("q", numbers)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def _timestamps(times_ms: Sequence[int]) -> pa.Array:
    return pc.multiply(int64(times_ms), 1000).cast(TIMESTAMP)


TYPES = {
    "queue": pa.string(),
    "epoch": pa.string(),
    "seq": pa.int64(),
    "message_id": pa.string(),
    "timestamp": TIMESTAMP,
    "content_type": pa.string(),
    "headers": pa.map_(pa.string(), pa.string()),
    "body": pa.binary(),
    "tries": pa.int32(),
    "expires": TIMESTAMP,
    "groups": pa.list_(pa.field("element", pa.string())),
    "key": pa.string(),
    "position": pa.int64(),
    "event": pa.string(),
    "count": pa.int64(),
    "time": TIMESTAMP,
    "group": pa.string(),
    "due": TIMESTAMP,
    "bytes": pa.int64(),
}


def arrow_schema(columns: Columns) -> pa.Schema:
    """Return the schema that Spark expects for batches with these columns, including their nullability."""
    return pa.schema([pa.field(name, TYPES[name], nullable) for name, nullable in columns])


def message_batch(data: bytes, queue: str, epoch: str, schema: pa.Schema, *, plain: bool = True) -> pa.RecordBatch:
    """Return the messages of a page with the columns of `schema`. Raise BadPage.

    Headers have `plain` names (see `plain_names`), or those of the log.
    """
    page = read_page(data)
    pieces = _Pieces(data, page, plain)
    make: dict[str, Callable[[], pa.Array]] = {
        "queue": lambda: pa.repeat(pa.scalar(queue), len(page)),
        "epoch": lambda: pa.repeat(pa.scalar(epoch), len(page)),
        "seq": lambda: int64(page.seqs),
        "message_id": lambda: pc.binary_join_element_wise(epoch, int64(page.seqs).cast(pa.string()), "-"),
        "timestamp": lambda: _timestamps(page.times_ms),
        "content_type": pieces.content_types,
        "headers": pieces.headers,
        "body": pieces.bodies,
        "tries": lambda: _tries(page),
        "expires": lambda: _of_extras(page, lambda time_ms, _groups: time_ms * 1000 or None, TIMESTAMP),
        "groups": lambda: _of_extras(page, lambda _time_ms, groups: groups, TYPES["groups"]),
        "key": pieces.keys,
    }
    batch = pa.RecordBatch.from_arrays([make[name]() for name in schema.names], schema=schema)
    return batch if page.keep is None else batch.filter(pa.array(page.keep))


def _tries(page: Page) -> pa.Array:
    numbers = array("i", bytes(4 * len(page)))
    for index, number in page.tries.items():
        numbers[index] = number
    return pa.Array.from_buffers(pa.int32(), len(page), [None, pa.py_buffer(numbers)])


def _of_extras(page: Page, pick: Callable[[int, list[str] | None], Any], kind: pa.DataType) -> pa.Array:
    """Return a column made from the extras of each message, null for messages without extras."""
    if not page.extras:
        return pa.nulls(len(page), kind)
    read = {extras: pick(*read_extras(extras)) for extras in set(page.extras.values())}
    return pa.array([read[page.extras[at]] if at in page.extras else None for at in range(len(page))], kind)


@lru_cache(maxsize=8)
def _every_third(start: int, stop: int) -> pa.Array:
    """Return start, start + 3 … below `stop`. The result is cached, because most pages have the same size."""
    return int64(array("q", range(start, stop, 3)))


class _Decoded(NamedTuple):
    types: pa.Array
    keys: pa.Array
    headers: pa.Array


class _Pieces:
    """A page as one binary array: header block, body, the bytes between entries, header block, body …"""

    def __init__(self, data: bytes, page: Page, plain: bool) -> None:
        self._plain = plain
        self._count = len(page)
        buffers = [None, pa.py_buffer(page.cuts), pa.py_buffer(data)]
        self._all = pa.Array.from_buffers(pa.binary(), 3 * self._count, buffers)
        self._decoded: _Decoded | None = None

    def bodies(self) -> pa.Array:
        return self._column(1)

    def content_types(self) -> pa.Array:
        return self._blocks().types

    def headers(self) -> pa.Array:
        return self._blocks().headers

    def keys(self) -> pa.Array:
        return self._blocks().keys

    def _column(self, place: int) -> pa.Array:
        return self._all.take(_every_third(place, 3 * self._count))

    def _blocks(self) -> _Decoded:
        """The decoded header blocks. A block that many messages share is decoded once."""
        if self._decoded is None:
            encoded = self._column(0).dictionary_encode()
            types: list[str | None] = []
            keys: list[str | None] = []
            names: list[str] = []
            values: list[str] = []
            ends = array("i", [0])
            for block in encoded.dictionary.to_pylist():
                headers = read_block(block)
                types.append(headers.pop(CONTENT_TYPE, None))
                keys.append(headers.get(KEY))
                headers = plain_names(headers) if self._plain else headers
                names += headers
                values += headers.values()
                ends.append(len(names))
            offsets = pa.Array.from_buffers(pa.int32(), len(ends), [None, pa.py_buffer(ends)])
            maps = pa.MapArray.from_arrays(offsets, pa.array(names, pa.string()), pa.array(values, pa.string()))
            self._decoded = _Decoded(
                pa.array(types, pa.string()).take(encoded.indices),
                pa.array(keys, pa.string()).take(encoded.indices),
                maps.take(encoded.indices),
            )
        return self._decoded


def event_batch(events: Sequence[Event], queue: str, epoch: str, schema: pa.Schema) -> pa.RecordBatch:
    """Return events of the journal with the columns of `schema`."""
    count = len(events)
    make: dict[str, Callable[[], pa.Array]] = {
        "queue": lambda: pa.repeat(pa.scalar(queue), count),
        "epoch": lambda: pa.repeat(pa.scalar(epoch), count),
        "position": lambda: int64([event.position for event in events]),
        "event": lambda: pa.array([event.event for event in events], pa.string()),
        "seq": lambda: int64([event.seq for event in events]),
        "count": lambda: int64([event.count for event in events]),
        "time": lambda: _timestamps([event.time_ms for event in events]),
        "group": lambda: pa.array([event.group for event in events], pa.string()),
        "tries": lambda: pa.array([event.tries for event in events], pa.int32()),
        "due": lambda: pa.array([event.due_ms * 1000 or None for event in events], TIMESTAMP),
        "bytes": lambda: int64([event.bytes for event in events]),
    }
    return pa.RecordBatch.from_arrays([make[name]() for name in schema.names], schema=schema)


def check_priority(text: str) -> None:
    """Raise ValueError for text that is no priority."""
    try:
        parse_priority(text)
    except ValueError as error:
        raise ValueError(f"bad priority {text}: {error}") from None


class Blocks:
    """Makes the header blocks of messages to be written. A block for the same headers is made once."""

    MOST = 10_000

    def __init__(self) -> None:
        self._known: dict[tuple[str | None, str | None, int | None, tuple[tuple[str, str], ...]], bytes] = {}

    def of(
        self,
        content_type: str | None,
        headers: Sequence[tuple[str, str]],
        key: str | None = None,
        priority: int | None = None,
    ) -> bytes:
        """Return the block. The other arguments take precedence over the headers.

        Raise ValueError for a bad key or priority.
        """
        meant = (content_type, key, priority, tuple(headers))
        block = self._known.get(meant)
        if block is None:
            ranked = None if priority is None else str(priority)
            beside = ((CONTENT_TYPE, content_type), (KEY, key), (PRIORITY, ranked))
            given = {name: value for name, value in beside if value is not None}
            pairs = [*given.items(), *(pair for pair in headers if pair[0] not in given)]
            if missing := [name for name, value in pairs if value is None]:
                raise ValueError(
                    f"the header {missing[0]!r} of a row is null; remove it from the map, or set it to a string"
                )
            if key is not None:
                check_key(key)
            if ranked is not None:
                check_priority(ranked)
            if len(self._known) >= self.MOST:
                self._known.clear()
            block = self._known[meant] = encode(pairs)
        return block


def bytes_of(column: pa.Array) -> list[bytes | None]:
    """Return a column of text or binary as bytes."""
    binary: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return binary


def header_blocks(batch: Any, blocks: Blocks) -> list[bytes]:
    """Return the header block of each row, from `headers`, `content_type`, `key` and `priority`, as far as they exist.

    Raise ValueError for a bad key or priority.
    """
    names = batch.schema.names
    count = batch.num_rows

    def texts(name: str) -> list[str | None]:
        found: list[str | None] = batch.column(name).to_pylist() if name in names else [None] * count
        return found

    types, keys = texts("content_type"), texts("key")
    if not {"headers", "key", "priority"} & set(names) and len(set(types)) == 1:
        return [blocks.of(types[0], ())] * count
    ranks: list[int | None] = batch.column("priority").to_pylist() if "priority" in names else [None] * count
    headers: list[list[tuple[str, str]] | None] = [None] * count
    if "headers" in names:
        headers = batch.column("headers").to_pylist()
    columns = zip(types, headers, keys, ranks, strict=True)
    return [blocks.of(kind, pairs or (), key, priority) for kind, pairs, key, priority in columns]


def extras_of(batch: Any) -> list[bytes] | None:
    """Return the ttl and groups of each row, from the columns with these names, or None without these columns.

    Raise ValueError for a ttl below 0, and BadRequest for the bad name of a group.
    """
    names = batch.schema.names
    if "ttl" not in names and "groups" not in names:
        return None
    count = batch.num_rows
    ttls: list[int | None] = batch.column("ttl").to_pylist() if "ttl" in names else [None] * count
    groups: list[list[str] | None] = batch.column("groups").to_pylist() if "groups" in names else [None] * count
    known: dict[tuple[int, tuple[str, ...]], bytes] = {}
    found = []
    for ttl, named in zip(ttls, groups, strict=True):
        key = (ttl or 0, tuple(named or ()))
        if key not in known:
            if key[0] < 0:
                raise ValueError("a row's ttl is negative; it is in milliseconds, 0 or more")
            known[key] = write_extras(key[0], [group_name(name) if name else "" for name in key[1]])
        found.append(known[key])
    return found
