"""Notices when two programs read as one group at once: each ack may name its reader by an id of the reader's choice.

The reader that came last has the group. A reader that comes back after another has taken over is refused, and so is a
new one whose position is behind what the group was acked up to: both would miss what the other was given.

The ids are kept in memory only. After a restart the first reader that acks has the group, and two at once are noticed
again. The log says up to where a group was acked, so a reader with an old position is always refused.
"""

from __future__ import annotations

from curbstone.core.errors import OtherReader

KNOWN_MAX = 16
"""The most ids that are remembered for a group."""


class Fencing:
    """Who reads as one declared group."""

    def __init__(self) -> None:
        self._ids: list[str] = []

    def ack(self, group: str, reader: str, seq: int, acked: int) -> None:
        """Note that a reader is done with everything up to `seq`; so far the group was acked up to `acked`.

        Raise OtherReader if the reader neither has the group nor can take it over.
        """
        if reader not in self._ids[-1:]:
            if reader in self._ids:
                raise OtherReader(f"another reader has taken over group {group}")
            if seq < acked:
                text = f"another reader of group {group} is done up to {acked}, this one up to {seq}"
                raise OtherReader(text, acked=acked)
            self._ids = [*self._ids[1 - KNOWN_MAX :], reader]
