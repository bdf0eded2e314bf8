"""Messages that an undo brings back: it has found them in the log, settled, and they are written again at its end.

A message that returns is a copy with its seq and its id, like the cleaner's, which is pending again in one group.
So neither the log nor recovery needs anything new for it. The messages are written in pieces, between publishes, each
into the room that there is at that moment: nothing is cleaned for them, and no group skips messages for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from curbstone.core.engine.commit.unique_names import give_names_back, names_bytes
from curbstone.core.engine.compaction.relocate import Copy
from curbstone.core.engine.index.copies import CopyBatch
from curbstone.core.engine.log.commit import Segment
from curbstone.core.engine.log.format import BATCH_BYTES, TriesRecord, entry_bytes, runs_of, settled_bytes
from curbstone.core.engine.log.room import RELEASE_BYTES, RETRY_BYTES, Room
from curbstone.core.engine.parts import Parts
from curbstone.core.errors import CurbstoneError, QueueFull
from curbstone.core.message import Message
from curbstone.core.values import Counted

PIECE_BYTES_MAX = 128 * 1024
HEADS_BYTES = 2 * BATCH_BYTES
"""What a batch takes beside its messages: its head, notes, and the heads of its lists."""


class Restore:
    """Messages that return in one group. Implements `engine.compaction.relocate.CopySource`."""

    def __init__(self, parts: Parts, group: str, messages: list[Message], on_done: Counted) -> None:
        """`messages` must be in the order of their seqs. `on_done(error, how many returned)` is called once."""
        self._parts = parts
        self._group = group
        self._left = deque(messages)
        self._piece: list[Message] = []
        """The messages in the commit that is being made or under way."""
        self._restored = 0
        self._on_done = on_done
        self._stopped: CurbstoneError | None = None
        self._after: list[Callable[[], None]] = []
        self.is_over = False

    def next(self, taken_bytes: int) -> Copy | None:
        """Return what the next batch copies. The restore ends if not even one message has room."""
        if self.is_over:
            return None
        index, room = self._parts.index, self._parts.log.room
        left, size = self._left, HEADS_BYTES + taken_bytes
        most = min(PIECE_BYTES_MAX, room.segment_bytes // 2)
        piece = self._piece = []
        while left:
            message = left[0]
            if index.is_pending(self._group, message.seq):
                left.popleft()
                continue
            if piece and message.seq - piece[0].seq >= 1 << 32:
                break
            size += entry_bytes(message) + RELEASE_BYTES + RETRY_BYTES
            size += settled_bytes("", 1) * index.entitled_count(message) + names_bytes(self._parts, [message])
            if not _fits(room, size) or (piece and size > most):
                break
            piece.append(left.popleft())
        if not piece:
            full = QueueFull(f"queue {self._parts.state.name} {self._parts.log.fullness}")
            self._end(full if left else None)
            return None
        give_names_back(self._parts, piece)
        runs = runs_of([message.seq for message in piece])  # they count as never tried
        tries = [TriesRecord(self._group, first, span, 0, 0) for first, span in runs]
        return Copy(piece, [], False, tries, self._group)

    def written(self, segment: Segment, start: int, end: int) -> None:
        self._parts.index.revive(self._group, self._piece, CopyBatch(segment, start, end))
        self._parts.state.stats.undone += len(self._piece)
        self._parts.wakeups.wake(self._group)
        self._restored += len(self._piece)
        self._piece = []
        if not self._left:
            self._end(None)

    def failed(self, error: CurbstoneError) -> None:
        self._piece = []
        self._end(error)

    def stop(self, error: CurbstoneError, then: Callable[[], None]) -> None:
        """Bring back no more than the piece under way, end with this error, then call `then`."""
        self._left.clear()
        self._stopped = error
        self._after.append(then)
        if not self._piece:
            self._end(None)

    def _end(self, error: CurbstoneError | None) -> None:
        """All messages have returned, or no more will."""
        if self.is_over:
            return
        self._left.clear()
        self.is_over = True
        self._parts.wakeups.schedule()  # the writer forgets it in the queue's next turn
        self._on_done(error or self._stopped, self._restored)
        for then in self._after:
            then()


def _fits(room: Room, size: int) -> bool:
    if size <= room.segment_bytes:
        return size <= room.publish_left - room.promised
    return room.admits(size)
