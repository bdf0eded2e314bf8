"""Makes a release: `make release VERSION=1.2.0`. Nothing leaves this machine; the last lines say what would.

In order: the checkout is clean and the version is new; the changelog's "Unreleased" gets the version and the date, and
the manifests name the image of that version; all this is one commit, with a tag; source distributions and wheels of the
server and of its Python client are built from that commit alone; both wheels are installed in a new environment and
asked for their version; the SBOM describes that environment (CycloneDX): the server, and all it brings. Checksums of
all are in `SHA256SUMS`. What fails before the commit leaves the checkout as it was; afterwards the text says how to
undo it.
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
VERSION_FILES = ("curbstone/__init__.py", "client/curbstone_client/__init__.py")
"""The server and its Python client are released together, under one version."""
MANIFESTS = "deploy/kubernetes/base/statefulset.yaml"
CHANGELOG = "CHANGELOG.md"
UNRELEASED = "## Unreleased"
_VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
_ASSIGNMENT = re.compile(r'^__version__ = "(.*)"$', re.M)
_IMAGE = re.compile(r"^( *image: curbstone:)(\S+)$", re.M)


class Refused(Exception):
    """The checkout or the version is not fit for a release. The text says why."""


def with_version(text: str, version: str) -> str:
    """Return the text of a module with its `__version__` replaced."""
    changed, count = _ASSIGNMENT.subn(f'__version__ = "{version}"', text)
    if count != 1:
        raise Refused(f"a module has {count} lines that set __version__, not one")
    return changed


def with_image(text: str, version: str) -> str:
    """Return manifests with the version of the image replaced."""
    changed, count = _IMAGE.subn(rf"\g<1>{version}", text)
    if count != 1:
        raise Refused(f"{MANIFESTS} has {count} lines that name the image, not one")
    return changed


def closed(changelog: str, version: str, date: str) -> str:
    """Return the changelog with its unreleased part, which must not be empty, turned into that of `version`."""
    if re.search(rf"^## {re.escape(version)}\b", changelog, re.M):
        raise Refused(f"{CHANGELOG} has a section {version} already")
    before, heading, after = changelog.partition(f"\n{UNRELEASED}\n")
    if not heading:
        raise Refused(f"{CHANGELOG} has no section {UNRELEASED!r}")
    section = re.split(r"^## ", after, maxsplit=1, flags=re.M)[0]
    if not section.strip():
        raise Refused(f"{CHANGELOG} says nothing under {UNRELEASED!r}")
    return f"{before}\n{UNRELEASED}\n\n## {version} ({date})\n{after}"


def notes(changelog: str, version: str) -> str:
    """Return the part of a changelog about a version."""
    _, _, after = changelog.partition(f"\n## {version} (")
    return re.split(r"^## ", after.partition("\n")[2], maxsplit=1, flags=re.M)[0].strip()


def main() -> int:
    """Make the release. Return 1, with a line on stderr, if it can't be made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="such as 1.2.0 or 1.2.0rc1")
    version = parser.parse_args().version
    try:
        check(version)
        commit(version)
        files = build(version)
    except Refused as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print("made:", *(f"  {path.relative_to(ROOT)}" for path in files), sep="\n")
    print(f"then: git push --follow-tags, and upload dist/curbstone*-{version}* to the package index")
    return 0


def check(version: str) -> None:
    """Raise Refused if the checkout or the version is not fit for a release."""
    if not _VERSION.fullmatch(version):
        raise Refused(f"{version!r} is no version: three numbers, and maybe a1, b1 or rc1")
    if changed := git("status", "--porcelain"):
        raise Refused(f"the checkout has changes that are not committed:\n{changed}")
    if git("tag", "--list", f"v{version}"):
        raise Refused(f"there is a tag v{version} already")


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
    # With this, two builds of the same commit give the same bytes.
    os.environ["SOURCE_DATE_EPOCH"] = git("log", "-1", "--format=%ct", f"v{version}").strip()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        source, environment = work / "source", work / "environment"
        git("worktree", "add", "--quiet", "--detach", source, f"v{version}")
        try:
            for project in (source, source / "client"):
                run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, project)
        finally:
            git("worktree", "remove", "--force", source)
        names = ("curbstone", "curbstone_client")
        wheels = [DIST / f"{name}-{version}-py3-none-any.whl" for name in names]
        built = [*wheels, *(DIST / f"{name}-{version}.tar.gz" for name in names)]
        for path in built:
            if not path.exists():
                raise Refused(f"the build did not make {path.name}; undo with: git tag -d v{version}; git reset HEAD~")
        run(sys.executable, "-m", "venv", environment)
        python = environment / "bin" / "python"
        pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        run(*pip, "--require-hashes", "--requirement", ROOT / LOCK)
        run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools")  # it is in the file to build the image
        run(*pip, "--no-deps", *wheels)
        said = run(environment / "bin" / "curbstone", "--version").strip()
        said += run(python, "-c", "import curbstone_client as client; print(',', client.__version__)").strip()
        if said != f"curbstone {version}, {version}":
            raise Refused(f"what is installed says {said!r}; undo with: git tag -d v{version}; git reset HEAD~")
        bill = DIST / f"curbstone-{version}.cdx.json"
        run("cyclonedx-py", "environment", "--output-reproducible", "--output-file", bill, python)
        bill.write_text(of_the_server(bill.read_text(encoding="utf-8")), encoding="utf-8")
    lock = DIST / f"curbstone-{version}-requirements.lock"
    shutil.copyfile(ROOT / LOCK, lock)
    sums = DIST / "SHA256SUMS"
    made = [*built, lock, bill]
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    sums.write_text("".join(lines), encoding="utf-8")
    return [*made, sums]


def of_the_server(bill: str) -> str:
    """Return an SBOM that says what it is the bill of: so far the server is one part among many."""
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
    here = Path(sys.executable).parent / str(command[0])
    words = [str(here) if here.exists() else str(command[0]), *map(str, command[1:])]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refused(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
