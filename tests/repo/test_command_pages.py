"""Man page and completions, as the shells and `man` take them. tests/repo/test_tidy.py checks that they are current."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kit.wheel import ROOT

DEPLOY = ROOT / "deploy"
BASH = DEPLOY / "completion" / "curbstone"


def completed(*words: str, cwd: Path) -> list[str]:
    """Return what bash would offer for the last word."""
    script = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _curbstone; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-uc", script, "bash", str(BASH), "curbstone", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout.split()


def test_bash_completes_commands_options_and_files(tmp_path: Path) -> None:
    (tmp_path / "users.toml").touch()
    assert completed("se", cwd=tmp_path) == ["send", "serve"]
    assert completed("token", "", cwd=tmp_path) == ["create", "list", "revoke"]
    assert "--message" not in completed("send", "jobs", "--", cwd=tmp_path)
    assert {"--ttl", "--delay", "--jsonl"} <= {*completed("send", "jobs", "--", cwd=tmp_path)}
    assert completed("token", "create", "--gr", cwd=tmp_path) == ["--grant"]
    assert completed("serve", "--users", "us", cwd=tmp_path) == ["users.toml"]
    assert completed("check", "us", cwd=tmp_path) == ["users.toml"]
    assert completed("serve", "--cap", "", cwd=tmp_path) == []


@pytest.mark.parametrize(("shell", "name"), [("bash", "curbstone"), ("zsh", "_curbstone"), ("fish", "curbstone.fish")])
def test_each_shell_accepts_its_completions(shell: str, name: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    subprocess.run([shell, "-n", str(DEPLOY / "completion" / name)], check=True)


@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff here")
def test_man_page_renders_without_warnings() -> None:
    page = DEPLOY / "man" / "curbstone.1"
    done = subprocess.run(["groff", "-ww", "-mandoc", "-Tutf8", str(page)], capture_output=True, text=True, check=True)
    assert not done.stderr
    assert "curbstone serve" in done.stdout
