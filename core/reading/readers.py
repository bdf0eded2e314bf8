"""Whether two programs read as one group at once: each ack may say who reads, by an id of its own making.

The reader that came last has the group. One that comes back after another has taken over, or a new one that
is not as far as the group was acked, would miss what the other was given, so it is refused. The ids are kept in
memory only: after a restart the first reader that acks has the group, and two at once are noticed again. Up to where
the group was acked is in the log, so a reader with an old position is told at any time.
"""

from __future__ import annotations

from curbstone.core.errors import OtherReader

KNOWN_MAX = 16
"""Ids that are remembered of a group."""


class Readers:
    """Who reads as one declared group."""

    def __init__(self) -> None:
        self._ids: list[str] = []

    def ack(self, group: str, reader: str, seq: int, acked: int) -> None:
        """Note that a reader is done with everything up to `seq`, where the group was acked up to `acked` so far.

        Raise OtherReader where it does not have the group, and can't take it over.
        """
        if reader not in self._ids[-1:]:
            if reader in self._ids:
                raise OtherReader(f"another reader has taken over group {group}")
            if seq < acked:
                text = f"another reader of group {group} is done up to {acked}, this one up to {seq}"
                raise OtherReader(text, acked=acked)
            self._ids = [*self._ids[1 - KNOWN_MAX :], reader]
