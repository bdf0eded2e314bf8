"""How large the directories of the queues are, at rest and all the time."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

PAUSE_S = 0.002


def _collect(directory: str) -> dict[tuple[str, int], int]:
    found = {}
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                state = os.stat(entry.path)
                found[entry.name, state.st_ino] = state.st_size
    return found


def bytes_at_rest(data_dir: Path) -> dict[str, int]:
    """Return the sum of the file sizes of each queue's directory, while no process works there."""
    with suppress(FileNotFoundError):  # a server that was killed very early
        return {path.name: sum(_collect(str(path)).values()) for path in (data_dir / "queues").iterdir()}
    return {}


class Sampler:
    """Watches the directories of all queues a few hundred times a second, on a thread of its own.

    Files come, go and change their names while they are counted. So each sample is two counts, and the files that are
    in both, with the smaller size, were there together at the moment between the two. That can miss a moment; it can't
    report too much.
    """

    def __init__(self, data_dir: Path) -> None:
        self._queues = str(data_dir / "queues")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler")
        self.samples = 0
        self.largest = 0

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_S):
            names: list[str] = []
            with suppress(FileNotFoundError):
                names = os.listdir(self._queues)
            for name in names:
                directory = f"{self._queues}/{name}"
                before = _collect(directory)
                after = _collect(directory)
                size = sum(min(size, after[file]) for file, size in before.items() if file in after)
                self.largest = max(self.largest, size)
                self.samples += 1
