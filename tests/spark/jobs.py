"""Processes that run Spark: started, killed with all they started, waited for; and reading a lake without Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from deltalake import DeltaTable

from tests.spark.kit import JAVA_OPTIONS, job_environment

ROOT = Path(__file__).resolve().parents[2]
END_S_MAX = 300
LOOK_S = 0.05


def start(
    *command: str, also: Path | None = None, env: Mapping[str, str] | None = None, reads: bool = False
) -> subprocess.Popen[str]:
    """Start a Python program in a process group of its own; `also` is a folder with more packages, `env` is added.

    With `reads` its standard input is a pipe.
    """
    folders = [str(ROOT), *([str(also)] if also else [])]
    return subprocess.Popen(
        [sys.executable, *command],
        env=job_environment()
        | {"PYTHONPATH": os.pathsep.join(folders), "PYSPARK_PYTHON": sys.executable}
        | {"JDK_JAVA_OPTIONS": JAVA_OPTIONS}
        | dict(env or {}),
        cwd=ROOT / "tests",
        start_new_session=True,
        stdin=subprocess.PIPE if reads else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def job(name: str, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return start("-m", "curbstone", "pipeline", name, *arguments, env=env)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for the end; return the code, stdout and stderr."""
    try:
        out, err = process.communicate(timeout=END_S_MAX)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    return process.returncode, out, err


def run(process: subprocess.Popen[str]) -> str:
    """Wait for a good end; return stdout."""
    code, out, err = finish(process)
    assert code == 0, f"code {code}: {out}{err}"
    return out


def kill(process: subprocess.Popen[str]) -> None:
    """End it, the Java process and the workers as a power cut would."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for something that the process brings about."""
    quiet = threading.Event()
    for _ in range(int(END_S_MAX / LOOK_S)):
        if condition():
            return
        assert process.poll() is None, process.communicate()
        quiet.wait(LOOK_S)
    raise AssertionError("it did not come about")


def batches(lake: Path) -> int:
    """Return how many batches of messages are in a lake."""
    table = lake / "messages"
    return DeltaTable(table).version() + 1 if DeltaTable.is_deltatable(str(table)) else 0


def bodies(lake: Path) -> list[str]:
    """Return what the lake holds, as a reader of Delta tables sees it that knows nothing of Spark."""
    table = DeltaTable(lake / "messages").to_pyarrow_table(columns=["body"])
    return sorted(body.decode() for body in table.column("body").to_pylist())
