"""Handles SIGTERM, which systemd, Docker and Kubernetes send to stop a process, like Ctrl-C.

The command releases its messages, prints what was done, and exits with 128 + 15. Its own code only has to handle
KeyboardInterrupt. Commands that run until a signal arrives (`serve`, `cron`, `push`, `pipeline archive`) have their own
handlers.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Termination:
    """Whether SIGTERM was received since `listen` was called."""

    def __init__(self) -> None:
        self.arrived = False

    def listen(self) -> None:
        """Interrupt the command at SIGTERM. Call this in the main thread."""
        signal.signal(signal.SIGTERM, self._interrupt)

    def _interrupt(self, _number: int, frame: FrameType | None) -> None:
        self.arrived = True
        # The handler is called directly, because in a command that a shell runs in the background SIGINT is ignored.
        interrupt = signal.getsignal(signal.SIGINT)
        (interrupt if callable(interrupt) else signal.default_int_handler)(signal.SIGINT, frame)


@contextmanager
def summing_up(say: Callable[[], None]) -> Iterator[None]:
    """Call `say` at the end to print what was done, also after an interruption, but not after an error."""
    try:
        yield
    except KeyboardInterrupt:
        say()
        raise
    say()
