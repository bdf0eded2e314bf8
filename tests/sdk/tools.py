"""The tools that make and check the SDKs, in their own environment beside this one (`make sdk-tools`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tools" / "sdk"
NODE_MODULES = FOLDER / "node_modules"
BIN = ROOT / ".venv" / "sdk-tools" / "bin"
MISSING = "run `make sdk-tools`, and see what it says if this stays"


def tool(name: str) -> Path:
    path = Path(os.environ.get("CURBSTONE_SDK_TOOLS", BIN)) / name
    assert path.exists(), f"there is no {path}; {MISSING}"
    return path


def node_tool(name: str) -> Path:
    """Return a tool's path among the npm packages."""
    path = NODE_MODULES / ".bin" / name
    assert path.exists(), f"there is no {path}; {MISSING}"
    return path


def run(*command: object, cwd: Path, **more: str) -> str:
    """Run a command, with `more` in its environment, and return its output; show all of it if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | more
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, file=sys.stderr)
    assert done.returncode == 0, f"{words[0]} failed:\n{done.stdout[-6000:]}"
    return done.stdout
