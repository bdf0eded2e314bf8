"""Masks: names of events with words that stand for other words. Pure, and without regular expressions.

The name of an event is words with dots between them. In a mask, the word `*` takes any one word, and `#` takes any
number of words, even none; `>` as the last word means the same as `#`. So `order.*.paid` takes `order.7.paid`, and
`order.#` takes `order` and `order.7.paid`. A `*` beside other characters, as in `a*`, is an ordinary character.

All masks form one tree of their words. An event is matched by walking through the tree with a set of places, so it
costs at most its number of words times the number of places in the tree, whatever the masks are.
"""

from __future__ import annotations

from curbstone.core.errors import BadRequest
from curbstone.core.names import event_name

ANY_WORD, ANY_WORDS, THE_REST = "*", "#", ">"
_WILD = (ANY_WORD, ANY_WORDS)


def is_mask(event: str) -> bool:
    """Return whether a word of this name stands for other words."""
    return any(word in _WILD for word in event.split(".")) or event.rpartition(".")[2] == THE_REST


def published_event(text: str) -> str:
    """Return a name that messages can be published to; raise BadRequest if it is bad or a mask."""
    if is_mask(event_name(text)):
        raise BadRequest(f"bad event name {text[:80]!r}: a mask is for binding queues; messages go to one event")
    return text


def _words(mask: str) -> list[str]:
    words = mask.split(".")
    if words[-1] == THE_REST:
        words[-1] = ANY_WORDS
    return words


class _Place:
    """A place in the tree, reached by the words that some masks begin with."""

    __slots__ = ("below", "masks", "takes_more")

    def __init__(self, word: str = "") -> None:
        self.below: dict[str, _Place] = {}
        self.masks: dict[str, None] = {}
        """The masks that end here. Two may mean the same, such as `a.#` and `a.>`."""
        self.takes_more = word == ANY_WORDS
        """Whether the walk may stay here for any number of words."""


class Masks:
    """A set of masks that can tell which of them take an event."""

    def __init__(self) -> None:
        self._root = _Place()

    def __bool__(self) -> bool:
        return bool(self._root.below)

    def add(self, mask: str) -> None:
        """Add a mask."""
        place = self._root
        for word in _words(mask):
            place = place.below.setdefault(word, _Place(word))
        place.masks[mask] = None

    def remove(self, mask: str) -> None:
        """Remove a mask, which must be in the set."""
        words = _words(mask)
        path = [self._root]
        for word in words:
            path.append(path[-1].below[word])
        del path[-1].masks[mask]
        while words and not path[-1].masks and not path[-1].below:
            path.pop()
            del path[-1].below[words.pop()]

    def taking(self, event: str) -> list[str]:
        """Return the masks that take an event, each once."""
        places = _and_those_behind_nothing([self._root])
        for word in event.split("."):
            found = [place for place in places if place.takes_more]
            for place in places:
                found += [place.below[name] for name in (word, ANY_WORD) if name in place.below]
            places = _and_those_behind_nothing(found)
        return [mask for place in places for mask in place.masks]


def _and_those_behind_nothing(places: list[_Place]) -> list[_Place]:
    """Return these places, and those that follow them by a `#` that takes no word, each once."""
    found: dict[_Place, None] = {}
    while places:
        place = places.pop()
        if place not in found:
            found[place] = None
            if ANY_WORDS in place.below:
                places.append(place.below[ANY_WORDS])
    return list(found)
