"""Builds `core/disk_threads.c`, which a checkout does not have built, and loads it."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAME = "curbstone.core.disk_threads"


def compiled(source: Path, target: Path, *flags: str) -> Path:
    """Compile a shared library; skip the test where that is impossible."""
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("needs Linux and a C compiler")
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-pthread", *flags, str(source), "-o", str(target)]
    subprocess.run(command, check=True)
    return target


@cache
def library() -> Path:
    """Return the path of the built module."""
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").is_file():
        pytest.skip("needs the header files of Python")
    folder = Path(mkdtemp(prefix="curbstone-disk-threads-"))
    return compiled(ROOT / "core" / "disk_threads.c", folder / "disk_threads.abi3.so", f"-I{include}")


def load(path: Path) -> ModuleType:
    """Return the module that was built at `path`."""
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
