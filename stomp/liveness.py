"""Heart-beats and deadlines of one STOMP connection. Without a clock: each call has the time."""

from __future__ import annotations

from curbstone.net.receive_deadline import ReceiveDeadline
from curbstone.stomp.limits import Limits

TOLERANCE = 2
"""A client counts as dead after this many of its heart-beat intervals, plus `GRACE_MS`, without input."""
GRACE_MS = 1_000


class Liveness:
    """Decides when to send a heart-beat, and when the client counts as dead.

    Any byte is a sign of life, but a byte alone is not progress of a frame.
    """

    def __init__(self, limits: Limits, now_ms: int) -> None:
        self._limits = limits
        self._started_ms = now_ms
        self._heard_ms = now_ms
        self._connected = False
        self._server_beats_ms = 0
        self._client_beats_ms = 0
        self._frame = ReceiveDeadline(limits.frame_ms, limits.frame_bytes_per_s)
        self._reading = True
        self._ending_since_ms = 0
        self._tick_ms = max(1, min(self._frame.tick_ms, limits.connect_ms, limits.closing_ms))
        self.sent = False
        """Whether anything was sent since the last `beat`."""

    def agreed(self, server_beats_ms: int, client_beats_ms: int) -> None:
        """Set the heart-beat intervals that CONNECT settled; 0 means none."""
        self._connected = True
        self._server_beats_ms = server_beats_ms
        self._client_beats_ms = client_beats_ms
        if server_beats_ms:
            # Checked twice in each interval: if nothing was sent since the last check, a heart-beat now is in time.
            self._tick_ms = min(self._tick_ms, max(1, server_beats_ms // 2))
        if client_beats_ms:
            self._tick_ms = min(self._tick_ms, client_beats_ms * TOLERANCE + GRACE_MS)

    def heard(self, now_ms: int) -> None:
        """Note that bytes were received."""
        self._heard_ms = now_ms

    def unfinished(self, size: int, completed: bool, now_ms: int) -> None:
        """Note that a read left `size` bytes of an unfinished frame; `completed` says whether it completed others."""
        self._frame.unfinished(size, completed, now_ms)

    def reading(self, on: bool, now_ms: int) -> None:
        """Note that reading stopped or resumed. A client that is not read can't be late."""
        self._reading = on
        self._heard_ms = now_ms
        self._frame.reading(on, now_ms)

    def broken(self, now_ms: int) -> str:
        """Return a description of the deadline that has passed; empty if none has."""
        limits = self._limits
        if not self._connected:
            waited = now_ms - self._started_ms
            return f"no complete CONNECT within {limits.connect_ms} ms" if waited >= limits.connect_ms else ""
        if not self._reading:
            return ""
        if self._frame.is_late(now_ms):
            return f"no complete frame within {limits.frame_ms} ms"
        silent = now_ms - self._heard_ms
        if self._client_beats_ms and silent > self._client_beats_ms * TOLERANCE + GRACE_MS:
            return f"no heart-beat for {silent} ms; {self._client_beats_ms} ms were agreed"
        return ""

    def beat(self) -> bool:
        """Return whether a heart-beat must be sent now, and start the next interval."""
        if not self._server_beats_ms:
            return False
        sent, self.sent = self.sent, False
        return not sent

    def overdue(self, now_ms: int) -> bool:
        """Return whether an ending connection has waited too long for its commits. Called only while it is ending."""
        self._ending_since_ms = self._ending_since_ms or now_ms
        return now_ms - self._ending_since_ms >= self._limits.closing_ms

    def next_ms(self, now_ms: int) -> int:
        """Return the time of the next check."""
        return now_ms + self._tick_ms
