"""Running the command line as a user's shell does."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kit.processes import COMMAND, Process, run, start
from tests.kit.server import clean_environment


class Done:
    """What a command left: its exit code, and what it printed."""

    def __init__(self, done: subprocess.CompletedProcess[bytes]) -> None:
        self.code = done.returncode
        self.raw = done.stdout
        self.out = done.stdout.decode("utf-8", "replace")
        self.err = done.stderr.decode()

    @property
    def json(self) -> list[Any]:
        """Its lines of JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


def curbstone(*args: str, cwd: Path, stdin: bytes = b"", **env: str) -> Done:
    """Run `curbstone` with its output in files."""
    return Done(run([*COMMAND, *args], clean_environment(**env), cwd, stdin, timeout=300))


@contextmanager
def running(*args: str, cwd: Path, **env: str) -> Iterator[Process]:
    """Run `curbstone` beside the test; its stdout is a pipe. At the end it is killed if it still runs."""
    with os.fdopen(os.dup(2), "wb") as stderr:
        process = start([*COMMAND, *args], clean_environment(**env), cwd, stderr)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
