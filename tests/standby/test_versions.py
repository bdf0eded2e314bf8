"""This version beside the last release: a rolling upgrade of two machines, standby first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.commands import curbstone
from tests.kit.ops_tools import ROOT
from tests.kit.server import ServerProcess, bodies, call, clean_environment
from tests.standby.load import Load, wait_in_sync
from tests.standby.standby_process import StandbyProcess

RELEASE = "0.4.0"
OPTIONS = ("--standby-backlog=1MiB", "--cap=64MiB")
SYNC = (*OPTIONS, "--confirm-with=standby", "--standby-patience=never")


def git(*args: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which `python -m curbstone` is the release."""
    commit = git("rev-parse", "--verify", "--quiet", f"v{RELEASE}^{{commit}}") or git(
        "log", "-1", "--format=%H", f"--grep=^Release {RELEASE}$"
    )
    if not commit:
        pytest.skip(f"version {RELEASE} is not in the history of this checkout")
    folder = tmp_path_factory.mktemp("release")
    git("archive", f"--output={folder}/tree.tar", commit)
    subprocess.run(["tar", "-xf", "tree.tar"], cwd=folder, check=True)
    env = clean_environment(PYTHONPATH=str(folder))
    where = [sys.executable, "-c", "import curbstone; print(curbstone.__file__)"]
    found = subprocess.run(where, env=env, cwd=folder, capture_output=True, text=True, check=True).stdout
    assert found.startswith(str(folder)), found
    return env


def test_a_rolling_upgrade_loses_nothing(release: dict[str, str], tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with ServerProcess(one, *SYNC, env=release) as server:
        assert f"curbstone {RELEASE} " in server.log
        with StandbyProcess(two, server.url, *SYNC, env=release) as former:
            wait_in_sync(server)
            call(server, "PUT", "/v2/default/queues/q", {})
            former.kill()
        load = Load(server.url)
        with load.running(), StandbyProcess(two, server.url, *SYNC) as standby:  # the standby is upgraded first
            wait_in_sync(server)
            load.wait_for_progress()
            done = curbstone("switchover", "--server", server.url, cwd=tmp_path)
            assert done.code == 0, done.err
            assert server.process.wait(60) == 7
            ServerProcess.read_addresses(standby, standby.process)
            load.urls.append(standby.url)
            with StandbyProcess(one, standby.url, *SYNC) as other:  # then the machine that has handed over
                wait_in_sync(standby)
                load.wait_for_progress()
                confirmed = list(load.confirmed)
                standby.kill()
                assert other.promote().code == 0
                assert set(confirmed) <= set(bodies(other))


def test_released_standby_follows_this_version(release: dict[str, str], tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "one", *OPTIONS) as server,
        StandbyProcess(tmp_path / "two", server.url, *OPTIONS, env=release) as standby,
    ):
        call(server, "PUT", "/v2/default/queues/q", {})
        call(server, "POST", "/v2/default/queues/q/messages/batch", [{"message": "one"}])
        standby.has_everything(server)
        server.kill()
        assert standby.promote("--accept-loss").code == 0
        assert f"curbstone {RELEASE} " in standby.log
        assert bodies(standby) == ["one"]
