"""Whether two programs read as one group at once: each ack may say who reads, by an id of its own making.

The reader that came last has the group. One that comes back after another has taken over, or a new one that
is not as far as another has acked, would miss what the other was given, so it is refused. Kept in memory only: after
a restart the first reader that acks has the group, and two at once are noticed again.
"""

from __future__ import annotations

from curbstone.core.errors import OtherReader

KNOWN_MAX = 16
"""Ids that are remembered of a group."""


class Readers:
    """Who reads as one declared group."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._up_to = 0

    def ack(self, group: str, reader: str, seq: int) -> None:
        """Note that a reader is done with everything up to `seq`.

        Raise OtherReader where it does not have the group, and can't take it over.
        """
        if reader not in self._ids[-1:]:
            if reader in self._ids:
                raise OtherReader(f"another reader has taken over group {group}")
            if self._ids and seq < self._up_to:
                raise OtherReader(f"another reader of group {group} is done up to {self._up_to}, this one up to {seq}")
            self._ids = [*self._ids[1 - KNOWN_MAX :], reader]
        self._up_to = max(self._up_to, seq)
