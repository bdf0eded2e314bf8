"""Logs errors under the ids that clients are told.

A producer at a queue's cap gets an error for each publish, thousands in a second, and the log must not grow by that
much. So an error that occurs again within `INTERVAL_MS` gets the id of the first one, and the number of repeats is
logged once that time is over. An error of the engine counts as the same for all clients; a client's own mistake only
for that client.
"""

from __future__ import annotations

import logging
import secrets
import string
from datetime import UTC, datetime
from functools import partial

from curbstone.mqks.registry import CallLater, Timer

INTERVAL_MS = 10_000
ENTRIES_MAX = 1_000
"""How many different errors are remembered. Any further one is logged each time."""

log = logging.getLogger("curbstone.mqks")

_BASE62 = string.digits + string.ascii_letters


def new_error_id() -> str:
    """Return an id for finding an error in the log: the time in microseconds, and four random characters."""
    return datetime.now(UTC).strftime("%Y%m%d%H%M%S%f") + "".join([secrets.choice(_BASE62) for _ in range(4)])


class _Entry:
    """An error that was logged in the last `INTERVAL_MS`."""

    def __init__(self, error_id: str, line: str) -> None:
        self.error_id = error_id
        self.line = line
        self.repeats = 0
        self.timer: Timer | None = None


class ErrorLog:
    """The error log of all connections of a server. `call_later(delay_ms, fn)` is the host's."""

    def __init__(self, call_later: CallLater) -> None:
        self._call_later = call_later
        self._entries: dict[tuple[str, str], _Entry] = {}

    def report(self, peer: str, text: str, *, is_mistake: bool) -> bytes:
        """Log an error, unless it was logged just now; return its id. `is_mistake`: it is the client's own mistake."""
        key = (peer if is_mistake else "", text)
        entry = self._entries.get(key)
        if entry is not None:
            entry.repeats += 1
            return entry.error_id.encode()
        line = text.encode("ascii", "backslashreplace").decode().replace("\r", " ").replace("\n", " ")
        entry = _Entry(new_error_id(), line)
        log.warning("error %s: %s: %s", entry.error_id, peer, line, extra={"peer": peer})
        if len(self._entries) < ENTRIES_MAX:
            self._entries[key] = entry
            entry.timer = self._call_later(INTERVAL_MS, partial(self._end, key))
        return entry.error_id.encode()

    def close(self) -> None:
        """Log the repeats that were counted so far."""
        for key in list(self._entries):
            self._end(key)

    def _end(self, key: tuple[str, str]) -> None:
        entry = self._entries.pop(key)
        if entry.timer is not None:
            entry.timer.cancel()
        if entry.repeats:
            log.warning("error %s: %d more of it: %s", entry.error_id, entry.repeats, entry.line)
