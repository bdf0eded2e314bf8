"""Logins by JWTs of an issuer: what they give, what ends them, and that every protocol takes and refuses them alike."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from curbstone.access import jwks
from curbstone.access.authorization import AuthorizedBroker
from curbstone.access.caller import Caller, Credentials
from curbstone.access.errors import NotLoggedIn
from curbstone.access.jwks import FETCH_INTERVAL_MS
from curbstone.access.rights import Right
from curbstone.access.users import load
from curbstone.core.errors import BadRequest, CurbstoneError
from curbstone.core.names import queue_name
from tests.access.test_jwt import EC, NOW_S, OTHER, public
from tests.access.world import World
from tests.kit.authority import Authority
from tests.kit.guarded_server import GuardedServer, guarded_server
from tests.kit.lab import START_MS
from tests.kit.server import clean_environment

URL = "https://id.example"
FILE = """
[users.root]
grants = ["admin server"]
[roles.worker]
grants = ["receive,peek shop/*", "manage shop/{{user}}.*"]
[roles.boss]
grants = ["admin server"]
[[issuers]]
url = "{url}"
name = "corp"
audience = "curbstone"
home = "shop"
roles_claim = "roles"
grants = ["receive,peek,manage shop/*", "metrics server"]
{more}
"""
ORDERS = queue_name("orders", "shop")


def token(now_s: float, key: Any = EC, kid: str = "ec", **changes: Any) -> str:
    said = {"iss": URL, "aud": "curbstone", "sub": "ann", "exp": int(now_s) + 600, "iat": int(now_s), "jti": "t1"}
    return jwt.encode(said | {"roles": ["worker"]} | changes, key, "ES256", {"kid": kid})


class Issued(World):
    """A authenticator, and an issuer whose keys are in a file."""

    def __init__(self, path: Path) -> None:
        self.keys = path / "keys.json"
        self.publish(public("ec", EC))
        super().__init__(path, self.users())

    def users(self, more: str = "") -> str:
        return FILE.format(url=URL, more=f'jwks = "{self.keys}"\n{more}')

    def publish(self, *keys: dict[str, Any]) -> None:
        self.keys.write_text(json.dumps({"keys": keys}), encoding="utf-8")

    def token(self, **changes: Any) -> str:  # type: ignore[override]
        return token(self.lab.host.wall_ms() / 1000, **changes)


@pytest.fixture
def world(tmp_path: Path) -> Issued:
    return Issued(tmp_path)


def test_token_rights_are_its_roles_limited_by_the_issuer(world: Issued) -> None:
    identity = world.login("", world.token()).identity
    assert (identity.user, identity.home, identity.owner) == ("corp:ann", "shop", "corp:ann")
    assert identity.expires_ms == START_MS // 1000 * 1000 + 600_000
    assert identity.on_queue(ORDERS) == Right.RECEIVE | Right.PEEK
    assert identity.on_queue(queue_name("corp:ann.mine", "shop")) & Right.MANAGE
    assert not world.login("", world.token(roles=[])).identity.on_queue(ORDERS)
    boss = world.login("", world.token(roles=["boss", "nothing"])).identity
    assert boss.on_server() == Right.METRICS and not boss.is_admin, "the ceiling has no admin"
    assert boss.on_queue(ORDERS) == Right.RECEIVE | Right.PEEK | Right.MANAGE


def test_token_identity_is_stable_and_a_given_user_name_must_match(world: Issued) -> None:
    secret = world.token()
    access = world.login("", secret)
    assert world.login("corp:ann", secret) is access
    for name in ("ann", "corp:bob", "root"):
        with pytest.raises(NotLoggedIn):
            world.login(name, secret)


def test_role_names_with_spaces_are_not_split(world: Issued) -> None:
    """What they say was joined by spaces, so one role `worker boss` was taken for the two of another token."""
    both = world.login("", world.token(roles=["worker", "boss"]))
    assert both.identity.on_queue(ORDERS)
    one = world.login("", world.token(roles=["worker boss"]))
    assert one is not both and not one.identity.on_queue(ORDERS) and not one.identity.on_server()


def test_long_jti_is_kept_whole_for_revocation(world: Issued) -> None:
    """It was cut at 128 characters, and `refused` had no effect."""
    long = "x" * 200
    access = world.login("", world.token(jti=long))
    assert world.reload(world.users(f'refused = ["jti:{long}"]')) is None
    assert access.identity.end_reason
    for jti in (long, "x" * 1025, ["a"]):
        with pytest.raises(NotLoggedIn):
            world.login("", world.token(jti=jti))
    assert world.login("", world.token(jti=long + "y")).identity.user == "corp:ann"


def test_invalid_token_is_refused_and_not_counted_as_a_guess(world: Issued) -> None:
    now_s = START_MS / 1000
    bad = [
        token(now_s, exp=int(now_s) - 31), token(now_s, aud="other"), token(now_s, OTHER), token(now_s, kid="none"),
        token(now_s, iss="https://evil.example"), jwt.encode({"iss": URL}, "k" * 32, "HS256"),
    ]  # fmt: skip
    for secret in bad * 20:
        with pytest.raises(NotLoggedIn, match=r"^the login failed$"):
            world.login("", secret, Caller("10.0.0.1", 1, "http"))
    assert world.authenticator.logins["http", "failed"] == 120
    assert world.login("", world.token(), Caller("10.0.0.1", 1, "http"))


def test_keys_are_rotated_while_logins_continue(world: Issued) -> None:
    access = world.login("", world.token())
    world.publish(public("ec", EC), public("new", OTHER))
    with pytest.raises(NotLoggedIn):  # it has asked for keys just now
        world.login("", world.token(key=OTHER, kid="new"))
    world.lab.pass_time(FETCH_INTERVAL_MS)
    fresh = world.login("", world.token(key=OTHER, kid="new"))
    assert not access.identity.end_reason and fresh.identity.user == access.identity.user


def test_reload_updates_ends_and_restores_identities_of_an_issuer(world: Issued) -> None:
    access = world.login("", world.token())
    assert world.reload(world.users().replace('"receive,peek shop/*", ', "")) is None
    assert not access.identity.on_queue(ORDERS)
    assert world.reload(world.users()) is None
    assert access.identity.on_queue(ORDERS)
    for more in ('refused = ["ann"]', 'refused = ["jti:t1"]'):
        access = world.login("", world.token())
        assert world.reload(world.users(more)) is None
        assert access.identity.end_reason == "the login was revoked"
        with pytest.raises(NotLoggedIn):
            world.login("", world.token())
        assert world.reload(world.users()) is None
    access = world.login("", world.token())
    assert world.reload("[users.root]\n") is None
    assert access.identity.end_reason
    with pytest.raises(NotLoggedIn):
        world.login("", world.token())
    assert world.reload(world.users()) is None
    assert world.login("", world.token())


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ('roles_claim = "roles"', 'roles_claim = "groups"'),
        ('roles_claim = "roles"', 'roles_claim = "roles"\nuser_claim = "email"'),
        ('audience = "curbstone"', 'audience = "another"'),
        ("keys.json", "other.json"),
    ],
)
def test_reload_that_changes_token_mapping_ends_earlier_logins(world: Issued, line: str, changed: str) -> None:
    access = world.login("", world.token())
    secret, _ = world.authenticator.open_session(access, Caller("127.0.0.1"))
    assert line in world.users()
    assert world.reload(world.users().replace(line, changed)) is None
    assert access.identity.end_reason == "the login was revoked"
    with pytest.raises(NotLoggedIn):
        world.login("", str(secret))


def test_token_verified_during_a_reload_uses_the_new_file(world: Issued) -> None:
    answers: list[AuthorizedBroker | CurbstoneError] = []
    secret = world.token(email="eve", groups=["worker"])
    world.authenticator.admit(Credentials("", secret), Caller("127.0.0.1", 1, "http"), answers.append)
    assert not answers, "it waits for keys"
    users = world.users().replace('roles_claim = "roles"', 'roles_claim = "groups"\nuser_claim = "email"')
    world.authenticator.users = load(users.encode())
    world.authenticator._verifier.set_issuers(world.authenticator.users.issuers)
    world.lab.settle()
    (answer,) = answers
    assert isinstance(answer, AuthorizedBroker) and answer.identity.user == "corp:eve"
    assert world.login("", secret) is answer


def test_jwt_session_ends_with_its_token_and_cannot_create_tokens(world: Issued) -> None:
    access = world.login("", world.token())
    secret, made = world.authenticator.open_session(access, Caller("127.0.0.1"))
    assert made.identity.expires_ms == access.identity.expires_ms
    assert world.login("", str(secret)) is made
    with pytest.raises(BadRequest, match="no user 'corp:ann' in the users file"):
        world.authenticator.make_token(
            access, user="corp:ann", grants=None, expires_ms=0, label="", on_done=lambda _error: None
        )  # fmt: skip
    world.lab.pass_time(600_000)
    with pytest.raises(NotLoggedIn):
        world.login("", str(secret))


def test_without_a_role_claim_users_have_all_rights_of_the_issuer(world: Issued) -> None:
    assert world.reload(world.users().replace('roles_claim = "roles"\n', "")) is None
    assert world.login("", world.token()).identity.on_queue(ORDERS) == Right.RECEIVE | Right.PEEK | Right.MANAGE


# --- over the wire


class Issuer:
    """An issuer on loopback, with a discovery document and keys behind TLS."""

    def __init__(self, path: Path) -> None:
        issuer = self
        self.asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked.append(self.path)
                said: dict[str, Any] = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/keys"}
                if self.path == "/keys":
                    said = {"keys": [public("ec", EC)]}
                data = json.dumps(said).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.authority = Authority(path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.authority.signed("issuer"))
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://localhost:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def token(self, **changes: Any) -> str:
        return token(time.time(), **{"iss": self.url} | changes)


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuer]:
    made = Issuer(tmp_path_factory.mktemp("issuer"))
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(scope="module")
def it(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    env = clean_environment(SSL_CERT_FILE=str(issuer.authority.file))
    with guarded_server(tmp_path_factory.mktemp("issued"), FILE.format(url=issuer.url, more=""), env=env) as opened:
        assert opened.call("root", "PUT", "/v2/shop/queues/q").status_code == 201
        yield opened


def reported(it: GuardedServer) -> dict[str, object]:
    """Return how each protocol answers a client that shows the token `it.secrets["corp:ann"]`."""
    stomp = it.stomp("corp:ann", "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\n\n")
    return {
        "http": it.call("corp:ann", "GET", "/v2/shop/queues/q").status_code,
        "mq": it.call("corp:ann", "GET", "/mq/q/messages").status_code,
        "stomp": stomp[0],
        "websocket": it.websocket("corp:ann", "consume", "/v2/shop/queues/q/messages"),
        "mqks": it.mqks("corp:ann", "1 ping")[0].split()[1],
    }


class Dripping(threading.Thread):
    """An issuer whose answer comes byte by byte, its head at once or not."""

    def __init__(self, authority: Authority, at_once: bytes, dripping: bytes) -> None:
        super().__init__(daemon=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.signed("dripping"))
        self.listener = context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)
        self.listener.settimeout(60)
        self.url = f"https://localhost:{self.listener.getsockname()[1]}/keys"
        self._pieces = [at_once, *(bytes([each]) for each in dripping)]

    def run(self) -> None:
        is_over = threading.Event()
        with suppress(OSError), self.listener, self.listener.accept()[0] as peer:
            for piece in self._pieces:
                peer.sendall(piece)
                is_over.wait(0.2)


@pytest.mark.parametrize(
    ("at_once", "dripping"),
    [(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n", b"12345678"), (b"", b"HTTP/1.1 200 OK\r\n\r\n")],
    ids=["body", "head"],
)
def test_slow_key_response_times_out(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, at_once: bytes, dripping: bytes
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(issuer.authority.file))
    monkeypatch.setattr(jwks, "FETCH_S_MAX", 1)
    server = Dripping(issuer.authority, at_once, dripping)
    server.start()
    with pytest.raises(OSError):
        jwks.fetch_https(server.url)
    server.join()


def test_issuer_errors_are_reported_and_redirects_are_not_followed(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(issuer.authority.file))
    monkeypatch.setattr(jwks, "FETCH_S_MAX", 60)
    for status in (b"302 Found\r\nlocation: /keys", b"404 Not Found"):
        server = Dripping(issuer.authority, b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\n\r\n", b"")
        server.start()
        with pytest.raises(OSError, match=f"the server answered {status[:3].decode()}"):
            jwks.fetch_https(server.url)
        server.join()


def test_every_protocol_accepts_a_valid_jwt(it: GuardedServer, issuer: Issuer) -> None:
    it.secrets["corp:ann"] = issuer.token()
    assert reported(it) == {"http": 200, "mq": 204, "stomp": "CONNECTED", "websocket": 101, "mqks": "ok"}
    assert issuer.asked == ["/.well-known/openid-configuration", "/keys"]
    said = it.call("corp:ann", "GET", "/v2/session").json()
    assert said["user"] == "corp:ann" and said["home"] == "shop" and said["expires"]
    assert it.call("corp:ann", "PUT", "/v2/shop/queues/other").status_code == 403
    assert issuer.token() not in it.server.log


@pytest.mark.parametrize(
    "changes",
    [{"exp": NOW_S - 2 * 10**8, "iat": 0}, {"aud": "other"}, {"key": ec.generate_private_key(ec.SECP256R1())}],
    ids=["expired", "audience", "key"],
)
def test_every_protocol_refuses_an_invalid_jwt(it: GuardedServer, issuer: Issuer, changes: dict[str, Any]) -> None:
    it.secrets["corp:ann"] = issuer.token(**changes)
    refused = {"http": 401, "mq": 401, "stomp": "ERROR the login failed", "websocket": 401, "mqks": "error"}
    assert reported(it) == refused


def test_unreachable_issuer_gives_a_retry_time_on_every_protocol(tmp_path: Path) -> None:
    """It was 401, after which clients do not try again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"https://127.0.0.1:{taken.getsockname()[1]}"
    with guarded_server(tmp_path, FILE.format(url=url, more="")) as it:
        it.secrets["corp:ann"] = token(time.time(), iss=url)
        stomp = "ERROR the issuer of this login can't be reached; try again"
        assert reported(it) == {"http": 503, "mq": 503, "stomp": stomp, "websocket": 503, "mqks": "error"}
        assert it.call("corp:ann", "GET", "/v2/session").headers["retry-after"] == "5"
        assert it.mqks("corp:ann", "1 ping")[0].endswith(" retry-after=5")
