"""SIGTERM, by which systemd, docker and Kubernetes end a process, does to a command what Ctrl-C does.

It gives back what it holds, says what was done, and ends with 128 + 15. So nothing else in a command knows of it.
Commands that are done when a signal comes (`serve`, `cron`, `push`, `pipeline archive`) have handlers of their own.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Termination:
    """Whether SIGTERM came, from `listen` on."""

    def __init__(self) -> None:
        self.came = False

    def listen(self) -> None:
        """Interrupt what is under way when it comes. Only in the main thread."""
        signal.signal(signal.SIGTERM, self._interrupt)

    def _interrupt(self, _number: int, frame: FrameType | None) -> None:
        self.came = True
        # Not sent as a signal: a shell lets commands in the background ignore SIGINT.
        interrupt = signal.getsignal(signal.SIGINT)
        (interrupt if callable(interrupt) else signal.default_int_handler)(signal.SIGINT, frame)


@contextmanager
def summing_up(say: Callable[[], None]) -> Iterator[None]:
    """Say at the end what was done, also of work that was interrupted; an error speaks for itself."""
    try:
        yield
    except KeyboardInterrupt:
        say()
        raise
    say()
