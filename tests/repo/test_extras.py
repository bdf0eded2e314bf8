"""What is installed without extras: a command that needs one says which, in one line, and tells what it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from curbstone.exit_codes import FAILED
from tests.kit.commands import Done, curbstone

OF_EXTRAS = ("curbstone_client", "deltalake", "duckdb", "pyarrow", "pyspark")
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({OF_EXTRAS}))"
SQL = "deltalake and pyarrow and duckdb not installed; pip install 'curbstone[sql]'"
LAKE = "deltalake and pyarrow not installed; pip install 'curbstone[sql]'"
LACKS = {
    "push a --url http://127.0.0.1": "push needs the Python client: pip install ./client in a checkout of Curbstone",
    "sql SELECT": SQL,
    "pipeline report a": SQL,
    "pipeline replay a --lake x": SQL,
    "pipeline compact x": LAKE,
    "pipeline iceberg x": LAKE,
    "pipeline upgrade x": LAKE,
    "pipeline archive a --lake x": LAKE,
}


def run(*words: str, cwd: Path) -> Done:
    """Run the command line where no extra is installed."""
    return curbstone(*words, cwd=cwd, CURBSTONE_TESTS_FIRST=WITHOUT)


@pytest.mark.parametrize("command", LACKS)
def test_command_without_its_extra_names_it_in_one_line(tmp_path: Path, command: str) -> None:
    done = run(*command.split(), cwd=tmp_path)
    assert (done.code, done.out, done.err) == (FAILED, "", f"curbstone: {LACKS[command]}\n")


@pytest.mark.parametrize("command", ["push", "sql", *(f"pipeline {job}" for job in ("report", "replay", "archive"))])
def test_command_options_are_checked_without_its_extra(tmp_path: Path, command: str) -> None:
    done = run(*command.split(), "--help", cwd=tmp_path)
    assert (done.code, done.err) == (0, "") and "--server" in done.out
