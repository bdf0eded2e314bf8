"""Who takes from a queue and who holds a message, over every protocol; and who may see that of whom."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.kit.guarded_server import GuardedServer, RawConnection, guarded_server

WAIT_S = 60
USERS = """
[users.ada]
home = "shop"
grants = ["send,receive,peek,manage shop/*"]
[users.bob]
home = "shop"
grants = ["send,receive,peek shop/*"]
[users.eve]
home = "shop"
grants = ["peek shop/*"]
"""
TOO_MANY_UNAUTHENTICATED = """
[users.anonymous]
home = "shop"
sources = ["127.0.0.0/8"]
grants = ["peek,receive shop/open"]
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    with guarded_server(tmp_path_factory.mktemp("who"), USERS) as made:
        yield made


@pytest.fixture
def open_world(tmp_path: Path) -> Iterator[GuardedServer]:
    """A world that strangers may enter, too."""
    with guarded_server(tmp_path, USERS + TOO_MANY_UNAUTHENTICATED) as made:
        yield made


def queue_with(world: GuardedServer, name: str, *bodies: str) -> str:
    """Make a queue with messages; return its path."""
    path = f"/v2/shop/queues/{name}"
    assert world.call("ada", "PUT", path).status_code == 201
    for body in bodies:
        assert world.call("ada", "POST", f"{path}/messages", content=body).status_code == 201
    return path


def explained(world: GuardedServer, user: str, path: str, **query: str) -> dict[str, Any]:
    reply = world.call(user, "GET", f"{path}/explain", params=query)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def holders(world: GuardedServer, user: str, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = explained(world, user, path)["holders"]
    return found


class Stomp:
    """A STOMP client of a user, subscribed with the id s-1."""

    def __init__(self, world: GuardedServer, user: str, queue: str, more: str = "") -> None:
        self.line = RawConnection(world.server.stomp)
        login = f"login:{user}\npasscode:{world.secrets[user]}\n" if user else ""
        self.line.send(f"CONNECT\naccept-version:1.2\nhost:x\nclient-id:billing\n{login}\n\0")
        self.line.send(f"SUBSCRIBE\nid:s-1\ndestination:/queue/{queue}\nack:client-individual\n{more}receipt:r\n\n\0")
        self.peer = "127.0.0.1:{1}".format(*self.line.socket.getsockname())

    def read_until(self, text: str) -> None:
        found = b""
        while text.encode() not in found:
            more = self.line.socket.recv(65536)
            assert more, found
            found += more


def socket_to(world: GuardedServer, user: str, path: str, protocol: str) -> Any:
    return connect(
        world.server.url.replace("http", "ws", 1) + path, subprotocols=[Subprotocol(protocol)], proxy=None,
        additional_headers={"authorization": f"Bearer {world.secrets[user]}"}, compression=None,
    )  # fmt: skip


def test_holder_info_names_the_client_on_each_protocol(world: GuardedServer) -> None:
    path = queue_with(world, "every", *"12345")
    with ExitStack() as stack:
        stomp = Stomp(world, "bob", "every", "prefetch-count:1\n")
        stack.enter_context(stomp.line)
        stomp.read_until("RECEIPT")
        one = stack.enter_context(socket_to(world, "bob", f"{path}/messages?ack&limit=1", "consume"))
        one.recv(WAIT_S)
        several = stack.enter_context(socket_to(world, "bob", "/v2/shop/queues", "queues"))
        several.send(json.dumps({"subscribe": "every", "ack": True, "limit": 1, "encoding": "utf8"}))
        while "message" not in several.recv(WAIT_S):
            pass
        mqks = stack.enter_context(RawConnection(world.server.mqks))
        mqks.send(f"login auth {world.secrets['ada']}\nworker-7 consume every --manual-ack --window=1\n")
        heard = b""
        while b"worker-7 ok" not in heard:
            heard += mqks.socket.recv(65536)
        headers = {"authorization": f"Bearer {world.secrets['bob']}", "accept": "text/event-stream"}
        http = stack.enter_context(httpx.Client(base_url=world.server.url, trust_env=False, timeout=WAIT_S))
        stream = stack.enter_context(http.stream("GET", f"{path}/messages?limit=1", headers=headers))
        for line in stream.iter_lines():
            if line.startswith("data:"):
                break
        found = {each["protocol"]: each for each in reversed(holders(world, "ada", path))}
        assert {name: each["user"] for name, each in found.items()} == {
            **{"stomp": "bob", "websocket": "bob", "mqks": "ada", "sse": "bob"},
        }
        assert found["stomp"]["peer"] == stomp.peer
        assert (found["stomp"]["client"], found["stomp"]["subscription"]) == ("billing", "s-1")
        assert found["mqks"]["subscription"] == "worker-7" and "client" not in found["mqks"]
        ports = {each["peer"] for each in holders(world, "ada", path)}
        assert len(ports) == 5 and f"127.0.0.1:{one.local_address[1]}" in ports
        assert all(each["unsettled"] == 1 and each["oldest_ms"] > 0 for each in holders(world, "ada", path))


def test_holder_info_covers_stomp_over_websocket_and_leases(world: GuardedServer) -> None:
    path = queue_with(world, "over", *"123")
    with socket_to(world, "bob", "/stomp", "v12.stomp") as socket:
        socket.send("CONNECT\naccept-version:1.2\nhost:x\n\n\0")
        socket.recv(WAIT_S)
        socket.send("SUBSCRIBE\nid:9\ndestination:/queue/over\nack:client\nprefetch-count:1\nreceipt:r\n\n\0")
        while "RECEIPT" not in str(socket.recv(WAIT_S)):
            pass
        leased = world.call("bob", "POST", f"{path}/messages/lease", json={"count": 2})
        assert len(leased.json()["messages"]) == 2
        consumer, leases = holders(world, "ada", path)
    assert (consumer["protocol"], consumer["user"], consumer["subscription"]) == ("stomp-websocket", "bob", "9")
    assert (leases["kind"], leases["protocol"], leases["user"], leases["unsettled"]) == ("leases", "http", "bob", 2)
    assert leases["until_ms"] > leases["oldest_ms"] > 0 and "subscription" not in leases


def test_idle_event_stream_is_listed_as_a_consumer(world: GuardedServer) -> None:
    """It was not listed, as if nobody took from the queue."""
    path = queue_with(world, "waiting")
    headers = {"authorization": f"Bearer {world.secrets['bob']}", "accept": "text/event-stream"}
    client = httpx.Client(base_url=world.server.url, trust_env=False, timeout=WAIT_S)
    with client, client.stream("GET", f"{path}/messages?limit=3", headers=headers):
        looks = (
            holders(world, "ada", path) for _ in range(1000)
        )  # the headers come before the stream asks for messages
        (stream,) = next(filter(None, looks))
        assert (stream["kind"], stream["protocol"], stream["user"]) == ("consumer", "sse", "bob")
        assert (stream["state"], stream["window"], stream["unsettled"]) == ("ready", 3, 0)
        assert world.call("ada", "POST", f"{path}/pause").status_code == 200
        assert world.call("ada", "POST", f"{path}/messages", content="one").status_code == 201
        assert "Its only consumer has room" in " ".join(explained(world, "eve", path)["sentences"])


def test_message_shows_its_holder_and_since_when(world: GuardedServer) -> None:
    path = queue_with(world, "one", "held", "ready")
    held, ready = (each["id"] for each in world.call("ada", "GET", f"{path}/messages").json()["messages"])
    stomp = Stomp(world, "bob", "one", "prefetch-count:1\n")
    with stomp.line:
        stomp.read_until("MESSAGE")
        found = explained(world, "ada", path, id=held)
        (holder,) = found["held_by"]
        assert (holder["peer"], holder["unsettled"]) == (stomp.peer, 1)
        who = f"A consumer over STOMP (at {stomp.peer}, user bob, client billing, id s-1) has held it since 20"
        assert who in found["sentences"][0]
        assert explained(world, "ada", path, id=ready)["held_by"] == []
        whole = explained(world, "ada", path)
        assert "held_by" not in whole
        assert who.replace("held it", "held one of them") in " ".join(whole["sentences"])
        assert "A consumer over STOMP has held it since 20" in explained(world, "eve", path, id=held)["sentences"][0]
        assert "A consumer over STOMP has held one of them since 20" in " ".join(
            explained(world, "eve", path)["sentences"]
        )


def test_unsubscribed_client_still_holds_unsettled_messages(world: GuardedServer) -> None:
    path = queue_with(world, "left", "held")
    stomp = Stomp(world, "bob", "left")
    with stomp.line:
        stomp.read_until("MESSAGE")
        stomp.line.send("UNSUBSCRIBE\nid:s-1\nreceipt:gone\n\n\0")
        stomp.read_until("receipt-id:gone")
        (holder,) = holders(world, "ada", path)
        assert (holder["state"], holder["unsettled"], holder["user"]) == ("leaving", 1, "bob")
        (message,) = world.call("ada", "GET", f"{path}/messages").json()["messages"]
        assert len(explained(world, "ada", path, id=message["id"])["held_by"]) == 1


def test_holder_addresses_require_manage_or_being_the_user(world: GuardedServer) -> None:
    path = queue_with(world, "seen")
    theirs, own = Stomp(world, "ada", "seen"), Stomp(world, "bob", "seen")
    with theirs.line, own.line:
        theirs.read_until("RECEIPT")
        own.read_until("RECEIPT")

        def reported(user: str) -> list[tuple[str, str, str]]:
            found = holders(world, user, path)
            assert [each["protocol"] for each in found] == ["stomp", "stomp"]
            return sorted((each.get("user", ""), each.get("peer", ""), each.get("client", "")) for each in found)

        assert reported("ada") == [("ada", theirs.peer, "billing"), ("bob", own.peer, "billing")]
        assert reported("bob") == [("", "", ""), ("bob", own.peer, "billing")]
        assert reported("eve") == [("", "", "")] * 2


def test_anonymous_clients_do_not_see_each_other(open_world: GuardedServer) -> None:
    path = queue_with(open_world, "open")
    stomp = Stomp(open_world, "", "open")
    with stomp.line:
        stomp.read_until("RECEIPT")
        (holder,) = holders(open_world, "", path)
        assert "peer" not in holder and "user" not in holder
        (holder,) = holders(open_world, "ada", path)
        assert (holder["peer"], holder["user"]) == (stomp.peer, "anonymous")
