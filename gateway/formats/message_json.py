"""Writes messages as JSON for consumers. The metadata are cached, because many messages have the same ones."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Literal

import orjson

from curbstone.core.errors import BadRequest
from curbstone.core.message import Message
from curbstone.gateway.formats.metadata import json_parts

if TYPE_CHECKING:
    from curbstone.core.port import Queue
    from curbstone.core.values import Lease

Encoding = Literal["utf8", "base64", "hex"]

_TRUE_FALSE = (b"false", b"true")


def metadata_json(message: Message, message_id: str, tries: int, ack_id: bytes = b"") -> bytes:
    """Return the members of the JSON object that precede a payload, without its braces. `ack_id` is encoded JSON."""
    content_type, tail = json_parts(message.headers)
    if ack_id:
        tail = b',"ackId":%b,"id":"%b","tries":%d%b' % (ack_id, message_id.encode(), tries, tail)
    else:
        tail = b',"id":"%b","tries":%d%b' % (message_id.encode(), tries, tail)
    return b'%b,"timestamp":%d,"redelivered":%b%b' % (content_type, message.timestamp_ms, _TRUE_FALSE[tries > 0], tail)


def body_json(body: bytes, encoding: Encoding | None) -> bytes:
    """Return a body as the last members of a JSON object: `"message":"text"`, with `"encoding"` if it is encoded.

    If `encoding` is None, a body that is UTF-8 is written as text, and any other as base64.
    """
    if encoding is None:
        try:
            return b'"message":' + orjson.dumps(body.decode())
        except UnicodeDecodeError:
            encoding = "base64"
    if encoding == "utf8":
        return b'"message":' + orjson.dumps(body.decode("utf-8", "replace"))
    text = base64.b64encode(body) if encoding == "base64" else body.hex().encode()
    return b'"encoding":"%b","message":"%b"' % (encoding.encode(), text)


def lease_json(queue: Queue, lease: Lease, encoding: Encoding | None) -> bytes:
    """Return a leased message as a JSON object."""
    message = lease.delivery.message
    token = orjson.dumps(lease.token)
    inside = metadata_json(message, queue.message_id(message.seq), lease.delivery.tries, token)
    return b'{%b,"expires":%d,%b}' % (inside, lease.expires_ms, body_json(message.body, encoding))


def body_of_json(text: object, encoding: Encoding) -> bytes:
    """Return the body in the member `message` of a JSON object; raise BadRequest."""
    if not isinstance(text, str):
        raise BadRequest("bad message: it must be a string")
    if encoding == "utf8":
        return text.encode()
    try:
        return base64.b64decode(text, validate=True) if encoding == "base64" else bytes.fromhex(text)
    except (binascii.Error, ValueError):
        raise BadRequest(f"bad message: it is not {encoding}") from None
