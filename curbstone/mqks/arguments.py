"""Parses and checks the options of `publish`, and the arguments of `consume`, `rebind`, `ack` and `reject`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from curbstone.core import headers, orders
from curbstone.core.errors import BadRequest
from curbstone.core.names import QueueName, event_name, queue_name
from curbstone.mqks.errors import RequestError
from curbstone.mqks.event_patterns import EventPatterns

UNUSED_S_MAX = 10 * 365 * 86400
ALL = b"--all"

_ADD, _REMOVE, _REMOVE_MASK = "--add", "--remove", "--remove-mask"
_MANUAL_ACK, _UNUSED, _WINDOW = "--manual-ack", "--delete-queue-when-unused", "--window"
_REPLACE = ""
_OF_PUBLISH = {
    b"--priority": orders.PRIORITY,
    b"--key": headers.KEY,
    b"--unique": orders.UNIQUE,
    b"--unique-until": orders.UNIQUE_UNTIL,
    b"--replace": orders.REPLACE,
    b"--replace-max": orders.REPLACE_MAX,
}
"""The options of `publish`, and the headers that they set."""


class Unused(NamedTuple):
    """The option to delete a queue after some time without a consumer."""

    seconds: float
    text: str
    """The option in the form of an --update."""

    @classmethod
    def after(cls, seconds: float) -> Unused:
        """Return the option for this many seconds; 0 is written without a value."""
        return cls(seconds, f" {_UNUSED}={seconds}" if seconds else f" {_UNUSED}")


@dataclass(frozen=True, slots=True)
class Binding:
    """How a request changes the events bound to a queue. The fields are applied in their order."""

    replace: frozenset[str] | None = None
    remove: frozenset[str] = frozenset()
    masks: tuple[str, ...] = ()
    add: frozenset[str] = frozenset()

    def apply(self, events: frozenset[str]) -> frozenset[str]:
        """Return the events bound afterwards; raise RequestError if computing them would take too long."""
        kept = (events if self.replace is None else self.replace) - self.remove
        if self.masks:
            masks = EventPatterns(self.masks)
            kept = frozenset([event for event in kept if not masks.take(event)])
        return kept | self.add


@dataclass(frozen=True, slots=True)
class Consume:
    """A consume request."""

    queue: QueueName
    binding: Binding
    unused: Unused | None
    manual_ack: bool
    window: int | None


@dataclass(frozen=True, slots=True)
class Rebind:
    """A rebind request."""

    queue: QueueName
    binding: Binding


def text_of(data: bytes) -> str:
    """Decode bytes; raise RequestError."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise RequestError("ids, names and options must be UTF-8") from None


def queue_of(word: str) -> QueueName:
    """Return the queue that a word names; raise RequestError."""
    if word.startswith("--"):
        raise RequestError("a queue must come before the options")
    try:
        return queue_name(word)
    except BadRequest:
        raise RequestError("a queue name must have 1 to 200 of A-Z a-z 0-9 . _ : - and not be '.' or '..'") from None


def event_of(word: str) -> str:
    """Return the event that a word names; raise RequestError."""
    try:
        return event_name(word)
    except BadRequest:
        raise RequestError("an event name must have 1 to 200 characters, and no control characters") from None


def parse_publish(rest: bytes) -> tuple[dict[str, str], bytes]:
    """Return the headers that the options of `publish` set, and the arguments after them; raise RequestError."""
    found: dict[str, str] = {}
    while rest.startswith(b"--"):
        word, _, behind = rest.partition(b" ")
        option, equals, value = word.partition(b"=")
        header = _OF_PUBLISH.get(option)
        if header is None or not equals:  # it is an event
            break
        found[header] = text_of(value)
        rest = behind
    if found:
        _check_publish(found)
    return found, rest


def _check_publish(found: dict[str, str]) -> None:
    if orders.REPLACE_MAX in found:
        found[orders.REPLACE_MAX] = str(round(1000 * _seconds("--replace-max", found[orders.REPLACE_MAX])))
    try:
        if orders.PRIORITY in found:
            orders.parse_priority(found[orders.PRIORITY])
        if headers.KEY in found:
            headers.check_key(found[headers.KEY])
        orders.check_names(found)
    except ValueError as error:
        raise RequestError(f"bad option of publish: {error}") from None


def parse_consume(rest: bytes, window_max: int) -> Consume:
    """Parse the arguments of `consume`; raise RequestError."""
    words = text_of(rest).split()
    sections: dict[str, list[str]] = {_REPLACE: []}
    section = _REPLACE
    unused: Unused | None = None
    manual_ack = False
    window: int | None = None
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not word.startswith("--"):
            sections[section].append(event_of(word))
        elif word == _ADD:
            section = _ADD
            sections.setdefault(_ADD, [])
        elif word == _MANUAL_ACK:
            manual_ack = True
        elif word == _UNUSED:
            unused = Unused.after(0)
        elif name == _UNUSED and equals:
            unused = Unused.after(_seconds(_UNUSED, value))
        elif name == _WINDOW and equals:
            window = _window(value, window_max)
        else:
            raise RequestError(f"unknown option of consume; options: {_ADD}, {_MANUAL_ACK}, {_UNUSED}, {_WINDOW}")
    return Consume(_queue_in(words), _binding(sections), unused, manual_ack, window)


def parse_rebind(rest: bytes) -> Rebind:
    """Parse the arguments of `rebind`; raise RequestError."""
    words = text_of(rest).split()
    sections: dict[str, list[str]] = {_REPLACE: []}
    section = _REPLACE
    for word in words[1:]:
        if not word.startswith("--"):
            sections[section].append(event_of(word))
        elif word in (_ADD, _REMOVE, _REMOVE_MASK):
            section = word
            sections.setdefault(section, [])
        else:
            raise RequestError(f"unknown option of rebind; options: {_ADD}, {_REMOVE}, {_REMOVE_MASK}")
    if not any(sections.values()):
        raise RequestError("rebind needs at least one event")
    return Rebind(_queue_in(words), _binding(sections))


def parse_settle(rest: bytes) -> tuple[bytes, bytes]:
    """Return the consumer and the message (or `ALL`) in the arguments of `ack` or `reject`; raise RequestError."""
    words = rest.split()
    if len(words) != 2:
        raise RequestError("the arguments must be {consumer_id} {msg_id}, or {consumer_id} --all")
    return words[0], words[1]


def only_word(rest: bytes, what: str) -> bytes:
    """Return the only argument of an action; raise RequestError."""
    words = rest.split()
    if len(words) != 1:
        raise RequestError(f"the argument must be one {what}")
    return words[0]


def _queue_in(words: list[str]) -> QueueName:
    if not words:
        raise RequestError("the queue is missing")
    return queue_of(words[0])


def _binding(sections: Mapping[str, Iterable[str]]) -> Binding:
    replace = frozenset(sections[_REPLACE])
    return Binding(
        replace or None,
        frozenset(sections.get(_REMOVE, ())),
        tuple(sections.get(_REMOVE_MASK, ())),
        frozenset(sections.get(_ADD, ())),
    )


def _seconds(option: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= UNUSED_S_MAX:
        raise RequestError(f"{option} must be a number of seconds from 0 to {UNUSED_S_MAX}")
    return seconds


def _window(text: str, most: int) -> int:
    window = int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else 0
    if not window:
        raise RequestError(f"{_WINDOW} must be a whole number from 1")
    return min(window, most)
