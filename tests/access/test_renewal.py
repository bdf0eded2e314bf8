"""Logging in anew while connected: a connection outlives the token it was opened with, and ends with the one it has."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from curbstone_client import link
from tests.client.shells import SHELLS
from tests.kit.guarded_server import GuardedServer, RawConnection, guarded_server

USERS = """
[users.root]
grants = ["admin server"]
[users.ann]
home = "shop"
grants = ["send,receive,peek,manage shop/*", "send topic:shop/*"]
[users.bob]
home = "shop"
grants = ["send,receive shop/*"]
"""
MESSAGES = "/v2/shop/queues/q/messages"
EVENT = "/v2/shop/events/sold/messages"


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    with guarded_server(tmp_path_factory.mktemp("renewal"), USERS) as opened:
        assert opened.call("ann", "PUT", "/v2/shop/queues/q").status_code == 201
        yield opened


def a_token(it: GuardedServer, user: str = "ann", seconds: int = 3600, **more: Any) -> str:
    made = it.call("root", "POST", "/v2/tokens", json={"user": user, "seconds": seconds, **more})
    assert made.status_code == 201, made.text
    token: str = made.json()["token"]
    return token


def revoke(it: GuardedServer, token: str) -> None:
    assert it.call("root", "DELETE", f"/v2/tokens/{token.split('_')[1]}").status_code == 204


def hello(token: str, features: str = "") -> str:
    return f"CONNECT\naccept-version:1.2\nhost:x\nlogin:\npasscode:{token}\n{features}\n\0"


def renewal(token: str) -> str:
    return f"SEND\ndestination:/session/token\nreceipt:new\n\n{token}\0"


def send(receipt: str) -> str:
    return f"SEND\ndestination:/queue/q\nreceipt:{receipt}\n\nx\0"


def test_stomp_accepts_a_new_token_in_a_send(it: GuardedServer) -> None:
    first, second = a_token(it), a_token(it, seconds=7200)
    with RawConnection(it.server.stomp) as line:
        line.send(hello(first))
        said = line.read_until(b"\0")
        assert re.search(rb"\nexpires:\d{13}\nx-expires-in:3[56]\d{5}\n", said)
        line.send(renewal(second))
        reported = line.read_until(b"\0").strip()
        assert re.fullmatch(rb"RECEIPT\nreceipt-id:new\nexpires:\d{13}\nx-expires-in:7[12]\d{5}\n\n\0", reported)
        revoke(it, first)
        line.send(send("later"))
        assert b"receipt-id:later" in line.read_until(b"\0")
        revoke(it, second)
        rest = line.read_all()
        assert b"the login was revoked" in rest and second.encode() not in rest


def test_stomp_refuses_renewal_by_another_user(
    it: GuardedServer,
) -> None:
    with RawConnection(it.server.stomp) as line:
        line.send(hello(it.secrets["ann"], "x-features:refusals\n"))
        line.read_until(b"\0")
        for token, code in ((it.secrets["bob"], 403), ("cbs_0123456789_nonsense", 401)):
            line.send(renewal(token))
            assert f"x-error-code:{code}\n".encode() in line.read_until(b"\0")
        line.send(send("later"))
        assert b"receipt-id:later" in line.read_until(b"\0")
        line.send("BEGIN\ntransaction:t\n\n\0SEND\ndestination:/session/token\ntransaction:t\n\nx\0")
        assert b"a login can't be part of a transaction" in line.read_all()
    with RawConnection(it.server.stomp) as line:
        line.send(hello(it.secrets["ann"]) + renewal(it.secrets["bob"]))
        assert b"ERROR\nmessage:the connection belongs to another user" in line.read_all()


def test_narrower_rights_apply_immediately(it: GuardedServer) -> None:
    narrow = a_token(it, grants=["send shop/*"])
    with RawConnection(it.server.stomp) as line:
        line.send(hello(it.secrets["ann"]) + "SUBSCRIBE\nid:1\ndestination:/queue/narrow\nack:client\nreceipt:s\n\n\0")
        while b"receipt-id:s" not in line.read_until(b"\0"):
            pass
        line.send(renewal(narrow))
        assert b"no right to receive on queue shop/narrow" in line.read_all()


def socket(it: GuardedServer, protocol: str, path: str, token: str) -> ClientConnection:
    host, port = it.server.http
    headers = {"authorization": f"Bearer {token}"}
    return connect(
        f"ws://{host}:{port}{path}", subprotocols=[Subprotocol(protocol)], additional_headers=headers, proxy=None,
        compression=None,
    )  # fmt: skip


@pytest.mark.parametrize(("protocol", "path"), [("publish", MESSAGES), ("publish", EVENT), ("consume", MESSAGES)])
def test_websocket_accepts_a_new_token_in_a_frame(it: GuardedServer, protocol: str, path: str) -> None:
    first, second = a_token(it), a_token(it)
    it.call("ann", "DELETE", "/v2/shop/queues/q/messages/all")
    with socket(it, protocol, path, first) as ws:
        assert ws.response is not None and re.fullmatch(r"\d{13}", ws.response.headers["x-login-expires"])
        for token, code in ((it.secrets["bob"], 403), ("nonsense", 401)):
            ws.send(json.dumps({"token": token}))
            assert next_json(ws)["code"] == code
        ws.send(json.dumps({"token": it.secrets["ann"]}))
        assert next_json(ws) == {"expires": None}
        ws.send(json.dumps({"token": second}))
        assert next_json(ws)["expires"] > 1_700_000_000_000
        revoke(it, first)
        if protocol == "publish":
            ws.send(json.dumps({"message": "x"}))
            assert ws.recv(timeout=60) == ""
        else:
            ws.send(json.dumps({"token": second}))
            assert "expires" in next_json(ws)
        revoke(it, second)
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                ws.recv(timeout=60)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008


def next_json(ws: ClientConnection) -> dict[str, Any]:
    """Return the next answer to a token; deliveries are passed over."""
    while True:
        data = ws.recv(timeout=60)
        if isinstance(data, str) and data:
            found: dict[str, Any] = json.loads(data)
            if "expires" in found or "code" in found:
                return found


def test_mqks_accepts_a_new_token_of_the_same_user_only(it: GuardedServer) -> None:
    first = a_token(it)
    with RawConnection(it.server.mqks) as line:
        line.send(f"1 auth {first}\n2 auth {it.secrets['ann']}\n3 auth {it.secrets['bob']}\n")
        data = b""
        while data.count(b"\n") < 3:
            data += line.read_until(b"\n")
        assert [each.split()[1] for each in data.splitlines()] == [b"ok", b"ok", b"error"]
        revoke(it, first)
        line.send("4 ping x\n")
        assert line.read_until(b"\n").startswith(b"4 ok")


@pytest.mark.parametrize("way", ["http", "stomp"])
@pytest.mark.parametrize("name", SHELLS)
def test_clients_renew_before_a_login_expires(
    it: GuardedServer, name: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "RENEW_AFTER", 0.0)
    monkeypatch.setattr(link, "RENEW_S_MIN", 0.05)
    given = [a_token(it) for _ in range(4)]
    left = list(given)
    used_up = threading.Event()

    def token() -> str | None:
        if not left:
            used_up.set()
            return None
        return left.pop(0)

    host, port = it.server.http if way == "http" else it.server.stomp
    with SHELLS[name](f"{way}://{host}:{port}", token=token) as client:
        assert used_up.wait(60)
        client.publish("q", "still here")
        for each in given[:-1]:
            revoke(it, each)
        client.publish("q", "and still")
        assert client.client.stats.reconnects == 0
