"""`--lease`, as processes: the standby takes over by itself, and a server without its lease confirms nothing."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit.commands import curbstone
from tests.kit.object_store import object_store
from tests.kit.processes import FIRST
from tests.kit.results import record
from tests.kit.server import NotReady, ServerProcess, bodies, call, clean_environment
from tests.kit.waiting import wait_until
from tests.standby.kubernetes_api import KubernetesApi
from tests.standby.load import Load, confirms, wait_in_sync
from tests.standby.standby_process import StandbyProcess

TTL_S = 6
OPTIONS = ("--standby-backlog=1MiB", "--cap=64MiB", f"--lease-ttl={TTL_S}")
SYNC = (*OPTIONS, "--confirm-with=standby")
BUCKET = "leases"
FAILING_DISK = """
import errno, os, pathlib
def failing(call):
    def made(*args):
        if pathlib.Path({path!r}).exists():
            raise OSError(errno.EIO, "Input/output error")
        return call(*args)
    return made
for name in ("pwrite", "pwritev", "fdatasync", "fsync"):
    setattr(os, name, failing(getattr(os, name)))
"""
"""Has the disk fail while a file is there."""


class LeaseStore(NamedTuple):
    """Where a lease is: the option, and the environment of processes that reach it."""

    option: str
    env: dict[str, str]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[KubernetesApi]:
    (tmp_path / "kubernetes").mkdir()
    with KubernetesApi(tmp_path / "kubernetes") as found:
        yield found


@pytest.fixture
def lease(api: KubernetesApi) -> LeaseStore:
    return LeaseStore("--lease=k8s://shop/lease", clean_environment(**api.variables))


@pytest.fixture(params=["s3", "k8s"])
def any_lease(request: pytest.FixtureRequest) -> Iterator[LeaseStore]:
    if request.param == "k8s":
        yield request.getfixturevalue("lease")
        return
    if importlib.util.find_spec("obstore") is None:
        pytest.skip("obstore is not installed; `make spark-deps` brings it")
    with object_store(BUCKET) as found:
        yield LeaseStore(f"--lease=s3://{BUCKET}/shop/lease", clean_environment(**found))


def held(server: ServerProcess) -> dict[str, object]:
    found: dict[str, object] = call(server, "GET", "/v2/standby")["lease"]
    return found


def names_a_standby(server: ServerProcess) -> None:
    """Wait until the lease of a server does, so that it may take over."""
    wait_until(lambda: held(server)["standbys"] == 1)


def serves(standby: StandbyProcess) -> None:
    """Wait until a standby has taken over."""
    ServerProcess.read_addresses(standby, standby.process)


def test_standby_takes_over_automatically_without_loss(tmp_path: Path, any_lease: LeaseStore) -> None:
    data, other, (lease, env) = tmp_path / "data", tmp_path / "other", any_lease
    with ServerProcess(data, *SYNC, lease, env=env) as server:
        call(server, "PUT", "/v2/default/queues/q", {})
        with StandbyProcess(other, server.url, *SYNC, lease, env=env) as standby:
            wait_in_sync(server)
            standby.is_promotable()
            load = Load(server.url)
            with load.running():
                load.wait_for_progress()
                server.kill()
                serves(standby)
                load.urls.append(standby.url)
                load.wait_for_progress()
            assert set(load.confirmed) <= set(bodies(standby))
            assert standby.state()["term"] == 2 and not (other / "ids").exists()
            with pytest.raises(NotReady, match="it has replaced this one") as refused:
                server.restart()
            assert refused.value.code == 7
            with StandbyProcess(data, standby.url, "--discard", *SYNC, lease, env=env) as former:
                wait_in_sync(standby)
                assert former.state()["term"] == 2


@pytest.mark.parametrize("options", [SYNC, OPTIONS], ids=["sync", "local"])
def test_a_server_whose_disk_fails_hands_over_to_its_standby(
    tmp_path: Path, lease: LeaseStore, options: tuple[str, ...]
) -> None:
    """Its disk fails for good, also when it would record that it is not the server any more."""
    broken = tmp_path / "the disk fails"
    env = {**lease.env, FIRST: lease.env[FIRST] + FAILING_DISK.format(path=str(broken))}
    fault = "--failover-on-fault=2"
    with ServerProcess(tmp_path / "data", *options, fault, lease.option, env=env) as server:
        call(server, "PUT", "/v2/default/queues/q", {})
        with StandbyProcess(tmp_path / "other", server.url, *options, fault, lease.option, env=lease.env) as standby:
            standby.has_everything(server)
            load = Load(server.url)
            with load.running():
                load.wait_for_progress()
                broken.touch()
                assert server.process.wait(60) == 7
                serves(standby)
                load.urls.append(standby.url)
                load.wait_for_progress()
            assert "the disk has failed for 2 s: handed over to " in server.log
            assert "the handover is recorded only in the lease" in server.log
            assert set(load.confirmed) <= set(bodies(standby))
            assert standby.state()["term"] == 2 and not (tmp_path / "other" / "ids").exists()
            broken.unlink()
            with StandbyProcess(tmp_path / "data", standby.url, "--discard", *options, lease.option, env=env) as former:
                former.has_everything(standby)
                assert former.state()["term"] == 2


def test_a_server_whose_disk_fails_serves_on_without_a_standby(tmp_path: Path, lease: LeaseStore) -> None:
    broken = tmp_path / "the disk fails"
    env = {**lease.env, FIRST: lease.env[FIRST] + FAILING_DISK.format(path=str(broken))}
    with ServerProcess(tmp_path / "data", *OPTIONS, "--failover-on-fault=1", lease.option, env=env) as server:
        call(server, "PUT", "/v2/default/queues/q", {})
        load = Load(server.url)
        with load.running():
            load.wait_for_progress()
            broken.touch()
            wait_until(lambda: "no standby takes over: no standby is attached whose copy is complete" in server.log)
            broken.unlink()
            load.wait_for_progress()
        assert held(server)["valid_ms"] and set(load.confirmed) <= set(bodies(server))


def test_server_stopped_for_too_long_confirms_nothing_and_ends(tmp_path: Path, lease: LeaseStore) -> None:
    with ServerProcess(tmp_path / "data", *SYNC, lease.option, env=lease.env) as server:
        call(server, "PUT", "/v2/default/queues/q", {})
        with StandbyProcess(tmp_path / "other", server.url, *SYNC, lease.option, env=lease.env) as standby:
            wait_in_sync(server)
            names_a_standby(server)
            server.process.send_signal(signal.SIGSTOP)
            load = Load(server.url)
            with load.running():
                serves(standby)
                server.process.send_signal(signal.SIGCONT)
                assert server.process.wait(60) == 7
            assert load.confirmed == []
            assert "this server shuts down" in server.log
            assert bodies(standby) == []


def test_server_ends_without_the_lease_store_and_serves_again_with_it(tmp_path: Path, api: KubernetesApi) -> None:
    env = clean_environment(**api.variables)
    with ServerProcess(tmp_path / "data", *OPTIONS, "--lease=k8s://shop/lease", env=env) as server:
        call(server, "PUT", "/v2/default/queues/q", {})
        api.token = "no token is right"
        assert server.process.wait(60) == 7
        assert "the lease could not be renewed in time" in server.log and "401: Unauthorized" in server.log
        api.renew_token("another token")
        server.kill()
        server.restart()
        assert bodies(server) == [] and held(server)["standbys"] == 0


def test_server_restarted_in_time_keeps_its_lease(tmp_path: Path, lease: LeaseStore) -> None:
    long = "--lease-ttl=120"  # a start may take longer than TTL_S
    with (
        ServerProcess(tmp_path / "data", *SYNC, long, lease.option, env=lease.env) as server,
        StandbyProcess(tmp_path / "other", server.url, *SYNC, long, lease.option, env=lease.env) as standby,
    ):
        wait_in_sync(server)
        server.kill()
        server.restart(same_ports=True)
        wait_in_sync(server)
        assert standby.state()["term"] == 1


def test_server_continuing_alone_is_not_replaced(tmp_path: Path, lease: LeaseStore) -> None:
    """What it confirms is on one disk only, so a standby that comes back late must not take over."""
    patience = "--standby-patience=1"
    with ServerProcess(tmp_path / "data", *SYNC, patience, lease.option, env=lease.env) as server:
        call(server, "PUT", "/v2/default/queues/q", {})
        with StandbyProcess(tmp_path / "other", server.url, *SYNC, lease.option, env=lease.env) as standby:
            wait_in_sync(server)
            names_a_standby(server)
            standby.kill()
            wait_until(lambda: confirms(server) == "alone")
            assert held(server)["standbys"] == 0
            call(server, "POST", "/v2/default/queues/q/messages/batch", [{"message": "on one disk"}])
            server.kill()
            standby.restart()
            wait_until(lambda: "but this copy does not take it: the copy is not in sync" in standby.log)
            server.restart(same_ports=True)
            wait_in_sync(server)
            assert bodies(server) == ["on one disk"]


def test_an_asynchronous_standby_takes_over_within_its_lag(tmp_path: Path, lease: LeaseStore) -> None:
    lag = "--failover-lag=600"
    with ServerProcess(tmp_path / "data", *OPTIONS, lease.option, env=lease.env) as server:
        call(server, "PUT", "/v2/default/queues/q", {})
        with StandbyProcess(tmp_path / "other", server.url, *OPTIONS, lag, lease.option, env=lease.env) as standby:
            call(server, "POST", "/v2/default/queues/q/messages/batch", [{"message": "first"}])
            standby.has_everything(server)
            server.kill()
            serves(standby)
            assert bodies(standby) == ["first"]
            assert "promoted to term 2; something that was confirmed may be missing" in standby.log


def test_manual_promotion_waits_for_the_lease(tmp_path: Path, lease: LeaseStore) -> None:
    with (
        ServerProcess(tmp_path / "data", *OPTIONS, lease.option, env=lease.env) as server,
        StandbyProcess(tmp_path / "other", server.url, *OPTIONS, lease.option, env=lease.env) as standby,
    ):
        call(server, "PUT", "/v2/default/queues/q", {})
        standby.has_everything(server)
        server.kill()
        wait_until(lambda: "but this copy does not take it: the copy is not in sync" in standby.log)
        refused = standby.promote()
        assert refused.code == 1 and "the copy is not in sync" in refused.err
        done = standby.promote("--accept-loss")
        assert done.code == 0 and "promoted to term 2; something that was confirmed may be missing" in done.out
        standby.kill()
        standby.restart()
        serves(standby)
        assert bodies(standby) == [] and call(standby, "GET", "/v2/standby")["term"] == 2


def test_directory_without_a_standby_is_served_by_its_command(tmp_path: Path, lease: LeaseStore) -> None:
    """So that both machines can run the same command from the beginning."""
    with ServerProcess(tmp_path / "data") as server:
        call(server, "PUT", "/v2/default/queues/q", {})
    with StandbyProcess(tmp_path / "data", server.url, *OPTIONS, lease.option, env=lease.env) as first:
        serves(first)
        assert bodies(first) == [] and held(first)["valid_ms"]
        with StandbyProcess(tmp_path / "other", first.url, *OPTIONS, lease.option, env=lease.env) as second:
            second.has_everything(first)


def test_switchover_hands_over_the_lease(tmp_path: Path, lease: LeaseStore) -> None:
    with (
        ServerProcess(tmp_path / "data", *OPTIONS, lease.option, env=lease.env) as server,
        StandbyProcess(tmp_path / "other", server.url, *OPTIONS, lease.option, env=lease.env) as standby,
    ):
        call(server, "PUT", "/v2/default/queues/q", {})
        standby.has_everything(server)
        refused = standby.promote("--accept-loss")
        assert refused.code == 1 and "holds the lease, and renewed it" in refused.err
        load = Load(server.url)
        with load.running():
            load.wait_for_progress()
            done = curbstone("switchover", "--server", server.url, cwd=tmp_path)
            assert done.code == 0 and "which serves as term 2" in done.out
            assert server.process.wait(60) == 7
            serves(standby)
            load.urls.append(standby.url)
            load.wait_for_progress()
        assert set(load.confirmed) <= set(bodies(standby))


def test_lease_of_another_server_is_not_changed(tmp_path: Path, lease: LeaseStore) -> None:
    with ServerProcess(tmp_path / "data", *OPTIONS, lease.option, env=lease.env) as server:
        with pytest.raises(NotReady, match="the lease can't be used: it belongs to server"):
            ServerProcess(tmp_path / "other", *OPTIONS, lease.option, env=lease.env)
        assert held(server)["valid_ms"]


@pytest.mark.parametrize(
    ("args", "code", "rule"),
    [
        (("--lease", "s3://bucket/key"), 2, "--lease needs --standby-backlog"),
        (("--lease", "file:///tmp/lease", "--standby-backlog", "1MiB"), 2, "bad lease 'file:///tmp/lease'"),
        (("--lease", "k8s://shop", "--standby-backlog", "1MiB"), 2, "bad lease 'k8s://shop'"),
        (("--failover-on-fault", "30"), 2, "--failover-on-fault needs --lease"),
        (("--lease-ttl", "5"), 2, "expected a number of seconds from 6"),
        (("--advertise", "one.example"), 2, "bad address 'one.example'"),
        (("--lease", "k8s://shop/lease", "--standby-backlog", "1MiB"), 1, "KUBERNETES_SERVICE_HOST is not set"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, args: tuple[str, ...], code: int, rule: str) -> None:
    done = curbstone("serve", *args, cwd=tmp_path)
    assert done.code == code and rule in done.err


@pytest.mark.soak
def test_failovers_by_a_lease_lose_nothing(tmp_path: Path, lease: LeaseStore) -> None:
    """The server is killed or stopped, again and again, and its standby takes over. The load goes on."""
    seconds = float(os.environ.get("CURBSTONE_CRASH_SECONDS", "60"))
    seed = int(os.environ.get("CURBSTONE_SIM_SEED", str(time.time_ns() % 1_000_000)))
    print(f"\nseed {seed}")
    rng = random.Random(seed)
    options = (*SYNC, lease.option)
    server: ServerProcess = ServerProcess(tmp_path / "one", *options, env=lease.env)
    folder = tmp_path / "two"
    call(server, "PUT", "/v2/default/queues/q", {})
    load = Load(server.url)
    failovers = 0
    end = time.monotonic() + seconds
    with load.running():
        while time.monotonic() < end:
            standby = StandbyProcess(folder, server.url, "--discard", *options, env=lease.env)
            wait_in_sync(server)
            names_a_standby(server)
            time.sleep(rng.uniform(0, 1))
            is_stopped = rng.random() < 0.5
            server.process.send_signal(signal.SIGSTOP if is_stopped else signal.SIGKILL)
            serves(standby)
            if is_stopped:
                server.process.send_signal(signal.SIGCONT)
                assert server.process.wait(60) == 7
            server.kill()
            folder, server = server.data_dir, standby
            load.urls = [server.url]
            load.wait_for_progress()
            failovers += 1
    missing = set(load.confirmed) - set(bodies(server))
    counts = {"failovers": failovers, "messages confirmed": len(load.confirmed)}
    record("failovers", counts, is_finding=bool(missing))
    assert not missing, sorted(missing)[:10]
    assert server.stop() == 0
