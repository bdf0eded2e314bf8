"""Who may connect: so many in all, and so many from one address."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from random import Random

import pytest

from curbstone.core.engine.disk_alarms import DiskAlarms
from curbstone.core.options import QueueOptions
from curbstone.gateway.settings import GatewaySettings
from curbstone.net import connection_limits as rules
from curbstone.net.acceptor import is_vanished
from curbstone.net.connection_limits import Admission, Bounds, Slot, counted_as
from curbstone.net.limits import RESERVE
from tests.kit.gateway import QUEUE, running
from tests.kit.simulated import SimDisk, SimHost
from tests.mqks.world import Peer, World, run


def admission(most: int = 1000, **bounds: int) -> Admission:
    alarms = DiskAlarms(SimHost(Random(0), 0), SimDisk(Random(0)))
    return Admission(lambda: most, alarms, Bounds(**bounds))


def open_slot(limits: Admission, address: str) -> Slot | None:
    """Return the slot if it may stay."""
    slot = limits.open_slot()
    if slot is not None and slot.set_address(address):
        slot.leave()
        return None
    return slot


def test_total_connections_are_limited() -> None:
    limits = admission(2)
    one, two = open_slot(limits, "10.0.0.1"), open_slot(limits, "10.0.0.2")
    assert one
    assert two
    assert open_slot(limits, "10.0.0.3") is None
    one.leave()
    one.leave()
    assert open_slot(limits, "10.0.0.3")
    assert open_slot(limits, "10.0.0.3") is None
    assert limits.refused == {"full": 2}


def test_full_server_keeps_room_for_health_checks() -> None:
    limits = admission(1)
    one = limits.open_slot()
    spares = [limits.open_slot(may_be_reserve=True) for _ in range(RESERVE + 1)]
    assert [spare is not None and spare.is_reserve for spare in spares] == [True] * RESERVE + [False]
    assert one and not one.is_reserve
    one.leave()
    assert limits.open_slot(), "spares are beyond the most there may be"
    assert spares[0]
    spares[0].leave()
    another = limits.open_slot(may_be_reserve=True)
    assert another and another.is_reserve


def test_connections_per_address_are_limited() -> None:
    limits = admission(address=2)
    one, two, three = [open_slot(limits, "10.0.0.1") for _ in range(3)]
    assert one
    assert two
    assert three is None
    assert open_slot(limits, "10.0.0.2")
    one.leave()
    assert [bool(open_slot(limits, "10.0.0.1")) for _ in range(2)] == [True, False]
    assert limits.refused == {"address": 2}


def test_closed_connections_leave_no_state() -> None:
    limits = admission(address=1, unauthenticated=1, address_unauthenticated=1, user=1)
    for number in range(100):
        slot = open_slot(limits, f"10.0.0.{number}")
        assert slot
        assert not slot.logged_in("a")
        slot.leave()
    assert not limits.slots
    assert not limits._counts


def test_local_clients_and_limit_0_are_unlimited() -> None:
    bounded = admission(address=1, address_unauthenticated=1)
    for limits, address in ((bounded, "127.0.0.1"), (bounded, "::1"), (admission(), "10.0.0.1")):
        assert all(open_slot(limits, address) for _ in range(10))


def test_unauthenticated_connections_have_lower_limits() -> None:
    limits = admission(unauthenticated=3, address_unauthenticated=2)
    one, two, three = [open_slot(limits, "10.0.0.1") for _ in range(3)]
    assert one
    assert two
    assert three is None
    assert open_slot(limits, "10.0.0.2")
    assert open_slot(limits, "127.0.0.1") is None
    assert not one.logged_in("a")
    assert open_slot(limits, "10.0.0.1")
    assert open_slot(limits, "10.0.0.3") is None
    assert limits.refused == {"strangers": 3}


def test_connections_per_user_are_limited_across_addresses() -> None:
    limits = admission(user=2)
    slots = [slot for number in range(3) if (slot := open_slot(limits, f"10.0.0.{number}"))]
    assert [slot.logged_in("a") for slot in slots] == [
        *("", "", "2 connections of this user are open, which is the limit")
    ]
    assert not slots[0].logged_in("a")
    assert not slots[0].logged_in("b")
    assert not slots[2].logged_in("c")
    assert not slots[2].logged_in("a")


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2", True),
        ("10.0.0.1", "10.0.0.2", False),
    ],
)
def test_address_grouping(one: str, other: str, are_same: bool) -> None:
    assert (counted_as(one) == counted_as(other)) is are_same


@pytest.fixture
def loopback_is_remote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "counted_as", lambda address: address)


def test_tcp_connection_beyond_the_limit_is_closed(tmp_path: Path, loopback_is_remote: None) -> None:
    async def test(world: World) -> None:
        world.server.acceptor.admission = admission(address=2)
        one, two = await world.peer("r rebind --confirm q e"), await world.peer("r rebind --confirm q e")
        away = await Peer.open(world.address)
        assert await away.line() == ""
        await away.close()
        await one.quiet()
        await world.leave(two)
        await (await world.peer("r rebind --confirm q f")).quiet()

    run(tmp_path, test)


@pytest.mark.anyio
async def test_http_connection_beyond_the_limit_is_refused_and_websockets_count(
    tmp_path: Path, loopback_is_remote: None
) -> None:
    async with running(tmp_path / "data", GatewaySettings(), QueueOptions()) as gateway:
        await gateway.http.aclose()
        limits = admission(address=1)
        gateway.server.acceptor.admission = limits
        async with gateway.socket("consume"):
            reply = await gateway.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert reply.startswith(b"HTTP/1.1 503 ")
            assert b"1 connections from this address are open" in reply
        async with asyncio.timeout(60):
            while limits.slots:
                await asyncio.sleep(0.001)
        reply = await gateway.raw(f"GET {QUEUE} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert reply.startswith(b"HTTP/1.1 200 ")


@pytest.mark.anyio
async def test_spare_http_connection_serves_only_health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, settings=GatewaySettings(), options=QueueOptions()) as gateway:
        monkeypatch.setattr(gateway.server.acceptor.admission, "_most", lambda: 0)
        for path in ("/healthz", "/readyz"):  # which closes: else `raw` would not end
            assert (await gateway.raw(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())).startswith(
                b"HTTP/1.1 200"
            )
        refused = await gateway.raw(f"GET {QUEUE} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        assert refused.startswith(b"HTTP/1.1 503") and rules.FULL.encode() in refused


def test_peer_without_tcp_acks_has_vanished() -> None:
    class Line:
        def __init__(self, retransmits: int) -> None:
            self.info = bytes((1, 0, retransmits, 0, 0, 0, 0, 0))

        def getsockopt(self, *_: int) -> bytes:
            return self.info

    left, right = socket.socketpair()
    with left, right, socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            client.sendall(b"x")
            assert not is_vanished(client) and not is_vanished(left) and not is_vanished(None)
        assert not is_vanished(client), "it is closed"
    assert is_vanished(Line(8)) and not is_vanished(Line(7))  # type: ignore[arg-type]


def test_peer_is_known_when_a_connection_is_admitted(tmp_path: Path) -> None:
    """What an event loop gives as the name of a peer is an address that the rules can read."""

    async def test(world: World) -> None:
        world.server.acceptor.admission = limits = admission()
        await world.peer("r rebind --confirm q e")
        (client,) = world.server.clients
        assert socket.inet_aton(client.peer.host) == bytes((127, 0, 0, 1))
        assert limits.slots == {client.slot}

    run(tmp_path, test)
