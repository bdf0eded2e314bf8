"""The client as others install it: its wheel alone, in an environment with nothing else."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from curbstone_client import __version__
from tests.kit.server import ServerProcess
from tests.kit.wheel import NOT_SOURCE, ROOT, build, install, new_environment, run

PROGRAM = """
import sys
from curbstone_client.sync import Client
with Client(sys.argv[1]) as client:
    client.queue("a").publish("hello")
    with next(client.queue("a").consume()) as message:
        print(message.text)
loaded = {name.partition(".")[0] for name in sys.modules}
sys.exit(bool(loaded & {"curbstone", "httpx", "websockets", "uvloop"}))
"""


def test_client_wheel_works_without_other_packages(tmp_path: Path, server: ServerProcess) -> None:
    shutil.copytree(ROOT / "client", tmp_path / "source", ignore=NOT_SOURCE)
    wheel = build(tmp_path / "source", tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if "dist-info" not in name}
        (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    assert names == {f"curbstone_client/{path.name}" for path in (ROOT / "client/curbstone_client").glob("*.*")}
    assert f"\nVersion: {__version__}\n" in metadata
    assert all("extra ==" in line for line in metadata.splitlines() if line.startswith("Requires-Dist"))
    python, site = new_environment(tmp_path)
    (site / "dependencies.pth").unlink()
    install(wheel, python)
    assert run(python, "-c", PROGRAM, server.url, cwd=tmp_path) == "hello\n"
