"""Counts syncs with strace, if the server does not count them itself.

Tracing slows the server, so this is a separate short run of which only the count is used.
"""

import contextlib
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.wire import BenchError

CALLS = "fsync,fdatasync,msync,sync_file_range,syncfs"
# "100.00    0.001234          12       100           fdatasync": share, seconds, per call, calls, [errors], name
LINE = re.compile(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+)(?: +\d+)? +(\w+)$", re.MULTILINE)
ATTACH_LIMIT_S = 10


@dataclass(slots=True)
class Count:
    """The count, which is set when the traced block ends."""

    calls: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.calls.values())


def available() -> bool:
    return shutil.which("strace") is not None


@contextlib.contextmanager
def traced(pid: int, folder: Path) -> Iterator[Count]:
    """Count the sync calls of all threads of a running process during the block."""
    summary, messages = folder / "strace-summary", folder / "strace-messages"
    command = ["strace", "-f", "-c", "-e", f"trace={CALLS}", "-o", str(summary), "-p", str(pid)]
    with messages.open("wb") as output:
        strace = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    count = Count({})
    try:
        _await_attached(strace, messages)
        yield count
    finally:
        strace.send_signal(signal.SIGINT)
        strace.wait(ATTACH_LIMIT_S)
    count.calls.update(parse(summary.read_text()))


def parse(summary: str) -> dict[str, int]:
    """Return the calls by name, from the table of strace -c."""
    return {name: int(calls) for calls, name in LINE.findall(summary) if name != "total"}


def _await_attached(strace: subprocess.Popen[bytes], messages: Path) -> None:
    deadline = time.monotonic() + ATTACH_LIMIT_S
    while "attached" not in messages.read_text(errors="replace"):
        if strace.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"strace could not attach: {messages.read_text(errors='replace').strip()}")
        time.sleep(0.01)
