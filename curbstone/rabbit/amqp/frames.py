"""Writes and reads the AMQP frames that every message needs: publishes out, deliveries and confirms in. Pure.

pika handles all other frames. For these it is too slow: it creates an object for each field of each frame, which takes
longer than the rest of a gateway's work for a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

from pika import data as tables
from pika.exceptions import AMQPError

from curbstone.rabbit.amqp.port import Arrived, Properties

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
KINDS = frozenset({METHOD, HEADER, BODY, HEARTBEAT})
START = Struct(">BHI")
"""The start of a frame: kind, channel, size of the payload. One more byte follows the payload."""
AROUND = START.size + 1
END = b"\xce"
PUBLISH, DELIVER, ACK = b"\0\x3c\0\x28", b"\0\x3c\0\x3c", b"\0\x3c\0\x50"
HOT = frozenset({DELIVER, ACK})
SHORT_MAX = 255
CACHED_BYTES_MAX = 1024
"""Larger tables are not cached, so that the cache stays small."""

_BASIC = 60
_HEADER = Struct(">BHIHHQ")
_HEADER_BYTES = 12
_U16, _U32, _U64 = Struct(">H"), Struct(">I"), Struct(">Q")
_TAG = Struct(">QB")
_BITS = {
    "content_type": 1 << 15,
    "content_encoding": 1 << 14,
    "headers": 1 << 13,
    "delivery_mode": 1 << 12,
    "priority": 1 << 11,
    "correlation_id": 1 << 10,
    "reply_to": 1 << 9,
    "expiration": 1 << 8,
    "message_id": 1 << 7,
    "timestamp": 1 << 6,
    "type": 1 << 5,
    "user_id": 1 << 4,
    "app_id": 1 << 3,
    "cluster_id": 1 << 2,
}
_CONTENT_TYPE = _BITS["content_type"]
_ALWAYS = _BITS["headers"] | _BITS["delivery_mode"]
_OCTETS = {"delivery_mode", "priority"}
_PLACES = {name: place for place, name in enumerate(Properties._fields)}
_NO_HEADERS: Mapping[str, object] = {}
_NO_FIELDS = (None,) * len(_PLACES)
"""None for each optional field, and one more place for all unused fields."""
_DURABLE = b"\x02"
_NOTHING = bytes(_U32.size)


# --- out


class NotEncodable(ValueError):
    """A value can't be expressed in AMQP."""


def _short(text: str) -> bytes:
    value = text.encode()
    if len(value) > SHORT_MAX:
        raise NotEncodable(f"a short string of AMQP has at most {SHORT_MAX} bytes, this one has {len(value)}")
    return bytes([len(value)]) + value


_ENCODED: dict[str, Callable[[Any], bytes]] = {
    "priority": lambda octet: bytes([octet]),
    "correlation_id": _short,
    "reply_to": _short,
    "expiration": _short,
    "message_id": _short,
    "timestamp": _U64.pack,
    "type": _short,
}
"""The optional fields, in the order in which they follow the mandatory fields."""
_BEHIND = [(_PLACES[name], _BITS[name], encoded) for name, encoded in _ENCODED.items()]
"""For each optional field: its place in `Properties`, the flag of its presence, and how it is written."""


def publish(
    channel: int, exchange: str, key: str, properties: Properties, body: bytes, *, mandatory: bool, frame_max: int
) -> bytes:
    """Return the frames of a durable message. Raise NotEncodable if a property can't be expressed."""
    fields = _fields(properties)
    if len(fields) + _HEADER_BYTES + AROUND > frame_max:
        raise NotEncodable(f"properties of {len(fields)} bytes do not fit into a frame of {frame_max} bytes")
    size = len(body)
    pieces = [
        _publish(channel, exchange, key, mandatory),
        _HEADER.pack(HEADER, channel, _HEADER_BYTES + len(fields), _BASIC, 0, size),
        fields,
        END,
    ]
    most = frame_max - AROUND
    if 0 < size <= most:
        pieces += (START.pack(BODY, channel, size), body, END)
    else:
        for at in range(0, size, most):
            piece = body[at : at + most]
            pieces += (START.pack(BODY, channel, len(piece)), piece, END)
    return b"".join(pieces)


@lru_cache(maxsize=4096)
def _publish(channel: int, exchange: str, key: str, mandatory: bool) -> bytes:
    payload = PUBLISH + b"\0\0" + _short(exchange) + _short(key) + bytes([mandatory])
    return START.pack(METHOD, channel, len(payload)) + payload + END


def _fields(properties: Properties) -> bytes:
    flags = _ALWAYS
    pieces = [b"", b"", _table(properties.headers), _DURABLE]
    if properties.content_type is not None:
        flags |= _CONTENT_TYPE
        pieces[1] = _known_short(properties.content_type)
    for place, bit, encoded in _BEHIND:
        value = properties[place]
        if value is not None:
            flags |= bit
            pieces.append(encoded(value))
    pieces[0] = _U16.pack(flags)
    return b"".join(pieces)


def _table(headers: Mapping[str, object]) -> bytes:
    if not headers:
        return _NOTHING
    if len(headers) == 1:
        ((name, value),) = headers.items()
        if isinstance(value, bytes):
            return (_one_entry if len(value) > CACHED_BYTES_MAX else _known_entry)(name, value)
    pieces: list[bytes] = []
    try:
        tables.encode_table(pieces, dict(headers))
    except AMQPError as error:
        raise NotEncodable(f"{type(error).__name__}: {error}") from error
    return b"".join(pieces)


def _one_entry(name: str, value: bytes) -> bytes:
    entry = b"%sx%s%s" % (_short(name), _U32.pack(len(value)), value)
    return _U32.pack(len(entry)) + entry


_known_entry = lru_cache(maxsize=1024)(_one_entry)
_known_short = lru_cache(maxsize=1024)(_short)


# --- in


class Delivered(NamedTuple):
    """A delivered message, found in received bytes."""

    consumer: bytes
    arrived: Arrived
    end: int
    """Where its last frame ends."""


def method(data: bytes, at: int) -> bytes:
    """Return the method of the frame that begins at `at`."""
    return data[at + START.size : at + START.size + len(ACK)]


def confirmed(data: bytes, at: int) -> tuple[int, bool, int]:
    """Return the tag of a confirm, whether it covers all earlier tags, and where its frame ends."""
    place = at + START.size + len(ACK)
    tag, multiple = _TAG.unpack_from(data, place)
    return tag, bool(multiple), place + _TAG.size + len(END)


def delivered(data: bytes, at: int) -> Delivered | None:
    """Return the message whose first frame begins at `at`; None unless it has exactly three frames, all received."""
    _kind, channel, size = START.unpack_from(data, at)
    head = at + AROUND + size
    fields = head + START.size + _HEADER_BYTES
    if fields > len(data):
        return None
    kind, its_channel, head_size, _class, _weight, body_size = _HEADER.unpack_from(data, head)
    body = head + AROUND + head_size
    end = body + (AROUND + body_size if body_size else 0)
    if kind != HEADER or its_channel != channel or end > len(data):
        return None
    if body_size and START.unpack_from(data, body) != (BODY, channel, body_size):
        return None
    place = at + START.size + len(DELIVER)
    tag_at = place + 1 + data[place]
    tag, redelivered = _TAG.unpack_from(data, tag_at)
    exchange, key = _route(data[tag_at + _TAG.size : head - 1])
    properties = _properties(data[fields : body - 1])
    content = data[body + START.size : end - 1] if body_size else b""
    arrived = Arrived(tag, bool(redelivered), exchange, key, properties, content)
    return Delivered(data[place + 1 : tag_at], arrived, end)


@lru_cache(maxsize=1024)
def _route(data: bytes) -> tuple[str, str]:
    exchange, at = _text(data, 0)
    return exchange, _text(data, at)[0]


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    return data[at + 1 : end].decode("utf-8", "replace"), end


def _properties(data: bytes) -> Properties:
    (flags,) = _U16.unpack_from(data)
    at = _U16.size
    found: list[Any] = [_NO_HEADERS, *_NO_FIELDS]
    value: object
    for name, place in _present(flags):
        if name == "headers":
            end = at + _U32.size + _U32.unpack_from(data, at)[0]
            value = (_read_table if end - at > CACHED_BYTES_MAX else _known_table)(data[at:end])
            at = end
        elif name == "timestamp":
            (value,) = _U64.unpack_from(data, at)
            at += _U64.size
        elif name in _OCTETS:
            value = data[at]
            at += 1
        else:
            value, at = _text(data, at)
        found[place] = value
    return Properties._make(found[: len(_PLACES)])


@lru_cache(maxsize=256)
def _present(flags: int) -> list[tuple[str, int]]:
    """Return the names and places of the fields that are present, in order. Unused fields have the last place."""
    return [(name, _PLACES.get(name, len(_PLACES))) for name, bit in _BITS.items() if flags & bit]


def _read_table(data: bytes) -> Mapping[str, object]:
    return tables.decode_table(data, 0)[0]  # type: ignore[no-any-return]


_known_table = lru_cache(maxsize=1024)(_read_table)
