"""The documentation: the site builds without a dead link, and the commands on its pages are those that there are."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from curbstone.cli.main import app
from tests.kit.ops_tools import ROOT, needs_ops_tools, run
from tools.ops import docs_tables

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_INDENTED = re.compile(r"^(?:    \S.*\n)+", re.M)
_INLINE = re.compile(r"`(curbstone [a-z][^`…]*)`")


@needs_ops_tools
def test_site_builds_without_dead_links(tmp_path: Path) -> None:
    run("mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site")
    assert (tmp_path / "site" / "index.html").exists()
    for page in (tmp_path / "site").glob("*.html"):
        assert not re.search(r'(?:src|href)="https?://[^"]*\.(?:js|css|woff2?)"', page.read_text(encoding="utf-8"))


def test_tables_made_from_the_code_are_up_to_date() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
    made = {name for text in texts.values() for name in re.findall("<!-- table: ([\\w-]+) -->", text)}
    assert made == docs_tables.TABLES.keys()
    for path, text in texts.items():
        assert docs_tables.updated(path.name, text) == text, (
            f"{path.name} is out of date: `python -m tools.ops.docs_tables`"
        )


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r": ([\w-]+\.md)$", text, re.M))
    made = {"python-client.md", "javascript-client.md"}  # from the READMEs of the clients
    assert named == made | {page.name for page in (ROOT / "docs").glob("*.md")}
    assert yaml.safe_load(text)["strict"] is True


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/engine.md", "docs/testing.md"])
def test_files_named_in_developer_pages_exist(page: str) -> None:
    folders = [folder for folder in ROOT.iterdir() if folder.is_dir() and folder.name.isidentifier()]
    there = {path.relative_to(ROOT).as_posix() for folder in folders for path in folder.rglob("*.py")}
    there |= {path.name for path in ROOT.glob("*.py")}
    there |= {name.rpartition("/")[2] for name in there} | {"stomp.py"}  # PyPI's, which is not ours
    named = set(re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text(encoding="utf-8")))
    missing = {name for name in named if name not in there and not any(path.endswith(f"/{name}") for path in there)}
    assert named and not missing


def test_tests_named_in_pages_exist() -> None:
    tests = {path: re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.M)
             for path in (ROOT / "tests").rglob("test_*.py")}  # fmt: skip
    every = {name for names in tests.values() for name in names}
    pages = "".join([page.read_text(encoding="utf-8") for page in PAGES])
    named = set(re.findall(r"`(test_\w+)`", pages))
    assert named and not named - every
    parts = re.findall(r"`([\w/]*\btest_\w+\.py)` \(([^)]*)\)", pages)
    for file, words in parts:
        names = [name for path in tests if path.as_posix().endswith(f"/{file}") for name in tests[path]]
        for word in re.findall(r"\b[a-z]+(?:_[a-z]+)+", words):
            assert any(word in name for name in names), f"{file} has no test whose name contains {word}"


def lines_of(page: Path) -> Iterator[str]:
    text = page.read_text(encoding="utf-8")
    for kind, block in _BLOCK.findall(text):
        if kind in ("console", "sh", "bash", ""):
            yield from block.replace("\\\n", " ").splitlines()
    text = _BLOCK.sub("", text)
    for block in _INDENTED.findall(text):
        yield from (line.strip() for line in block.replace("\\\n", " ").splitlines())
    yield from _INLINE.findall(text)


def commands() -> Iterator[Any]:
    for page in PAGES:
        for line in lines_of(page):
            for part in re.split(r"\s(?:\||&&|;)\s", line.partition(" #")[0]):
                match = re.match(r"(?:[\w./-]*/)?curbstone (?!ready)(.*)$", part.strip())
                if match and not line.startswith(
                    ("python3", "docker", "install", "systemctl", "curbstone-env/bin/pip")
                ):
                    yield pytest.param(match[1], id=f"{page.stem}-{match[1][:40]}")


@pytest.fixture(scope="module")
def command_line() -> Any:
    return typer.main.get_command(app)


@pytest.mark.parametrize("text", list(commands()))
def test_commands_in_pages_exist_with_their_options(command_line: Any, text: str) -> None:
    words = shlex.split(text) if not text.count("'") % 2 and not text.count('"') % 2 else text.split()
    command = command_line
    known = {option for each in command.params for option in each.opts}
    while words and not words[0].startswith("-") and hasattr(command, "commands"):
        names = words[0].split("|")
        for name in names:
            assert name in command.commands, f"there is no command {name}"
        command = command.commands[names[0]]
        known |= {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        words = words[1:]
    if command.context_settings.get("ignore_unknown_options"):
        return  # it hands its words on
    options = [word.partition("=")[0] for word in words if re.fullmatch(r"--[a-z][\w-]*(=.*)?", word)]
    assert set(options) <= known | {"--help"}, f"not all of {options} exist"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_shell_and_python_blocks_in_pages_are_valid(page: Path) -> None:
    for kind, block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind in ("sh", "bash", "console"):
            done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        elif kind == "python":
            compile(block, page.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
