"""The stream of one life of a server: all changes of its disk, in order, for its followers.

Frames are added on any thread. If a call has returned before another was made, its frame comes first: a call is made,
then its frame is added, then it returns. A sync has two frames. BEGIN is added before it starts and END when it has
returned, so a receiver syncs at the same time, and knows what must not be applied before its own sync is done.

Without receivers nothing is added. This is checked after a change was made, so a receiver that begins a copy at that
time finds the change on the disk.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from curbstone.standby.frames import PAYLOAD_BYTES_MAX, Kind, Sync, encode

KEPT_BYTES = 64 * 1024 * 1024
"""How much of the stream is kept for receivers that are disconnected or slow."""
FRAME_BYTES = 200
"""The memory overhead of a frame; most frames are shorter than that."""
ZEROS_BYTES_MIN = 4096
"""At least so many zeros at the end of a write are counted and not sent."""


class Cursor:
    """The position of one receiver in the stream, with its queue of frames."""

    def __init__(self, stream: Stream, position: int, wake: Callable[[bool], None]) -> None:
        """`wake` is called under the lock of the stream when frames are added; True: they should be sent at once."""
        self.position = position
        """The position before its first frame."""
        self.pending_bytes = 0
        self.is_cut_off = False
        """Whether it was too slow, or the stream was invalidated. It gets nothing more, and has to attach again."""
        self.renamed: Callable[[str, str], None] = lambda _old, _new: None
        """Called under the lock of the stream when a name was changed; for a copy that is being made."""
        self.removed: Callable[[str], None] = lambda _path: None
        self._stream = stream
        self._wake = wake
        self._pending: deque[tuple[list[bytes], int]] = deque()
        """Frames, with the memory that each takes; 0 for those that are not part of the stream."""
        self._behind_bytes = 0

    def put(self, buffers: list[bytes], size: int, *, is_urgent: bool, is_own: bool = False) -> None:
        """Add a frame of `size` bytes. Called under the lock of the stream."""
        if self.is_cut_off:
            return
        counted = 0 if is_own else size + FRAME_BYTES
        self._pending.append((buffers, counted))
        self.pending_bytes += size
        self._behind_bytes += counted
        if self._behind_bytes > self._stream.kept_bytes:
            self.cut_off()
        else:
            self._wake(is_urgent)

    def add_own(
        self, kind: Kind, path: str = "", a: int = 0, b: int = 0, payload: Sequence[bytes] = (), flag: int = 0
    ) -> None:
        """Add a frame for this receiver only."""
        buffers = encode(kind, path, a, b, payload, flag)
        with self._stream.lock:
            self.put(buffers, sum(map(len, buffers)), is_urgent=False, is_own=True)

    def cut_off(self) -> None:
        """Drop its frames and add no more. Called under the lock of the stream."""
        self.is_cut_off = True
        self._pending.clear()
        self.pending_bytes = self._behind_bytes = 0
        self._wake(True)

    def take(self, bytes_max: int) -> list[bytes]:
        """Take whole frames of about `bytes_max` bytes, at least one if there is any."""
        taken: list[bytes] = []
        with self._stream.lock:
            while self._pending and bytes_max > 0:
                buffers, counted = self._pending.popleft()
                size = sum(map(len, buffers))
                self.pending_bytes -= size
                self._behind_bytes -= counted
                bytes_max -= size
                taken += buffers
        return taken


class Stream:
    """See the module's docstring."""

    def __init__(self, wall_ms: Callable[[], int], kept_bytes: int = KEPT_BYTES) -> None:
        self.lock = threading.RLock()
        """Held while a frame is added, and while a name is changed."""
        self.life = secrets.randbits(63)
        """The id of this life; positions are only valid within one life."""
        self.kept_bytes = kept_bytes
        self.end = 0
        """The position after the last frame."""
        self.is_active = False
        """Whether frames are added."""
        self._is_required = False
        self._wall_ms = wall_ms
        self._first = 0
        """The position before the oldest frame that is kept."""
        self._kept: deque[tuple[int, list[bytes]]] = deque()
        """The latest frames, each with its size."""
        self._held_bytes = 0
        self._cursors: tuple[Cursor, ...] = ()
        self._detached_at = 0
        """The end of the stream when the last receiver was detached."""
        self._syncs = 0
        self._of_thread = threading.local()

    # --- receivers

    def activate(self) -> None:
        """Add frames from now on, also without receivers."""
        with self.lock:
            self._is_required = self.is_active = True

    def begin(self, wake: Callable[[bool], None]) -> Cursor:
        """Attach a receiver that gets all frames from now on. What exists already has to be copied."""
        with self.lock:
            self.is_active = True
            return self._attach(Cursor(self, self.end, wake))

    def resume(self, position: int, wake: Callable[[bool], None]) -> Cursor | None:
        """Attach a receiver that has everything up to a position. Return None if it can't resume there."""
        with self.lock:
            if not self.is_active or position < self._first:
                return None
            lacking: list[tuple[int, list[bytes]]] = []
            start = self.end
            for size, buffers in reversed(self._kept):
                if start <= position:
                    break
                start -= size
                lacking.append((size, buffers))
            if start != position:  # inside a frame, or of another life
                return None
            cursor = Cursor(self, position, wake)
            for size, buffers in reversed(lacking):
                cursor.put(buffers, size, is_urgent=False)
            return self._attach(cursor)

    def _attach(self, cursor: Cursor) -> Cursor:
        self._cursors += (cursor,)
        return cursor

    def detach(self, cursor: Cursor) -> None:
        """Detach a receiver. It may resume as long as the stream is kept from its position on."""
        with self.lock:
            self._cursors = tuple(each for each in self._cursors if each is not cursor)
            self._detached_at = self.end

    def invalidate(self) -> None:
        """Cut off every receiver, so that it compares: a call has failed, and its effect on the disk is unknown."""
        with self.lock:
            for cursor in self._cursors:
                cursor.cut_off()
            self._forget()

    def _forget(self) -> None:
        self._kept.clear()
        self._held_bytes = 0
        self.end += 1  # so that no receiver can resume here
        self._first = self.end

    # --- what changes the disk

    def add(
        self, kind: Kind, path: str = "", a: int = 0, b: int = 0, payload: Sequence[bytes] = (), flag: int = 0,
        *, is_urgent: bool = False,
    ) -> None:  # fmt: skip
        """Add a frame for every receiver, if the stream is active."""
        if not self.is_active:
            return
        buffers = encode(kind, path, a, b, payload, flag)
        size = sum(map(len, buffers))
        with self.lock:
            if not self.is_active:
                return
            self.end += size
            self._keep(buffers, size)
            for cursor in self._cursors:
                cursor.put(buffers, size, is_urgent=is_urgent)
            if kind is not Kind.END:
                self._of_thread.required_position = self.end

    def _keep(self, buffers: list[bytes], size: int) -> None:
        self._kept.append((size, buffers))
        self._held_bytes += size + FRAME_BYTES
        while self._held_bytes > self.kept_bytes:
            oldest, _ = self._kept.popleft()
            self._first += oldest
            self._held_bytes -= oldest + FRAME_BYTES
        if not self._cursors and not self._is_required and self._first > self._detached_at:
            self.is_active = False  # no receiver can resume any more
            self._forget()

    def add_time(self) -> None:
        self.add(Kind.TIME, a=self._wall_ms())

    def write(self, path: str, offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        """Add a write that was made. Zeros at its end are counted and not sent."""
        if not self.is_active:
            return
        pieces = [piece if type(piece) is bytes else bytes(piece) for piece in buffers if len(piece)]
        zeros = 0
        while pieces and len(pieces[-1]) >= ZEROS_BYTES_MIN and pieces[-1] == bytes(len(pieces[-1])):
            zeros += len(pieces.pop())
        if sum(map(len, pieces)) <= PAYLOAD_BYTES_MAX:
            self.add(Kind.WRITE, path, offset, zeros, pieces)
            return
        data = b"".join(pieces)
        for at in range(0, len(data), PAYLOAD_BYTES_MAX):
            piece = data[at : at + PAYLOAD_BYTES_MAX]
            is_last = at + len(piece) == len(data)
            self.add(Kind.WRITE, path, offset + at, zeros if is_last else 0, [piece])

    def begin_sync(self, path: str, what: Sync) -> int:
        """Add the start of a sync; return its number for `end_sync`."""
        if not self.is_active:
            return 0
        with self.lock:
            self._syncs += 1
            number = self._syncs
            self.add(Kind.BEGIN, path, number, self._wall_ms(), flag=what, is_urgent=True)
        return number

    def end_sync(self, number: int) -> None:
        """Add the end of a sync."""
        if number:
            self.add(Kind.END, a=number)

    def renamed(self, old: str, new: str) -> None:
        """Notify copies in progress of a rename. Called under the lock."""
        for cursor in self._cursors:
            cursor.renamed(old, new)

    def removed(self, path: str) -> None:
        """Notify copies in progress of a removed file or directory. Called under the lock."""
        for cursor in self._cursors:
            cursor.removed(path)

    # --- the required position of a thread

    def reset_required_position(self) -> None:
        """Start a new unit of work on this thread; see `required_position`."""
        self._of_thread.required_position = 0

    @property
    def required_position(self) -> int:
        """The position that a receiver must have acknowledged to have this thread's work since the last reset.

        The end of a sync does not count: a receiver acknowledges the start of a sync only when it has synced, too.
        """
        position = 0
        with suppress(AttributeError):
            position = self._of_thread.required_position
        return position
