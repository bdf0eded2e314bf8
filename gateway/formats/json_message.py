"""Messages as producers write them in JSON, in a batch or on a WebSocket."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from curbstone.core.batches import has_batch
from curbstone.core.errors import BadRequest, MessageTooLarge
from curbstone.core.message import Message
from curbstone.core.orders import PRIORITY, has_name, level_in, orders_of
from curbstone.gateway.formats import cloud_events
from curbstone.gateway.formats.message_json import body_of_json
from curbstone.gateway.formats.metadata import REPLACE_MAX_MEMBER, block_of_json
from curbstone.gateway.formats.parameters import encoding_named, groups_of, seconds_ms, ttl_ms
from curbstone.gateway.http.fields import TRAVELLING

MEMBERS = (
    "message", "encoding", "Content-Type", *TRAVELLING.values(), REPLACE_MAX_MEMBER, PRIORITY, "ttl", "delay", "groups",
)  # fmt: skip
"""The members that a message in JSON may have, besides metadata with names that begin with x- or ce-."""

_METADATA = ("x-", "ce-")
_A_MESSAGE = 'a message is {"message": …}, or a metadata frame and a payload frame'
_OF_DELIVERIES = (
    "id", "timestamp", "redelivered", "tries", "ackId", "expires", "state", "due", "expiry", "dead", "seq",
)  # fmt: skip
_KNOWN = frozenset((*MEMBERS, *_OF_DELIVERIES))


def check_message(fields: Mapping[str, Any], more: Collection[str] = ()) -> None:
    """Raise BadRequest for a member that a message can't have; `more` are members that this call allows too.

    Members that only deliveries have are allowed, so that a message can be sent on as it was received.
    """
    if (name := _unknown(fields, more)) is not None:
        known = ", ".join((*more, *MEMBERS))
        raise BadRequest(f"unknown member {name[:80]!r}; a message may have {known}, and names with x- or ce-")


def check_metadata(fields: Mapping[str, Any], more: Collection[str] = ()) -> None:
    """Raise BadRequest if the JSON in a WebSocket's text frame, without `message`, is not the metadata of a message.

    If any other JSON object counted as metadata, the next frame would be taken for its payload, and both be lost.
    """
    if (name := _unknown(fields, more)) is not None:
        raise BadRequest(f"unknown member {name[:80]!r}; {_A_MESSAGE}")
    if fields and not any([_is_member(name) or name in more for name in fields]):
        raise BadRequest(f"member {next(iter(fields))!r} needs a message; {_A_MESSAGE}")


def _unknown(fields: Mapping[str, Any], more: Collection[str] = ()) -> str | None:
    if _KNOWN.issuperset(fields):
        return None
    return next((n for n in fields if n not in _KNOWN and not n.startswith(_METADATA) and n not in more), None)


def _is_member(name: str) -> bool:
    return name in MEMBERS or name.startswith(_METADATA)


def message_of(fields: Mapping[str, Any], max_ttl_s: float, groups: tuple[str, ...] = ()) -> Message:
    """Return the message for these metadata, with its body still empty; raise BadRequest."""
    block = block_of_json(fields)
    orders = orders_of(
        delay_ms=seconds_ms("delay", fields["delay"]) if "delay" in fields else 0,
        ttl_ms=ttl_ms(fields["ttl"], max_ttl_s) if "ttl" in fields else 0,
        groups=groups_of(fields["groups"]) if "groups" in fields else groups,
        level=level_in(block) if PRIORITY in fields else 0,
        named=has_name(block),
        batched=has_batch(block),
    )
    return Message(b"", block, orders)


def put_body(message: Message, fields: Mapping[str, Any], bytes_max: int) -> None:
    """Set the body from the member `message`; raise BadRequest or MessageTooLarge."""
    message.body = body_of_json(fields.get("message"), encoding_named(fields.get("encoding", "utf8")))
    check_size(message.body, bytes_max)


def event_message(event: Any, bytes_max: int) -> Message:
    """Return the message for a CloudEvent in structured mode; raise BadRequest or MessageTooLarge."""
    fields, body = cloud_events.message_fields(event)
    check_size(body, bytes_max)
    return Message(body, block_of_json(fields))


def check_size(body: bytes, bytes_max: int) -> None:
    """Raise MessageTooLarge for a body above the limit."""
    if len(body) > bytes_max:
        raise MessageTooLarge(f"the message is larger than {bytes_max} bytes")
