"""Restores a damaged `meta` of a queue: completely if a single bit is wrong, otherwise each value that is valid."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from zlib import crc32

from curbstone.core.disk import Disk
from curbstone.core.engine.log.file_view import read_around
from curbstone.core.engine.log.meta import META_BYTES_MAX, Meta, bindings_of, split_policy
from curbstone.core.errors import CurbstoneError, DataDirectoryError
from curbstone.core.names import QueueName, event_name, group_name, stored_name
from curbstone.core.options import QueueOptions

_DEFAULTS = QueueOptions()
_BITS_TRIED = 8 * 4096
"""The wrong bit is not searched in a larger file, because each bit would have to be tried."""


def rebuilt_meta(disk: Disk, directory: str, uid: str) -> tuple[Meta, list[str]]:
    """Return a `meta` with the valid values of a damaged or missing one, and remarks for the operator."""
    data = _read(disk, f"{directory}/meta")
    meta = _with_one_bit_flipped(data, uid)
    if meta is not None:
        return meta, ["one bit was wrong and has been corrected"]
    facts = _facts(data)
    name = _name(facts)
    if name is None:
        name, facts = QueueName("default", f"recovered-{uid}"), {}
    meta = Meta(uid, name, _DEFAULTS)
    lost = []
    try:
        policy, unknown = split_policy(facts)
        meta = meta.with_options({**facts["options"], **facts.get("later_options", {}), **policy}, 1)
        meta = replace(meta, unknown_policy=unknown)
        groups = {group_name(group): _count(start) for group, start in facts["groups"].items()}
        since = {group: _count(facts["since"][group]) for group in facts.get("since", {}) if group in groups}
        skips = frozenset(facts.get("skips", ())) & groups.keys()
        meta = replace(meta, groups={**meta.groups, **groups}, since=since, skips=skips)
    except (KeyError, TypeError, ValueError, AttributeError, CurbstoneError):
        lost.append("its options and groups")
    try:
        unused_s = facts.get("unused_s")
        bindings = {event_name(event): text for event, text in bindings_of(facts).items()}
        meta = replace(meta, bindings=bindings, unused_s=None if unused_s is None else float(unused_s))
    except (KeyError, TypeError, ValueError, AttributeError, CurbstoneError):
        lost.append("its bindings (events it was bound to are not stored in it until it is bound again)")
    if not lost:
        return meta, ["its contents are plausible, and are kept"]
    text = "can't be read: " + " and ".join([*([] if facts else ["the queue's name"]), *lost])
    return replace(meta, doubt=f"its meta was rebuilt by a repair, and {text}"), [text]


def renamed(meta: Meta, uid: str, other: Meta) -> tuple[Meta, list[str]]:
    """Return a `meta` with a new name for a queue whose name `other` has as well, and remarks for the operator.

    The event bindings stay with the other queue.
    """
    name = QueueName(meta.name.project, f"{meta.name.queue[:180]}.recovered-{uid}")
    both = sorted(meta.bindings.keys() & other.bindings.keys())
    notes = [f"another directory holds queue {meta.name}: this one is queue {name} from now on"]
    if both:
        notes.append(f"the other queue is bound to {', '.join(both)} as well, and alone gets new messages")
    rest = {event: text for event, text in meta.bindings.items() if event not in other.bindings}
    return replace(meta, name=name, bindings=rest), notes


def _read(disk: Disk, path: str) -> bytes:
    try:
        file = disk.open(path)
    except OSError:
        return b""
    try:
        return read_around(file, 0, META_BYTES_MAX + 64)[0]
    finally:
        file.close()


def _with_one_bit_flipped(data: bytes, uid: str) -> Meta | None:
    if 8 * len(data) > _BITS_TRIED:
        return None
    for place in range(8 * len(data)):
        tried = bytearray(data)
        tried[place // 8] ^= 1 << place % 8
        line, _, crc = bytes(tried).partition(b"\n")
        if crc.strip() != b"%08x" % crc32(line):
            continue
        try:
            meta = Meta.decode(bytes(tried), "meta", _DEFAULTS)
        except (DataDirectoryError, ValueError, TypeError, KeyError):
            continue
        if meta.uid == uid:
            return meta
    return None


def _facts(data: bytes) -> Mapping[str, Any]:
    try:
        facts = json.loads(data.partition(b"\n")[0])
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _name(facts: Mapping[str, Any]) -> QueueName | None:
    try:
        return stored_name(str(facts["queue"]), str(facts["project"]))
    except (KeyError, CurbstoneError):
        return None


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError
    return value
