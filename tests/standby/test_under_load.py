"""Real processes under load: what takes over, a follower with a full disk, one that is killed while it copies."""

from __future__ import annotations

import os
import subprocess
from itertools import count
from pathlib import Path
from random import Random

import pytest

from tests.crash.killable import KillableServer
from tests.crash.test_real_file import CAP, QUEUES, Run, seed_of_run
from tests.kit.results import recorded
from tests.kit.server import ServerProcess, bodies, call
from tests.kit.waiting import wait_until
from tests.standby.load import Load, wait_in_sync
from tests.standby.standby_process import StandbyProcess

OPTIONS = ("--standby-backlog=1MiB", "--confirm-with=standby", "--standby-patience=never")


class FailingOver(KillableServer):
    """A server whose every next life is that of its standby; the one that was killed becomes the next standby."""

    def __init__(self, server: ServerProcess, folders: list[Path], rng: Random) -> None:
        self._folders = folders
        self._rng = rng
        self._standby = StandbyProcess(folders[1], server.url, *OPTIONS)
        super().__init__(server)
        wait_in_sync(server)

    def kill(self, *args: object) -> None:
        if self._rng.random() < 0.3:
            self._standby.kill()
            self._standby.restart()
        self._standby.is_promotable()
        super().kill()

    def start(self) -> None:
        done = self._standby.promote()
        assert done.code == 0 and "nothing that was confirmed is missing" in done.out, done.err
        former, self.process = self.process, self._standby
        self._standby = StandbyProcess(former.data_dir, self.process.url, *OPTIONS, "--discard")
        self._begin_boot()
        wait_in_sync(self.process)
        wait_until(lambda: not any("the standby" in reason for reason in self.get("/healthz")[1]["reasons"]))

    def stop(self) -> None:
        assert self.process.stop() == 0
        assert self._standby.stop() == 0


def send_a_file(tmp_path: Path, lines: int, kills: int) -> None:
    """Do what `tests.crash.test_real_file` does, but for the place where the server starts again."""
    seed = seed_of_run()
    print(f"CURBSTONE_CRASH_SEED={seed}")
    folders = [tmp_path / "one", tmp_path / "two"]
    server = FailingOver(ServerProcess(folders[0], *OPTIONS), folders, Random(seed))
    run = Run(server, lines, seed)
    run.run(kills)
    verdict = run.history.judge()
    print(f"seed={seed} failovers={server.kills} {verdict.figures()}")
    verdict.check()
    assert run.largest_at_rest <= CAP
    assert [server.count(queue) for queue in QUEUES] == [0] * len(QUEUES)
    server.stop()
    for folder in folders:
        assert "Traceback" not in folder.with_name(folder.name + ".log").read_text(encoding="utf-8")


def test_a_real_file_survives_failovers(tmp_path: Path) -> None:
    send_a_file(tmp_path, lines=3_000, kills=2)


@pytest.mark.soak
def test_files_survive_failovers_for_as_long_as_asked(tmp_path: Path) -> None:
    seconds = float(os.environ.get("CURBSTONE_CRASH_SECONDS", "60"))
    for number in count(1):
        folder = tmp_path / str(number)
        folder.mkdir()
        with recorded("failovers", lambda: {"failovers": 25, "messages confirmed": 20_000}):
            send_a_file(folder, lines=20_000, kills=24)
        if number * 60 > seconds:
            break


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_server_waits_while_the_standby_disk_is_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=34m", "tmpfs", str(disk)], check=True)
    try:
        with (
            ServerProcess(tmp_path / "data", "--standby-backlog=64MiB", "--cap=64MiB") as server,
            StandbyProcess(disk / "copy", server.url, "--cap=64MiB") as standby,
        ):
            call(server, "PUT", "/v2/default/queues/q", {})
            standby.has_everything(server)
            noise = [os.urandom(100_000).hex() for _ in range(200)]
            for at in range(0, len(noise), 10):
                batch = [{"message": body} for body in noise[at : at + 10]]
                call(server, "POST", "/v2/default/queues/q/messages/batch", batch)
            wait_until(lambda: "disk full: " in standby.log)
            (reason,) = standby.status("/healthz")["reasons"]
            assert reason.startswith("disk full: ")
            subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
            standby.has_everything(server)
            assert standby.status("/healthz")["reasons"] == []
            assert call(server, "GET", "/v2/standby")["copies"] == 1, "it went on where it was"
            server.kill()
            assert standby.promote("--accept-loss").code == 0
            assert bodies(standby) == noise
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_standby_killed_during_a_copy_restarts_it(tmp_path: Path) -> None:
    rng = Random(seed_of_run())
    with ServerProcess(tmp_path / "data", "--standby-backlog=64MiB", "--cap=64MiB") as server:
        call(server, "PUT", "/v2/default/queues/old", {})
        for _ in range(20):
            batch = [{"message": os.urandom(400_000).hex()} for _ in range(2)]
            call(server, "POST", "/v2/default/queues/old/messages/batch", batch)
        call(server, "PUT", "/v2/default/queues/q", {})
        load = Load(server.url)
        with load.running(), StandbyProcess(tmp_path / "other", server.url, "--cap=64MiB") as standby:
            for _ in range(4):
                wait_until(lambda: call(server, "GET", "/v2/standby")["followers"])
                load.wait_for_progress(rng.randrange(1, 20))
                standby.kill()
                if not standby.state()["is_complete"]:
                    refused = standby.promote("--accept-loss")
                    assert refused.code == 1 and "the copy is not complete" in refused.err
                standby.restart()
            standby.has_everything(server)
            load.wait_for_progress()
            confirmed = list(load.confirmed)
            standby.has_everything(server)
            server.kill()
            assert standby.promote("--accept-loss").code == 0
            assert set(confirmed) <= set(bodies(standby))
            assert call(standby, "GET", "/v2/default/queues/old")["rdy"] == 40
