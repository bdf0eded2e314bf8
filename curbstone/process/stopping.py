"""Stops a start that blocks the event loop, such as a recovery."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(BaseException):
    """A signal asked the process to end while the event loop was blocked."""


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise Stopped at the first signal, wherever the code is. Use it only for code that may be cut off anywhere."""
    asked = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal asked
        if not asked:
            asked = True
            raise Stopped

    for number in SIGNALS:
        signal.signal(number, stop)
    yield
    if asked:  # the exception was raised where Python ignores it, such as in a destructor
        raise Stopped
