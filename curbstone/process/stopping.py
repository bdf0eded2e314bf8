"""Lets a signal stop a startup that blocks the event loop, such as a recovery."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(BaseException):
    """A signal arrived while the event loop was blocked."""


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise Stopped at the first signal. Use it only for code that may be interrupted anywhere."""
    is_stopped = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal is_stopped
        if not is_stopped:
            is_stopped = True
            raise Stopped

    for number in SIGNALS:
        signal.signal(number, stop)
    yield
    if is_stopped:  # the exception was raised where Python ignores it, such as in a destructor
        raise Stopped
