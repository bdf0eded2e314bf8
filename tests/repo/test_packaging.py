"""The wheel: only curbstone/* is in it, it lives beside stomp.py, and what it installs works."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

import pytest

from curbstone import __version__
from tests.kit.wheel import ROOT, build, copy_of_the_checkout, install, new_environment, run


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("wheel")
    return build(copy_of_the_checkout(work), work)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """Return the interpreter of a new environment with stomp.py, copied, and, installed after it, the wheel."""
    interpreter, site = new_environment(tmp_path_factory.mktemp("environment"))
    copy_distribution("stomp.py", site)
    install(wheel, interpreter)
    return interpreter


def copy_distribution(name: str, site: Path) -> None:
    for file in distribution(name).files or ():
        if ".." not in file.parts:  # not the scripts, which lie elsewhere
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(file.locate()), site / file)


def contents(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if not name.startswith(f"curbstone-{__version__}.")]


def shared(wheel: Path) -> set[str]:
    """Return what is installed beside the package: man page and completions."""
    prefix = f"curbstone-{__version__}.data/data/share/"
    with zipfile.ZipFile(wheel) as archive:
        return {name.removeprefix(prefix) for name in archive.namelist() if name.startswith(prefix)}


def names_in(wheel: Path, folder: str) -> set[str]:
    return {name for name in contents(wheel) if name.startswith(f"curbstone/{folder}/")}


def sources(folders: Sequence[str]) -> set[str]:
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / "curbstone").rglob("*.py")}
    inside = (path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return found | {f"curbstone/{path.as_posix()}" for path in inside}


def test_wheel_contains_exactly_curbstone(wheel: Path) -> None:
    names = contents(wheel)
    assert [name for name in names if not name.startswith("curbstone/")] == ["pyspark_curbstone.py"]
    folders = [path.name for path in (ROOT / "curbstone").iterdir() if path.is_symlink()]
    assert {name for name in names if name.endswith(".py")} == sources(folders) | {"pyspark_curbstone.py"}
    assert "curbstone/py.typed" in names
    assert names_in(wheel, "openapi") >= {
        f"curbstone/openapi/{path.name}" for path in (ROOT / "openapi").glob("*.yaml")
    }
    for folder in ("console", "docs"):
        page = (ROOT / "gateway" / folder).iterdir()
        assert names_in(wheel, f"gateway/{folder}") == {f"curbstone/gateway/{folder}/{path.name}" for path in page}


def test_wheel_is_pure_python_by_default(wheel: Path) -> None:
    assert wheel.name == f"curbstone-{__version__}-py3-none-any.whl"
    assert not [name for name in contents(wheel) if name.endswith(".so")]


def test_wheel_contains_man_page_and_completions(wheel: Path, python: Path) -> None:
    files = {
        "man/man1/curbstone.1": "man/curbstone.1",
        "bash-completion/completions/curbstone": "completion/curbstone",
        "zsh/site-functions/_curbstone": "completion/_curbstone",
        "fish/vendor_completions.d/curbstone.fish": "completion/curbstone.fish",
    }
    assert shared(wheel) == {*files}
    for name, source in files.items():
        assert (python.parent.parent / "share" / name).read_bytes() == (ROOT / "deploy" / source).read_bytes()


def test_checkout_without_symlinks_is_reported(tmp_path: Path) -> None:
    """Git writes a link as a small file where the system has none, as Windows by default."""
    source = copy_of_the_checkout(tmp_path)
    (source / "curbstone" / "core").unlink()
    (source / "curbstone" / "core").write_text("../core")
    command = [sys.executable, "setup.py", "--version"]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "curbstone/core is no link to core/" in done.stderr and "core.symlinks true" in done.stderr


def test_the_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    program = "import setuptools.build_meta as backend; backend.build_sdist('..')"
    run(sys.executable, "-c", program, cwd=copy_of_the_checkout(tmp_path))
    (source,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        top = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert "CHANGELOG.md" in top
    assert "tests" not in top  # a few of them, which is what setuptools takes by itself, would not run
    built = build(source, tmp_path)
    assert sorted(contents(built)) == sorted(contents(wheel))
    assert shared(built) == shared(wheel)


def test_installed_modules_can_be_imported(python: Path, tmp_path: Path) -> None:
    (site,) = (python.parent.parent / "lib").glob("python3*/site-packages")
    files = [path.relative_to(site) for path in (site / "curbstone" / "core").rglob("*.py")]
    names = [".".join(path.with_suffix("").parts) for path in files]
    assert "curbstone.core.engine.log.format" in names
    run(python, "-c", f"import {', '.join(names)}", cwd=tmp_path)


def test_stomp_module_is_still_stomp_py(python: Path, tmp_path: Path) -> None:
    program = "import stomp, curbstone.stomp.codec as ours; print(stomp.__file__, stomp.Connection12, ours.__file__)"
    theirs, *_, ours = run(python, "-c", program, cwd=tmp_path).split()
    assert theirs.endswith("site-packages/stomp/__init__.py")
    assert ours.endswith("site-packages/curbstone/stomp/codec.py")
    assert str(python.parent.parent) in theirs
    assert str(python.parent.parent) in ours


def test_no_file_of_stomp_py_changed(python: Path, wheel: Path) -> None:
    (site,) = (python.parent.parent / "lib").glob("python3*/site-packages")
    for file in distribution("stomp.py").files or ():
        if ".." not in file.parts and file.suffix != ".pyc":
            assert (site / file).read_bytes() == file.read_binary(), f"{file} was overwritten"


def test_wheel_adds_only_curbstone_modules(python: Path) -> None:
    (site,) = (python.parent.parent / "lib").glob("python3*/site-packages")
    added = {path.name for path in site.iterdir() if path.suffix not in (".pth", ".dist-info")}
    assert added - {"__pycache__", "docs", "stomp"} == {"curbstone", "pyspark_curbstone.py"}


def test_installed_command_works(python: Path, tmp_path: Path) -> None:
    assert run(python.parent / "curbstone", "--version", cwd=tmp_path) == f"curbstone {__version__} (source)\n"
    assert run(python, "-m", "curbstone", "--version", cwd=tmp_path) == f"curbstone {__version__} (source)\n"
