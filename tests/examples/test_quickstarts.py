"""The quickstarts of examples/quickstart run, each in the language it is written in, where that is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.kit.server import ServerProcess, clean_environment

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "quickstart"
COMMANDS = {
    "quick.sh": ("sh",),
    "quick.py": (sys.executable,),
    "quick.mjs": ("node",),
    "quick.php": ("php",),
    "Quick.java": ("java",),
    "quick.go": ("go", "run"),
}


def lacking(program: str) -> str:
    """Return why a program can't run here, or an empty text."""
    if shutil.which(program) is None:
        return f"there is no {program} on the PATH"
    if program == "java":
        modules = subprocess.run([program, "--list-modules"], capture_output=True, text=True, timeout=120).stdout
        if "jdk.compiler@" not in modules:
            return "java is a runtime without the compiler; a JDK has it"
    return ""


def test_every_quickstart_is_tested() -> None:
    assert sorted(COMMANDS) == sorted(path.name for path in FOLDER.iterdir() if path.is_file())


@pytest.mark.parametrize("name", COMMANDS)
def test_quickstart_publishes_consumes_and_acks(name: str, server: ServerProcess, tmp_path: Path) -> None:
    program, *arguments = COMMANDS[name]
    if why := lacking(program):
        pytest.skip(why)
    # No proxy, and no cache of Go's in somebody's home.
    environment = clean_environment(CURBSTONE_URL=server.url, no_proxy="127.0.0.1", HOME=str(tmp_path))
    command = [program, *arguments, str(FOLDER / name)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "got hello\n"), done.stderr
    (queue,) = httpx.get(f"{server.url}/v2/demo/queues", trust_env=False).json()["queues"]
    assert (queue["rdy"], queue["wip"], queue["delayed"]) == (0, 0, 0)
