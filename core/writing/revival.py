"""Messages that come back: an undo has found them in the log, settled, and they are written again at its end.

A message that comes back is a copy like one of the cleaner's, with its seq and its id, that is pending again in one
group. So the log needs no word of its own for it, and recovery none either. They are written in pieces, between
publishes, each into the room that there is at that moment: nothing is cleaned for them, and nobody gives way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from curbstone.core.errors import CurbstoneError
from curbstone.core.log.format import BATCH_BYTES, Released, entry_bytes, runs_of, settled_bytes
from curbstone.core.log.room import RELEASE_BYTES, RETRY_BYTES, Room
from curbstone.core.message import Message
from curbstone.core.pending.pending import Pending

PIECE_BYTES_MAX = 128 * 1024
HEADS_BYTES = 2 * BATCH_BYTES
"""Beside the messages: the batch's head, notes, and the heads of its lists."""


class Revival:
    """What comes back in one group; `on_done(error, how many did)` once."""

    def __init__(
        self, group: str, messages: list[Message], on_done: Callable[[CurbstoneError | None, int], None]
    ) -> None:
        """`messages` are in the order of their seqs."""
        self.group = group
        self.restored = 0
        self.piece: list[Message] = []
        """What is in the commit that is made or under way."""
        self._left = deque(messages)
        self._on_done = on_done
        self._stopped: CurbstoneError | None = None
        self._after: list[Callable[[], None]] = []

    @property
    def is_over(self) -> bool:
        """Whether all have come back."""
        return not self._left and not self.piece

    def take(self, pending: Pending, room: Room, said_bytes: int) -> bool:
        """Take the next piece; False where not even one message has room. `said_bytes` are in its batch already."""
        left, size = self._left, HEADS_BYTES + said_bytes
        most = min(PIECE_BYTES_MAX, room.segment_bytes // 2)
        piece: list[Message] = []
        while left:
            message = left[0]
            if pending.is_pending(self.group, message.seq):
                left.popleft()
                continue
            if piece and message.seq - piece[0].seq >= 1 << 32:
                break
            size += entry_bytes(message) + RELEASE_BYTES + RETRY_BYTES
            size += settled_bytes("", 1) * pending.entitled_count(message)
            if not _fits(room, size) or (piece and size > most):
                break
            piece.append(left.popleft())
        self.piece = piece
        return bool(piece) or not left

    def records(self) -> list[Released]:
        """Return what is written of the tries of the piece: there were none."""
        return [
            Released(self.group, first, span, 0, 0) for first, span in runs_of([message.seq for message in self.piece])
        ]

    def written(self) -> int:
        """The piece is on disk: return how many messages it had."""
        count = len(self.piece)
        self.restored += count
        self.piece = []
        return count

    def stop(self, error: CurbstoneError, then: Callable[[], None]) -> None:
        """No more come back than the piece under way: end with this error, and call `then`."""
        self._left.clear()
        self._stopped = error
        self._after.append(then)

    def end(self, error: CurbstoneError | None) -> None:
        """All have come back, or no more will."""
        self._on_done(error or self._stopped, self.restored)
        for then in self._after:
            then()


def _fits(room: Room, size: int) -> bool:
    if size <= room.segment_bytes:
        return size <= room.publish_left - room.promised
    return room.admits(size)
