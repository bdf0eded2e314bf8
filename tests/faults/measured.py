"""The server on an event loop that measures its turns: how much CPU time of its thread the longest one took.

`python -m tests.faults.measured FILE serve …`. At each SIGUSR2 it writes the figure, in ms, to FILE.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

from curbstone import serve
from curbstone.cli.main import main


class MeasuredLoop(asyncio.SelectorEventLoop):
    """See the module's docstring. A turn is what runs between two looks at the sockets, as it is in uvloop."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self._longest_s = 0.0
        self._asked = 0
        self._is_first = True

    def _run_once(self) -> None:
        if self._is_first:
            self._is_first = False
            self.add_signal_handler(signal.SIGUSR2, self._write)
        start_s = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self._longest_s = max(self._longest_s, time.thread_time() - start_s)

    def _write(self) -> None:
        self._asked += 1
        new = self._file.with_suffix(".new")
        new.write_text(f"{self._asked} {1000 * self._longest_s}", encoding="utf-8")
        new.replace(self._file)
        self._longest_s = 0.0


if __name__ == "__main__":
    figures = Path(sys.argv.pop(1))
    serve._loop_factory = lambda: lambda: MeasuredLoop(figures)
    main()
