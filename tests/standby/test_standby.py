"""`curbstone standby` and `promote`, as processes: either side is killed, and the copy takes over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.kit.commands import curbstone
from tests.kit.server import NotReady, ServerProcess, call, publish
from tests.kit.waiting import wait_until
from tests.standby.standby_process import StandbyProcess

BACKLOG = "--standby-backlog=1MiB"


def ids_and_bodies(server: ServerProcess) -> list[tuple[int, str]]:
    found = call(server, "GET", "/v2/default/queues/q/messages?limit=1000")["messages"]
    return [(int(message["id"].rpartition("-")[2]), message["message"]) for message in found]


def test_copy_takes_over_and_the_former_server_follows(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    with ServerProcess(data, BACKLOG) as server:
        publish(server, "one")
        with StandbyProcess(other, server.url, BACKLOG) as standby:
            standby.has_everything(server)
            standby.kill()
            publish(server, "two")
            standby.restart()
            standby.has_everything(server)
            figures = call(server, "GET", "/v2/standby")
            assert (figures["copies"], figures["resumes"], figures["term"]) == (1, 1, 1)
            refused = standby.promote()
            assert refused.code == 1 and "something that was confirmed may be missing" in refused.err
            server.kill()
            done = standby.promote("--accept-loss")
            assert done.code == 0 and "promoted to term 2" in done.out
            publish(standby, "three")
            gap = 1 << 24
            assert ids_and_bodies(standby) == [(1, "one"), (2, "two"), (3 + gap, "three")]
            with StandbyProcess(data, standby.url) as former:
                former.has_everything(standby)
                assert (tmp_path / "data.kept-1" / "queues").is_dir()
                assert former.state()["term"] == 2
                publish(standby, "four")
                former.has_everything(standby)
                again = curbstone("promote", str(other), cwd=tmp_path)
                assert again.code == 1 and "is the directory of a running server already" in again.err


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_former_server_whose_directory_is_a_mount_point_ends_with_an_error(tmp_path: Path) -> None:
    """Its data can't be moved aside, so nothing is changed before the operator decides."""
    data = tmp_path / "data"
    data.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(data)], check=True)
    try:
        with ServerProcess(data, BACKLOG) as server, StandbyProcess(tmp_path / "other", server.url, BACKLOG) as standby:
            publish(server, "one")
            standby.has_everything(server)
            server.kill()
            assert standby.promote("--accept-loss").code == 0
            with StandbyProcess(data, standby.url) as former:
                assert former.process.wait(60) == 1
                assert f"{data} can't follow {standby.url}: it is a mount point" in former.log
                assert former.state()["is_server"] and list(data.glob("queues/*/*.seg"))
            with StandbyProcess(data, standby.url, "--discard") as former:
                former.has_everything(standby)
    finally:
        subprocess.run(["umount", str(data)], check=True)


def test_a_kept_directory_is_not_replaced(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerProcess(data, BACKLOG) as server, StandbyProcess(tmp_path / "other", server.url, BACKLOG) as standby:
        publish(server, "one")
        standby.has_everything(server)
        server.kill()
        assert standby.promote("--accept-loss").code == 0
        (tmp_path / "data.kept-1").mkdir()
        with StandbyProcess(data, standby.url) as former:
            assert former.process.wait(60) == 1
            assert "data.kept-1 exists already; move it, or add --discard" in former.log
            assert former.state()["is_server"]


def test_copy_can_be_promoted_offline_and_the_former_server_ends(tmp_path: Path) -> None:
    data, other, third = tmp_path / "data", tmp_path / "other", tmp_path / "third"
    with ServerProcess(data, BACKLOG) as server:
        publish(server, "one")
        with StandbyProcess(other, server.url) as standby, StandbyProcess(third, server.url) as later:
            standby.has_everything(server)
            wait_until(lambda: later.state()["is_complete"])
        with pytest.raises(NotReady, match="is a copy of another server: run curbstone standby on it"):
            ServerProcess(other)
        done = curbstone("promote", str(other), "--accept-loss", cwd=tmp_path)
        assert done.code == 0 and "start it with curbstone serve --data" in done.out
        with ServerProcess(other, BACKLOG) as new:
            assert [body for _, body in ids_and_bodies(new)] == ["one"]
            with StandbyProcess(third, new.url) as later:
                later.has_everything(new)
            later.of = server.url
            later.restart()
            assert server.process.wait(60) == 7
            assert "a copy of this server was promoted (term 2) and has replaced it" in server.log
            assert later.stop() == 0


def test_a_promoted_directory_is_served_again_by_the_same_command(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    with ServerProcess(data, BACKLOG) as server, StandbyProcess(other, server.url) as standby:
        publish(server, "one")
        standby.has_everything(server)
        server.kill()
        assert standby.promote("--accept-loss").code == 0
        standby.kill()
        standby.restart()
        ServerProcess.read_addresses(standby, standby.process)
        assert [body for _, body in ids_and_bodies(standby)] == ["one"]


def test_no_id_is_reused_after_a_loss(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    gap = 1 << 24
    with ServerProcess(data, BACKLOG) as server, StandbyProcess(other, server.url) as standby:
        publish(server, "one")
        call(server, "PUT", "/v2/default/queues/idle", {})
        standby.has_everything(server)
        server.kill()
        assert standby.stop() == 0
    assert curbstone("promote", str(other), "--accept-loss", cwd=tmp_path).code == 0
    with ServerProcess(other) as new:
        new.kill()
        new.restart()
        publish(new, "two")
        assert ids_and_bodies(new)[-1] == (2 + gap, "two")
        assert sorted(json.loads((other / "ids").read_bytes()).values()) == [1 + gap, 2 + gap]
        call(new, "POST", "/v2/default/queues/idle/messages", {"message": "first"})
        new.kill()
        new.restart()
        assert not (other / "ids").exists()
        publish(new, "three")
        assert ids_and_bodies(new)[-1] == (3 + gap, "three")


@pytest.mark.parametrize(
    ("args", "code", "rule"),
    [
        (("standby",), 2, "Missing option '--of'"),
        (("standby", "--of", "ftp://x", "--data", "d"), 2, "bad server address"),
        (("standby", "--of", "http://x", "--cap", "much"), 2, "--cap: "),
        (("promote", "nothing"), 1, "nothing is not a copy of a server"),
    ],
)
def test_invalid_calls_are_reported(tmp_path: Path, args: tuple[str, ...], code: int, rule: str) -> None:
    done = curbstone(*args, cwd=tmp_path)
    assert done.code == code and rule in done.err


def test_server_without_a_backlog_explains_how_to_enable_followers(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        standby = StandbyProcess(tmp_path / "other", server.url)
        assert standby.process.wait(60) == 1
        assert "start it with --standby-backlog 64MiB" in standby.log
        standby._wait()


def test_directory_of_another_server_is_not_changed(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", BACKLOG) as server, ServerProcess(tmp_path / "other") as other:
        publish(other, "precious")
        assert other.stop() == 0
        standby = StandbyProcess(tmp_path / "other", server.url)
        assert standby.process.wait(60) == 1
        assert "it has data that are not a copy of a server; use an empty directory" in standby.log
        standby._wait()
        other.restart()
        assert ids_and_bodies(other) == [(1, "precious")]
        other.process.send_signal(signal.SIGTERM)
