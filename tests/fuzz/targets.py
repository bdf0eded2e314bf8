"""Decoders of what comes from outside, or from a disk: any bytes give a value or one of the errors that are declared.

Each target takes bytes and raises only what is wrong with the program. Some check more: that input in two pieces gives
the same as in one, or that what was decoded can be encoded again.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from zlib import crc32

from curbstone.access.secrets import parse_secret
from curbstone.access.tokens import decode as decode_tokens
from curbstone.backup.archive import entries
from curbstone.backup.files import BackupError
from curbstone.core.engine.log.format import (
    UnknownFormat,
    decode_entries,
    decode_notes,
    decode_segment_header,
    decode_settled,
    decode_tries,
)
from curbstone.core.engine.log.meta import Meta
from curbstone.core.engine.log.stored_batch import batches_in
from curbstone.core.errors import CurbstoneError, MetaDamaged
from curbstone.core.filters import fields_of, filter_of
from curbstone.core.headers import HeaderError
from curbstone.core.masks import Masks, is_mask, published_event
from curbstone.core.options import QueueOptions, SyncMode, parse_size
from curbstone.core.staging.files import decode_marker
from curbstone.core.staging.frames import FrameCheck, FrameReader
from curbstone.core.transactions.records import decode_records
from curbstone.core.wal.redo_format import decode as decode_redo
from curbstone.gateway.formats.cloud_events import header_of_value, value_of_header
from curbstone.gateway.formats.cloud_events import parse as parse_event
from curbstone.gateway.formats.json_message import message_of
from curbstone.gateway.formats.metadata import block_of_http, http_headers, json_parts
from curbstone.gateway.formats.parameters import parse_query
from curbstone.gateway.http.forwarded import client_of
from curbstone.gateway.http.head import framing_of, target_of
from curbstone.gateway.http.json_body import parse_json
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.websocket.codec import Frames
from curbstone.mqks.codec import LineReader, parse_request
from curbstone.mqks.errors import RequestError
from curbstone.net.peer import Networks, Peer
from curbstone.net.proxy_protocol import BadHeader, read_header
from curbstone.stomp.codec import ACK_BY_ID, FrameParser
from curbstone.stomp.limits import Limits

DECLARED = (CurbstoneError, Problem)
"""Errors for clients: each has a text, and a status over HTTP."""
MESSAGE_BYTES_MAX = 4096
PEER = Peer("127.0.0.1", 4711)

Target = Callable[[bytes], None]
TARGETS: dict[str, Target] = {}


def target(function: Target) -> Target:
    """Add a target by its name."""
    TARGETS[function.__name__] = function
    return function


def _halves(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the input, and it in two pieces; the first byte says where it is cut."""
    rest = data[1:]
    cut = data[0] * len(rest) // 256 if data else 0
    return rest, rest[:cut], rest[cut:]


def _stomp_frames(version: str, *pieces: bytes) -> list[object]:
    parser = FrameParser(Limits(body_bytes_max=MESSAGE_BYTES_MAX))
    parser.version = version
    found: list[object] = []
    for piece in pieces:
        frames = parser.feed(piece)
        while frames:
            for head, varied, receipt, body in frames:
                # An ACK that is parsed whole may have its id in place of the body.
                headers, content = (
                    ({"id": bytes(body).decode()}, b"")
                    if head is ACK_BY_ID
                    else (dict(head.having(varied).headers), bytes(body))
                )
                found.append((head.command, headers, receipt, content))
            frames = parser.feed(b"")  # it stops behind a CONNECT
    return [*found, None if parser.error is None else str(parser.error)]


@target
def stomp(data: bytes) -> None:
    whole, *pieces = _halves(data)
    for version in ("", "1.0", "1.1", "1.2"):
        assert _stomp_frames(version, whole) == _stomp_frames(version, *pieces)


def _websocket_messages(*pieces: bytes) -> list[object]:
    frames = Frames(MESSAGE_BYTES_MAX)
    found: list[object] = []
    for piece in pieces:
        found += [(bytes(each[0]), *each[1:]) for each in frames.receive(piece)]
    return [*found, frames.too_big, frames.is_closed, frames.peer_closed]


@target
def websocket(data: bytes) -> None:
    whole, *pieces = _halves(data)
    assert _websocket_messages(whole) == _websocket_messages(*pieces)


@target
def mqks(data: bytes) -> None:
    whole, *pieces = _halves(data)
    one, two = LineReader(100), LineReader(100)
    lines = one.feed(whole)
    assert lines == [line for piece in pieces for line in two.feed(piece)]
    for line in lines:
        with suppress(RequestError):
            parse_request(line.text)


@target
def http_head(data: bytes) -> None:
    method, _, rest = data.partition(b" ")
    url, _, block = rest.partition(b"\n")
    fields = [(name.lower(), value) for name, _, value in (line.partition(b":") for line in block.split(b"\n"))]
    host = dict(fields).get(b"host", b"")
    with suppress(Problem):  # httptools has refused other lengths before
        framing_of("1.1", [(name, value) for name, value in fields if name != b"content-length" or value.isdigit()])
    with suppress(Problem):
        target_of(method.decode("latin-1"), url, host)
    with suppress(Problem):
        client_of(fields, PEER, Networks(["127.0.0.0/8"]))


@target
def proxy_header(data: bytes) -> None:
    with suppress(BadHeader):
        read_header(data)


@target
def json_body(data: bytes) -> None:
    with suppress(*DECLARED):
        value = parse_json(data)
        if isinstance(value, dict):
            message_of(value, 3600.0)


@target
def cloud_event(data: bytes) -> None:
    with suppress(*DECLARED):
        parse_event(data)
    with suppress(*DECLARED):
        header_of_value(value_of_header(data))


@target
def http_metadata(data: bytes) -> None:
    fields = [(name.lower(), value) for name, _, value in (line.partition(b":") for line in data.split(b"\n"))]
    with suppress(*DECLARED):
        block = block_of_http(tuple(fields))
        http_headers(block)
        json_parts(block)


@target
def query(data: bytes) -> None:
    with suppress(*DECLARED):
        parse_query(data)


@target
def options(data: bytes) -> None:
    with suppress(*DECLARED):
        value = parse_json(data)
        if isinstance(value, dict):
            QueueOptions().merged(value, "default")
    text = data.decode("latin-1")
    for parse in (parse_size, SyncMode.parse):
        with suppress(ValueError, *DECLARED):
            parse(text)


@target
def masks(data: bytes) -> None:
    mask, _, event = data.decode("latin-1").partition("\n")
    found = Masks()
    try:
        found.add(mask)
        taking = found.taking(published_event(event))
    except DECLARED:
        return
    assert taking in ([], [mask])
    assert is_mask(mask) or taking == [mask] * (mask == event)
    found.remove(mask)
    assert not found.taking(event)


@target
def filters(data: bytes) -> None:
    text, _, block = data.decode("latin-1").partition("\0")
    try:
        found = filter_of(text)
        opposite, same = filter_of(f"NOT ({text})"), filter_of(f"({text}) AND 1 = 1")
        fields = fields_of(block.encode(), 1)
    except (*DECLARED, HeaderError):
        return
    assert not (found.passes(fields) and opposite.passes(fields))
    assert found.passes(fields) == same.passes(fields)


@target
def secret(data: bytes) -> None:
    parse_secret(data.decode("latin-1"))


@target
def tokens(data: bytes) -> None:
    with suppress(CurbstoneError):
        decode_tokens(data)


@target
def archive(data: bytes) -> None:
    with suppress(BackupError):
        for entry in islice(entries(io.BytesIO(data)), 100):
            entry.content.whole()


@target
def redo(data: bytes) -> None:
    with suppress(UnknownFormat):
        decode_redo(data)


@target
def segment(data: bytes) -> None:
    header = decode_segment_header(data)
    for batch in batches_in(data, header.salt if header is not None else 0):
        batch.messages()


@target
def batch_parts(data: bytes) -> None:
    """What stands behind the checksum of a batch: whoever can write the file can make one that checks."""
    for decode in (decode_settled, decode_tries, decode_notes):
        with suppress(struct.error, ValueError, IndexError):
            list(islice(decode(data, 0, len(data)), 10_000))
    with suppress(struct.error, ValueError, IndexError):
        decode_entries(data, 0, min(len(data) // 8, 1000), 1)


@target
def meta(data: bytes) -> None:
    line = data.replace(b"\n", b" ")
    with suppress(MetaDamaged, CurbstoneError):
        Meta.decode(line + b"\n%08x\n" % crc32(line), "meta", QueueOptions())


@target
def staged_frames(data: bytes) -> None:
    whole, *pieces = _halves(data)

    def check(*parts: bytes) -> object:
        frames = FrameCheck(lambda _name: MESSAGE_BYTES_MAX)
        try:
            for part in parts:
                frames.feed(part)
        except DECLARED as error:
            return str(error)
        return frames.messages, frames.is_whole

    found = check(whole)
    assert found == check(*pieces)
    if isinstance(found, tuple):
        FrameReader().read(whole)


@target
def staged_marker(data: bytes) -> None:
    """Also with checksums that are right: another file may lie in its place."""
    decode_marker(data)
    line = data.replace(b"\n", b" ")
    decode_marker(2 * (line + b"\n%08x\n" % crc32(line)))


@target
def transactions(data: bytes) -> None:
    decode_records(data)
