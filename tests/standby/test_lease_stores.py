"""The stores of a lease, each with a server that does as the real one: moto's S3, and a small API of Kubernetes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from curbstone.core.disk import OsDisk
from curbstone.core.errors import Unavailable
from curbstone.settings import load
from curbstone.standby import kubernetes_lease
from curbstone.standby.frames import InSync
from curbstone.standby.kubernetes_lease import RECORD
from curbstone.standby.lease import BadLease, Lease, LeaseStore, UnfitStore
from curbstone.standby.lease_keeper import acquire, store_at
from curbstone.standby.lease_watch import LeaseWatch
from curbstone.standby.second_copy import SecondCopy
from curbstone.standby.state_files import StateFiles
from tests.kit.authority import Authority
from tests.kit.object_store import object_store
from tests.kit.server import clean_environment
from tests.kit.waiting import wait_until
from tests.standby.kubernetes_api import KubernetesApi
from tests.standby.test_second_copy import AtOnce

LEASE = Lease(server="s", term=1, holder="a", name="one", url="", sync=(), ttl_ms=15_000, write="1")


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesApi]:
    with KubernetesApi(tmp_path) as found:
        for name, value in found.variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(kubernetes_lease, "SERVICE_ACCOUNT", found.account)
        yield found


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if importlib.util.find_spec("obstore") is None:
        pytest.skip("obstore is not installed; `make spark-deps` brings it")
    with object_store("leases") as found:
        for name, value in found.items():
            monkeypatch.setenv(name, value)
        yield


@pytest.fixture(params=["k8s://shop/lease", "s3://leases/shop/lease"])
def store(request: pytest.FixtureRequest) -> Iterator[LeaseStore]:
    request.getfixturevalue("api" if request.param.startswith("k8s") else "s3")
    with closing(store_at(request.param, 15)) as found:
        yield found


@pytest.fixture
def in_kubernetes(api: KubernetesApi) -> Iterator[LeaseStore]:
    with closing(store_at("k8s://shop/lease", 15)) as found:
        yield found


def test_store_replaces_only_the_version_that_was_read(store: LeaseStore) -> None:
    store.check()
    assert store.read() is None
    first = store.write(LEASE, None)
    found = store.read()
    assert found is not None and found == (LEASE, first)
    with pytest.raises(OSError, match="already"):
        store.write(LEASE, None)
    second = store.write(replace(LEASE, write="2"), first)
    with pytest.raises(OSError, match="modified|precondition"):
        store.write(replace(LEASE, write="3"), first)
    found = store.read()
    assert found is not None and (found.lease.write, found.version) == ("2", second)
    store.check()


def test_server_acquires_and_renews_its_lease(store: LeaseStore, request: pytest.FixtureRequest) -> None:
    keeper = acquire(store_at(request.node.callspec.params["store"], 15), replace(LEASE, sync=("b",), ttl_ms=6000))
    assert keeper.holder.holds and keeper.figures().standbys == 0
    before = store.read()
    keeper.name_in_sync("b")

    def is_named() -> bool:
        found = store.read()
        return found is not None and found.lease.sync == ("b",) and found != before

    wait_until(is_named)
    keeper.hand_over("b", "two")
    found = store.read()
    assert found is not None and (found.lease.holder, found.lease.term, found.lease.sync) == ("b", 2, ())
    assert not keeper.holder.holds and not keeper.end_reason


def test_stuck_server_does_not_renew_its_lease(in_kubernetes: LeaseStore, api: KubernetesApi) -> None:
    keeper = acquire(store_at("k8s://shop/lease", 15), replace(LEASE, ttl_ms=6000))
    before = api.writes
    wait_until(lambda: api.writes > before, "it is not renewed before the server runs")
    keeper.heartbeat()
    wait_until(lambda: keeper.end_reason)
    assert keeper.is_stuck and keeper.replaced is None
    keeper.heartbeat()
    before = api.writes
    wait_until(lambda: api.writes > before, "it is not renewed although the server runs")
    keeper.hand_over("b", "two")


def test_lease_renewed_during_the_check_is_not_taken(
    in_kubernetes: LeaseStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread looked between the decision and the write, which then replaced the version of the renewal."""
    first = in_kubernetes.write(replace(LEASE, sync=("b",)), None)
    files = StateFiles(OsDisk(tmp_path / "copy"), b"")
    files.change(server="s", term=1, copy="b", is_complete=True, in_sync=InSync.ON_DISK)
    files.close()
    copy = SecondCopy(OsDisk(tmp_path / "copy", is_shared=True), b"", AtOnce(), lambda: 0)
    watch = LeaseWatch(load({"lease": "k8s://shop/lease", "standby_backlog": "1MiB"}))
    looks = threading.Thread(target=watch.refresh)

    def possible_loss(*_: object, **_more: object) -> str:
        in_kubernetes.write(replace(LEASE, write="2"), first)
        looks.start()
        looks.join(0.5)
        return ""

    monkeypatch.setattr(watch, "possible_loss", possible_loss)
    with pytest.raises(OSError, match="modified"):
        watch.take(copy, None)
    looks.join()
    watch.close()
    copy.close()
    found = in_kubernetes.read()
    assert found is not None and found.lease.holder == "a"


def test_foreign_fields_of_the_object_are_kept(api: KubernetesApi, in_kubernetes: LeaseStore) -> None:
    """Whoever may only update an object of this name has to find one, which then has no record yet."""
    api.put({"kind": "Lease", "metadata": {"name": "lease", "labels": {"app": "shop"}, "annotations": {"note": "x"}}})
    assert in_kubernetes.read() is None
    in_kubernetes.write(LEASE, None)
    stored: dict[str, Any] = api.objects["lease"]
    assert stored["metadata"]["labels"] == {"app": "shop"} and stored["metadata"]["annotations"]["note"] == "x"
    spec = {name: stored["spec"][name] for name in ("holderIdentity", "leaseDurationSeconds", "leaseTransitions")}
    assert spec == {"holderIdentity": "one", "leaseDurationSeconds": 15, "leaseTransitions": 0}
    assert "POST" not in api.requests


def test_token_is_reread_and_refusals_are_reported(api: KubernetesApi, in_kubernetes: LeaseStore) -> None:
    api.renew_token("another token")
    in_kubernetes.write(LEASE, None)
    api.token = "one that the pod does not have"
    with pytest.raises(OSError, match="answered 401: Unauthorized"):
        in_kubernetes.read()


def test_api_server_of_an_unknown_ca_is_not_trusted(api: KubernetesApi, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    Authority(tmp_path / "other").file.replace(api.account / "ca.crt")
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        store_at("k8s://shop/lease", 15).read()
    assert api.requests == []


def test_damaged_record_is_not_a_lease(api: KubernetesApi, in_kubernetes: LeaseStore) -> None:
    for record in ("{", "[]", '{"term": 1}', LEASE.encode().decode().replace("15000", "0")):
        api.put({"kind": "Lease", "metadata": {"name": "lease", "annotations": {RECORD: record}}})
        with pytest.raises(BadLease):
            in_kubernetes.read()


def test_lease_modules_are_imported_only_on_demand() -> None:
    program = """if True:
        import sys
        from curbstone import replication
        from curbstone.cli import standby_process
        from curbstone.standby import barrier, followers, handover, shipping

        sys.exit(any("standby" in name and "lease" in name for name in sys.modules))
    """
    assert subprocess.run([sys.executable, "-P", "-c", program], env=clean_environment()).returncode == 0


def test_missing_store_settings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="`make spark-deps` brings it")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(Unavailable, match="^--lease az://leases/shop: .*Account must be specified$"):
        store_at("az://leases/shop", 15)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "example")
    store_at("az://leases/shop", 15).close()


def test_store_without_its_library_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "curbstone.standby.object_lease", raising=False)
    with pytest.raises(Unavailable, match=r"pip install 'curbstone\[objects\]'"):
        store_at("s3://leases/shop", 15)


def test_a_store_that_ignores_versions_is_refused(s3: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from curbstone.standby import object_lease

    store = store_at("s3://leases/shop/lease", 15)
    monkeypatch.setattr(object_lease, "_mode", lambda _version: "overwrite")
    with pytest.raises(UnfitStore, match="whatever their version is"):
        store.check()
