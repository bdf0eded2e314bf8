"""Messages that an undo brings back: it has found them in the log, settled, and they are written again at its end.

A message that comes back is a copy with its seq and its id, like the cleaner's, which is pending again in one group.
So neither the log nor recovery needs anything new for it. The messages are written in pieces, between publishes, each
into the room that there is at that moment: nothing is cleaned for them, and no group skips messages for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from curbstone.core.engine.index.index import Index
from curbstone.core.engine.log.format import BATCH_BYTES, TriesRecord, entry_bytes, runs_of, settled_bytes
from curbstone.core.engine.log.room import RELEASE_BYTES, RETRY_BYTES, Room
from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Message

PIECE_BYTES_MAX = 128 * 1024
HEADS_BYTES = 2 * BATCH_BYTES
"""What a batch takes beside its messages: its head, notes, and the heads of its lists."""


class Restore:
    """The messages that come back in one group; `on_done(error, how many came back)` is called once."""

    def __init__(
        self, group: str, messages: list[Message], on_done: Callable[[CurbstoneError | None, int], None]
    ) -> None:
        """`messages` must be in the order of their seqs."""
        self.group = group
        self.restored = 0
        self.piece: list[Message] = []
        """The messages in the commit that is being made or under way."""
        self._left = deque(messages)
        self._on_done = on_done
        self._stopped: CurbstoneError | None = None
        self._after: list[Callable[[], None]] = []

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to write."""
        return not self._left and not self.piece

    def take(self, index: Index, room: Room, said_bytes: int) -> bool:
        """Take the next piece; return False if not even one message has room.

        `said_bytes` is what the records take that its batch has already.
        """
        left, size = self._left, HEADS_BYTES + said_bytes
        most = min(PIECE_BYTES_MAX, room.segment_bytes // 2)
        piece: list[Message] = []
        while left:
            message = left[0]
            if index.is_pending(self.group, message.seq):
                left.popleft()
                continue
            if piece and message.seq - piece[0].seq >= 1 << 32:
                break
            size += entry_bytes(message) + RELEASE_BYTES + RETRY_BYTES
            size += settled_bytes("", 1) * index.entitled_count(message)
            if not _fits(room, size) or (piece and size > most):
                break
            piece.append(left.popleft())
        self.piece = piece
        return bool(piece) or not left

    def records(self) -> list[TriesRecord]:
        """Return the records of tries for the piece: its messages count as never tried."""
        return [
            TriesRecord(self.group, first, span, 0, 0)
            for first, span in runs_of([message.seq for message in self.piece])
        ]

    def written(self) -> int:
        """The piece is on disk: return how many messages it had."""
        count = len(self.piece)
        self.restored += count
        self.piece = []
        return count

    def stop(self, error: CurbstoneError, then: Callable[[], None]) -> None:
        """Bring back no more than the piece under way; `end` then reports this error, and calls `then`."""
        self._left.clear()
        self._stopped = error
        self._after.append(then)

    def end(self, error: CurbstoneError | None) -> None:
        """All messages have come back, or no more will: tell whoever asked for the undo."""
        self._on_done(error or self._stopped, self.restored)
        for then in self._after:
            then()


def _fits(room: Room, size: int) -> bool:
    if size <= room.segment_bytes:
        return size <= room.publish_left - room.promised
    return room.admits(size)
