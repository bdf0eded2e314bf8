"""JWTs of listed issuers: what makes one good, that nothing in it is believed before, and where keys come from."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from curbstone.access.errors import Busy, NotLoggedIn
from curbstone.access.issuers import BadIssuer, Claims, Issuer, is_jwt, issuer_of
from curbstone.access.jwks import BYTES_MAX, FETCH_INTERVAL_MS, KEYS_AGE_MS_MAX, WAITING_MAX, NoKeys, keys_of, read_keys
from curbstone.access.jwt_verifier import LEEWAY_S, LIFETIME_S_MAX, JwtVerifier
from curbstone.core.errors import CurbstoneError
from tests.kit.simulated import SimHost

URL = "https://id.example"
NOW_S = 1_800_000_000
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
OTHER = ec.generate_private_key(ec.SECP256R1())
TABLE = {"url": URL, "name": "corp", "audience": "curbstone", "roles_claim": "roles", "grants": ["send web/*"]}


def public(kid: str, key: Any, **more: str) -> dict[str, Any]:
    """Return a public key as an issuer publishes it."""
    if isinstance(key, rsa.RSAPrivateKey):
        found = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    elif isinstance(key, ed25519.Ed25519PrivateKey):
        found = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        found = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**found, "kid": kid, **more}


def claims(**changes: Any) -> dict[str, Any]:
    """Return the claims of a good token; a change to None leaves one out."""
    good = {"iss": URL, "aud": "curbstone", "sub": "ann", "exp": NOW_S + 600, "iat": NOW_S, "jti": "t1", "roles": ["w"]}
    return {name: value for name, value in (good | changes).items() if value is not None}


def signed(key: Any = EC, algorithm: str = "ES256", kid: str = "ec", headers: Any = None, **changes: Any) -> str:
    return jwt.encode(claims(**changes), key, algorithm, {"kid": kid, **(headers or {})})


class World:
    """A verifier, and the issuer it asks."""

    def __init__(self, **table: Any) -> None:
        self.host = SimHost(Random(0), NOW_S * 1000)
        self.keys = [public("rsa", RSA), public("ec", EC, use="sig", alg="ES256"), public("ed", ED)]
        self.asked: list[str] = []
        self.is_away = False
        self.issuer = issuer_of(TABLE | table)
        self.verifier = JwtVerifier([self.issuer], self.host, self.fetch)

    def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        if self.is_away:
            raise OSError("no route to host")
        if url.endswith("/openid-configuration"):
            return json.dumps({"issuer": URL, "jwks_uri": f"{URL}/keys"}).encode()
        return json.dumps({"keys": self.keys}).encode()

    def verify(self, token: str) -> Claims | CurbstoneError:
        found: list[Claims | CurbstoneError] = []
        self.verifier.verify(token, found.append)
        self.host.settle()
        (one,) = found
        return one

    def good(self, token: str) -> Claims:
        found = self.verify(token)
        assert isinstance(found, Claims)
        return found

    def refused(self, token: str) -> None:
        error = self.verify(token)
        assert isinstance(error, NotLoggedIn)
        assert str(error) == "the login failed"
        assert self.verifier.known(token) is None


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(("key", "algorithm", "kid"), [(RSA, "RS256", "rsa"), (EC, "ES256", "ec"), (ED, "EdDSA", "ed")])
def test_valid_token_gives_user_roles_and_expiry_and_is_cached_until_then(
    world: World, key: Any, algorithm: str, kid: str
) -> None:
    token = signed(key, algorithm, kid)
    assert is_jwt(token)
    assert world.verifier.known(token) is None
    found = world.good(token)
    assert found == Claims(world.issuer, "corp:ann", ("w",), "t1", (NOW_S + 600) * 1000)
    assert world.verifier.known(token) == found
    asked = len(world.asked)
    assert world.good(token) == found
    assert len(world.asked) == asked == 2
    world.host.pass_time((600 + LEEWAY_S) * 1000)
    assert world.verifier.known(token) is None
    world.refused(token)


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://id.example/"},
        {"iss": None},
        {"aud": "other"},
        {"aud": None},
        {"aud": []},
        {"sub": None},
        {"sub": ""},
        {"sub": "with space"},
        {"sub": "x" * 128},
        {"sub": 7},
        {"exp": None},
        {"exp": NOW_S - LEEWAY_S},
        {"exp": "soon"},
        {"exp": NOW_S + LIFETIME_S_MAX + 1},
        {"exp": NOW_S + LIFETIME_S_MAX + 1, "iat": None},
        {"exp": 1e300},
        {"iat": NOW_S + LEEWAY_S + 1},
        {"nbf": NOW_S + LEEWAY_S + 1},
        {"roles": 7},
        {"roles": ["w"] * 101},
    ],
)
def test_invalid_tokens_are_refused_with_the_same_message(world: World, changes: dict[str, Any]) -> None:
    world.refused(signed(**changes))


def test_token_is_valid_at_the_limits() -> None:
    assert World().good(signed(exp=NOW_S - LEEWAY_S + 1))
    assert World().good(signed(exp=NOW_S + LIFETIME_S_MAX))
    assert World().good(signed(iat=NOW_S + LEEWAY_S, aud=["x", "curbstone"], jti=None)).id == ""
    assert World().good(signed(roles="a b")).roles == ("a", "b")
    assert World().good(signed(roles=["a", 7])).roles == ("a",)
    assert World(user_claim="mail").good(signed(mail="ann@example")).user == "corp:ann@example"


def forged(header: Mapping[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(part).encode() for part in (header, claims())]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (*parts, signature))


def _tampered(token: str) -> str:
    head, _, signature = token.split(".")
    body = base64.urlsafe_b64encode(json.dumps(claims(sub="root")).encode()).rstrip(b"=").decode()
    return f"{head}.{body}.{signature}"


def _with_the_public_key_as_a_secret() -> str:
    key = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    unsigned = forged({"alg": "HS256", "kid": "rsa"}).rpartition(".")[0]
    signature = base64.urlsafe_b64encode(hmac.digest(key, unsigned.encode(), "sha256")).rstrip(b"=").decode()
    return f"{unsigned}.{signature}"


@pytest.mark.parametrize(
    "token",
    [
        forged({"alg": "none"}),
        forged({"alg": "none", "kid": "ec"}),
        forged({"alg": "None", "kid": "ec"}, b"x" * 64),
        _with_the_public_key_as_a_secret(),
        jwt.encode(claims(), RSA, "RS512", {"kid": "rsa"}),
        jwt.encode(claims(), RSA, "PS256", {"kid": "rsa"}),
        signed(RSA, "RS256", "ec"),
        signed(OTHER),
        signed(OTHER, headers={"jwk": public("ec", OTHER), "jku": "https://evil.example/keys"}),
        signed(headers={"crit": ["x"], "x": 1}),
        _tampered(signed()),
        signed() + "x",
        signed(headers={"b64": False}),
        "eyJ.eyJ.",
        "eyJhbGciOiJub25lIn0.eyJ9.x",
        "a.b.c",
        "",
    ],
)
def test_a_forged_token_is_refused(world: World, token: str) -> None:
    world.good(signed())
    world.refused(token)


@pytest.mark.parametrize("name", ["decode_complete", "decode"])
def test_too_deeply_nested_token_is_refused(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def too_deep(*_: object, **_options: object) -> None:
        raise RecursionError

    monkeypatch.setattr(jwt, name, too_deep)
    world.refused(signed())


@pytest.mark.parametrize(
    "changes", [{"alg": "ES512"}, {"crv": "P-384"}, {"kty": "oct"}, {"x": "AA"}, {"use": "enc"}, {"x": None}]
)
def test_key_for_another_use_verifies_no_token(world: World, changes: dict[str, Any]) -> None:
    world.keys = [public("ec", EC) | changes]
    world.refused(signed())


def test_token_without_kid_is_verified_with_the_only_key(world: World) -> None:
    token = jwt.encode(claims(), EC, "ES256")
    world.refused(token)
    alone = World()
    alone.keys = [public("", EC)]
    assert alone.good(token)


def test_unknown_kid_refetches_keys_at_most_every_30_s(world: World) -> None:
    world.good(signed())
    asked = len(world.asked)
    world.keys.append(public("new", OTHER))
    fresh = signed(OTHER, kid="new")
    for _ in range(5):
        world.refused(fresh)
    assert len(world.asked) == asked
    world.host.pass_time(FETCH_INTERVAL_MS)
    assert world.good(fresh)
    for _ in range(5):
        world.refused(signed(OTHER, kid="none"))
    assert len(world.asked) == asked + 2


def test_keys_are_kept_while_the_issuer_is_unreachable(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.good(signed())
    world.is_away = True
    for number in range(3):
        world.host.pass_time(FETCH_INTERVAL_MS)
        assert isinstance(world.verify(signed(OTHER, kid="none")), Busy), "its key may be a new one"
        assert world.good(signed(jti=f"t{number}"))
    assert [record.message for record in caplog.records] == [
        "issuer corp: can't fetch keys, still accepting the previous ones: no route to host"
    ]


def test_token_that_cannot_be_verified_yet_can_be_retried(world: World) -> None:
    """A good token was refused for good where its issuer could not be reached at its first use."""
    world.is_away = True
    for _ in range(3):
        error = world.verify(signed())
        assert isinstance(error, Busy) and str(error) == "the issuer of this login can't be reached; try again"
    world.refused(signed(iss="https://other.example"))
    assert len(world.asked) == 1
    world.is_away = False
    world.host.pass_time(FETCH_INTERVAL_MS)
    assert world.good(signed())


def test_withdrawn_key_is_rejected_after_an_hour(world: World) -> None:
    world.good(signed())
    world.keys = [public("rsa", RSA)]
    world.host.pass_time(KEYS_AGE_MS_MAX + 1)
    later = NOW_S + KEYS_AGE_MS_MAX // 1000
    assert world.good(signed(exp=later + 60)), "the new ones are asked for, and until they are here the old ones count"
    world.refused(signed(exp=later + 61))


def test_logins_waiting_for_keys_are_limited(world: World) -> None:
    found: list[Claims | CurbstoneError] = []
    for number in range(WAITING_MAX + 2):
        world.verifier.verify(signed(jti=str(number)), found.append)
    assert [type(each) for each in found] == [Busy, Busy]
    world.host.settle()
    assert len(found) == WAITING_MAX + 2
    assert sum(isinstance(each, Claims) for each in found) == WAITING_MAX
    assert len(world.asked) == 2


def test_keys_can_be_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [public("ec", EC)]}))
    world = World(jwks=str(file))
    assert world.good(signed())
    assert not world.asked


def test_keys_are_fetched_only_over_https_from_the_configured_or_discovered_url() -> None:
    def reading(said: Any, **table: str) -> Callable[[], object]:
        return lambda: read_keys(issuer_of(TABLE | table), lambda _url: json.dumps(said).encode())

    with pytest.raises(NoKeys, match="names another issuer"):
        reading({"issuer": "https://evil.example", "jwks_uri": f"{URL}/keys"})()
    with pytest.raises(NoKeys, match="no https URL"):
        reading({"issuer": URL, "jwks_uri": "file:///etc/passwd"})()
    assert read_keys(
        issuer_of(TABLE | {"jwks": f"{URL}/k"}), lambda url: json.dumps({"keys": [{"kid": url}]}).encode()
    ) == {f"{URL}/k": {"kid": f"{URL}/k"}}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no json",
        b"[]",
        b"{}",
        b'{"keys":[]}',
        b'{"keys":{}}',
        b'{"keys":[1]}',
        b"[" * 100_000,
        b" " * (BYTES_MAX + 1),
    ],
    ids=range(9),
)
def test_invalid_key_set_is_refused(data: bytes) -> None:
    with pytest.raises(NoKeys):
        keys_of(data)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"url": "http://id.example"}, "url: expected an https URL"),
        ({"url": "https://user@id.example"}, "url: expected an https URL"),
        ({"name": ""}, "name: 1 to 64"),
        ({"name": "a:b"}, "name: 1 to 64"),
        ({"audience": ""}, "audience is missing"),
        ({"jwks": "http://id.example/keys"}, "jwks: expected an https URL"),
        ({"jwks": 7}, "expected strings for all keys but grants, refused and rate"),
        ({"grants": "send web/*"}, "grants: expected a list"),
        ({"refused": [7]}, "refused: expected a list"),
        ({"grants": ["fly web/*"]}, "fly"),
        ({"home": "a b"}, "project name"),
        ({"algorithms": ["none"]}, "unknown key 'algorithms'"),
    ],
)
def test_invalid_issuer_table_is_reported_in_one_line(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadIssuer, match=reason) as caught:
        issuer_of(TABLE | changes)
    assert "\n" not in str(caught.value)


def test_other_credentials_are_not_taken_for_a_jwt() -> None:
    for secret in ("cbs_0123456789_" + "x" * 43, "passcode", "eyJust a passcode", "eyJ.eyJ.x.y"):
        assert not is_jwt(secret)
    assert isinstance(issuer_of(TABLE), Issuer)
