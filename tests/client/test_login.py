"""The client and logins: with a token it works, without one or with another it is refused at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curbstone_client import CantConnect, NotAllowed, aio, sync
from curbstone_client.address import parse
from curbstone_client.link import REFUSED_RETRY_S, Link
from curbstone_client.login import Token, current
from tests.client.shells import SHELLS
from tests.kit.guarded_server import GuardedServer, guarded_server

USERS = """
[users.ada]
home = "shop"
grants = ["send shop/*", "receive shop/*", "peek shop/*", "manage shop/*"]
[users.bob]
home = "shop"
grants = ["send shop/orders"]
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    path: Path = tmp_path_factory.mktemp("guarded")
    with guarded_server(path, USERS) as made:
        yield made


@pytest.mark.parametrize("way", ["http", "stomp"])
@pytest.mark.parametrize("name", SHELLS)
def test_a_token_logs_in_and_its_rights_hold(guarded: GuardedServer, name: str, way: str) -> None:
    host, port = guarded.server.http if way == "http" else guarded.server.stomp
    urls = [f"{way}://{host}:{port}", guarded.server.url]
    with SHELLS[name](urls, token=guarded.secrets["ada"]) as ada:
        queue = f"{name}-{way}"
        ada.publish(queue, "for ada")
        assert ada.take(ada.consume(queue)).text == "for ada"
        assert ada.on_queue(queue, "info")["wip"] == 1
        ada.call("declare", "orders")
    with SHELLS[name](urls[:1], token=lambda: guarded.secrets["bob"]) as bob:
        bob.publish("orders", "from bob")
        with pytest.raises(NotAllowed) as refused:
            bob.publish("secrets", "x")
        assert refused.value.status == 403
        bob.publish("orders", "the connection continues")
        assert bob.client.stats.reconnects == 0
        with pytest.raises(NotAllowed):
            bob.take(bob.consume("orders"))


@pytest.mark.parametrize("way", ["http", "stomp"])
@pytest.mark.parametrize("name", SHELLS)
def test_failed_login_is_reported_without_retry(guarded: GuardedServer, name: str, way: str) -> None:
    host, port = guarded.server.http if way == "http" else guarded.server.stomp
    with pytest.raises(NotAllowed):
        SHELLS[name](f"{way}://{host}:{port}", connect_timeout=60)
    with pytest.raises(NotAllowed):
        SHELLS[name](f"{way}://{host}:{port}", token="cbs_0123456789_nonsense", connect_timeout=60)


class Nothing:
    """A role that does nothing."""

    def __getattr__(self, name: str) -> object:
        return lambda *_: 1e9


def refused(link: Link, headers: str, attempt: int) -> float:
    """Have the server answer CONNECT with an ERROR; return after how long the link tries again."""
    link.opened(link.token(), float(attempt))
    link.take_output()
    link.receive(f"ERROR\nmessage:no\n{headers}\n\0\n".encode(), float(attempt))
    assert link.failure is not None
    return link.lost("closed", float(attempt))


def a_link(token: Token) -> Link:
    link = Link([parse("stomp://localhost:1")], token)
    link.role = Nothing()  # type: ignore[assignment]
    return link


def test_replaced_server_is_skipped_for_the_next_address() -> None:
    link = Link([parse("stomp://one"), parse("stomp://two")])
    link.role = Nothing()  # type: ignore[assignment]
    for attempt, (term, host, is_taken) in enumerate([(1, "one", True), (2, "two", True), (1, "one", False)]):
        assert link.address().host == host
        link.opened(None, float(attempt))
        link.receive(f"CONNECTED\nversion:1.2\nx-term:{term}\n\n\0\n".encode(), float(attempt))
        assert link.is_up is is_taken
        link.lost("closed", float(attempt))
    assert "of term 2, has replaced it, which has term 1" in str(link.last_failure)


@pytest.mark.parametrize("way", ["http", "stomp"])
@pytest.mark.parametrize("name", SHELLS)
def test_token_function_is_called_again_after_an_invalid_result(guarded: GuardedServer, name: str, way: str) -> None:
    """Over STOMP the thread, or the task, that connects ended for good, and no error was reported."""
    host, port = guarded.server.http if way == "http" else guarded.server.stomp
    found = iter(["not a token", "nor\nthis", guarded.secrets["ada"] + "\n"])
    last = guarded.secrets["ada"]
    with SHELLS[name](f"{way}://{host}:{port}", token=lambda: next(found, last), connect_timeout=60) as ada:
        ada.publish(f"late-{name}-{way}", "x")


@pytest.mark.parametrize("token", ["two words", "two\nlines", "gr\u00fcn", "\ud800", b"bytes"])
@pytest.mark.parametrize("client", [aio.Client, sync.Client])
def test_invalid_token_is_reported_before_connecting(client: Any, token: Any) -> None:
    with pytest.raises(ValueError, match="a token"):
        client("stomp://127.0.0.1:1", token=token)


@pytest.mark.parametrize("token", ["abc", "abc\n", " abc\r\n", lambda: "abc\n"])
def test_trailing_newline_is_not_part_of_a_token(token: Token) -> None:
    assert current(token) == "abc"


def test_throttled_login_is_retried_when_the_server_says() -> None:
    link = a_link("secret")
    assert refused(link, "x-error-code:429\nretry-after:17\n", 1) == 17
    assert isinstance(link.last_failure, CantConnect) and link.refused is None
    assert refused(link, "x-error-code:401\n", 2) == REFUSED_RETRY_S
    assert refused(link, "x-error-code:429\nretry-after:60\n", 3) == 60
    assert isinstance(link.refused, NotAllowed), "what came later hides that the login was found wrong"
    link.opened("secret", 4.0)
    link.receive(b"CONNECTED\nversion:1.2\n\n\0\n", 4.0)
    assert link.is_up and link.refused is None


def test_token_function_is_called_again_soon_after_a_refusal() -> None:
    assert refused(a_link(lambda: "secret"), "x-error-code:401\n", 1) < 1
