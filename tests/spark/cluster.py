"""A Spark cluster of its own kind: master and workers as processes on loopback, each worker a host of its own.

Their work is done by executors, which are processes that the workers start, and by the Python processes of those.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from pathlib import Path
from types import TracebackType

import pyspark

from tests.spark.kit import JAVA_OPTIONS, job_environment

HOME = Path(pyspark.__file__).parent
HOSTS = ("127.0.0.1", "127.0.0.2")
"""Spark never runs a second attempt of a slow task on the host of the first."""
READY_S_MAX = 120
STOP_S_MAX = 30

_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER = re.compile(r"Successfully registered with master")


class Cluster:
    """`master` is its address. What the processes write, executors too, is below `folder`. A context manager."""

    def __init__(self, folder: Path, workers: int = 1) -> None:
        self.folder = folder
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def __enter__(self) -> Cluster:
        try:
            ports = ("--port", "0", "--webui-port", "0")
            self.master = self._start("master", HOSTS[0], _MASTER, *ports)
            for host in HOSTS[: self._workers]:
                work = ("--work-dir", str(self.folder / "work"), "--cores", "2", "--memory", "2g")
                self._start("worker", host, _WORKER, *work, *ports, self.master)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def executors(self) -> list[int]:
        """Return the processes of the executors that the workers have started and that still run."""
        workers = {process.pid for process in self._processes[1:]}
        running = map(int, filter(str.isdecimal, os.listdir("/proc")))
        return [pid for pid in running if _parent(pid) in workers and b"ExecutorBackend" in _read(pid, "cmdline")]

    def _start(self, role: str, host: str, ready: re.Pattern[str], *arguments: str) -> str:
        """Start a daemon, wait until its log says that it is ready, and return what it says there."""
        log = self.folder / f"{role}-{len(self._processes)}.log"
        spark_class = f"org.apache.spark.deploy.{role}.{role.title()}"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [str(HOME / "bin" / "spark-class"), spark_class, "--host", host, *arguments],
                env=environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self._processes.append(process)
        quiet = threading.Event()
        for _ in range(READY_S_MAX * 20):
            if found := ready.search(log.read_text(errors="replace")):
                return found[found.re.groups]
            assert process.poll() is None, log.read_text(errors="replace")
            quiet.wait(0.05)
        raise AssertionError(f"the {role} is not ready: {log.read_text(errors='replace')}")

    def _end(self) -> None:
        """End the workers, which end their executors, then the master."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a daemon, or of a driver: nothing in it leads to the checkout."""
    kept = {name: value for name, value in job_environment().items() if not name.startswith(("PYTHON", "SPARK_"))}
    return kept | {"SPARK_DAEMON_MEMORY": "128m", "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS} | more


def _parent(pid: int) -> int:
    """Return the process that started this one, 0 where it is gone."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def _read(pid: int, file: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:
        return b""
