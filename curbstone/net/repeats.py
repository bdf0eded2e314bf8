"""Log lines that clients can cause at will: the first of a kind is written, and those like it are counted.

A client can open thousands of bad connections in a second, and the log must not grow by that much. So a line that is
repeated for the same source within `INTERVAL_MS` is only counted, and the count is logged once that time is over. A
source has a bounded number of different lines in that time, and so have all sources together; all others count as one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Protocol

INTERVAL_MS = 10_000
KINDS_MAX = 20
"""How many different lines a source may cause in that time."""
ENTRIES_MAX = 200
"""How many different lines all sources together may cause in that time."""
OTHERS = "others: too many different lines to write each"


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> object:
        """Cancel the call."""


CallLater = Callable[[int, Callable[[], None]], Timer]
"""Calls a function after so many milliseconds."""


class Entry:
    """A line that came in the last `INTERVAL_MS`."""

    def __init__(self, source: str, text: str) -> None:
        self.source = source
        self.text = text
        self.count = 0
        """How often it has occurred."""
        self.name = ""
        """What the caller calls it."""
        self.timer: Timer | None = None

    @property
    def is_first(self) -> bool:
        """Whether it is the first, and so has to be written."""
        return self.count == 1


class Repeats:
    """The lines of the last `INTERVAL_MS`; see the module's docstring."""

    def __init__(self, call_later: CallLater, report: Callable[[Entry, int], None]) -> None:
        """`report(entry, more)` is called when the time of a line is over that came `more` times after the first."""
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
        """Log what was counted so far."""
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
    """Writes why connections ended, each reason once for each source while it repeats."""

    def __init__(self, call_later: CallLater, log: logging.Logger) -> None:
        self._log = log
        self._repeats = Repeats(call_later, self._log_repeats)

    def info(self, peer: object, source: str, text: str) -> None:
        """Write or count a line about a peer. `source` is what its repeats are counted by."""
        if self._repeats.note(source, text).is_first:
            self._log.info("%s: %s", peer, text, extra={"peer": str(peer)})

    def close(self) -> None:
        """Log what was counted so far."""
        self._repeats.close()

    def _log_repeats(self, entry: Entry, more: int) -> None:
        self._log.info("%s: %d more: %s", entry.source or "*", more, entry.text, extra={"peer": entry.source})
