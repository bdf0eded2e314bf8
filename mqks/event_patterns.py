"""Event masks of `rebind --remove-mask`. Pure; no regular expression, and no product of masks and events.

A mask works only for events with dots. It must match the whole name; `*` stands for any run of characters, also
none, but for dots: `user.*.connected` takes `user.123.connected`, and `e3.*` does not take `e3.1.u`.

The masks of a request become one tree of their parts, so an event is looked up in all of them at once. Only parts
like `ab*` must be tried one by one; how often is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable

from curbstone.mqks.errors import RequestError

TRIES_MAX = 10_000
"""How often, in one request, a part of an event may be tried for a `*` beside other characters."""


class _Node:
    """What may follow the same parts of some masks."""

    __slots__ = ("exact", "is_end", "patterns", "whatever")

    def __init__(self) -> None:
        self.exact: dict[str, _Node] = {}
        self.whatever: _Node | None = None
        self.patterns: dict[str, tuple[list[str], _Node]] = {}
        self.is_end = False


class EventPatterns:
    """The masks of one request. `tries` counts what they cost."""

    def __init__(self, masks: Iterable[str]) -> None:
        self._root = _Node()
        self.tries = 0
        for mask in masks:
            node = self._root
            for part in mask.split("."):
                node = _below(node, part)
            node.is_end = True

    def take(self, event: str) -> bool:
        """Return whether one of the masks takes the event; raise RequestError where too much was tried."""
        if "." not in event:
            return False
        nodes = [self._root]
        for part in event.split("."):
            found: list[_Node] = []
            for node in nodes:
                if (same := node.exact.get(part)) is not None:
                    found.append(same)
                if node.whatever is not None:
                    found.append(node.whatever)
                if node.patterns:
                    found += [below for pieces, below in node.patterns.values() if _matches(pieces, part)]
                    self.tries += len(node.patterns)
            self.tries += len(found)
            if self.tries > TRIES_MAX:
                raise RequestError("too many masks like ab* for so many events; send fewer of them at once")
            if not found:
                return False
            nodes = found
        return any([node.is_end for node in nodes])


def _below(node: _Node, part: str) -> _Node:
    """Return the node for the next part of a mask, made if need be."""
    if "*" not in part:
        return node.exact.setdefault(part, _Node())
    if not part.strip("*"):
        node.whatever = node.whatever or _Node()
        return node.whatever
    if part not in node.patterns:
        node.patterns[part] = (part.split("*"), _Node())
    return node.patterns[part][1]


def _matches(pieces: list[str], part: str) -> bool:
    """Match what stands between two dots. The leftmost place for each piece leaves most to the rest."""
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
