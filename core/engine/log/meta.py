"""What a queue is, apart from its messages: name, options, groups and bindings, in one small file.

The file `meta` holds a line of JSON, and a line with the CRC of it. A change replaces the whole file: the new one is
written under another name, synced and renamed, and then the directory is synced.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

from curbstone.core.disk import Disk, replace_file
from curbstone.core.engine.log.file_view import read_file
from curbstone.core.errors import CurbstoneError, DataDirectoryError, MetaDamaged
from curbstone.core.names import QueueName, stored_name
from curbstone.core.options import QueueOptions, is_valid

META_FORMAT = 1
META_BYTES_MAX = 16 * 1024

LATER_OPTIONS = frozenset(["idempotency_window"])
"""Options that were added when there were versions that refuse a file with an unknown option. They are stored
apart, where those versions do not look, so that they still start."""

POLICY_OPTIONS = frozenset(["burst", "fair", "in_flight", "key_burst", "key_limit", "key_rate", "oldest_every", "rate"])
"""Options that decide which message is next. They are stored in a member `policy`, which released versions ignore, so
these start on the queue, and deliver its messages in order."""

_NOTHING: Mapping[str, Any] = {}
_NO_NAMES: frozenset[str] = frozenset()
"""Thousands of queues have no changes, groups or bindings; they share these two."""

_FORMER_PRIVATE = re.compile(r"[0-9a-f]{16}\.topic\.[1-9][0-9]*")
_FORMER_OPTIONS = {"cap": 64 * 1024 * 1024}


def meta_reserve(cap: int) -> int:
    """Return how many bytes of a cap are kept for `meta`: for the file, and for the new one while it is replaced."""
    return min(max(cap // 64, 1024), 2 * META_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class Meta:
    """The contents of a queue's `meta`. It is immutable: a change makes a new object."""

    uid: str
    name: QueueName
    defaults: QueueOptions
    changes: Mapping[str, object] = field(default_factory=lambda: _NOTHING)
    """The options that were set, as JSON values. All others have the server's defaults."""
    groups: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    """The declared groups, each with the first seq that it sees, apart from messages that name their groups."""
    since: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    """By declared group, the first batch that can speak of it. Earlier ones speak of an earlier group of its name."""
    skips: frozenset[str] = frozenset()
    """The declared groups that give up messages when the cap is reached."""
    bindings: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """The events bound to the queue, each with the text of its filter, which is empty if there is none."""
    unused_s: float | None = None
    """Seconds without a consumer after which the queue is deleted, None for never. Kept for adapters, who act on it."""
    doubt: str = ""
    """What a repair could not restore. Reported to operators until the queue is bound again."""
    unknown: Mapping[str, object] = field(default_factory=lambda: _NOTHING)
    """Members of the file from a newer version. They are kept, and have no effect."""
    unknown_policy: Mapping[str, object] = field(default_factory=lambda: _NOTHING)
    """Such options in `policy`."""

    @property
    def options(self) -> QueueOptions:
        """The options in force."""
        return self.defaults.merged(self.changes, self.name.project)

    @property
    def unknown_names(self) -> list[str]:
        """The names of what only a newer version understands."""
        return sorted([*self.unknown, *self.unknown_policy])

    @property
    def label(self) -> str:
        """The queue's name in texts that any user may read. The name of a private queue is a secret."""
        return f"private queue {self.uid}" if self.name.is_private else f"queue {self.name}"

    @property
    def is_left_over(self) -> bool:
        """Whether this was a private queue. Its client went away with the process that served it.

        Earlier versions kept private queues in a project `_temp`, which users could use, too. In that project only the
        queue of a topic's subscriber is private for sure: nothing else could bind a queue outside of `default`.
        """
        if self.name.is_private:
            return True
        return (
            self.name.project == "_temp"
            and _FORMER_PRIVATE.fullmatch(self.name.queue) is not None
            and self.changes == _FORMER_OPTIONS
            and len(self.bindings) == 1
        )

    def with_options(self, changes: Mapping[str, object], next_seq: int) -> Meta:
        """Return a copy with options merged in, in which a new group starts at `next_seq`; raise BadRequest."""
        merged = {**self.changes, **changes}
        options = self.defaults.merged(merged, self.name.project)
        groups = {name: self.groups.get(name, next_seq) for name in options.groups}
        since = {name: batch for name, batch in self.since.items() if name in groups}
        return replace(self, changes=merged, groups=groups, since=since, skips=self.skips.intersection(groups))

    def with_group(self, name: str, start: int, batch: int, *, skips: bool) -> Meta:
        """Return a copy with a group declared, or if it is already, with its `skips` changed; raise BadRequest.

        A new group sees messages from `start` on, and the log speaks of it from batch number `batch` on.
        """
        skipping = self.skips | {name} if skips else self.skips - {name}
        if name in self.groups:
            return replace(self, skips=skipping)
        meta = self.with_options({"groups": [*self.options.groups, name]}, start)
        return replace(meta, since={**meta.since, name: batch}, skips=skipping)

    def encode(self) -> bytes:
        facts: dict[str, object] = {
            **self.unknown,
            "format": META_FORMAT,
            "uid": self.uid,
            "project": self.name.project,
            "queue": self.name.queue,
            "options": {name: value for name, value in self.changes.items() if name not in _STORED_APART},
            "groups": dict(self.groups),
            "bindings": sorted(self.bindings),
        }
        if filters := {event: text for event, text in self.bindings.items() if text}:
            facts["filters"] = filters
        if later := {name: value for name, value in self.changes.items() if name in LATER_OPTIONS}:
            facts["later_options"] = later
        policy = {name: value for name, value in self.changes.items() if name in POLICY_OPTIONS}
        if policy or self.unknown_policy:
            facts["policy"] = {**self.unknown_policy, **policy}
        if self.since:
            facts["since"] = dict(self.since)
        if self.skips:
            facts["skips"] = sorted(self.skips)
        if self.unused_s is not None:
            facts["unused_s"] = self.unused_s
        if self.doubt:
            facts["doubt"] = self.doubt
        line = json.dumps(facts, separators=(",", ":")).encode()
        return line + b"\n%08x\n" % crc32(line)

    @classmethod
    def decode(cls, data: bytes, path: str, defaults: QueueOptions) -> Meta:
        """Return what `encode` wrote; raise MetaDamaged with the file's name, DataDirectoryError for a newer format."""
        line, _, crc = data.partition(b"\n")
        if crc.strip() != b"%08x" % crc32(line):
            raise MetaDamaged(f"{path} is damaged: its checksum does not match")
        try:
            facts = json.loads(line)
            if facts["format"] > META_FORMAT:
                raise DataDirectoryError(f"{path}: format {facts['format']} is newer than this version reads")
            name = stored_name(facts["queue"], sys.intern(facts["project"]))
            policy, unknown_policy = split_policy(facts)
            changes = facts["options"] | facts.get("later_options", {}) | policy
            groups, since = facts["groups"], facts.get("since")
            skips, bindings = facts.get("skips"), bindings_of(facts)
            return cls(
                facts["uid"],
                name,
                defaults,
                changes or _NOTHING,
                groups or _NOTHING,
                since or _NOTHING,
                frozenset(skips) if skips else _NO_NAMES,
                bindings or _NOTHING,
                facts.get("unused_s"),
                str(facts.get("doubt", "")),
                {name: value for name, value in facts.items() if name not in _MEMBERS} or _NOTHING,
                unknown_policy or _NOTHING,
            )
        except DataDirectoryError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, CurbstoneError) as error:
            raise MetaDamaged(f"{path} is not understood: {error}") from error


_STORED_APART = LATER_OPTIONS | POLICY_OPTIONS
_MEMBERS = frozenset(
    ["format", "uid", "project", "queue", "options", "later_options", "policy", "groups", "bindings", "filters"]
    + ["since", "skips", "unused_s", "doubt"]
)


def split_policy(facts: Mapping[str, Any]) -> tuple[dict[str, object], dict[str, object]]:
    """Return the options in the member `policy` that this version understands, and those that it does not."""
    policy = facts.get("policy", {})
    known = {name: value for name, value in policy.items() if name in POLICY_OPTIONS and is_valid(name, value)}
    return known, {name: value for name, value in policy.items() if name not in known}


def bindings_of(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the bindings in the contents of a `meta`, in order.

    The filters are stored apart. A version without filters ignores them, and gives the queue a copy of all messages.
    """
    filters = facts.get("filters", {})
    return {event: str(filters.get(event, "")) for event in facts["bindings"]}


def store_meta(disk: Disk, directory: str, data: bytes) -> None:
    """Replace a queue's `meta`. Blocking; the new one is durable when this returns."""
    replace_file(disk, f"{directory}/meta", data).close()


def load_meta(disk: Disk, directory: str, defaults: QueueOptions) -> Meta | None:
    """Return a queue's `meta`, or None if the queue was never completely created. Blocking."""
    path = f"{directory}/meta"
    try:
        data, unreadable = read_file(disk, path, META_BYTES_MAX + 64)
    except FileNotFoundError:
        return None
    if unreadable:
        raise MetaDamaged(f"{path} can't be read: the disk reports an error")
    return Meta.decode(data, path, defaults)
