"""Event masks of `rebind --remove-mask`. Pure; no regular expression, and no product of masks and events.

A mask works only for events with dots. It must match the whole name; `*` stands for any run of characters, also
none, but for dots: `user.*.connected` takes `user.123.connected`, and `e3.*` does not take `e3.1.u`.

The masks of a request become one tree of their parts, so an event is looked up in all of them at once. Only parts
like `ab*` must be tried one by one; how long that may take is bounded. Most are ruled out by one comparison: the
longest of their pieces is not in the event.
"""

from __future__ import annotations

from collections.abc import Iterable

from curbstone.mqks.errors import RequestError

TRIES_MAX = 35_000
"""How often, in one request, a part of an event may be tried for a `*` beside other characters: two or three ms."""
LOOK_TRIES = 5
"""As many tries as this costs one that compares all pieces."""

Tail = list[str]
"""What of a mask is left, the next part last."""


class _Node:
    """What may follow the same parts of some masks."""

    __slots__ = ("exact", "is_end", "patterns", "whatever")

    def __init__(self, tails: Iterable[Tail]) -> None:
        self.exact: dict[str, _Branch] = {}
        self.whatever: _Branch | None = None
        self.patterns: dict[str, tuple[str, list[str], _Branch]] = {}
        """For each part like `ab*`: its longest piece, all its pieces, and what may follow it."""
        self.is_end = False
        for tail in tails:
            if tail:
                self._below(tail.pop()).tails.append(tail)
            else:
                self.is_end = True

    def _below(self, part: str) -> _Branch:
        """Return the branch for the next part of a mask, made if need be."""
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
    """The way to a node, which is made when an event first gets there: most masks of a bad request never see one."""

    __slots__ = ("_node", "tails")

    def __init__(self) -> None:
        self.tails: list[Tail] = []
        self._node: _Node | None = None

    def node(self) -> _Node:
        """Return it; no more tails may come."""
        if self._node is None:
            self._node = _Node(self.tails)
        return self._node


class EventPatterns:
    """The masks of one request. `tries` counts what they cost."""

    def __init__(self, masks: Iterable[str]) -> None:
        self._root = _Node(mask.split(".")[::-1] for mask in masks)
        self.tries = 0

    def take(self, event: str) -> bool:
        """Return whether one of the masks takes the event; raise RequestError where too much was tried."""
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
                raise RequestError("too many masks like ab* for so many events; send fewer of them at once")
            if not found:
                return False
            nodes = [branch.node() for branch in found]
        return any([node.is_end for node in nodes])


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
