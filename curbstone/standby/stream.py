"""The stream of one life of a server: what changes its disk, in order, for those who keep a second copy.

Frames are added on any thread. If a call had returned before another was made, its frame is first: a call is made,
then its frame is added, then it returns. A sync has two frames. BEGIN is added before it starts and END when it has
returned, so a receiver syncs at the same time, and can tell what may not be applied before its own sync is done.

Without receivers nothing is added. This is checked after a change was made, so a receiver that begins a copy then finds
the change on the disk.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from curbstone.standby.frames import PAYLOAD_BYTES_MAX, Kind, Sync, encode

KEPT_BYTES = 64 * 1024 * 1024
"""So much of the stream is kept for receivers that lost their connection, and for those that are slow."""
FRAME_BYTES = 200
"""What a frame takes in memory beside its bytes; most frames are shorter than that."""
ZEROS_BYTES_MIN = 4096
"""At the end of a write so many zeros or more are counted and not sent."""


class Cursor:
    """The place of one receiver in the stream, and what it has not taken yet."""

    def __init__(self, stream: Stream, position: int, wake: Callable[[bool], None]) -> None:
        """`wake` is called under the lock of the stream when there is more; with True, it should be sent at once."""
        self.position = position
        """The position before the first frame that it was given."""
        self.pending_bytes = 0
        self.is_cut_off = False
        """Whether it was too slow, or the stream has broken off. It gets nothing more, and has to attach again."""
        self.renamed: Callable[[str, str], None] = lambda _old, _new: None
        """Called under the lock of the stream when a name was changed; for a copy that is being made."""
        self.removed: Callable[[str], None] = lambda _path: None
        self._stream = stream
        self._wake = wake
        self._pending: deque[tuple[list[bytes], int]] = deque()
        """Frames, with what each of those that belong to the stream takes in memory."""
        self._behind_bytes = 0

    def put(self, buffers: list[bytes], size: int, *, is_urgent: bool, is_own: bool = False) -> None:
        """Give it one more frame, of so many bytes. Called under the lock of the stream."""
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
        """Give it a frame that is for no other receiver."""
        buffers = encode(kind, path, a, b, payload, flag)
        with self._stream.lock:
            self.put(buffers, sum(map(len, buffers)), is_urgent=False, is_own=True)

    def cut_off(self) -> None:
        """Give it nothing more. Called under the lock of the stream."""
        self.is_cut_off = True
        self._pending.clear()
        self.pending_bytes = self._behind_bytes = 0
        self._wake(True)

    def take(self, bytes_max: int) -> list[bytes]:
        """Take whole frames of about so many bytes, at least one if there is any."""
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
        """The name of this life; positions of another one mean nothing here."""
        self.kept_bytes = kept_bytes
        self.end = 0
        """The position behind the last frame."""
        self.is_active = False
        """Whether frames are added."""
        self._is_required = False
        self._wall_ms = wall_ms
        self._first = 0
        """The position before the oldest frame that is kept."""
        self._kept: deque[tuple[int, list[bytes]]] = deque()
        """The latest frames, each with its bytes."""
        self._held_bytes = 0
        self._cursors: tuple[Cursor, ...] = ()
        self._detached_at = 0
        """Where the stream was when the last receiver left."""
        self._syncs = 0
        self._of_thread = threading.local()

    # --- receivers

    def activate(self) -> None:
        """Add frames from now on, also without receivers."""
        with self.lock:
            self._is_required = self.is_active = True

    def begin(self, wake: Callable[[bool], None]) -> Cursor:
        """Attach a receiver that gets everything from now on. What was there before has to be copied."""
        with self.lock:
            self.is_active = True
            return self._attach(Cursor(self, self.end, wake))

    def resume(self, position: int, wake: Callable[[bool], None]) -> Cursor | None:
        """Attach a receiver that has everything up to a position. Return None if that can't be continued."""
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
            if start != position:  # it is in the middle of a frame, or none of this life
                return None
            cursor = Cursor(self, position, wake)
            for size, buffers in reversed(lacking):
                cursor.put(buffers, size, is_urgent=False)
            return self._attach(cursor)

    def _attach(self, cursor: Cursor) -> Cursor:
        self._cursors += (cursor,)
        return cursor

    def detach(self, cursor: Cursor) -> None:
        """End a receiver. It may come back and resume as long as what it lacks is kept."""
        with self.lock:
            self._cursors = tuple(each for each in self._cursors if each is not cursor)
            self._detached_at = self.end

    def invalidate(self) -> None:
        """Something failed so that it is unknown what the disk has: every receiver has to compare."""
        with self.lock:
            for cursor in self._cursors:
                cursor.cut_off()
            self._forget()

    def _forget(self) -> None:
        self._kept.clear()
        self._held_bytes = 0
        self.end += 1  # so that no receiver resumes here, not even one that has everything
        self._first = self.end

    # --- what changes the disk

    def add(
        self, kind: Kind, path: str = "", a: int = 0, b: int = 0, payload: Sequence[bytes] = (), flag: int = 0,
        *, is_urgent: bool = False,
    ) -> None:  # fmt: skip
        """Add a frame for every receiver, if there may be any."""
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
        """Add the wall clock."""
        self.add(Kind.TIME, a=self._wall_ms())

    def write(self, path: str, offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        """Add a write that was made. Zeros at its end are only counted."""
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
        """Note that a sync begins; return its number for `end_sync`."""
        if not self.is_active:
            return 0
        with self.lock:
            self._syncs += 1
            number = self._syncs
            self.add(Kind.BEGIN, path, number, self._wall_ms(), flag=what, is_urgent=True)
        return number

    def end_sync(self, number: int) -> None:
        """Note that a sync has returned."""
        if number:
            self.add(Kind.END, a=number)

    def renamed(self, old: str, new: str) -> None:
        """Notify copies under way that a name has changed. Called under the lock."""
        for cursor in self._cursors:
            cursor.renamed(old, new)

    def removed(self, path: str) -> None:
        """Notify copies under way that a file or directory was removed. Called under the lock."""
        for cursor in self._cursors:
            cursor.removed(path)

    # --- how far the work of a thread reaches

    def reset_required_position(self) -> None:
        """Begin to count anew what a receiver must have before the work of this thread counts as received."""
        self._of_thread.required_position = 0

    @property
    def required_position(self) -> int:
        """The position up to which a receiver must have everything, for the work of this thread since then.

        The end of a sync does not count: a receiver that has its beginning acknowledges it when it has synced, too.
        """
        position = 0
        with suppress(AttributeError):
            position = self._of_thread.required_position
        return position
