"""Logs errors under the ids in their answers.

A producer at a queue's cap can get thousands of errors a second, which must not flood the log. So an error that repeats
within ten seconds gets the id of the first one, and the number of repeats is logged afterwards. Errors of the engine
count as repeats across all clients, a client's own mistakes only within its address.
"""

from __future__ import annotations

import logging
import secrets
import string
from datetime import UTC, datetime

from curbstone.net.repeats import CallLater, Entry, Repeats

log = logging.getLogger("curbstone.mqks")

_BASE62 = string.digits + string.ascii_letters


def new_error_id() -> str:
    """Return an id for finding an error in the log: the time in microseconds, and four random characters."""
    return datetime.now(UTC).strftime("%Y%m%d%H%M%S%f") + "".join([secrets.choice(_BASE62) for _ in range(4)])


class ErrorLog:
    """The error log of all connections of a server. `call_later(delay_ms, fn)` is the host's."""

    def __init__(self, call_later: CallLater) -> None:
        self._repeats = Repeats(call_later, _log_repeats)

    def report(self, peer: str, source: str, text: str, *, is_mistake: bool) -> bytes:
        """Log an error, unless it was logged just now; return its id.

        `is_mistake`: it is the client's own mistake. Mistakes are counted by `source`, which stands for the address.
        """
        line = text.encode("ascii", "backslashreplace").decode().replace("\r", " ").replace("\n", " ")
        entry = self._repeats.note(source if is_mistake else "", line)
        if entry.is_first:
            entry.name = new_error_id()
            log.warning("error %s: %s: %s", entry.name, peer, line, extra={"peer": peer})
        return entry.name.encode()

    def close(self) -> None:
        """Log the repeats that were counted so far."""
        self._repeats.close()


def _log_repeats(entry: Entry, more: int) -> None:
    log.warning("error %s: repeated %d times: %s", entry.name, more, entry.text)
