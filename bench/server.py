"""The server under test as a process: starts, queries, measures, stops and kills it.

CPU, memory and bytes are measured by the kernel (/proc). Only the number of syncs may be read from the server's own
/metrics.
"""

import contextlib
import http.client
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench import login
from bench.wire import Address, BenchError

READY = re.compile(r"^curbstone ready (.*)$")
SYNC_COUNTER = re.compile(r"^curbstone_syncs_total ([0-9.e+]+)", re.MULTILINE)
START_LIMIT_S = 120
CAP = 1 << 30
"""The default cap of a queue."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources used by a process so far."""

    cpu_s: float
    disk_bytes: int | None
    """Bytes that the whole machine has written to the disk of the process's folder.

    The write_bytes of /proc/PID/io are useless, because they count a whole folio, up to a megabyte, each time a byte
    of it is written again after a sync.
    """
    syncs: float | None
    machine_s: float
    """CPU seconds used by everything on the machine."""


class Control:
    """The HTTP calls before and after a run, outside of the measurement."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: http.client.HTTPConnection | None = None

    def call(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        for attempt in (1, 2):
            connection = self._connection or http.client.HTTPConnection(*self._address, timeout=30)
            self._connection = connection
            try:
                headers = {"Authorization": f"Bearer {login.token()}"} if login.token() else {}
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                return answer.status, answer.read()
            except (http.client.HTTPException, OSError) as error:
                # A kept connection may have been closed as idle, so retry once with a new one.
                connection.close()
                self._connection = None
                if attempt == 2:
                    raise BenchError(f"{method} {path}: {error!r}") from error
        raise AssertionError

    def expect(self, status: int, method: str, path: str, body: str | None = None) -> bytes:
        answered, content = self.call(method, path, body)
        if answered != status:
            raise BenchError(f"{method} {path}: {answered} {content[:300].decode(errors='replace')}")
        return content

    def declare(self, queue: str) -> None:
        self.expect(201, "PUT", queue_path(queue))

    def delete(self, queue: str) -> None:
        self.expect(204, "DELETE", queue_path(queue))

    def waiting(self, queue: str) -> int:
        """Return the number of messages in the queue in any state. A cluster does not count delayed messages."""
        info = json.loads(self.expect(200, "GET", queue_path(queue)))
        return int(info["rdy"]) + int(info["wip"]) + int(info.get("delayed", 0))

    def syncs(self) -> float | None:
        """Return the number of the server's syncs, if it counts them."""
        with contextlib.suppress(BenchError):
            status, text = self.call("GET", "/metrics")
            found = SYNC_COUNTER.search(text.decode(errors="replace")) if status == 200 else None
            if found is not None:
                return float(found[1])
        return None


def queue_path(queue: str) -> str:
    project, _, name = queue.partition("/")
    return f"/v2/{project}/queues/{name}"


class Process:
    """A started program, with its output in a log file and its figures in /proc."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        stdout: int | None = None,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        self._log_file = log.open("ab")
        # With its own session, a Ctrl-C at the terminal reaches only this process, which then stops the server.
        self.popen: subprocess.Popen[bytes] = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log_file if stdout is None else stdout,
            stderr=self._log_file,
            start_new_session=True,
            cwd=cwd,
            env=environment,
        )
        self.pid = self.popen.pid

    def cpu_s(self) -> float:
        return cpu_seconds(self.pid)

    def usage(self, syncs: float | None = None) -> Usage:
        return Usage(self.cpu_s(), written_bytes(self.log.parent), syncs, machine_seconds())

    def rss(self) -> int:
        return proc_number(self.pid, "status", "VmRSS") * 1024

    def peak_rss(self) -> int:
        return proc_number(self.pid, "status", "VmHWM") * 1024

    def forget_peak(self) -> None:
        """Reset the peak of memory. If the kernel does not allow it, the peak is that since the start."""
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def stop(self, limit_s: float = 20) -> None:
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(limit_s)
            except subprocess.TimeoutExpired:
                self.kill()
        self._close_files()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        self._close_files()

    def _close_files(self) -> None:
        self._log_file.close()
        if self.popen.stdout:
            self.popen.stdout.close()

    def log_end(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


class Server(Process):
    """A server with a ready line: Curbstone itself, or bench.null_server."""

    def __init__(self, command: Sequence[str], log: Path, root: Path | None = None) -> None:
        """Start it, and return when it is ready. Raise BenchError with the end of its log if that fails."""
        started = time.monotonic()
        super().__init__(command, log, stdout=subprocess.PIPE, cwd=root)
        assert self.popen.stdout
        try:
            addresses = _await_ready(self.popen.stdout, started + START_LIMIT_S)
        except BenchError as error:
            self.kill()
            raise BenchError(f"{' '.join(command)}: {error}\n{self.log_end()}") from None
        self.start_s = time.monotonic() - started
        self.stomp = _address(addresses["stomp"])
        self.http = _address(addresses["http"])
        self.mqks = _address(addresses["mqks"]) if "mqks" in addresses else None


def curbstone_command(data: Path, cap: int, extra: Sequence[str] = (), *, program: str | None = None) -> list[str]:
    """Return the command that starts the server. `program` is the command of another build."""
    beside = Path(sys.executable).with_name("curbstone")
    program = program or (str(beside) if beside.exists() else shutil.which("curbstone"))
    if not program:
        raise BenchError("no curbstone command beside this Python or on PATH: install the project first (make install)")
    listen = ["--stomp-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0", "--mqks-addr", "127.0.0.1:0"]
    return [program, "serve", "--data", str(data), *listen, "--cap", str(cap), *extra]


def gateway_command(engine: str) -> list[str]:
    """Return the command that starts Curbstone on a cluster, which stores nothing on disk."""
    command = curbstone_command(Path(), CAP)
    place = command.index("--data")
    return [*command[:place], *command[place + 2 :], "--engine", engine]


def sink_command() -> list[str]:
    return [sys.executable, "-m", "bench.null_server"]


def _await_ready(stdout: IO[bytes], deadline: float) -> dict[str, str]:
    text = b""
    while True:
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not select.select([stdout], [], [], remaining)[0]:
            raise BenchError(f"not ready after {START_LIMIT_S} s")
        data = os.read(stdout.fileno(), 4096)
        if not data:
            raise BenchError("ended before it was ready")
        text += data
        for line in text.decode(errors="replace").splitlines():
            if (match := READY.match(line)) and text.endswith(b"\n"):
                return dict(word.split("=", 1) for word in match[1].split() if "=" in word)


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process, from its own CPU clock.

    The clock counts nanoseconds, while /proc/PID/stat counts hundredths of a second.
    """
    try:
        return time.clock_gettime(~pid << 3 | 2)  # the kernel's MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED)
    except OSError:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_seconds() -> float:
    """Return the CPU seconds of all processes together, including time stolen by other machines, without idle time."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _wait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def written_bytes(folder: Path) -> int | None:
    """Return the bytes written so far to the disk of the folder, or None if it is not on a single disk."""
    number = folder.stat().st_dev
    device = [str(os.major(number)), str(os.minor(number))]
    for line in Path("/proc/diskstats").read_text().splitlines():
        fields = line.split()
        if fields[:2] == device:
            return int(fields[9]) * 512
    return None


def proc_number(pid: int, file: str, key: str) -> int:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0])
    raise BenchError(f"no {key} in /proc/{pid}/{file}")
