"""The registry: the definitions of all queues, as entries of one stream that all gateways read in the same order.

`Registry` is pure: gateways that applied the same entries have the same queues. `RegistryLog` writes and reads entries.
A change takes effect once its entry was read back; the first of two creations wins. An entry names its queue by the
uid, so an entry that is read twice, or too late, changes nothing.

After SNAPSHOT_EVERY entries a gateway adds a snapshot, so that the stream can discard its beginning.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.host import Host
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions
from curbstone.core.values import Done
from curbstone.rabbit.amqp.link import Link
from curbstone.rabbit.amqp.port import AmqpError, Arrived, Channel, Connection, Properties
from curbstone.rabbit.shared import unsupported
from curbstone.rabbit.shared.topology import registry_arguments

SNAPSHOT_EVERY = 10_000
ANSWER_MS_MAX = 15_000
DELETED_MAX = 1000
WINDOW = 1000
TAG = "registry"

logger = logging.getLogger("curbstone.rabbit")
Entry = dict[str, Any]


@dataclass(slots=True)
class Definition:
    """The definition of one queue."""

    name: QueueName
    uid: str
    options: QueueOptions
    bindings: frozenset[str] = frozenset()
    unused_s: float | None = None
    groups: frozenset[str] = frozenset()
    """The groups named by declarations, messages or consumers."""
    purged: int = 0
    """Delayed messages with a smaller number have been purged."""
    deleted: tuple[int, ...] = ()
    """Messages of the unnamed group to drop when their turn comes; the last DELETED_MAX of them."""

    def as_entry(self) -> Entry:
        """Return the entry that creates this queue."""
        return {
            "do": "make",
            "project": self.name.project,
            "queue": self.name.queue,
            "uid": self.uid,
            "options": unsupported.registered(self.options.as_json()),
            "bindings": sorted(self.bindings),
            "unused_s": self.unused_s,
            "groups": sorted(self.groups),
            "purged": self.purged,
            "deleted": self.deleted,
        }


def _definition_of(entry: Entry) -> Definition:
    name = QueueName(entry["project"], entry["queue"])
    options = QueueOptions().merged(entry["options"], name.project)
    return Definition(
        name,
        entry["uid"],
        options,
        frozenset(entry["bindings"]),
        entry["unused_s"],
        frozenset(entry["groups"]) | frozenset(options.groups),
        entry["purged"],
        tuple(entry.get("deleted", ())),
    )


@dataclass(slots=True)
class Change:
    """The effect of an entry: the queue's definition before and after it."""

    before: Definition | None = None
    after: Definition | None = None


@dataclass(slots=True)
class Registry:
    """All queues, by name and by uid."""

    by_name: dict[QueueName, Definition] = field(default_factory=dict)
    by_uid: dict[str, Definition] = field(default_factory=dict)

    def apply(self, entry: Entry) -> Change:
        """Apply an entry. An obsolete entry changes nothing."""
        do = entry["do"]
        if do == "make":
            return self._make(_definition_of(entry))
        definition = self.by_uid.get(entry.get("uid", ""))
        if definition is None:
            return Change()
        if do == "gone":
            del self.by_uid[definition.uid], self.by_name[definition.name]
            return Change(before=definition)
        return self._put(definition, _changed(definition, entry))

    def _make(self, definition: Definition) -> Change:
        if definition.name in self.by_name:
            return Change()
        self.by_name[definition.name] = self.by_uid[definition.uid] = definition
        return Change(after=definition)

    def _put(self, before: Definition, after: Definition) -> Change:
        self.by_name[after.name] = self.by_uid[after.uid] = after
        return Change(before, after)

    def snapshot(self) -> Entry:
        """Return an entry that holds the whole registry."""
        return {"do": "snapshot", "queues": [definition.as_entry() for definition in self.by_name.values()]}

    def restore(self, entry: Entry) -> None:
        """Replace the whole registry by a snapshot."""
        self.by_name.clear()
        self.by_uid.clear()
        for each in entry["queues"]:
            self._make(_definition_of(each))


def _changed(definition: Definition, entry: Entry) -> Definition:
    match entry["do"]:
        case "options":
            options = definition.options.merged(entry["options"], definition.name.project)
            groups = definition.groups | frozenset(options.groups)
            return _with(definition, options=options, groups=groups)
        case "bind":
            bindings = (definition.bindings | frozenset(entry["add"])) - frozenset(entry["remove"])
            return _with(definition, bindings=bindings)
        case "bindings":
            return _with(definition, bindings=frozenset(entry["events"]))
        case "occupy":
            return _with(definition, bindings=frozenset(entry["events"]), unused_s=entry["unused_s"])
        case "group":
            return _with(definition, groups=definition.groups | {entry["group"]})
        case "purged":
            purged = max(definition.purged, entry["number"])
            return _with(definition, purged=purged, deleted=tuple(seq for seq in definition.deleted if seq > purged))
        case "deleted":
            others = [seq for seq in definition.deleted if seq != entry["seq"]]
            return _with(definition, deleted=(*others, entry["seq"])[-DELETED_MAX:])
        case "dropped":
            return _with(definition, deleted=tuple(seq for seq in definition.deleted if seq != entry["seq"]))
        case _:
            return definition


def _with(definition: Definition, **changes: Any) -> Definition:
    values = {name: getattr(definition, name) for name in Definition.__slots__}
    return Definition(**{**values, **changes})


class RegistryLog:
    """Writes and reads the stream.

    `on_change(entry, change)` is called for each entry that changes something, in order. `on_read()` is called once,
    when all entries that existed at the start have been read.
    """

    def __init__(
        self,
        host: Host,
        link: Link,
        stream: str,
        run_id: str,
        on_change: Callable[[Entry, Change], None],
        on_read: Callable[[], None],
    ) -> None:
        """`run_id` names this gateway from this start to its end."""
        self.registry = Registry()
        self._host = host
        self._link = link
        self._stream = stream
        self._run_id = run_id
        self._on_change = on_change
        self._on_read = on_read
        self._channel: Channel | None = None
        self._is_reading = False
        self._number = 0
        self._next_offset: int | None = None
        """The offset after the last entry that was applied."""
        self._first_offset: int | None = None
        self._early: list[tuple[int, Entry]] = []
        """Entries before the first snapshot of a stream that has discarded its beginning."""
        self._since_snapshot = 0
        self._proposed: dict[str, tuple[Entry, Done, int]] = {}
        """Written entries that were not read back yet, by key: the entry, its callback, and the deadline."""
        self._is_watching = False
        link.when(self._up, self._down)

    def propose(self, entry: Entry, on_done: Done) -> None:
        """Write an entry. `on_done` gets None right after it was applied, or Unavailable if that is unknown."""
        self._number += 1
        key = f"{self._run_id}.{self._number}"
        self._proposed[key] = (entry, on_done, self._host.now_ms() + ANSWER_MS_MAX)
        self._write(key, entry)
        self._watch()

    def catch_up(self, on_done: Done) -> None:
        """Call back when all earlier changes of other gateways are applied here."""
        self.propose({"do": "mark"}, on_done)

    def _write(self, key: str, entry: Entry) -> None:
        channel = self._channel
        if channel is not None and channel.is_open:
            body = json.dumps({**entry, "key": key}, separators=(",", ":")).encode()
            channel.publish("", self._stream, Properties({}, content_type="application/json"), body, mandatory=False)

    def _up(self, connection: Connection) -> None:
        self._is_reading = False

        def failed(error: AmqpError) -> None:
            if self._link.connection is connection:
                logger.warning("the registry can't be read over %s: %s", connection.node, error)
                self._link.leave()

        def opened(channel: Channel) -> None:
            self._channel = channel
            channel.on_cancelled(lambda _tag: self._link.leave())  # for example, if the node's replica is removed
            channel.declare_queue(self._stream, lambda *_: None, arguments=registry_arguments())
            channel.qos(WINDOW, lambda _error: None)
            start: object = "first" if self._next_offset is None else self._next_offset
            channel.consume(
                self._stream,
                TAG,
                partial(self._arrived, channel),
                lambda error: self._consuming() if error is None else None,
                arguments={"x-stream-offset": start},
            )

        connection.channel(opened, failed)

    def _consuming(self) -> None:
        """Repeat entries that may be lost, and write a mark: once it is read back, all earlier entries were read."""
        for key, (entry, _on_done, _deadline_ms) in list(self._proposed.items()):
            self._write(key, entry)
        if self._next_offset is None or not self._is_reading:
            self.propose({"do": "mark"}, self._caught_up)

    def _caught_up(self, error: CurbstoneError | None) -> None:
        if error is not None:
            return
        if not self._is_reading:
            self._is_reading = True
            self._on_read()

    def _down(self, _reason: str) -> None:
        self._channel = None

    def _arrived(self, channel: Channel, arrived: Arrived) -> None:
        channel.ack(arrived.tag)
        offset = int(str(arrived.properties.headers.get("x-stream-offset", 0)))
        if self._next_offset is not None and offset < self._next_offset:
            return  # the stream delivers whole chunks, so also entries before the requested offset
        self._next_offset = offset + 1
        try:
            entry: Entry = json.loads(arrived.body)
            self._read(offset, entry)
        except (ValueError, KeyError, TypeError, CurbstoneError) as error:
            logger.error("can't decode entry %d of the registry: %s", offset, error)

    def _read(self, offset: int, entry: Entry) -> None:
        if self._first_offset is None:
            self._first_offset = offset
        self._since_snapshot += 1
        if entry["do"] == "snapshot":
            self._since_snapshot = 0
            if self._first_offset > 0:  # the stream has discarded its beginning, so start from this snapshot
                self._first_offset = 0
                early = [(place, each) for place, each in self._early if place >= entry["next"]]
                self._restore(entry)
                for _place, each in early:
                    self._apply(each)
                self._early.clear()
            return
        if self._first_offset > 0:
            self._early.append((offset, entry))
        self._apply(entry)
        if self._since_snapshot >= SNAPSHOT_EVERY and str(entry.get("key", "")).startswith(self._run_id + "."):
            self._since_snapshot = 0
            snapshot = {**self.registry.snapshot(), "next": offset + 1}
            self._write(f"{self._run_id}.snapshot", snapshot)

    def _restore(self, entry: Entry) -> None:
        before = dict(self.registry.by_uid)
        self.registry.restore(entry)
        for uid, definition in before.items():
            if uid not in self.registry.by_uid:
                self._on_change({"do": "gone", "uid": uid}, Change(before=definition))
        for definition in list(self.registry.by_name.values()):
            self._on_change(definition.as_entry(), Change(before.get(definition.uid), definition))

    def _apply(self, entry: Entry) -> None:
        change = self.registry.apply(entry)
        if change.before is not None or change.after is not None:
            self._on_change(entry, change)
        proposed = self._proposed.pop(entry.get("key", ""), None)
        if proposed is not None:
            proposed[1](None)

    def _watch(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._host.call_later(1000, self._check)

    def _check(self) -> None:
        self._is_watching = False
        now_ms = self._host.now_ms()
        for key, (entry, on_done, deadline_ms) in list(self._proposed.items()):
            if deadline_ms <= now_ms:
                del self._proposed[key]
                on_done(Unavailable(f"the outcome is unknown: {self._link.trouble or 'no answer'}"))
            else:  # a stream without a leader loses entries silently, so write it again; reading it twice is harmless
                self._write(key, entry)
        if self._proposed:
            self._watch()
