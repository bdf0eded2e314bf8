"""A separate process that checks bodies against JSON Schemas, for those that could block the event loop.

The library does not release the GIL, so a thread does not help. The process is started for the first such body, checks
one at a time, and ends when the server does. A check that takes more than `CPU_S_MAX` of CPU time, or more memory than
`MEMORY_MAX`, ends the process, and the next one starts a new process.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import IO
from weakref import finalize

import orjson

CPU_S_MAX = 2.0
MEMORY_MAX = 1 << 30
_HEAD = 8
"""The size of a length field in bytes."""

Answer = list[str] | None
"""The text, pointer and rule of a refusal; None if the body satisfies the schema."""


class CheckFailed(Exception):
    """The process ended during a check."""


class SchemaProcess:
    """The process, in the server. May be called on any thread; blocks."""

    def __init__(self, module: str) -> None:
        """`module` is the program to run; it calls `serve`."""
        self._module = module
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, schema: str, body: bytes) -> Answer:
        """Check a body. Raise CheckFailed if that takes too long or too much memory."""
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                process = self._process = self._start()
            assert process.stdin is not None and process.stdout is not None
            try:
                _write(process.stdin, schema.encode())
                _write(process.stdin, body)
                process.stdin.flush()
                answer = _read(process.stdout)
            except OSError:
                answer = None
            if answer is None:
                self._process = None
                process.stdout.close()
                code = process.wait()
                raise CheckFailed(f"the process for checks ended with code {code}")
            found: Answer = orjson.loads(answer)
            return found

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", self._module]
        # In its own session, so that Ctrl-C stops only the server, which then ends this process.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        finalize(self, _end, process)
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def serve(check: Callable[[str, bytes], Answer]) -> None:
    """Answer checks from the standard input until it ends."""
    with suppress(ValueError, OSError):  # not available on every system
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX, MEMORY_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)
    while (schema := _read(sys.stdin.buffer)) is not None and (body := _read(sys.stdin.buffer)) is not None:
        signal.setitimer(signal.ITIMER_PROF, CPU_S_MAX)  # its signal ends the process in any state
        answer = orjson.dumps(check(schema.decode(), body))
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(sys.stdout.buffer, answer)
        sys.stdout.buffer.flush()


def _write(file: IO[bytes], data: bytes) -> None:
    file.write(len(data).to_bytes(_HEAD))
    file.write(data)


def _read(file: IO[bytes]) -> bytes | None:
    """Return the next data, or None at the end."""
    head = file.read(_HEAD)
    if len(head) < _HEAD:
        return None
    size = int.from_bytes(head)
    data = file.read(size)
    return data if len(data) == size else None
