"""Rights and grants. Pure.

A grant is `rights pattern`, as in `receive,peek shop/orders*`. The pattern is `project/queue`, `topic:project/event` or
`server`. `*` stands for any run of characters in a project, queue or event, and the whole name must match. There are no
denials, so the order of grants does not matter. A project that begins with `_` matches only patterns that begin with
`_`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import reduce
from operator import or_
from typing import NamedTuple

from curbstone.core.names import QueueName


class Right(IntEnum):
    """A set of rights is the sum of its members."""

    SEND = 1
    RECEIVE = 2
    PEEK = 4
    MANAGE = 8
    METRICS = 16
    ADMIN = 32
    REPLICATE = 64

    @property
    def word(self) -> str:
        """The name of the right in grants and messages."""
        return self.name.lower()


ON_QUEUES = Right.SEND | Right.RECEIVE | Right.PEEK | Right.MANAGE
ON_TOPICS = Right.SEND | Right.RECEIVE
ON_SERVER = Right.METRICS | Right.ADMIN | Right.REPLICATE

SERVER = "server"
USER = "{user}"
"""Stands for the name of the user in a grant."""

_TOPIC = "topic:"
_ANY_WORDS_MAX = 4
_ANY = "\0"
_PROJECT = re.compile(r"[A-Za-z0-9_*-]{1,64}")
_QUEUE = re.compile(r"[A-Za-z0-9._:*-]{1,200}")
_EVENT = re.compile(r"[^\s\x00-\x1f\x7f]{1,200}")


class BadGrant(ValueError):
    """A grant is not valid."""


class Grant(NamedTuple):
    """Rights on all names that match."""

    rights: int
    kind: str
    """`queue`, `topic` or `server`."""
    parts: tuple[str, ...]
    """The pattern of the project, and that of the queue or event."""

    def covers(self, names: Sequence[str]) -> bool:
        """Return whether a project and a name in it match."""
        parts = self.parts
        return len(parts) == len(names) and self.covers_project(names[0]) and all(map(matches, parts[1:], names[1:]))

    def covers_project(self, project: str) -> bool:
        """Return whether a project matches."""
        pattern = self.parts[0]
        return (pattern.startswith("_") or not project.startswith("_")) and matches(pattern, project)


def matches(pattern: str, name: str) -> bool:
    """Return whether a whole name matches a pattern. Each piece between stars is searched once, left to right."""
    first, *pieces = pattern.split("*")
    if not pieces:
        return pattern == name
    last = pieces.pop()
    at, end = len(first), len(name) - len(last)
    if at > end or not name.startswith(first) or not name.endswith(last):
        return False
    for piece in pieces:
        found = name.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def names_to_cover(event: str) -> list[str]:
    """Return the names that grants must cover to allow a binding to an event or mask.

    For a single event this is its name. In a mask, `*` and `#` stand for any words, which only the `*` of a grant
    covers, so they are replaced by a character that no name has. `#` may also stand for no word, so the mask without it
    must be covered as well.
    """
    words = event.split(".")
    if words[-1] == ">":
        words[-1] = "#"
    places = [place for place, word in enumerate(words) if word == "#"]
    words = [_ANY if word in ("*", "#") else word for word in words]
    if len(places) > _ANY_WORDS_MAX:
        return [event, ""]  # no grant covers the empty name
    found = []
    for chosen in range(1 << len(places)):
        left_out = {place for bit, place in enumerate(places) if chosen >> bit & 1}
        found.append(".".join([word for place, word in enumerate(words) if place not in left_out]))
    return [name for name in found if name]


def parse_grant(text: str, user: str = "") -> Grant:
    """Return the grant in a text, in which `{user}` is replaced by `user`. Raise BadGrant."""
    words = text.split()
    if len(words) != 2:
        raise BadGrant(f"bad grant {text[:120]!r}: expected rights and a pattern, as in 'send,peek shop/orders*'")
    rights = _rights_in(words[0], text)
    kind, pattern, allowed = "queue", words[1], ON_QUEUES
    if pattern == SERVER:
        kind, allowed = SERVER, ON_SERVER
    elif pattern.startswith(_TOPIC):
        kind, pattern, allowed = "topic", pattern.removeprefix(_TOPIC), ON_TOPICS
    if rights & ~allowed:
        wrong = next(right.word for right in Right if right & rights & ~allowed)
        raise BadGrant(f"bad grant {text[:120]!r}: the right {wrong} does not apply to {_KINDS[kind]}")
    if kind != SERVER:
        _check_pattern(kind, pattern.replace(USER, "x"), text)
    return Grant(rights, kind, tuple(pattern.replace(USER, user or USER).split("/", 1 if kind == "topic" else -1)))


_KINDS = {"queue": "a queue", "topic": "a topic", "server": "the server"}


def _rights_in(words: str, text: str) -> int:
    rights = 0
    for word in words.split(","):
        right = next((right for right in Right if right.word == word), None)
        if right is None:
            known = ", ".join(each.word for each in Right)
            raise BadGrant(f"bad grant {text[:120]!r}: unknown right {word[:40]!r}; the rights are {known}")
        rights |= right
    return rights


def _check_pattern(kind: str, pattern: str, text: str) -> None:
    project, slash, name = pattern.partition("/")
    rule = _EVENT if kind == "topic" else _QUEUE
    if not slash or not _PROJECT.fullmatch(project) or not rule.fullmatch(name):
        raise BadGrant(f"bad grant {text[:120]!r}: expected the pattern project/queue, topic:project/event or server")


class Grants:
    """A collection of grants, which gives all rights that any of them gives."""

    def __init__(self, grants: Iterable[Grant]) -> None:
        self.all = tuple(grants)
        self.on_server = self._sum("server", ("server",))

    @classmethod
    def parse(cls, texts: Iterable[str], user: str = "") -> Grants:
        """Return the grants of these texts; raise BadGrant."""
        return cls([parse_grant(text, user) for text in texts])

    @property
    def is_admin(self) -> bool:
        """Whether they give all rights."""
        return bool(self.on_server & Right.ADMIN)

    def on_queue(self, name: QueueName) -> int:
        return ON_QUEUES if self.is_admin else self._sum("queue", name)

    def in_project(self, project: str) -> int:
        """Return the union of the rights on all queues of a project."""
        grants = (each for each in self.all if each.kind == "queue" and each.covers_project(project))
        return ON_QUEUES if self.is_admin else reduce(or_, (each.rights for each in grants), 0)

    def on_topic(self, project: str, event: str) -> int:
        return ON_TOPICS if self.is_admin else self._sum("topic", (project, event))

    def on_server_all(self) -> int:
        """Return the rights on the server, with those that an administrator has implicitly."""
        return ON_SERVER if self.is_admin else self.on_server

    def _sum(self, kind: str, names: Sequence[str]) -> int:
        rights = 0
        for grant in self.all:
            if grant.kind == kind and (grant.rights | rights) != rights and grant.covers(names):
                rights |= grant.rights
        return rights


EVERYTHING = Grants([Grant(int(Right.ADMIN), SERVER, (SERVER,))])
"""The grants of an administrator."""
