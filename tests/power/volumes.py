"""File systems that lose what was not synced: our own over FUSE, and LazyFS if CURBSTONE_LAZYFS names its program."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Protocol

import pytest

from tests.kit.server import clean_environment

PYTHON = "/usr/bin/python3"
"""The system's, which has python3-pyfuse3."""
PROGRAM = Path(__file__).parent / "mount.py"
LAZYFS = os.environ.get("CURBSTONE_LAZYFS", "")
ANSWER_S_MAX = 60


class PowerCut(Protocol):
    """A mounted file system whose power can be cut once the processes that use it were killed."""

    directory: Path

    def cut(self) -> None:
        """Lose what was not synced, or a part of it."""


HAS_DEVICE = os.access("/dev/fuse", os.R_OK | os.W_OK)


def missing() -> str:
    """Return why our file system cannot be mounted here, or an empty text."""
    if not HAS_DEVICE:
        return "there is no /dev/fuse"
    if shutil.which("fusermount3") is None:
        return "there is no fusermount3; `make power-deps` installs it where it runs as root"
    done = subprocess.run([PYTHON, "-c", "import pyfuse3"], capture_output=True, check=False)
    return (
        "" if done.returncode == 0 else f"{PYTHON} has no pyfuse3; `make power-deps` installs it where it runs as root"
    )


REASON = missing()
IS_REQUIRED = HAS_DEVICE and os.environ.get("CURBSTONE_REQUIRE_FUSE") == "1"
needs_fuse = pytest.mark.skipif(bool(REASON) and not IS_REQUIRED, reason=REASON)
needs_lazyfs = pytest.mark.skipif(not LAZYFS, reason="CURBSTONE_LAZYFS does not name the program of LazyFS")


class Volatile:
    """Our own: any part of what was not synced is lost, and a write can be stopped in its middle."""

    def __init__(self, directory: Path, rng: Random) -> None:
        self.directory = directory
        self._rng = rng
        self.files_hurt = 0
        """Files of which cuts lost something."""
        self.entries_lost = 0
        self._stopped = threading.Event()
        directory.mkdir()
        self._process = subprocess.Popen(
            [PYTHON, str(PROGRAM), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )
        self._lines: list[str] = []
        self._answered = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._wait_for("mounted")

    def cut(self) -> None:
        """Lose what was not synced, or a part of it."""
        self._cut(str(self._rng.getrandbits(32)))

    def cut_all(self) -> None:
        """Lose all that was not synced."""
        self._cut("all")

    def _cut(self, how: str) -> None:
        self._stopped.clear()
        _, files, entries = self._ask(f"cut {how}", "cut").split()
        self.files_hurt, self.entries_lost = int(files), int(entries)

    def stop_at_write(self, number: int) -> None:
        """Stop the `number`-th write from now in its middle: it and all later ones hang until the process is killed."""
        self._ask(f"stop {number} {self._rng.getrandbits(32)}", "armed")

    def wait_until_stopped(self, seconds: float) -> bool:
        """Return whether a write was stopped, after at most so many seconds."""
        return self._stopped.wait(seconds)

    def let_fail(self) -> None:
        """Let the calls that hang fail: a process that was killed ends only after they have returned."""
        self._ask("fail", "failed")

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("end\n")
        self._process.stdin.close()
        assert self._process.wait(ANSWER_S_MAX) == 0
        self._reader.join(ANSWER_S_MAX)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line == "stopped\n":
                self._stopped.set()
            with self._answered:
                self._lines.append(line.rstrip("\n"))
                self._answered.notify_all()
        self._process.stdout.close()

    def _ask(self, command: str, answer: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._wait_for(answer)

    def _wait_for(self, answer: str) -> str:
        def found() -> str:
            return next((line for line in self._lines if line.split()[0] == answer), "")

        with self._answered:
            assert self._answered.wait_for(found, ANSWER_S_MAX), f"no answer {answer!r}: {self._lines}"
            line = found()
            self._lines.remove(line)
            return line


@contextmanager
def volatile(parent: Path, rng: Random) -> Iterator[Volatile]:
    volume = Volatile(parent / "mount", rng)
    try:
        yield volume
    finally:
        volume.end()


class LazyFs:
    """LazyFS: everything that was not synced is lost; entries of directories are durable at once."""

    def __init__(self, parent: Path) -> None:
        self.directory = parent / "mount"
        root = parent / "root"
        self._commands, self._completed = parent / "commands", parent / "completed"
        for each in (self.directory, root):
            each.mkdir()
        os.mkfifo(self._completed)
        self._answers = os.fdopen(os.open(self._completed, os.O_RDWR), encoding="utf-8")  # LazyFS waits for a reader
        # Not in `parent`: LazyFS takes "-o" anywhere in this path for the beginning of its next option.
        config = Path(tempfile.mkdtemp(prefix="lazyfs")) / "lazyfs.toml"
        self._config = config
        config.write_text(
            f'[faults]\nfifo_path="{self._commands}"\nfifo_path_completed="{self._completed}"\n'
            '[cache]\napply_eviction=false\n[cache.simple]\ncustom_size="256mb"\nblocks_per_page=1\n'
            f'[filesystem]\nlog_all_operations=false\nlogfile="{parent / "lazyfs.log"}"\n'
        )
        options = ["--config-path", str(config), "-o", "allow_other", "-o", "modules=subdir", "-o", f"subdir={root}"]
        self._process = subprocess.Popen([LAZYFS, str(self.directory), *options, "-f"], stdout=subprocess.DEVNULL)
        deadline = threading.Event()
        for _ in range(600):
            if os.path.ismount(self.directory) and self._commands.exists():
                return
            deadline.wait(0.1)
        raise AssertionError("LazyFS was not mounted")

    def cut(self) -> None:
        self._commands.write_text("lazyfs::clear-cache\n")
        assert "clear-cache" in self._answers.readline()

    def end(self) -> None:
        subprocess.run(["fusermount3", "-u", str(self.directory)], check=True)
        self._process.wait(ANSWER_S_MAX)
        self._answers.close()
        shutil.rmtree(self._config.parent)


@contextmanager
def lazyfs(parent: Path) -> Iterator[LazyFs]:
    volume = LazyFs(parent)
    try:
        yield volume
    finally:
        volume.end()
