"""What one user, and all clients together, may have under way; and what the audit says of who was refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from curbstone.access.caller import Caller
from curbstone.access.connections import STREAM, STREAMS_MAX
from curbstone.access.errors import TooMany
from curbstone.net.connection_limits import Admission, Bounds
from tests.access.world import World
from tests.kit.guarded_server import GuardedServer, RawConnection, guarded_server

USERS = """
[users.root]
grants = ["admin server"]
[users.ann]
home = "shop"
grants = ["send shop/*"]
"""
Q = "/v2/shop/queues/q"


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    with guarded_server(tmp_path_factory.mktemp("limits"), USERS) as opened:
        assert opened.call("root", "PUT", Q).status_code == 201
        yield opened


class RootedWorld(World):
    """With a token of its admin."""

    @property
    def root(self) -> str:
        from curbstone.access import tokens

        secret, token = tokens.new_token("root", 0, grants=None, expires_ms=0, label="")
        self.authenticator.tokens.add(token, lambda _error: None)
        self.lab.settle()
        return str(secret)


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> RootedWorld:
    return RootedWorld(tmp_path_factory.mktemp("world"), USERS)


def test_streams_of_a_user_are_limited_and_ended_ones_do_not_count(world: RootedWorld) -> None:
    access = world.login("ann", str(world.token(world.login("root", world.root), "ann")))
    connections = world.authenticator.connections

    def open_one(protocol: str) -> None:
        connections.add(access, Caller("127.0.0.1", 1, protocol), end=lambda _error: None)

    for _ in range(STREAMS_MAX):
        connections.check_stream(access)
        open_one(STREAM)
    with pytest.raises(TooMany, match="this user has 100 streams, the limit"):
        connections.check_stream(access)
    connections.check(access)
    connections.listed()[0].close()
    connections.check_stream(access)


def test_connection_limit_of_a_user_is_reported_on_each_request() -> None:
    limits = Admission(bounds=Bounds(user=1))
    first, second = limits.open_slot(), limits.open_slot()
    assert first and second
    assert not first.logged_in("ann")
    for _ in range(2):
        assert second.logged_in("ann") == "1 connections of this user are open, which is the limit"
    assert not second.logged_in("bob")
    first.leave()
    assert not second.logged_in("ann")


def test_audit_records_address_and_protocol_of_a_refusal(it: GuardedServer) -> None:
    assert it.call("ann", "DELETE", Q).status_code == 403
    assert "no right to receive" in it.stomp("ann", "SUBSCRIBE\nid:1\ndestination:/queue/q\n\n")[-1]
    assert it.mqks("ann", "1 delete_queue --confirm q")[-1].startswith("1 error")
    assert it.websocket("ann", "consume", f"{Q}/messages") == 403
    entries = it.call("root", "GET", "/v2/audit").json()["audit"]
    refused = {each["protocol"]: each["peer"] for each in entries if each["outcome"] == "refused"}
    assert set(refused) == {"http", "stomp", "mqks", "websocket"}
    assert all(peer.startswith("127.0.0.1:") for peer in refused.values())
    made = next(each for each in entries if each["action"] == "change queue")
    assert made["user"] == "root" and made["protocol"] == "http" and made["peer"].startswith("127.0.0.1:")


def test_subscriptions_of_a_user_are_limited_and_ended_ones_do_not_count(it: GuardedServer) -> None:
    def connected() -> RawConnection:
        line = RawConnection(it.server.stomp)
        line.socket.settimeout(60)
        line.send(f"CONNECT\naccept-version:1.2\nhost:x\npasscode:{it.secrets['root']}\n\n\0")
        return line

    def subscribing(number: int) -> str:
        return f"SUBSCRIBE\nid:{number}\ndestination:/queue/shop/q\nreceipt:got{number}\n\n\0"

    with ExitStack() as stack:
        lines = [stack.enter_context(connected()) for _ in range(10)]
        for line in lines:
            line.send("".join(map(subscribing, range(1, 1001))))
        for line in lines:
            line.read_until(b"receipt-id:got1000\n")
        with connected() as late:
            late.send(subscribing(1))
            assert b"this user has 10000 subscriptions" in late.read_all()
        with RawConnection(it.server.mqks) as mqks:
            mqks.socket.settimeout(60)
            mqks.send(f"in auth {it.secrets['root']}\nc consume --confirm q e\n")
            mqks.read_until(b"\nc error ")
            lines[0].send("UNSUBSCRIBE\nid:7\nreceipt:less\n\n\0")
            lines[0].read_until(b"receipt-id:less\n")
            mqks.send("d consume --confirm q e\n")
            mqks.read_until(b"d ok")
            lines[0].send(subscribing(7))
            assert b"this user has 10000 subscriptions" in lines[0].read_all()
            with connected() as late:
                late.send(subscribing(1))
                late.read_until(b"receipt-id:got1\n")
