"""The tools that check what surrounds the server, in their own environment beside this one (`make ops-tools`)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv" / "ops-tools" / "bin"

needs_ops_tools = pytest.mark.skipif(
    not (BIN / "mkdocs").exists() and os.environ.get("CURBSTONE_REQUIRE_OPS") != "1",
    reason="`make ops-tools` has not installed what checks this",
)


def run(*command: object, cwd: Path = ROOT, **environment: str) -> str:
    """Run a command, one of these tools by its bare name; return its output, and show all of it if it fails."""
    name, *words = [str(word) for word in command]
    done = subprocess.run(
        [str(BIN / name) if (BIN / name).exists() else name, *words],
        cwd=cwd,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{name} failed:\n{done.stdout[-6000:]}"
    return done.stdout
