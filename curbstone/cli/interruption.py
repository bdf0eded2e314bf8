"""Makes SIGTERM, by which systemd, docker and Kubernetes end a process, do the same to a command as Ctrl-C.

The command gives back the messages it holds, says what was done, and exits with 128 + 15. Its own code only has to
handle KeyboardInterrupt. Commands that run until a signal arrives (`serve`, `cron`, `push`, `pipeline archive`) have
handlers of their own.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Termination:
    """Notes whether SIGTERM was received since `listen` was called."""

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
    """Call `say` at the end, also if the work was interrupted, to sum up what was done; but not after an error."""
    try:
        yield
    except KeyboardInterrupt:
        say()
        raise
    say()
