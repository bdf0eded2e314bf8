"""The client and logins: with a token it works, without one or with another it is told at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from curbstone_client import NotAllowed
from tests.access.doors import Doors, doors
from tests.client.shells import SHELLS

USERS = """
[users.ada]
home = "shop"
grants = ["send shop/*", "receive shop/*", "peek shop/*", "manage shop/*"]
[users.bob]
home = "shop"
grants = ["send shop/orders"]
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    path: Path = tmp_path_factory.mktemp("guarded")
    with doors(path, USERS) as made:
        yield made


@pytest.mark.parametrize("way", ["http", "stomp"])
@pytest.mark.parametrize("name", SHELLS)
def test_a_token_logs_in_and_its_rights_hold(guarded: Doors, name: str, way: str) -> None:
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
        bob.publish("orders", "the connection goes on")
        assert bob.client.stats.reconnects == 0
        with pytest.raises(NotAllowed):
            bob.take(bob.consume("orders"))


@pytest.mark.parametrize("way", ["http", "stomp"])
@pytest.mark.parametrize("name", SHELLS)
def test_a_bad_login_is_told_at_once(guarded: Doors, name: str, way: str) -> None:
    host, port = guarded.server.http if way == "http" else guarded.server.stomp
    with pytest.raises(NotAllowed):
        SHELLS[name](f"{way}://{host}:{port}", connect_timeout=60)
    with pytest.raises(NotAllowed):
        SHELLS[name](f"{way}://{host}:{port}", token="cbs_0123456789_nonsense", connect_timeout=60)
