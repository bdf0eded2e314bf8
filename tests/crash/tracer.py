"""A server process under strace, which kills it or fails its calls to the disk at a chosen moment."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path

from tests.kit.processes import FIRST
from tests.kit.server import ServerProcess, clean_environment
from tests.kit.waiting import wait_until

# A name that a platform does not have is ignored for its question mark.
CALLS = {
    "sync": "?fdatasync",
    "write": "?pwritev,?pwritev2",
    "truncate": "?ftruncate",
    "remove": "?unlink,?unlinkat",
    "rename": "?rename,?renameat,?renameat2",
    "sync_dir": "?fsync",
    "make_dir": "?mkdir,?mkdirat",
}
"""What the engine does to the disk, and how strace calls that."""

# strace counts the calls of each thread apart. With one thread for the disk, the Nth call is the same in each run.
# So the threads without the interpreter, which the compiled build has besides, are left out.
# No byte code is written: that would be calls to the disk as well.
_TRACED = """
import ctypes, os, pathlib, subprocess, sys, time
from curbstone.core import host
sys.dont_write_bytecode = True
host.AsyncioHost.__init__.__defaults__ = (1,)
host.DiskThreads = None
SET_PTRACER, ANY = 0x59616D61, ctypes.c_ulong(-1)
ctypes.CDLL(None).prctl(SET_PTRACER, ANY)  # else only what is above it may trace it, on some systems
tracer = subprocess.Popen([*{strace!r}, "-p", str(os.getpid())], stdin=subprocess.DEVNULL)
while "TracerPid:\\t0\\n" in pathlib.Path("/proc/self/status").read_text():
    assert tracer.poll() is None, "strace has ended"
    time.sleep(0.005)
"""
_TRACER = re.compile(r"^TracerPid:\t(\d+)$", re.MULTILINE)


def why_no_strace() -> str:
    """Return why tests with strace can't be done here, or an empty text."""
    if shutil.which("strace") is None:
        return "strace is not installed (apt-get install strace)"
    command = ["strace", "-f", "-e", "inject=?fdatasync:error=EIO:when=1..2", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        return f"strace can't trace here: {done.stderr.strip()}"
    return ""


def trace_file(data_dir: Path) -> Path:
    """Return where the calls of the server on a data directory are written."""
    return data_dir.with_name(data_dir.name + ".strace")


def took_effect(data_dir: Path) -> bool:
    """Return whether a call that was to fail, or to take long, was made by the server on a data directory."""
    trace = trace_file(data_dir).read_text(encoding="utf-8", errors="replace")
    return bool(re.search(r" \((INJECTED|DELAYED)\)$", trace, re.MULTILINE))


class TracedServer(ServerProcess):
    """A server whose calls to the disk are traced, and of which `inject` makes some fail.

    `inject` is what follows `inject=` in strace: calls, what happens to them, and when. strace runs beside the
    server, not above it: the process is the server's own.
    """

    def __init__(self, data_dir: Path, *args: str, inject: str = "") -> None:
        self.trace_file = trace_file(data_dir)
        calls = ",".join(CALLS.values())
        # Not --seccomp-bpf, though it is faster: with it strace (6.1) sends no signals, and can't leave a server alive.
        # -I 2: so that SIGTERM ends strace.
        strace = ["strace", "-I", "2", "-f", "-q", "-o", str(self.trace_file), "-e", f"trace={calls}"]
        if inject:
            strace += ["-e", f"inject={inject}"]
        super().__init__(data_dir, *args, env=clean_environment(**{FIRST: _TRACED.format(strace=strace)}))

    @property
    def is_dead(self) -> bool:
        return self.process.poll() is not None

    def heal(self) -> None:
        """End the tracing, and the faults with it; the server continues."""
        tracer = self._tracer()
        os.kill(tracer, signal.SIGTERM)
        wait_until(lambda: self._tracer() == 0, "strace does not let go")

    def _tracer(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii", errors="replace")
        match = _TRACER.search(status)
        assert match, status
        return int(match[1])

    def calls_made(self) -> Counter[str]:
        """Return how many calls of each kind the busiest thread made, once the server has ended."""
        kinds = {name.lstrip("?"): kind for kind, names in CALLS.items() for name in names.split(",")}
        end = re.compile(rf"^{self.process.pid} +\+\+\+ ", re.MULTILINE)
        wait_until(
            lambda: end.search(self.trace_file.read_text(encoding="utf-8", errors="replace")), "strace does not end"
        )
        trace = self.trace_file.read_text(encoding="utf-8", errors="replace")
        counts: Counter[tuple[str, str]] = Counter()
        for match in re.finditer(r"^(\d+) +(\w+)\(", trace, re.MULTILINE):
            counts[match[1], kinds[match[2]]] += 1
        return Counter({kind: max(n for (_, k), n in counts.items() if k == kind) for _, kind in counts})
