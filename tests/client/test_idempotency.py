"""Idempotency keys in both clients: what is published again under its key is stored once."""

from __future__ import annotations

import pytest

from curbstone_client import Refused
from tests.client.shells import SHELLS
from tests.kit.server import ServerProcess


@pytest.mark.parametrize("way", ["http", "stomp"])
@pytest.mark.parametrize("name", SHELLS)
def test_message_with_a_key_is_stored_once_across_clients(server: ServerProcess, name: str, way: str) -> None:
    host, port = server.http if way == "http" else server.stomp
    urls = [f"{way}://{host}:{port}", server.url]
    with SHELLS[name](urls) as shell, SHELLS[name](urls) as other:
        first = shell.publish("orders", {"total": 12}, idempotency_key="order-7")
        assert shell.publish("orders", {"total": 12}, idempotency_key="order-7") == first
        assert other.publish("orders", {"total": 12}, idempotency_key="order-7") == first
        with pytest.raises(Refused, match="used for other content") as refused:
            shell.publish("orders", {"total": 13}, idempotency_key="order-7")
        assert refused.value.status == 422
        shell.publish("orders", {"total": 12}, idempotency_key="order-8", headers={"n": "1"}, ttl=60)
        shell.publish("orders", {"total": 12})
        assert shell.on_queue("orders", "info")["rdy"] == 3
        assert shell.client.stats.reconnects == 0


@pytest.mark.parametrize("name", SHELLS)
def test_the_window_is_an_option_of_the_queue(server: ServerProcess, name: str) -> None:
    with SHELLS[name](server.url) as shell:
        shell.call("declare", "orders", idempotency_window=604_800, cap="1MiB")
        shell.call("declare", "orders", max_tries=3)
        options = shell.on_queue("orders", "info")["options"]
        assert (options["idempotency_window"], options["cap"], options["max_tries"]) == (604_800, 1_048_576, 3)
        with pytest.raises(Refused, match="idempotency_window: 604801 is not a number of seconds from 1 to 604800"):
            shell.call("declare", "orders", idempotency_window=604_801)
        stored = shell.publish("orders", "x", idempotency_key="k")
        server.kill()
        server.restart(same_ports=True)
        assert shell.publish("orders", "x", idempotency_key="k").id == stored.id
        assert shell.on_queue("orders", "info")["options"]["idempotency_window"] == 604_800


@pytest.mark.parametrize("name", SHELLS)
def test_application_sequence_numbers_and_keys_can_be_mixed(server: ServerProcess, name: str) -> None:
    with SHELLS[name](server.url, producer="billing") as shell:
        shell.publish("orders", "1", seq=1)
        shell.publish("orders", "a", idempotency_key="a")
        shell.publish("orders", "2", seq=2)
        assert shell.on_queue("orders", "info")["rdy"] == 3
        with pytest.raises(ValueError, match="a seq or an idempotency_key, not both"):
            shell.publish("orders", "3", seq=3, idempotency_key="b")


@pytest.mark.parametrize("key", ["", "two words", "x" * 256, "ä"])
@pytest.mark.parametrize("name", SHELLS)
def test_invalid_key_is_refused_before_sending(server: ServerProcess, name: str, key: str) -> None:
    refused = pytest.raises(ValueError, match="idempotency_key must be 1 to 255 visible ASCII characters")
    with SHELLS[name](server.url) as shell, refused:
        shell.publish("orders", "x", idempotency_key=key)


@pytest.mark.parametrize("name", SHELLS)
def test_event_message_with_a_key_is_refused(server: ServerProcess, name: str) -> None:
    with SHELLS[name](server.url) as shell, pytest.raises(ValueError, match="can't have an idempotency_key"):
        shell.publish_event("sold", "x", idempotency_key="k")
