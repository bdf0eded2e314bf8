"""Porcupine, which judges histories. It needs Go, and the source of github.com/anishathalye/porcupine:

    CURBSTONE_PORCUPINE=/path/to/porcupine pytest tests/histories

`checker/` has the models.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.histories.record import Event, written
from tests.kit.server import clean_environment

PORCUPINE = os.environ.get("CURBSTONE_PORCUPINE", "")
CHECKER = Path(__file__).parent / "checker"
SEARCH_S_MAX = 300


def missing() -> str:
    """Return why no history can be checked here, or an empty text."""
    if not PORCUPINE:
        return "CURBSTONE_PORCUPINE does not name the folder of Porcupine's source"
    return "" if shutil.which("go") else "there is no Go (Debian's golang-go)"


needs_porcupine = pytest.mark.skipif(bool(missing()), reason=missing())


def checker(work: Path) -> Path:
    """Build the checker and return its path."""
    (work / "go.work").write_text(f"go 1.19\n\nuse (\n\t{CHECKER}\n\t{Path(PORCUPINE).resolve()}\n)\n")
    environment = clean_environment(GOWORK=str(work / "go.work"), GOPROXY="off", GOFLAGS="")
    subprocess.run(["go", "build", "-o", str(work / "histories"), "."], cwd=CHECKER, env=environment, check=True)
    return work / "histories"


class Undecided(Exception):
    """The search for an order of the operations took too long, so nothing is known about the history."""


class Judge:
    """Checks histories, each of which it leaves in a file of its own."""

    def __init__(self, work: Path) -> None:
        self._checker = checker(work)
        self._work = work
        self._files = 0

    def check(self, events: list[Event], *models: str) -> subprocess.CompletedProcess[str]:
        """Check a history; the exit code is 0 if it is possible, 1 if not, and 3 if that is undecided."""
        self._files += 1
        file = written(events, self._work / f"history-{self._files}")
        command = [str(self._checker), str(file), str(SEARCH_S_MAX), *models]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(f"{file}:\n{done.stdout}")
        return done

    def refuses(self, events: list[Event], *models: str) -> None:
        """Raise AssertionError unless a history is impossible."""
        done = self.check(events, *models)
        assert done.returncode == 1, done.stdout + done.stderr
        assert re.search(r"[1-9]\d* impossible", done.stdout), done.stdout

    def allows(self, events: list[Event], *models: str) -> int:
        """Raise AssertionError if a history is impossible, or Undecided; return the number of its operations."""
        done = self.check(events, *models)
        if done.returncode == 3:
            raise Undecided(done.stdout)
        assert done.returncode == 0, done.stdout + done.stderr
        return int(re.findall(r"(\d+) operations", done.stdout)[0])
