"""Masks: names of events with words that stand for other words. Pure, and without regular expressions.

The name of an event is words with dots between them. In a mask, the word `*` takes any one word, and `#` takes any
number of words, even none; `>` as the last word means the same as `#`. So `order.*.paid` takes `order.7.paid`, and
`order.#` takes `order` and `order.7.paid`. A `*` beside other characters, as in `a*`, is an ordinary character.

A mask is a row of states: state n means that its first n words, not counting `#`, were found. `#` lets the state before
it stay for any word. The states of many masks are the bits of one whole number, a block, so each word of an event moves
all of them with a few operations. Whatever the masks are, an event costs at most its number of words times the number
of blocks, about half a microsecond for each.
"""

from __future__ import annotations

from curbstone.core.errors import BadRequest
from curbstone.core.names import event_name

ANY_WORD, ANY_WORDS, THE_REST = "*", "#", ">"
_WILD = (ANY_WORD, ANY_WORDS)
BLOCK_STATES_MAX = 2048
"""The most states of a block. Each of its words has a number of so many bits, so this also bounds the memory."""


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


class _Block:
    """Some masks, whose states are the bits of whole numbers."""

    __slots__ = ("_begin", "_end", "_firsts", "_moves", "_stay", "free", "live", "masks")

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.masks: dict[int, str] = {}
        """Each mask by its last state. Two may mean the same, such as `a.#` and `a.>`."""
        self.free = 0
        """The first state that no mask has."""
        self.live = 0
        """How many of the states below `free` belong to a mask that was not removed."""
        self._firsts: dict[str, int] = {}
        """The first state of each mask."""
        self._moves: dict[str, int] = {}
        """By word, the states from which it leads to the next one; by `*`, those from which every word does."""
        self._begin = self._stay = self._end = 0
        """The first states, those that stay for any word, and the last states, of all masks."""

    def add(self, mask: str) -> None:
        state = self._firsts[mask] = self.free
        self._begin |= 1 << state
        found: dict[str, int] = {}
        for word in _words(mask):
            found[word] = found.get(word, 0) | 1 << state
            state += word != ANY_WORDS
        self._stay |= found.pop(ANY_WORDS, 0)
        for word, states in found.items():
            self._moves[word] = self._moves.get(word, 0) | states
        self._end |= 1 << state
        self.masks[state] = mask
        self.live += state + 1 - self.free
        self.free = state + 1

    def remove(self, mask: str) -> None:
        """Remove a mask. When most states belong to removed masks, lay out the others anew."""
        first = self._firsts.pop(mask)
        words = [word for word in _words(mask) if word != ANY_WORDS]
        state = first + len(words)
        rest = ~((1 << state + 1) - (1 << first))
        for word in set(words):
            self._moves[word] &= rest
            if not self._moves[word]:
                del self._moves[word]
        del self.masks[state]
        self._begin, self._stay, self._end = self._begin & rest, self._stay & rest, self._end & rest
        self.live -= state + 1 - first
        if 2 * self.live < self.free:
            masks = list(self.masks.values())
            self._clear()
            for each in masks:
                self.add(each)

    def taking(self, words: list[str]) -> list[str]:
        """Return the masks that take these words."""
        any_word = self._moves.get(ANY_WORD, 0)
        states = self._begin
        for word in words:
            states = ((states & (self._moves.get(word, 0) | any_word)) << 1) | (states & self._stay)
            if not states:
                return []
        found, ends = [], states & self._end
        while ends:
            last = ends & -ends
            found.append(self.masks[last.bit_length() - 1])
            ends ^= last
        return found


class Masks:
    """A set of masks that finds those which match an event."""

    def __init__(self) -> None:
        self._blocks: dict[_Block, None] = {}
        self._with_free: dict[_Block, None] = {}
        """Those of the blocks that may have room for another mask."""
        self._block_of: dict[str, _Block] = {}

    def __bool__(self) -> bool:
        return bool(self._block_of)

    def add(self, mask: str) -> None:
        block = self._block_of[mask] = self._with_room(len(mask.split(".")) + 1)
        block.add(mask)

    def _with_room(self, states: int) -> _Block:
        """Return a block that has room for a mask of so many states."""
        while self._with_free:
            block = next(reversed(self._with_free))
            if block.free + states <= BLOCK_STATES_MAX:
                return block
            del self._with_free[block]
        block = _Block()
        self._blocks[block] = self._with_free[block] = None
        return block

    def remove(self, mask: str) -> None:
        block = self._block_of.pop(mask)
        block.remove(mask)
        self._with_free[block] = None
        if not block.masks:
            del self._blocks[block], self._with_free[block]

    def taking(self, event: str) -> list[str]:
        """Return the masks that take an event, each once."""
        words = event.split(".")
        return [mask for block in self._blocks for mask in block.taking(words)]
