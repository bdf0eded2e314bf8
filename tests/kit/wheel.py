"""Curbstone as others install it: a wheel built from a copy of the checkout, in an environment of its own.

Nothing comes from a network: the other dependencies are found where the tests run, by a path entry, which does not
reach the editable install there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOT_SOURCE = shutil.ignore_patterns(
    ".*", "*.egg-info", "__pycache__", "build", "dist", "curbstone-data", "htmlcov", "node_modules"
)


def run(*command: object, cwd: Path) -> str:
    """Run a command outside the checkout and return its output; show its stderr if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def copy_of_the_checkout(work: Path) -> Path:
    """Copy the checkout."""
    source = work / "source"
    shutil.copytree(ROOT, source, symlinks=True, ignore=NOT_SOURCE)
    return source


def build(source: Path, work: Path) -> Path:
    """Build a wheel from a directory or a source distribution, and return it."""
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", work)
    run(sys.executable, "-m", "pip", "wheel", *options, source, cwd=work)
    (wheel,) = work.glob("*.whl")
    return wheel


def new_environment(home: Path) -> tuple[Path, Path]:
    """Make an environment that has all dependencies; return its interpreter, and where its packages go."""
    venv.create(home / "venv", with_pip=False)
    interpreter = home / "venv" / "bin" / "python"
    site = Path(run(interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip())
    here = Path(str(distribution("typer").locate_file("")))
    (site / "dependencies.pth").write_text(f"{here}\n")
    return interpreter, site


def install(wheel: Path, interpreter: Path) -> None:
    """Install a wheel in an environment."""
    options = ("--python", interpreter, "install", "--quiet", "--no-deps", "--no-index", wheel)
    run(sys.executable, "-m", "pip", *options, cwd=wheel.parent)
