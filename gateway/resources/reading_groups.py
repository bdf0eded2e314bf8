"""Declared groups over HTTP: readers that look at messages and say up to where they are done."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from starlette.types import Receive, Scope, Send

from curbstone.access.rights import Right
from curbstone.core.errors import BadRequest
from curbstone.core.names import group_name
from curbstone.core.positions import EARLIEST, LATEST, GroupInfo, Since, Start
from curbstone.gateway.formats.parameters import SEQ_MAX, whole_number
from curbstone.gateway.http.answers import answer
from curbstone.gateway.http.json_body import check_members, read_object
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.reply import reply, reply_json
from curbstone.gateway.resources.queues import name_in
from curbstone.gateway.settings import GatewaySettings

ON_FULL = ("hold", "skip")
_PUT = ("start", "on_full")
_ACK = ("upTo", "epoch", "reader")
_READER = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class ReadingGroups:
    """The handlers of `/v2/{project}/queues/{queue}/groups` and what is below."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings

    async def list(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """GET: all groups that are declared or that messages wait for, by name."""
        reading = access_of(scope).queue(name_in(scope), Right.PEEK).reading
        await reply_json(send, {"groups": [_json(info) for info in reading.infos()]})

    async def get(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """GET: one group."""
        reading = access_of(scope).queue(name_in(scope), Right.PEEK).reading
        await reply_json(send, _json(reading.info(_group_in(scope))))

    async def put(self, scope: Scope, receive: Receive, send: Send) -> None:
        """PUT: declare the group, or change what it does at the cap."""
        queue = access_of(scope).queue(name_in(scope), Right.MANAGE)
        name = _group_in(scope)
        fields = await read_object(scope, receive, self._settings.json_bytes_max, "a group", _PUT)
        start = _start_of(fields.get("start", EARLIEST))
        skips = _skips_of(fields["on_full"]) if "on_full" in fields else None
        info: GroupInfo
        _, info = await answer(partial(queue.reading.declare, name, start, skips))
        await reply_json(send, _json(info))

    async def delete(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """DELETE: the group is declared no more; the same reply if it was not."""
        queue = access_of(scope).queue(name_in(scope), Right.MANAGE)
        name = _group_in(scope)
        if queue.reading.is_declared(name):
            others = [group for group in queue.options.groups if group != name]
            await answer(lambda done: access_of(scope).declare(queue.name, {"groups": others}, done))
        await reply(send, 204)

    async def ack(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST ack: the group is done with everything up to `upTo`; answered after the commit."""
        queue = access_of(scope).queue(name_in(scope), Right.RECEIVE)
        name = _group_in(scope)
        fields = await read_object(scope, receive, self._settings.json_bytes_max, "an ack", _ACK)
        seq, epoch = _seq_and_epoch(fields)
        queue.reading.check_epoch(epoch)
        reader = reader_of(fields["reader"]) if "reader" in fields else ""
        info: GroupInfo
        _, info = await answer(partial(queue.reading.ack_to, name, seq, reader=reader))
        await reply_json(send, _json(info))


def _group_in(scope: Scope) -> str:
    return group_name(scope["path_params"]["group"])


def _json(info: GroupInfo) -> dict[str, object]:
    return info._asdict()


def _skips_of(value: object) -> bool:
    if value not in ON_FULL:
        raise BadRequest(f"bad on_full {str(value)[:80]!r}: {' or '.join(ON_FULL)}")
    return value == "skip"


def ack_in(value: object) -> tuple[int, str | None]:
    """Return the seq up to which a queue is done, and the epoch that is meant, from an ack among several."""
    if not isinstance(value, dict):
        raise BadRequest("bad ack: an object with upTo, and the epoch")
    check_members(value, _ACK[:2], "an ack")
    return _seq_and_epoch(value)


def _seq_and_epoch(fields: Mapping[str, object]) -> tuple[int, str | None]:
    if "upTo" not in fields:
        raise BadRequest("upTo is missing: the last message the group is done with")
    seq = whole_number("upTo", fields["upTo"], 0, SEQ_MAX)
    epoch = fields.get("epoch")
    if "epoch" in fields and not isinstance(epoch, str):
        raise BadRequest("bad epoch: it must be a string")
    return seq, epoch if isinstance(epoch, str) else None


def reader_of(value: object) -> str:
    if not isinstance(value, str) or not _READER.fullmatch(value):
        raise BadRequest("bad reader: 1 to 64 of A-Z a-z 0-9 . _ : -")
    return value


def _start_of(value: object) -> Start:
    if isinstance(value, dict):
        if list(value) != ["timestamp"]:
            raise BadRequest('bad start: an object has one member, "timestamp"')
        return Since(whole_number("timestamp", value["timestamp"], 0, SEQ_MAX))
    if value in (EARLIEST, LATEST):
        return str(value)
    if isinstance(value, str):
        raise BadRequest(f'bad start {value[:80]!r}: earliest, latest, a seq, or {{"timestamp": ms}}')
    return whole_number("start", value, 0, SEQ_MAX)
