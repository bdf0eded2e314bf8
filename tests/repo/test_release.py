"""`make release`: what it makes of changelog and version, what it refuses, and once all of it in a clone."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from curbstone import __version__
from tests.kit.ops_tools import BIN, ROOT, needs_ops_tools, run

CHANGELOG = "# Changelog\n\n## Unreleased\n\n- A new thing.\n\n## 0.9.0 (2026-01-01)\n\n- An old thing.\n"


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "ops" / "release.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_release_dates_the_unreleased_section(release: ModuleType) -> None:
    closed = release.closed(CHANGELOG, "1.0.0", "2026-02-03")
    assert closed.startswith("# Changelog\n\n## Unreleased\n\n## 1.0.0 (2026-02-03)\n\n- A new thing.\n\n## 0.9.0")
    assert release.notes(closed, "1.0.0") == "- A new thing."
    assert release.notes(closed, "0.9.0") == "- An old thing."


@pytest.mark.parametrize(
    ("changelog", "version", "why"),
    [
        (CHANGELOG, "0.9.0", "already has a section 0.9.0"),
        (CHANGELOG.replace("- A new thing.\n\n", ""), "1.0.0", "has an empty section '## Unreleased'"),
        (CHANGELOG.replace("## Unreleased", "## Soon"), "1.0.0", "has no section '## Unreleased'"),
    ],
)
def test_release_without_changelog_entries_is_refused(
    release: ModuleType, changelog: str, version: str, why: str
) -> None:
    with pytest.raises(release.Refused, match=why):
        release.closed(changelog, version, "2026-02-03")


def test_the_repository_is_fit_for_a_release(release: ModuleType) -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    is_released = f"{release.UNRELEASED}\n\n## {__version__} (" in changelog
    if not is_released:
        release.closed(changelog, "999.0.0", "2026-02-03")
    text = release.with_version((ROOT / "curbstone" / "__init__.py").read_text(encoding="utf-8"), "999.0.0")
    assert '__version__ = "999.0.0"' in text
    manifests = (ROOT / release.MANIFESTS).read_text(encoding="utf-8")
    assert f"image: curbstone:{__version__}\n" in manifests
    assert "image: curbstone:999.0.0\n" in release.with_image(manifests, "999.0.0")


def test_version_is_defined_in_one_place(release: ModuleType) -> None:
    """So that nothing says an old one after a release."""
    set_there = {ROOT / path for path in release.VERSION_FILES}
    set_there.add(ROOT / "tests/core/recovery/test_golden.py")  # names data directories of earlier versions
    set_there.add(ROOT / "tests/standby/test_versions.py")  # runs the last release
    # A version in a sentence about an older one ends otherwise.
    said = re.compile(rf"[\"'/=: ]{re.escape(__version__)}[\"']")
    for folder in ("core", "curbstone", "gateway", "stomp", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            assert path in set_there or not said.search(path.read_text(encoding="utf-8")), path


@needs_ops_tools
def test_cibuildwheel_builds_for_every_supported_interpreter_and_processor() -> None:
    """As pyproject.toml configures it; to build needs a container engine."""
    wanted = [f"cp3{minor}-manylinux_{cpu}" for cpu in ("x86_64", "aarch64") for minor in (11, 12, 13, 14)]
    assert run("cibuildwheel", "--platform", "linux", "--print-build-identifiers", ROOT).split() == wanted


def test_compiled_wheels_are_built_for_supported_interpreters(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyenv has a command for each version, also for those that are not selected."""
    for name, code in (("python3.11", 0), ("python3.12", 127), ("python3.14", 0), ("python3.10", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert release.interpreters() == [tmp_path / "python3.11", tmp_path / "python3.14"]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    if not (ROOT / ".git").exists():
        pytest.skip("a release is made of a git repository, and this is none")
    work = tmp_path / "clone"
    run("git", "clone", "--quiet", "--local", ROOT, work, cwd=tmp_path)
    run("git", "config", "user.name", "Tests", cwd=work)
    run("git", "config", "user.email", "tests@localhost", cwd=work)
    return work


def make_release(clone: Path, version: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "python"), str(clone / "tools" / "ops" / "release.py"), version]
    return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)


@needs_ops_tools
def test_release_refuses_uncommitted_changes_and_invalid_versions(clone: Path) -> None:
    head = run("git", "rev-parse", "HEAD", cwd=clone)
    assert "bad version" in make_release(clone, "next").stderr
    (clone / "README.md").write_text("another\n")
    refused = make_release(clone, "999.0.0")
    assert refused.returncode == 1
    assert "uncommitted changes" in refused.stderr
    assert run("git", "rev-parse", "HEAD", cwd=clone) == head
    assert run("git", "tag", cwd=clone) == run("git", "tag", cwd=ROOT)


@pytest.mark.soak
@needs_ops_tools
def test_a_release_is_made_in_a_clone(release: ModuleType, clone: Path) -> None:
    done = make_release(clone, "999.0.0")
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (clone / "dist").iterdir()}
    made = {"curbstone-999.0.0.cdx.json", "curbstone-999.0.0-requirements.lock", "SHA256SUMS"}
    made |= {
        f"{name}-999.0.0{end}" for name in ("curbstone", "curbstone_client") for end in ("-py3-none-any.whl", ".tar.gz")
    }
    compiled = {name for name in names if re.fullmatch(r"curbstone-999.0.0-cp3\d+-cp3\d+-manylinux.*\.whl", name)}
    assert names == made | compiled
    assert len(compiled) == len(release.interpreters()) > 0
    run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=clone / "dist")
    assert "- " in run("git", "tag", "--list", "--format=%(contents)", "v999.0.0", cwd=clone)
    assert not run("git", "status", "--porcelain", cwd=clone)
    bill = json.loads((clone / "dist" / "curbstone-999.0.0.cdx.json").read_text())
    server = bill["metadata"]["component"]
    assert (server["type"], server["name"], server["version"]) == ("application", "curbstone", "999.0.0")
    versions = {part["name"]: part["version"] for part in bill["components"]}
    assert versions["curbstone-client"] == "999.0.0"
    (needs,) = (parts["dependsOn"] for parts in bill["dependencies"] if parts["ref"] == server["bom-ref"])
    assert any(name.startswith("starlette") for name in needs)
    assert "image: curbstone:999.0.0\n" in (clone / "deploy" / "kubernetes" / "base" / "statefulset.yaml").read_text()
    assert "starlette" in versions
    assert "the tag v999.0.0 already exists" in make_release(clone, "999.0.0").stderr
