"""Gateways with a users file: each checks the same logins, and what one may is the same over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.access.world import hashed
from tests.cluster.gateway import GatewayProcess
from tests.kit.guarded_server import RawConnection

PATIENCE_S = 60
QUEUE = "/v2/shop/queues/logins"
USERS = f"""
[users.ops]
password = ["{hashed("all of it")}"]
grants = ["admin server"]
[users.ann]
password = ["{hashed("open sesame")}"]
home = "shop"
grants = ["send shop/logins"]
[users.bob]
password = ["{hashed("tell me more")}"]
home = "shop"
grants = ["receive,peek shop/logins"]
"""
ANN, BOB, OPS = ("ann", "open sesame"), ("bob", "tell me more"), ("ops", "all of it")


@pytest.fixture(scope="module")
def guarded(node_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[GatewayProcess]]:
    """Two gateways with one users file."""
    folder = tmp_path_factory.mktemp("logins")
    users = folder / "users.toml"
    users.write_text(USERS, encoding="utf-8")
    made = [GatewayProcess(folder / name, node_url, f"--users={users}", f"--data={folder / name}.d") for name in "ab"]
    with made[0], made[1]:
        assert call(made[0], OPS, "PUT", QUEUE).status_code == 201
        yield made


def call(
    gateway: GatewayProcess, who: tuple[str, str] | None, method: str, path: str, **options: Any
) -> httpx.Response:
    return httpx.request(method, gateway.url + path, auth=who, timeout=PATIENCE_S, trust_env=False, **options)


def test_message_published_at_one_gateway_is_consumed_at_another(guarded: list[GatewayProcess]) -> None:
    one, two = guarded
    assert call(one, ANN, "POST", f"{QUEUE}/messages", content=b"hello").status_code == 201
    taken = call(two, BOB, "DELETE", f"{QUEUE}/messages")
    assert (taken.status_code, taken.content) == (200, b"hello")
    with RawConnection(two.stomp) as line:
        line.send("CONNECT\naccept-version:1.2\nhost:x\nlogin:ann\npasscode:open sesame\n\n\0")
        line.send("SEND\ndestination:/queue/logins\nreceipt:r\n\na\0")
        line.read_until(b"RECEIPT\nreceipt-id:r")
    assert call(one, BOB, "DELETE", f"{QUEUE}/messages").content == b"a"


def test_every_gateway_refuses_missing_logins_and_rights(guarded: list[GatewayProcess]) -> None:
    for gateway in guarded:
        assert call(gateway, None, "GET", QUEUE).status_code == 401
        assert call(gateway, ("ann", "guessed"), "GET", QUEUE).status_code == 401
        assert call(gateway, BOB, "POST", f"{QUEUE}/messages", content=b"m").status_code == 403
        assert call(gateway, ANN, "DELETE", f"{QUEUE}/messages").status_code == 403
        assert call(gateway, ANN, "DELETE", QUEUE).status_code == 403
        assert call(gateway, OPS, "GET", QUEUE).json()["rdy"] == 0


def test_tokens_are_not_created_on_a_cluster(guarded: list[GatewayProcess]) -> None:
    reply = call(guarded[0], ANN, "POST", "/v2/tokens", json={"label": "mine"})
    assert reply.status_code == 501
    assert "API tokens need the local engine" in reply.json()["detail"]


def test_each_gateway_audits_its_own_clients(guarded: list[GatewayProcess]) -> None:
    for gateway in guarded:
        assert call(gateway, BOB, "POST", f"{QUEUE}/messages", content=b"m").status_code == 403
        entries = call(gateway, OPS, "GET", "/v2/audit").json()["audit"]
        assert any(entry["user"] == "bob" and entry["outcome"] == "refused" for entry in entries), entries
        assert (Path(f"{gateway.data_dir}.d") / "access").is_dir(), "of its own, in --data"
