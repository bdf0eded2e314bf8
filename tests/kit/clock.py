"""A wall clock that jumps, for processes of tests, by libfaketime."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kit.server import clean_environment

LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
)


class Clock:
    """The wall clock of processes with `env`: `set` makes it jump while they run. The monotonic one is the system's.

    Skips the test where libfaketime is missing.
    """

    def __init__(self, file: Path) -> None:
        library = next((path for path in LIBRARIES if Path(path).exists()), None)
        if library is None or shutil.which("faketime") is None:
            pytest.skip("libfaketime is not installed; `make power-deps` installs it where it runs as root")
        self._file = file
        self.set("+0")
        self.env = clean_environment(
            LD_PRELOAD=library,
            FAKETIME_TIMESTAMP_FILE=str(self._file),
            FAKETIME_NO_CACHE="1",
            FAKETIME_DONT_FAKE_MONOTONIC="1",
            # Else a wait of a thread that has a time-out ends at once, again and again, and takes a whole core.
            FAKETIME_FORCE_MONOTONIC_FIX="0",
        )

    def set(self, offset: str) -> None:
        """Let the clock differ from the true one by so many seconds, such as -3600 or +60."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(offset + "\n")
        fresh.replace(self._file)
