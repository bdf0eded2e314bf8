"""What was confirmed in an asynchronous run, and how far a standby has to be so that it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

Mark = tuple[int, int]
"""The number of a life, and a position in its stream."""
FROM_THE_START: Mark = -1, 0


class Marked(set[int]):
    """Tokens, each with the mark that was reported when it was confirmed."""

    def __init__(self, mark: Callable[[], Mark]) -> None:
        """`mark` returns the highest mark that was reported."""
        super().__init__()
        self._mark = mark
        self.marks: dict[int, Mark] = {}

    def add(self, token: int) -> None:
        self.marks[token] = self._mark()
        super().add(token)

    def update(self, *more: Iterable[int]) -> None:
        for token in (token for tokens in more for token in tokens):
            self.add(token)

    def __ior__(self, more: Set[int]) -> Marked:  # type: ignore[override, misc]
        self.update(more)
        return self

    def cut(self, mark: Mark) -> None:
        """Forget what was confirmed behind a mark. What is left counts from the beginning."""
        for token in [token for token in self if self.marks[token] > mark]:
            self.discard(token)
            del self.marks[token]
        self.marks = dict.fromkeys(self.marks, FROM_THE_START)
