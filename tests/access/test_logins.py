"""Logins over the wire: each way to present one, what a browser may not do with it, and what ends when it ends."""

from __future__ import annotations

import json
import os
import re
import signal
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from curbstone.cli.main import _run
from tests.access.world import hashed
from tests.kit.contract import CONTRACT
from tests.kit.guarded_server import GuardedServer, RawConnection, guarded_server
from tests.kit.waiting import wait_until

USERS = f"""
[users.root]
password = ["{hashed("all of it")}"]
grants = ["admin server"]
[users.ann]
home = "shop"
password = ["{hashed("open sesame")}"]
grants = ["send,receive,peek,manage shop/*", "send,receive topic:shop/*"]
[users.worker]
home = "shop"
grants = ["receive,peek shop/*"]
"""
Q = "/v2/shop/queues/q"


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    with guarded_server(tmp_path_factory.mktemp("logins"), USERS) as opened:
        assert opened.call("ann", "PUT", Q).status_code == 201
        yield opened


def basic(user: str, secret: str) -> str:
    return "Basic " + b64encode(f"{user}:{secret}".encode()).decode()


def test_basic_accepts_password_or_token_and_failures_look_alike(it: GuardedServer) -> None:
    for secret in ("open sesame", it.secrets["ann"]):
        assert it.call("", "GET", Q, headers={"authorization": basic("ann", secret)}).status_code == 200
    texts = set()
    for header in (
        basic("ann", "wrong guess"),
        basic("bob", "wrong guess"),
        "Bearer x",
        basic("root", it.secrets["ann"]),
    ):
        reply = it.call("", "GET", Q, headers={"authorization": header})
        assert reply.status_code == 401 and reply.headers["www-authenticate"] == "Bearer"
        texts.add(reply.json()["detail"])
    assert texts == {"the login failed"}


def test_every_protocol_distinguishes_wrong_from_throttled_logins(it: GuardedServer) -> None:
    for _ in range(5):
        assert it.call("", "GET", Q, headers={"authorization": basic("guessed", "wrong guess")}).status_code == 401
    throttled = it.call("", "GET", Q, headers={"authorization": basic("guessed", "wrong guess")})
    assert throttled.status_code == 429 and 1 <= int(throttled.headers["retry-after"]) <= 60

    def connecting(user: str) -> str:
        with RawConnection(it.server.stomp) as line:
            line.send(f"CONNECT\naccept-version:1.2\nhost:x\nlogin:{user}\npasscode:wrong guess\n\n\0")
            return line.read_all().decode()

    assert "\nx-error-code:429\nretry-after:" in connecting("guessed")
    wrong = connecting("guessed-of-stomp")
    assert "\nx-error-code:401\n" in wrong and "retry-after" not in wrong
    with pytest.raises(InvalidStatus) as refused, open_socket(it, basic("guessed", "wrong guess")):
        pass
    assert refused.value.response.status_code == 429 and refused.value.response.headers["retry-after"]
    with RawConnection(it.server.mqks) as line:
        for number in range(4):  # more than the three failures that end a connection
            line.send(f"a{number} auth guessed wrong-guess\n")
            assert re.fullmatch(rb"a\d error \w+ retry-after=\d+\n", line.read_until(b"\n"))


def open_socket(it: GuardedServer, authorization: str) -> Any:
    host, port = it.server.http
    headers = {"authorization": authorization}
    return connect(
        f"ws://{host}:{port}{Q}/consume", subprotocols=[Subprotocol("consume")], additional_headers=headers, proxy=None
    )


def test_login_cached_by_a_connection_matches_each_request_and_can_be_revoked(it: GuardedServer) -> None:
    def session_user(token: str) -> tuple[int, str]:
        reply = it.call("", "GET", "/v2/session", headers={"authorization": f"Bearer {token}"})
        return reply.status_code, reply.json().get("user", "")

    made = it.call("root", "POST", "/v2/tokens", json={"user": "ann"}).json()["token"]
    for _ in range(3):
        assert session_user(made) == (200, "ann")
        assert session_user(it.secrets["worker"]) == (200, "worker")
    assert session_user(made + "x") == (401, "")
    assert [session_user(made) for _ in range(2)] == [(200, "ann")] * 2
    assert it.call("root", "DELETE", f"/v2/tokens/{made.split('_')[1]}").status_code == 204
    assert session_user(made) == (401, "")
    assert [session_user(it.secrets["worker"]) for _ in range(2)] == [(200, "worker")] * 2
    it.users_file.write_text(
        USERS.replace("[users.worker]", '[users.worker]\nsources = ["10.0.0.0/8"]'), encoding="utf-8"
    )
    assert it.call("root", "POST", "/v2/reload").status_code == 204
    assert session_user(it.secrets["worker"]) == (401, "")
    it.users_file.write_text(USERS, encoding="utf-8")
    assert it.call("root", "POST", "/v2/reload").status_code == 204
    assert session_user(it.secrets["worker"]) == (200, "worker")


@pytest.mark.parametrize("more", [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}])
def test_basic_is_refused_for_cross_origin_requests(it: GuardedServer, more: dict[str, str]) -> None:
    headers = {"authorization": basic("ann", "open sesame"), **more}
    assert it.call("", "GET", Q, headers=headers).status_code == 401
    assert it.call("ann", "GET", Q, headers=more).status_code == 200  # Bearer: no browser adds that by itself


def test_console_cookie_requires_its_header_and_same_origin(it: GuardedServer) -> None:
    opened = it.call("ann", "POST", "/v2/session")
    assert opened.status_code == 201 and opened.json()["user"] == "ann"
    cookie = opened.headers["set-cookie"]
    it.http.cookies.clear()  # which no browser would send by itself from elsewhere
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    pair = cookie.partition(";")[0]
    ours = {"cookie": pair, "x-curbstone-console": "1", "sec-fetch-site": "same-origin"}
    assert it.call("", "GET", "/v2/session", headers=ours).json()["home"] == "shop"
    for left_out in ours:
        headers = {name: value for name, value in ours.items() if name != left_out}
        assert it.call("", "GET", Q, headers=headers).status_code == 401, left_out
    assert it.call("", "GET", Q, headers={**ours, "sec-fetch-site": "cross-site"}).status_code == 401
    assert it.call("", "DELETE", "/v2/session", headers=ours).status_code == 204
    it.http.cookies.clear()
    assert it.call("", "GET", Q, headers=ours).status_code == 401


def test_softlayer_clients_log_in(it: GuardedServer) -> None:
    reply = it.call("", "POST", "/mq/auth", headers={"x-auth-user": "ann", "x-auth-key": "open sesame"})
    assert reply.status_code == 200
    token = {"x-auth-token": reply.headers["x-auth-token"]}
    assert it.call("", "POST", "/mq/q/messages", content=b"m", headers=token).status_code == 201
    assert it.call("", "GET", Q, headers=token).status_code == 401  # under /mq alone
    failed = it.call("", "POST", "/mq/auth", headers={"x-auth-user": "ann", "x-auth-key": "wrong guess"})
    assert failed.status_code == 401


def test_websocket_token_subprotocol_logs_in_and_is_not_echoed(it: GuardedServer) -> None:
    host, port = it.server.http
    token = "bearer." + urlsafe_b64encode(it.secrets["ann"].encode()).decode().rstrip("=")
    url = f"ws://{host}:{port}{Q}/messages"
    with connect(url, subprotocols=[Subprotocol("publish"), Subprotocol(token)], proxy=None) as socket:
        assert socket.subprotocol == "publish"
    with pytest.raises(InvalidStatus) as refused:
        connect(url, subprotocols=[Subprotocol("publish"), Subprotocol(token[:-3] + "abc")], proxy=None)
    assert refused.value.response.status_code == 401


def test_ticket_opens_one_socket_once(it: GuardedServer) -> None:
    made = it.call("ann", "POST", "/v2/tickets", json={"way": "consume", "queue": "q"})
    assert made.status_code == 201
    query = f"?ticket={made.json()['ticket']}"
    assert it.websocket("", "publish", f"{Q}/messages", query) == 401
    made = it.call("ann", "POST", "/v2/tickets", json={"way": "consume", "queue": "q"})
    query = f"?ticket={made.json()['ticket']}"
    assert it.websocket("", "consume", f"{Q}/messages", query) == 101
    assert it.websocket("", "consume", f"{Q}/messages", query) == 401
    assert it.call("worker", "POST", "/v2/tickets", json={"way": "publish", "queue": "q"}).status_code == 403


@pytest.mark.parametrize("path", CONTRACT["paths"])
def test_invalid_ticket_opens_no_path(it: GuardedServer, path: str) -> None:
    """With `?ticket=` in the address a request was let in as nobody, and not everything asks nobody for a right."""
    at = re.sub(r"{[^}]*}", "x", path)
    headers = {"accept": "text/event-stream", "content-type": "application/x-ndjson"}
    for method in CONTRACT["paths"][path].keys() & {"get", "post", "put", "delete", "options"}:
        if (path, method) in (("/v2/session", "post"), ("/mq/auth", "post")):
            continue  # where one logs in
        with it.http.stream(method.upper(), at, headers=headers) as plain:
            before = plain.status_code
        with it.http.stream(method.upper(), at + "?ticket=x", headers=headers) as tried:
            assert tried.status_code == before, f"{method} {path}"


def test_stomp_over_websocket_accepts_the_handshake_login_or_its_own(it: GuardedServer) -> None:
    host, port = it.server.http
    for headers, login in (
        ({"authorization": f"Bearer {it.secrets['ann']}"}, ""),
        ({}, f"login:ann\npasscode:{it.secrets['ann']}\n"),
        ({}, f"passcode:{it.secrets['ann']}\n"),
        ({}, "login:ann\npasscode:open sesame\n"),
    ):
        with connect(
            f"ws://{host}:{port}/stomp", subprotocols=[Subprotocol("v12.stomp")], additional_headers=headers, proxy=None
        ) as socket:
            socket.send(f"CONNECT\naccept-version:1.2\nhost:x\n{login}\n\0")
            assert str(socket.recv()).startswith("CONNECTED")


def test_frames_behind_a_hashing_login_run_after_it(it: GuardedServer) -> None:
    with RawConnection(it.server.stomp) as line:
        line.send(
            "CONNECT\naccept-version:1.2\nhost:x\nlogin:ann\npasscode:open sesame\n\n\0"
            "SEND\ndestination:/queue/q\nreceipt:1\n\nm\0DISCONNECT\nreceipt:2\n\n\0"
        )
        assert [frame.split("\n")[0] for frame in line.read_all().decode().split("\0\n") if frame] == [
            "CONNECTED", "RECEIPT", "RECEIPT",
        ]  # fmt: skip
    with RawConnection(it.server.mqks) as line:
        line.send("a auth ann open-sesame\nb auth root all\nc auth x y\nd ping x\n")
        answers = line.read_all().decode().splitlines()
    assert [answer.split()[:2] for answer in answers] == [[name, "error"] for name in "abc"]  # and then it is closed


def test_tokens_can_be_created_listed_and_revoked_by_owner_and_admin(it: GuardedServer) -> None:
    made = it.call(
        "ann", "POST", "/v2/tokens", json={"label": "a try", "grants": ["peek shop/*"], "seconds": 3600}
    ).json()
    it.secrets["narrow"] = made.pop("token")
    assert it.call("narrow", "GET", Q).status_code == 200
    assert it.call("narrow", "DELETE", Q).status_code == 403
    [listed] = [each for each in it.call("ann", "GET", "/v2/tokens").json()["tokens"] if each["label"] == "a try"]
    assert {**listed, "used": 0} == {**made, "used": 0}
    assert it.secrets["narrow"].split("_", 2)[2] not in json.dumps(it.call("root", "GET", "/v2/tokens").json())
    assert all(each["user"] == "worker" for each in it.call("worker", "GET", "/v2/tokens").json()["tokens"])
    assert it.call("worker", "DELETE", f"/v2/tokens/{made['id']}").status_code == 403
    assert it.call("ann", "POST", "/v2/tokens", json={"user": "root"}).status_code == 403
    assert it.call("root", "DELETE", f"/v2/tokens/{made['id']}").status_code == 204
    assert it.call("root", "DELETE", f"/v2/tokens/{made['id']}").status_code == 404
    assert it.call("narrow", "GET", Q).status_code == 401


def test_command_line_logs_in_with_a_token_file(
    it: GuardedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(it.secrets["root"] + "\n", encoding="ascii")
    server = ["--server", it.server.url]
    assert _run(["token", "list", *server]) == 1  # nobody is logged in
    monkeypatch.setenv("CURBSTONE_TOKEN_FILE", str(file))
    assert _run(["token", "create", "--user", "worker", "--label", "cli", *server]) == 0
    it.secrets["cli"] = capsys.readouterr().out.strip()
    assert it.call("cli", "GET", Q).status_code == 200
    assert _run(["token", "list", *server]) == 0
    assert "worker" in capsys.readouterr().out
    assert _run(["token", "revoke", it.secrets["cli"].split("_")[1], *server]) == 0
    assert it.call("cli", "GET", Q).status_code == 401
    assert _run(["queues", "--server", "http://root:secret-text@127.0.0.1:1"]) == 2
    assert "secret-text" not in capsys.readouterr().err


def consumers(it: GuardedServer) -> int:
    return int(it.call("root", "GET", Q).json()["consumers"])


def test_revocation_ends_connections_of_every_protocol_and_requeues_their_messages(it: GuardedServer) -> None:
    it.call("root", "POST", f"{Q}/purge")
    made = it.call("root", "POST", "/v2/tokens", json={"user": "worker"}).json()
    token = made["token"]
    host, port = it.server.http
    headers = {"authorization": f"Bearer {token}"}
    with (
        RawConnection(it.server.stomp) as stomp,
        RawConnection(it.server.mqks) as mqks,
        connect(
            f"ws://{host}:{port}{Q}/messages?ack&limit=5", subprotocols=[Subprotocol("consume")],
            additional_headers=headers, proxy=None,
        ) as socket,
        it.http.stream("GET", f"{Q}/messages", headers={**headers, "accept": "text/event-stream"}) as events,
    ):  # fmt: skip
        stomp.send(f"CONNECT\naccept-version:1.2\nhost:x\npasscode:{token}\n\n\0")
        stomp.send("SUBSCRIBE\nid:0\nack:client\ndestination:/queue/q\nreceipt:s\n\n\0")
        stomp.read_until(b"receipt-id:s")
        mqks.send(f"a auth {token}\nc consume --confirm q --manual-ack\n")
        mqks.read_until(b"c ok")
        lines = events.iter_lines()
        assert next(lines).startswith("retry")
        while consumers(it) < 3:
            pass
        for _ in range(8):
            assert it.call("ann", "POST", f"{Q}/messages", content=b"m").status_code == 201
        shown = it.call("root", "GET", "/v2/connections").json()["connections"]
        theirs = {each["protocol"]: each for each in shown if each["credential"] == made["id"]}
        assert set(theirs) == {"stomp", "mqks", "websocket", "sse"}
        assert it.call("root", "DELETE", f"/v2/tokens/{made['id']}").status_code == 204
        assert b"the login was revoked" in stomp.read_all()
        assert b" error " in mqks.read_all()
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                socket.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
        assert any("the login was revoked" in line for line in lines)
    while consumers(it):
        pass
    info = it.call("root", "GET", Q).json()
    assert info["rdy"] + info["wip"] == 8  # nothing is lost; the stream's leases end by themselves


MOVER = """
[users.root]
grants = ["admin server", "send topic:shop/*"]
[users.mover]
home = "shop"
grants = ["receive topic:shop/*"]
"""


def test_topic_subscription_ends_with_the_right_on_its_project(tmp_path: Path) -> None:
    """The right was asked for on the new home, while the messages of the old one still came."""
    with guarded_server(tmp_path, MOVER) as it, RawConnection(it.server.stomp) as stomp:
        stomp.send(f"CONNECT\naccept-version:1.2\nhost:x\npasscode:{it.secrets['mover']}\n\n\0")
        stomp.send("SUBSCRIBE\nid:0\ndestination:/topic/news\nreceipt:s\n\n\0")
        stomp.read_until(b"receipt-id:s")
        it.users_file.write_text(
            MOVER.replace('home = "shop"', 'home = "web"').replace("receive topic:shop", "receive topic:web")
        )
        assert it.call("root", "POST", "/v2/reload").status_code == 204
        assert b"no right to receive on topic shop/news" in stomp.read_all()


def test_an_admin_ends_a_connection(it: GuardedServer) -> None:
    with RawConnection(it.server.stomp) as stomp:
        stomp.send(f"CONNECT\naccept-version:1.2\nhost:x\npasscode:{it.secrets['worker']}\n\n\0")
        stomp.read_until(b"CONNECTED")
        [there] = [
            each for each in it.call("root", "GET", "/v2/connections").json()["connections"] if each["user"] == "worker"
        ]
        assert it.call("worker", "DELETE", f"/v2/connections/{there['id']}").status_code == 403
        assert it.call("root", "DELETE", f"/v2/connections/{there['id']}").status_code == 204
        assert b"an administrator ended the connection" in stomp.read_all()
    actions = [each["action"] for each in it.call("root", "GET", "/v2/audit").json()["audit"]]
    assert "end connection" in actions


def test_reload_is_atomic_and_invisible_to_unaffected_users(it: GuardedServer) -> None:
    with RawConnection(it.server.stomp) as stomp:
        stomp.send(f"CONNECT\naccept-version:1.2\nhost:x\npasscode:{it.secrets['ann']}\n\n\0")
        stomp.read_until(b"CONNECTED")
        it.users_file.write_text(USERS + "\n[users.x]\ngrants = ['sned a/b']\n", encoding="utf-8")
        refused = it.call("root", "POST", "/v2/reload")
        assert refused.status_code == 503 and "user 'x'" in refused.json()["detail"]
        it.users_file.write_text(USERS.replace("receive,peek shop/*", "peek shop/*"), encoding="utf-8")
        os.kill(it.server.process.pid, signal.SIGHUP)
        wait_until(lambda: it.call("worker", "DELETE", f"{Q}/messages").status_code == 403)
        stomp.send("SEND\ndestination:/queue/q\nreceipt:still-here\n\nm\0")
        stomp.read_until(b"still-here")
    it.users_file.write_text(USERS, encoding="utf-8")
    assert it.call("root", "POST", "/v2/reload").status_code == 204
    assert it.call("worker", "POST", "/v2/reload").status_code == 403


def test_logs_contain_no_secret(it: GuardedServer) -> None:
    audit = (it.server.data_dir / "access" / "audit").read_text(encoding="utf-8")
    for secret in (*[each.split("_", 2)[2] for each in it.secrets.values()], "open sesame", "wrong guess"):
        assert secret not in it.server.log and secret not in audit


def test_invalid_users_file_refuses_a_start(tmp_path: Path) -> None:
    from tests.kit.server import NotReady, ServerProcess

    file = tmp_path / "users.toml"
    file.write_text("[users.a]\npassword = ['plain-secret']\n", encoding="utf-8")
    with pytest.raises(NotReady) as caught:
        ServerProcess(tmp_path / "data", f"--users={file}")
    assert "hashes from `curbstone user hash`" in caught.value.log and "plain-secret" not in caught.value.log
