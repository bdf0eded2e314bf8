"""Makes a release: `make release VERSION=1.2.0`. It uploads nothing; the last lines of its output say how.

It checks that the checkout is clean and the version is new. It writes the version and the date into the changelog's
"Unreleased" and the image's version into the manifests, and commits and tags this. From that commit alone, it builds
source distributions and pure Python wheels of the server and of its Python client, and a compiled wheel of the server
for each of `python3.11` to `python3.14` on the PATH; auditwheel tags these with the oldest glibc they run on. It
installs each wheel in a new environment and checks its version. The SBOM (CycloneDX) describes one of these
environments: the server and its dependencies. `SHA256SUMS` has the checksums of all files. A failure before the commit
leaves the checkout unchanged; after it, the message says how to undo the commit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
LOCK = "deploy/docker/requirements.lock"
BUILD_LOCK = "deploy/docker/build.lock"
INTERPRETERS = ("python3.11", "python3.12", "python3.13", "python3.14")
VERSION_FILES = ("curbstone/__init__.py", "client/curbstone_client/__init__.py")
"""The server and its Python client are released together, under one version."""
MANIFESTS = "deploy/kubernetes/base/statefulset.yaml"
CHANGELOG = "CHANGELOG.md"
UNRELEASED = "## Unreleased"
_VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
_ASSIGNMENT = re.compile(r'^__version__ = "(.*)"$', re.M)
_IMAGE = re.compile(r"^( *image: curbstone:)(\S+)$", re.M)


class Refused(Exception):
    """The checkout or the version can't be released. The text says why."""


def with_version(text: str, version: str) -> str:
    """Return the text of a module with its `__version__` replaced."""
    changed, count = _ASSIGNMENT.subn(f'__version__ = "{version}"', text)
    if count != 1:
        raise Refused(f"a module has {count} lines that set __version__, not 1")
    return changed


def with_image(text: str, version: str) -> str:
    """Return manifests with the version of the image replaced."""
    changed, count = _IMAGE.subn(rf"\g<1>{version}", text)
    if count != 1:
        raise Refused(f"{MANIFESTS} has {count} lines that name the image, not 1")
    return changed


def closed(changelog: str, version: str, date: str) -> str:
    """Return the changelog with its unreleased part, which must not be empty, turned into that of `version`."""
    if re.search(rf"^## {re.escape(version)}\b", changelog, re.M):
        raise Refused(f"{CHANGELOG} already has a section {version}")
    before, heading, after = changelog.partition(f"\n{UNRELEASED}\n")
    if not heading:
        raise Refused(f"{CHANGELOG} has no section {UNRELEASED!r}")
    section = re.split(r"^## ", after, maxsplit=1, flags=re.M)[0]
    if not section.strip():
        raise Refused(f"{CHANGELOG} has an empty section {UNRELEASED!r}")
    return f"{before}\n{UNRELEASED}\n\n## {version} ({date})\n{after}"


def notes(changelog: str, version: str) -> str:
    """Return the part of a changelog about a version."""
    _, _, after = changelog.partition(f"\n## {version} (")
    return re.split(r"^## ", after.partition("\n")[2], maxsplit=1, flags=re.M)[0].strip()


def main() -> int:
    """Make the release. On failure, print a line on stderr and return 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="such as 1.2.0 or 1.2.0rc1")
    version = parser.parse_args().version
    try:
        check(version)
        commit(version)
    except Refused as error:
        return failed(str(error))
    try:
        files = build(version)
    except Refused as error:
        return failed(f"{error}\nundo with: git tag -d v{version} && git reset --hard HEAD~")
    print("made:", *(f"  {path.relative_to(ROOT)}" for path in files), sep="\n")
    print(f"then: git push --follow-tags, and upload dist/curbstone*-{version}* to the package index")
    return 0


def failed(reason: str) -> int:
    """Print the reason and return the exit code."""
    print(f"release: {reason}", file=sys.stderr)
    return 1


def check(version: str) -> None:
    """Raise Refused if the checkout or the version can't be released."""
    if not _VERSION.fullmatch(version):
        raise Refused(f"bad version {version!r}: expected three numbers, optionally with a1, b1 or rc1")
    if changed := git("status", "--porcelain"):
        raise Refused(f"the checkout has uncommitted changes:\n{changed}")
    if git("tag", "--list", f"v{version}"):
        raise Refused(f"the tag v{version} already exists")


def commit(version: str) -> None:
    """Write the version and the changelog, commit them and tag the commit."""
    today = datetime.now(UTC).date().isoformat()
    new = {path: with_version((ROOT / path).read_text(encoding="utf-8"), version) for path in VERSION_FILES}
    new[MANIFESTS] = with_image((ROOT / MANIFESTS).read_text(encoding="utf-8"), version)
    new[CHANGELOG] = closed((ROOT / CHANGELOG).read_text(encoding="utf-8"), version, today)
    for path, text in new.items():
        (ROOT / path).write_text(text, encoding="utf-8")
    git("commit", "--quiet", "--message", f"Release {version}", "--", *new)
    git("tag", "--annotate", f"v{version}", "--message", f"Curbstone {version}\n\n{notes(new[CHANGELOG], version)}")


def build(version: str) -> list[Path]:
    """Build everything from the tag alone, not from the checkout, and return the files."""
    DIST.mkdir(exist_ok=True)
    # Makes builds of the same commit reproducible.
    os.environ["SOURCE_DATE_EPOCH"] = git("log", "-1", "--format=%ct", f"v{version}").strip()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        source = work / "source"
        git("worktree", "add", "--quiet", "--detach", source, f"v{version}")
        try:
            for project in (source, source / "client"):
                run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, project)
            compiled = {python: compiled_wheel(source, python, work / python.name) for python in interpreters()}
        finally:
            git("worktree", "remove", "--force", source)
        pure, client = (DIST / f"{name}-{version}-py3-none-any.whl" for name in ("curbstone", "curbstone_client"))
        sources = [DIST / f"{name}-{version}.tar.gz" for name in ("curbstone", "curbstone_client")]
        python = installed(work / "pure", Path(sys.executable), [pure, client])
        expect(python, f"curbstone {version} (source)")
        for interpreter, wheel in compiled.items():
            expect(installed(work / wheel.stem, interpreter, [wheel, client]), f"curbstone {version} (compiled)")
        run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools", "pip")  # the server does not need them
        bill = DIST / f"curbstone-{version}.cdx.json"
        run("cyclonedx-py", "environment", "--output-reproducible", "--output-file", bill, python)
        bill.write_text(of_the_server(bill.read_text(encoding="utf-8")), encoding="utf-8")
    lock = DIST / f"curbstone-{version}-requirements.lock"
    shutil.copyfile(ROOT / LOCK, lock)
    sums = DIST / "SHA256SUMS"
    made = [pure, client, *compiled.values(), *sources, lock, bill]
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    sums.write_text("".join(lines), encoding="utf-8")
    return [*made, sums]


def interpreters() -> list[Path]:
    """Return the interpreters for compiled wheels. pyenv also has commands for versions that are not selected."""
    found = (Path(path) for name in INTERPRETERS if (path := shutil.which(name)))
    return [path for path in found if subprocess.run([path, "-c", ""], capture_output=True).returncode == 0]


def compiled_wheel(source: Path, interpreter: Path, work: Path) -> Path:
    """Build the compiled wheel for an interpreter, and return it with auditwheel's tag."""
    python = environment(work, interpreter, BUILD_LOCK)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", work / "built")
    run("env", "CURBSTONE_COMPILED=1", python, "-m", "pip", "wheel", *options, source)
    (built,) = (work / "built").iterdir()
    run("auditwheel", "repair", "--strip", "--wheel-dir", work / "tagged", built)
    (tagged,) = (work / "tagged").iterdir()
    return Path(shutil.copy(tagged, DIST))


def environment(folder: Path, interpreter: Path, lock: str) -> Path:
    """Create an environment with the packages of a lock file, and return its interpreter."""
    run(interpreter, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(*pip(python), "--require-hashes", "--requirement", ROOT / lock)
    return python


def installed(folder: Path, interpreter: Path, wheels: list[Path]) -> Path:
    """Install wheels and their dependencies in a new environment, and return its interpreter."""
    python = environment(folder, interpreter, LOCK)
    run(*pip(python), "--no-deps", *wheels)
    return python


def pip(python: Path) -> tuple[object, ...]:
    """Return the install command for the environment of an interpreter."""
    return (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")


def expect(python: Path, wanted: str) -> None:
    """Raise Refused unless the server and client in an environment have the wanted version and build."""
    said = run(python.with_name("curbstone"), "--version").strip()
    client = run(python, "-c", "import curbstone_client as client; print(client.__version__)").strip()
    if said != wanted or client != wanted.split()[1]:
        raise Refused(f"the wheels are {said!r} and curbstone_client {client!r}, not {wanted!r}")


def of_the_server(bill: str) -> str:
    """Return an SBOM with the server as its subject; before, the server is one component among many."""
    content = json.loads(bill)
    (server,) = (part for part in content["components"] if part["name"] == "curbstone")
    content["components"].remove(server)
    content["metadata"]["component"] = server | {"type": "application"}
    return json.dumps(content, indent=2) + "\n"


def git(*words: object) -> str:
    """Run git in the checkout."""
    return run("git", *words)


def run(*command: object) -> str:
    """Run a command, with this environment first on the PATH, and return its output. Its stderr is shown."""
    words = [str(word) for word in command]
    variables = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refused(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
