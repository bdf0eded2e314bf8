"""The event masks of `rebind --remove-mask`, matched without regular expressions, and all masks at once.

A mask matches only events with dots in them, and it must match the whole name. `*` stands for any run of characters
without dots, including none: `user.*.connected` matches `user.123.connected`, but `e3.*` does not match `e3.1.u`.

The masks of a request form one tree of their parts, so an event is looked up in all of them at once. Only parts like
`ab*` must be tried one by one, for a bounded time. Most of them are ruled out by one comparison: their longest piece is
not in the event.
"""

from __future__ import annotations

from collections.abc import Iterable

from curbstone.mqks.errors import RequestError

TRIES_MAX = 35_000
"""How many tries of parts like `ab*` one request may cost: two or three ms."""
LOOK_TRIES = 5
"""How many tries one comparison of all pieces counts as."""

Tail = list[str]
"""The remaining parts of a mask, the next part last."""


class _Node:
    """A node of the tree: the possible next parts after the same first parts of some masks."""

    __slots__ = ("exact", "is_end", "patterns", "whatever")

    def __init__(self, tails: Iterable[Tail]) -> None:
        self.exact: dict[str, _Branch] = {}
        self.whatever: _Branch | None = None
        self.patterns: dict[str, tuple[str, list[str], _Branch]] = {}
        """For each part like `ab*`: its longest piece, all its pieces, and the branch after it."""
        self.is_end = False
        for tail in tails:
            if tail:
                self._below(tail.pop()).tails.append(tail)
            else:
                self.is_end = True

    def _below(self, part: str) -> _Branch:
        """Return the branch for the next part of a mask, created if needed."""
        if "*" not in part:
            branch = self.exact.get(part)
            if branch is None:
                branch = self.exact[part] = _Branch()
            return branch
        if not part.strip("*"):
            self.whatever = self.whatever or _Branch()
            return self.whatever
        if part not in self.patterns:
            pieces = part.split("*")
            self.patterns[part] = (max(pieces, key=len), pieces, _Branch())
        return self.patterns[part][2]


class _Branch:
    """A branch to a node. The node is created when an event first reaches it; a bad request reaches few."""

    __slots__ = ("_node", "tails")

    def __init__(self) -> None:
        self.tails: list[Tail] = []
        self._node: _Node | None = None

    def node(self) -> _Node:
        """Return the node. After that, no more tails may be added."""
        if self._node is None:
            self._node = _Node(self.tails)
        return self._node


class EventPatterns:
    """The masks of one request. `tries` counts their cost."""

    def __init__(self, masks: Iterable[str]) -> None:
        self._root = _Node(mask.split(".")[::-1] for mask in masks)
        self.tries = 0

    def take(self, event: str) -> bool:
        """Return whether one of the masks matches the event; raise RequestError if that has cost too much."""
        if "." not in event:
            return False
        nodes = [self._root]
        for part in event.split("."):
            found: list[_Branch] = []
            for node in nodes:
                if (same := node.exact.get(part)) is not None:
                    found.append(same)
                if node.whatever is not None:
                    found.append(node.whatever)
                if node.patterns:
                    likely = [(pieces, below) for longest, pieces, below in node.patterns.values() if longest in part]
                    self.tries += len(node.patterns) + LOOK_TRIES * len(likely)
                    if self.tries <= TRIES_MAX:
                        found += [below for pieces, below in likely if _matches(pieces, part)]
            self.tries += len(found)
            if self.tries > TRIES_MAX:
                raise RequestError("too many masks like ab* for this number of events; send fewer at once")
            if not found:
                return False
            nodes = [branch.node() for branch in found]
        return any([node.is_end for node in nodes])


def _matches(pieces: list[str], part: str) -> bool:
    """Match the text between two dots. Taking the leftmost match of each piece leaves the most for the rest."""
    first, *middles, last = pieces
    end = len(part) - len(last)
    place = len(first)
    if end < place or not part.startswith(first) or not part.endswith(last):
        return False
    for middle in middles:
        found = part.find(middle, place, end)
        if found < 0:
            return False
        place = found + len(middle)
    return True
