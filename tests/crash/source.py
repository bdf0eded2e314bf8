"""The lines that are still to be sent to one queue, and the values of the attempts to send them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from tests.crash.history import Answered, History, Sent
from tests.crash.killable import Progress

FAILED_S = 1


class Line(NamedTuple):
    """A line of the file, its place there, and how often it was sent before."""

    number: int
    text: bytes
    attempt: int = 0
    is_tagged: bool = False
    """Whether the body begins with the value, for protocols that carry no headers."""

    @property
    def value(self) -> str:
        """What names this attempt in the history."""
        return f"{self.number}.{self.attempt}"

    @property
    def body(self) -> bytes:
        return b"%s %s" % (self.value.encode(), self.text) if self.is_tagged else self.text


class Source:
    """Hands out lines to producers on any thread, takes back those that were not confirmed, and keeps the record."""

    def __init__(
        self,
        queue: str,
        lines: Iterable[tuple[int, bytes]],
        history: History,
        progress: Progress,
        *,
        is_tagged: bool = False,
    ) -> None:
        self.queue = queue
        self.progress = progress
        self._history = history
        texts = ((number, printable_line(text) if is_tagged else text) for number, text in lines)
        self._lines = deque(Line(number, text, is_tagged=is_tagged) for number, text in texts)
        self._unconfirmed = len(self._lines)
        self._lock = threading.Lock()
        self._full = threading.Event()

    @property
    def is_done(self) -> bool:
        return self._unconfirmed == 0

    def take(self, count: int) -> list[Line]:
        """Return up to `count` lines to be sent next; maybe none though not all are confirmed."""
        with self._lock:
            return [self._lines.popleft() for _ in range(min(count, len(self._lines)))]

    def sending(self, lines: Iterable[Line], producer: str, unit: str = "") -> None:
        """Record that these are about to be sent."""
        self._history.extend(Sent(line.value, self.queue, line.body, producer, unit) for line in lines)

    def confirmed(self, lines: list[Line]) -> None:
        self._history.extend(Answered(line.value, True) for line in lines)
        with self._lock:
            self._unconfirmed -= len(lines)
        if self.is_done:
            self._full.set()
        self.progress.add(confirmed=len(lines))

    def refused(self, lines: Iterable[Line]) -> None:
        """Record that the server said it changed nothing."""
        self._history.extend(Answered(line.value, False) for line in lines)
        self._full.set()

    def resend(self, lines: Iterable[Line]) -> None:
        """Have lines that were sent and not confirmed sent again, before others."""
        with self._lock:
            self._lines.extendleft(line._replace(attempt=line.attempt + 1) for line in reversed(list(lines)))

    def wait_until_full(self) -> None:
        """Wait until the queue was at its cap in the present boot, or there is nothing more to send."""
        while not self._full.wait(FAILED_S) and self.progress.failure is None:
            pass

    def server_restarted(self) -> None:
        if not self.is_done:
            self._full.clear()


def printable_line(text: bytes) -> bytes:
    """Return a line as MQKS carries it unchanged: no tab or CR in it, no space at its end, not empty."""
    return text.replace(b"\t", b" ").replace(b"\r", b" ").rstrip() or b"-"
