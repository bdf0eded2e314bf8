"""Rate-limits log lines that clients can cause at will: the first is written, and repeats are counted.

A client can open thousands of bad connections per second, and must not fill the log. So a line that is repeated for the
same source within `INTERVAL_MS` is only counted, and the count is logged after that time. The number of distinct lines
in that time is limited, for each source and in all; lines beyond the limit share one count.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Protocol

INTERVAL_MS = 10_000
KINDS_MAX = 20
"""The most distinct lines of a source in that time."""
ENTRIES_MAX = 200
"""The most distinct lines of all sources in that time."""
OTHERS = "other lines, too many to write each"


class Timer(Protocol):
    def cancel(self) -> object:
        """Cancel the pending call."""


CallLater = Callable[[int, Callable[[], None]], Timer]
"""Calls a function after so many milliseconds."""


class Entry:
    """A line that occurred in the last `INTERVAL_MS`."""

    def __init__(self, source: str, text: str) -> None:
        self.source = source
        self.text = text
        self.count = 0
        """How often it has occurred."""
        self.name = ""
        """Set by the caller."""
        self.timer: Timer | None = None

    @property
    def is_first(self) -> bool:
        """Whether the line has to be written."""
        return self.count == 1


class Repeats:
    """The lines of the last `INTERVAL_MS`."""

    def __init__(self, call_later: CallLater, report: Callable[[Entry, int], None]) -> None:
        """`report(entry, more)` is called at the end of the interval of a line that was repeated `more` times."""
        self._call_later = call_later
        self._report = report
        self._entries: dict[tuple[str, str], Entry] = {}
        self._kinds: Counter[str] = Counter()

    def note(self, source: str, text: str) -> Entry:
        """Count a line; return its entry, which the caller writes if it `is_first`.

        The source "" stands for the server itself.
        """
        key = (source, text)
        entry = self._entries.get(key)
        is_too_much = len(self._entries) >= ENTRIES_MAX or (source and self._kinds[source] >= KINDS_MAX)
        if entry is None and is_too_much:
            key = ("", OTHERS)
            entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Entry(*key)
            self._kinds[source] += 1
            entry.timer = self._call_later(INTERVAL_MS, partial(self._end, key, source))
        entry.count += 1
        return entry

    def close(self) -> None:
        """Report all counts now."""
        for key in list(self._entries):
            self._end(key, key[0])

    def _end(self, key: tuple[str, str], source: str) -> None:
        entry = self._entries.pop(key)
        self._kinds[source] -= 1
        if not self._kinds[source]:
            del self._kinds[source]
        if entry.timer is not None:
            entry.timer.cancel()
        if entry.count > 1:
            self._report(entry, entry.count - 1)


class BriefLog:
    """Logs why connections ended, without repeats."""

    def __init__(self, call_later: CallLater, log: logging.Logger) -> None:
        self._log = log
        self._repeats = Repeats(call_later, self._log_repeats)

    def info(self, peer: object, source: str, text: str) -> None:
        """Log or count a line about a peer. Repeats are counted by `source`."""
        if self._repeats.note(source, text).is_first:
            self._log.info("%s: %s", peer, text, extra={"peer": str(peer)})

    def close(self) -> None:
        """Log all counts now."""
        self._repeats.close()

    def _log_repeats(self, entry: Entry, more: int) -> None:
        self._log.info("%s: %d more: %s", entry.source or "*", more, entry.text, extra={"peer": entry.source})
