"""`--confirm-with standby` and `switchover`, as processes: nothing that was confirmed is missing, whoever is killed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.kit.commands import curbstone
from tests.kit.results import record
from tests.kit.server import ServerProcess, bodies, call, publish
from tests.kit.waiting import wait_until
from tests.standby.load import Load, confirms, wait_in_sync
from tests.standby.standby_process import StandbyProcess

OPTIONS = ("--standby-backlog=1MiB", "--confirm-with=standby", "--cap=64MiB")
NEVER = "--standby-patience=never"


def test_confirmed_messages_are_on_both_disks_when_the_server_is_killed(tmp_path: Path) -> None:
    patience = "--standby-patience=1"
    with ServerProcess(tmp_path / "data", *OPTIONS, NEVER) as server:  # noqa: SIM117 its URL is needed
        with StandbyProcess(tmp_path / "other", server.url, *OPTIONS, patience) as standby:
            wait_in_sync(server)
            call(server, "PUT", "/v2/default/queues/q", {})
            load = Load(server.url)
            with load.running():
                wait_until(lambda: len(load.confirmed) > 100)
                server.kill()
                done = standby.promote()
                assert done.code == 0 and "nothing that was confirmed is missing" in done.out
                load.urls.append(standby.url)
                before = len(load.confirmed)
                wait_until(lambda: len(load.confirmed) > before + 100)
            found = bodies(standby)
            assert set(load.confirmed) <= set(found)
            ids = call(standby, "GET", "/v2/default/queues/q/messages?limit=1000")["messages"]
            assert int(ids[-1]["id"].rpartition("-")[2]) == min(len(found), 1000), "no id is left out"


def test_nothing_is_confirmed_without_a_standby_until_patience_ends(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", *OPTIONS, "--standby-patience=5") as server:
        assert confirms(server) == "alone"
        call(server, "PUT", "/v2/default/queues/q", {})
        with StandbyProcess(tmp_path / "other", server.url) as standby:
            standby.is_promotable()
            standby.kill()
            wait_until(lambda: confirms(server) == "waiting")
            publish(server, "one")
            assert confirms(server) == "alone"
            assert "the server continues alone" in server.log
            refused = curbstone("promote", str(tmp_path / "other"), cwd=tmp_path)
            reason = "has received no reply from the server, and it confirms alone after 5 s"
            assert refused.code == 1 and reason in refused.err
            server.kill()
            server.restart(same_ports=True)
            assert confirms(server) == "alone", "it was noted"
            standby.restart()
            wait_in_sync(server)
            server.kill()
            server.args = (*OPTIONS, "--standby-patience=600")  # so that it still waits when it is asked, however late
            server.restart(same_ports=True)
            assert confirms(server) in ("waiting", "joining", "sync")
            wait_in_sync(server)


def test_server_waiting_for_its_standby_is_not_ready(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", *OPTIONS, NEVER) as server:
        sent = threading.Thread(target=call, args=(server, "PUT", "/v2/default/queues/q", {}))
        sent.start()

        def why_not_ready() -> str:
            try:
                call(server, "GET", "/readyz")
            except urllib.error.HTTPError as error:
                return error.read().decode()
            return ""

        wait_until(lambda: "the standby: not in sync" in why_not_ready())
        assert sent.is_alive()
        with StandbyProcess(tmp_path / "other", server.url):
            sent.join(60)
            assert not sent.is_alive()
            wait_until(lambda: why_not_ready() == "")
            with StandbyProcess(tmp_path / "third", server.url) as third:
                wait_until(lambda: "confirms wait for copy" in third.log)


def test_stop_under_load_waits_for_the_standby_to_acknowledge_the_last_commit(tmp_path: Path) -> None:
    """The connections of followers were closed with all others, so that what was under way was not confirmed."""
    with ServerProcess(tmp_path / "data", *OPTIONS, NEVER) as server:  # noqa: SIM117 its URL is needed
        with StandbyProcess(tmp_path / "other", server.url, *OPTIONS, NEVER) as standby:
            wait_in_sync(server)
            call(server, "PUT", "/v2/default/queues/q", {})
            load = Load(server.url)
            with load.running():
                for _ in range(5):
                    load.wait_for_progress()
                    assert server.stop() == 0, server.log
                    server.restart(same_ports=True)
                    wait_in_sync(server)
            assert "were not confirmed" not in server.log
            assert server.stop() == 0
            assert standby.promote().code == 0
            assert set(load.confirmed) <= set(bodies(standby))


def test_stop_without_the_standby_reports_unconfirmed_messages(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", *OPTIONS, NEVER) as server:
        errors: list[Exception] = []

        def declare() -> None:
            try:
                call(server, "PUT", "/v2/default/queues/q", {})
            except (OSError, HTTPException) as error:
                errors.append(error)

        sent = threading.Thread(target=declare)
        sent.start()
        wait_until(lambda: any((tmp_path / "data" / "queues").iterdir()))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 1
        sent.join()
        assert errors, "it was not confirmed"
        assert "commits that were not confirmed, because the standby did not acknowledge them: 1" in server.log


def test_switchover_loses_nothing(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    with ServerProcess(data, "--standby-backlog=1MiB", "--cap=64MiB") as server:
        refused = curbstone("switchover", "--server", server.url, cwd=tmp_path)
        assert refused.code == 1 and "no standby is attached" in refused.err
        with StandbyProcess(other, server.url, "--cap=64MiB") as standby:
            call(server, "PUT", "/v2/default/queues/q", {})
            standby.has_everything(server)
            load = Load(server.url)
            with load.running():
                wait_until(lambda: len(load.confirmed) > 100)
                done = curbstone("switchover", "--server", server.url, cwd=tmp_path)
                assert done.code == 0 and "which serves as term 2" in done.out
                assert server.process.wait(60) == 7
                ServerProcess.read_addresses(standby, standby.process)
                both = f"{server.url},{standby.url}"
                assert curbstone("queues", "--server", both, cwd=tmp_path).code == 0, "the second one answers"
                load.urls.append(standby.url)
                before = len(load.confirmed)
                wait_until(lambda: len(load.confirmed) > before + 50)
            assert set(load.confirmed) <= set(bodies(standby))
            assert not (other / "ids").exists()
            with StandbyProcess(data, standby.url) as former:
                former.has_everything(standby)
                assert not (tmp_path / "data.kept-1").exists()
                assert curbstone("switchover", "--server", standby.url, cwd=tmp_path).code == 0
                ServerProcess.read_addresses(former, former.process)
                assert set(load.confirmed) <= set(bodies(former)) and former.state()["term"] == 3
                assert standby.process.wait(60) == 7


@pytest.mark.soak
def test_failovers_of_real_processes_lose_nothing(tmp_path: Path) -> None:
    """One of two is killed, or hands over, again and again. The load goes on, and at the end everything is there."""
    seconds = float(os.environ.get("CURBSTONE_CRASH_SECONDS", "60"))
    seed = int(os.environ.get("CURBSTONE_SIM_SEED", str(time.time_ns() % 1_000_000)))
    print(f"\nseed {seed}")
    rng = random.Random(seed)
    folders = [tmp_path / "one", tmp_path / "two"]
    server: ServerProcess = ServerProcess(folders[0], *OPTIONS, NEVER)
    load = Load(server.url)
    standby = StandbyProcess(folders[1], server.url, *OPTIONS, NEVER)
    wait_in_sync(server)
    call(server, "PUT", "/v2/default/queues/q", {})
    failovers = kills = handovers = 0
    end = time.monotonic() + seconds
    with load.running():
        while time.monotonic() < end:
            time.sleep(rng.uniform(0.2, 2))
            what = rng.random()
            if what < 0.3:
                standby.kill()
                time.sleep(rng.choice([0, 0.5]))
                standby.restart()
                kills += 1
            else:
                standby.is_promotable()
                if what < 0.8:
                    server.kill()
                    done = standby.promote()
                    assert done.code == 0, done.err
                    failovers += 1
                else:
                    done = curbstone("switchover", "--server", server.url, cwd=tmp_path)
                    if done.code != 0:
                        continue
                    server.process.wait(60)
                    server.kill()
                    ServerProcess.read_addresses(standby, standby.process)
                    handovers += 1
                folder = server.data_dir
                server = standby
                load.urls = [server.url]
                standby = StandbyProcess(folder, server.url, *OPTIONS, NEVER, "--discard")
            wait_in_sync(server)
    missing = set(load.confirmed) - set(bodies(server))
    counts = {"failovers": failovers, "switchovers": handovers, "messages confirmed": len(load.confirmed)}
    record("failovers", counts, is_finding=bool(missing))
    print(f"{len(load.confirmed)} confirmed, {failovers} failovers, {handovers} handovers, {kills} kills of a standby")
    assert not missing, sorted(missing)[:10]
    standby.stop()
    server.stop()
