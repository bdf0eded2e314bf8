"""Records the stream of a server as a history; see `history` for the format.

In a directory, received frames are written at once, and made durable about once a second; in an object store they are
written as a part every few seconds. After any failure a new recorder is made, which completes the last part and
continues from its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from curbstone.standby.frames import ATTACHED_BYTES, Attached, BadFrame, Decoder, Frame, Kind
from curbstone.standby.history import History, Part, PartWriter

IDLE_MS = 60_000
"""How long received clocks may be in memory only if nothing changes."""


class Recorder:
    """See the module's docstring. `begin` a connection, then `receive` its bytes."""

    def __init__(self, history: History, now_ms: Callable[[], int], *, keep_ms: int, base_every_ms: int) -> None:
        """Any moment of the last `keep_ms` can be restored. A full copy is requested every `base_every_ms`.

        Both are by the server's clock; `now_ms` is a monotonic one.
        """
        self.history = history
        self._store = history.store
        self.recorded_bytes = 0
        """The received bytes that are part of the history."""
        self.copy_bytes = self.copy_bytes_max = 0
        """The received bytes of the copy in progress, and its size at most."""
        self._now_ms = now_ms
        self._keep_ms = keep_ms
        self._base_every_ms = base_every_ms
        self._writer: PartWriter | None = None
        self._decoder = Decoder(0)
        self._head = b""
        self._attached: Attached | None = None
        self._time_ms = 0
        """The last wall clock that the server has sent."""
        self._is_synced = True
        self._synced_ms = now_ms()

    # --- connections

    def request(self) -> dict[str, Any]:
        """Return the request for the stream."""
        self._complete_part()
        last = self.history.parts[-1] if self.history.parts else None
        if last is None:
            return {"copy_all": True}
        return {"life": f"{last.life:016x}", "position": last.end, "copy_all": self.history.base is None or self.is_due}

    @property
    def is_due(self) -> bool:
        """Whether another full copy is due: then reconnect."""
        base = self.history.base
        return not self.is_copying and base is not None and self._time_ms - base.last_ms >= self._base_every_ms

    @property
    def is_copying(self) -> bool:
        """Whether a full copy is being received."""
        return self.copy_bytes_max > 0

    @property
    def attached(self) -> Attached | None:
        """The first frame of the connection; None if it was not received yet."""
        return self._attached

    def begin(self) -> None:
        """Begin a connection."""
        self._complete_part()
        self._head, self._attached = b"", None

    def _complete_part(self) -> None:
        """Complete the part that is being written."""
        self.copy_bytes = self.copy_bytes_max = 0
        if self._writer is not None:
            self._finish()

    # --- frames

    def receive(self, data: bytes) -> list[Part]:
        """Record received bytes; return the bases that they complete. Raise BadFrame or OSError."""
        if self._attached is None:
            data = self._head + data
            if len(data) < ATTACHED_BYTES:
                self._head = data
                return []
            self._attach(Attached.decode(data[:ATTACHED_BYTES]))
            data = data[ATTACHED_BYTES:]
        bases: list[Part] = []
        for frame in self._decoder.feed(data):
            if (base := self._take(frame)) is not None:
                bases.append(base)
        if self._writer is not None:
            self._writer.flush()
            if self._writer.part.size >= self._store.part_bytes_max:
                self._finish()
            else:
                self._sync()
        return bases

    def _attach(self, attached: Attached) -> None:
        requested = self.history.parts[-1].end if self.history.parts else None
        if attached.is_resumed and attached.position != requested:
            raise BadFrame(f"the server resumes at {attached.position}; requested: {requested}")
        self._attached = attached
        self._time_ms = attached.time_ms
        self._decoder = Decoder(attached.position)

    def _take(self, frame: Frame) -> Part | None:
        """Record a frame; return the last part of a base that it completes."""
        if frame.kind is Kind.ATTACHED:
            raise BadFrame("ATTACHED in the middle of the stream")
        if frame.kind is Kind.COPY_BEGIN:
            self._finish()
            self.copy_bytes, self.copy_bytes_max = 0, 1
        elif frame.kind is Kind.COPY_NAME and frame.flag:
            self.copy_bytes_max += frame.a
        elif frame.kind is Kind.COPY_DATA:
            self.copy_bytes += len(frame.payload)
        if self._writer is None:
            assert self._attached is not None
            self._writer = self.history.begin(self._attached.life, frame.start, self._time_ms)
        part = self._writer.part
        self._writer.add(frame)
        self._time_ms = part.last_ms
        self._is_synced &= frame.kind is Kind.TIME
        self.recorded_bytes += len(frame.payload)
        if frame.kind is not Kind.COPY_END:
            return None
        self._finish()
        self.copy_bytes = self.copy_bytes_max = 0
        self.history.forget(self._time_ms - self._keep_ms)
        return part

    def _finish(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.finish()
            self.history.finished(writer.part)
            self._is_synced, self._synced_ms = True, self._now_ms()

    def _sync(self) -> None:
        now_ms, most_ms = self._now_ms(), self._store.sync_ms
        if self._is_synced:
            most_ms = max(most_ms, IDLE_MS)
        if self._writer is None or now_ms - self._synced_ms < most_ms:
            return
        if self._store.grows:
            self._writer.sync()
            self._is_synced, self._synced_ms = True, now_ms
        else:
            self._finish()

    def close(self) -> None:
        """Close the part, so that the next recorder can complete it. Raise OSError."""
        if not self._store.grows:
            self._complete_part()
        elif self._writer is not None:
            self._writer.close()
            self._writer = None
