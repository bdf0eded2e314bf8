"""How far a copy is behind its server, by what the server replies to acknowledgements.

Only this machine's clock counts: when the server replied that its stream ends at a position, and the copy has reached
that position since, the copy has everything that the server had when that acknowledgement was sent.
"""

from __future__ import annotations


class Lag:
    """See the module's docstring. Positions are those of one life."""

    def __init__(self) -> None:
        self.current_ms: int | None = None
        """When the copy had everything that the server had, for the last time; None if it never had."""
        self._end = 0
        self._awaited: tuple[int, int] | None = None
        """A position that the copy has not reached, and when the acknowledgement was sent that was answered by it."""

    def begin(self) -> None:
        """A connection begins: positions of an earlier one may be those of another life."""
        self._end = 0
        self._awaited = None

    def replied(self, end: int, sent_ms: int) -> None:
        """The server's stream ended at `end` when it replied to an acknowledgement that was sent at this time."""
        self._end = end
        if self._awaited is None:
            self._awaited = end, sent_ms

    def reached(self, durable: int) -> None:
        """The copy has everything up to a position, durably."""
        awaited = self._awaited
        if awaited is not None and durable >= awaited[0]:
            self.current_ms = awaited[1]
            self._awaited = None

    def behind_bytes(self, position: int) -> int:
        """Return how much more the server had when it replied last."""
        return max(self._end - position, 0)
