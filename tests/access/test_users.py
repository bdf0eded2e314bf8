"""The users file: taken whole, or refused with the rule that it breaks and without a secret of it."""

from __future__ import annotations

import pytest

from curbstone.access.rights import Right
from curbstone.access.users import UsersError, load
from curbstone.core.names import queue_name
from tests.access.world import hashed

GOOD = f"""
[roles.worker]
grants = ["receive,peek shop/orders*", "send topic:shop/order.*"]

[users.orders-api]
password = ["{hashed("open sesame")}"]
home = "shop"
roles = ["worker"]
grants = ["manage shop/{{user}}.*"]
certificate = ["URI:spiffe://example/orders"]
sources = ["10.0.0.0/8", "::1/128"]

[users.anonymous]
sources = ["127.0.0.0/8"]
grants = ["metrics server"]

[quotas.shop]
bytes = "5GiB"
queues = 10

[[issuers]]
url = "https://id.example"
name = "corp"
audience = "curbstone"
home = "shop"
roles_claim = "roles"
grants = ["receive,peek shop/*"]
"""


ISSUER = "[[issuers]]\nurl='https://id.example'\nname='corp'\n"


def test_valid_users_file_defines_rights() -> None:
    users = load(GOOD.encode())
    user = users.users["orders-api"]
    assert user.home == "shop"
    assert user.grants.on_queue(queue_name("orders.1", "shop")) == Right.RECEIVE | Right.PEEK
    assert user.grants.on_queue(queue_name("orders-api.x", "shop")) & Right.MANAGE
    assert user.grants.on_topic("shop", "order.new") == Right.SEND
    assert user.may_log_in_from("10.1.2.3") and user.may_log_in_from("::ffff:10.1.2.3") and user.may_log_in_from("::1")
    assert not user.may_log_in_from("11.1.2.3") and not user.may_log_in_from("?")
    assert users.by_certificate(("DNS:x", "URI:spiffe://example/orders")) is user
    assert users.quota("shop") == (10, 5 << 30)
    assert users.quota("other") == (1000, 10 << 30)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("[users.a]\nhomes = 'x'", "unknown key 'homes'"),
        ("[users.a]\nhome = 'a b'", "bad project name"),
        ("[users.a]\nhome = 3", "expected a string"),
        ("[users.'a b']", "bad user name"),
        ("[users.a]\nroles = ['w']", "no such role: 'w'"),
        ("[users.a]\ngrants = 'send a/b'", "grants: expected a list of strings"),
        ("[users.a]\ngrants = ['send a']", "expected the pattern"),
        ("[users.a]\npassword = ['hunter2-secret']", "hashes from `curbstone user hash`"),
        ("[users.a]\nsources = ['10.0.0.1/8']", "sources: expected networks"),
        ("[users.anonymous]", "an anonymous user needs `sources`"),
        ("[users.a]\ncertificate=['DNS:x']\n[users.b]\ncertificate=['DNS:x']", "the same certificate name"),
        ("[quotas.shop]\nbytes = 'much'", "bad size"),
        ("[quotas.'a b']", "bad project name"),
        ("[[users]]", "expected tables"),
        (
            ISSUER + "audience='q'\n" + ISSUER.replace("corp", "other") + "audience='q'",
            "issuer 2: another issuer has the same",
        ),
        (ISSUER, "issuer 1: audience is missing"),
        (ISSUER + "audience='q'\n[users.'corp:ann']", "names that begin with corp: belong to the issuer's users"),
        ("[issuers.corp]", "expected tables, as in [[issuers]]"),
        ("[other]", "unknown key 'other'"),
        ("[users.a]\npassword = 'hunter2-secret", "it is not TOML (at end of document)"),
    ],
)
def test_one_invalid_line_refuses_the_file_without_showing_secrets(line: str, rule: str) -> None:
    text = line if "users" in line else line + "\n[users.z]"
    with pytest.raises(UsersError) as caught:
        load(text.encode())
    assert rule in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_users_file_may_define_only_issuers() -> None:
    [issuer] = load((ISSUER + "audience='q'").encode()).issuers
    assert (issuer.name, issuer.home) == ("corp", "default")


def test_a_file_without_users_is_refused() -> None:
    with pytest.raises(UsersError, match="no users"):
        load(b"")
