"""Processes of `python -m curbstone`, started quickly: forked from one that has imported all of it (`.template`).

They are processes like any other: with an id, a directory, an environment and files of their own, ended by signals.
Only imports are not done again. What depends on how Python itself starts (another command line, PYTHON… or LD_… in
the environment) is started in full, and so is everything where the system is not Linux.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

FIRST = "CURBSTONE_TESTS_FIRST"
"""The variable whose value, a Python program, a fork runs before the command."""
COMMAND = [sys.executable, "-m", "curbstone"]

SETTINGS = ("CURBSTONE_", "NARCONI_", "PORT")
"""What the names of the server's settings begin with."""
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Options of Java for short tests: the compiler that is quick to start, the collector that needs no threads, and no
check of whether the program is sound bytecode, which for Spark is a seventh of its start.
"""
LATE = (*SETTINGS, "AWS_", "KUBERNETES_", "PYTEST_", "JAVA_", "PYSPARK_", "SPARK_", "XDG_")
"""What variables begin with that are read when Curbstone runs, if at all; all others have to be the template's."""


class Template:
    """The process that forks. It ends with this one, whose end of the socket is then closed."""

    def __init__(self) -> None:
        self.env = _early(os.environ)
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # -P: what is imported is what is installed, wherever the script lies.
            command = [sys.executable, "-P", str(Path(__file__).with_name("template.py")), str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        atexit.register(self._close)

    def ask(self, request: Mapping[str, Any], files: Sequence[int] = ()) -> Any:
        """Send a request, and return the answer."""
        with self._lock:
            socket.send_fds(self._requests, [json.dumps(request).encode()], files)
            answer = self._requests.recv(1024)
        assert answer, "the process that forks has ended"
        return json.loads(answer)

    def _close(self) -> None:
        self._requests.close()
        self._process.wait()


@cache
def template() -> Template:
    """Return the one of this process."""
    return Template()


class Forked:
    """A fork with these three files, and what tests use of `subprocess.Popen`."""

    stdout: IO[str] | None = None

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: Path, files: Sequence[int]) -> None:
        request = {"args": command[len(COMMAND) :], "env": dict(env), "cwd": str(cwd)}
        self.pid: int = template().ask(request, files)
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self._end = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        with self._lock:
            if self.returncode is None:
                self.returncode = template().ask({"ended": self.pid})
                if self.returncode is not None:
                    os.close(self._end)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and return its exit code; raise TimeoutExpired."""
        if self.poll() is None:
            ended = select.poll()
            ended.register(self._end, select.POLLIN)
            if not ended.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired(COMMAND, timeout or 0)
        while (code := self.poll()) is None:  # it has ended, but a tracer gets to see that first
            threading.Event().wait(0.001)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


Process = subprocess.Popen[str] | Forked


def start(command: Sequence[str], env: Mapping[str, str], cwd: Path, stderr: IO[bytes]) -> Process:
    """Start a command with an empty stdin; its `stdout` is a pipe."""
    if not _can_fork(command, env):
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True, env=env, cwd=cwd
        )
    ours, theirs = os.pipe()
    with open(os.devnull, "rb") as nothing, open(theirs, "wb") as stdout:
        forked = Forked(command, env, cwd, [nothing.fileno(), stdout.fileno(), stderr.fileno()])
    forked.stdout = os.fdopen(ours, encoding="utf-8")
    return forked


def run(
    command: Sequence[str], env: Mapping[str, str], cwd: Path, stdin: bytes, timeout: float
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end, and return its exit code and what it printed."""
    if not _can_fork(command, env):
        return subprocess.run(command, input=stdin, capture_output=True, cwd=cwd, env=env, timeout=timeout, check=False)
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        forked = Forked(command, env, cwd, [given.fileno(), out.fileno(), err.fileno()])
        try:
            code = forked.wait(timeout)
        except subprocess.TimeoutExpired:
            forked.kill()
            forked.wait()
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), err.read())


def _can_fork(command: Sequence[str], env: Mapping[str, str]) -> bool:
    same = [*command[: len(COMMAND)]] == COMMAND and sys.platform == "linux"
    can_fork = same and _early(env) == template().env
    assert can_fork or FIRST not in env, "only a fork runs a program before the command"
    return can_fork


def _early(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not name.startswith(LATE)}
