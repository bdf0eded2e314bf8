"""The lag of a copy behind its server, by the server's replies to acknowledgements.

Only this machine's clock is used: a reply has the position at which the stream ends. Once the copy has reached that
position, it has everything that the server had when the acknowledgement was sent.
"""

from __future__ import annotations


class Lag:
    """See the module's docstring. Positions are those of one life."""

    def __init__(self) -> None:
        self.current_ms: int | None = None
        """When the copy had everything that the server had, for the last time; None for never."""
        self._end = 0
        self._awaited: tuple[int, int] | None = None
        """A position that the copy has not reached yet, and when the acknowledgement for it was sent."""

    def begin(self) -> None:
        """Begin a connection: positions of an earlier one may be of another life."""
        self._end = 0
        self._awaited = None

    def replied(self, end: int, sent_ms: int) -> None:
        """Report a reply, with the end of the server's stream, to an acknowledgement sent at `sent_ms`."""
        self._end = end
        if self._awaited is None:
            self._awaited = end, sent_ms

    def reached(self, durable: int) -> None:
        """Report the position up to which the copy is durable."""
        awaited = self._awaited
        if awaited is not None and durable >= awaited[0]:
            self.current_ms = awaited[1]
            self._awaited = None

    def behind_bytes(self, position: int) -> int:
        """Return the lag in bytes at the last reply."""
        return max(self._end - position, 0)
