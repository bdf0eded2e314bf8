"""Who may connect: so many in all, and so many from one address."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from random import Random

import pytest

from curbstone.core.options import QueueOptions
from curbstone.core.troubles import Troubles
from curbstone.gateway.settings import GatewaySettings
from curbstone.net import admission as rules
from curbstone.net.admission import Admission, visitor_of
from tests.gateway.running import QUEUE, running
from tests.mqks.world import Peer, World, run
from tests.sim.world import SimDisk, SimHost


def admission(address_most: int) -> Admission:
    return Admission(lambda: 1000, Troubles(SimHost(Random(0), 0), SimDisk(Random(0))), address_most)


def test_of_one_address_there_are_so_many_and_others_have_their_own() -> None:
    door = admission(2)
    assert [door.enter("10.0.0.1") for _ in range(3)] == [True, True, False]
    assert door.enter("10.0.0.2")
    door.leave("10.0.0.1")
    assert [door.enter("10.0.0.1") for _ in range(2)] == [True, False]


def test_nothing_is_kept_of_those_who_left() -> None:
    door = admission(1)
    for number in range(100):
        assert door.enter(f"10.0.0.{number}")
        door.leave(f"10.0.0.{number}")
    assert not door._visitors


def test_clients_of_this_machine_are_any_number_and_so_is_everybody_with_0() -> None:
    for door, address in ((admission(1), "127.0.0.1"), (admission(1), "::1"), (admission(0), "10.0.0.1")):
        assert all(door.enter(address) for _ in range(10))
        door.leave(address)


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
def test_whom_an_address_belongs_to(one: str, other: str, are_same: bool) -> None:
    assert (visitor_of(one) == visitor_of(other)) is are_same


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take loopback for the network."""
    monkeypatch.setattr(rules, "visitor_of", lambda address: address)


def test_over_tcp_who_is_one_too_many_is_sent_away(tmp_path: Path, elsewhere: None) -> None:
    async def test(world: World) -> None:
        world.server.admit_by(admission(2))
        one, two = await world.peer("r rebind --confirm q e"), await world.peer("r rebind --confirm q e")
        away = await Peer.open(world.address)
        assert await away.line() == ""
        await away.close()
        await one.quiet()
        await world.leave(two)
        await (await world.peer("r rebind --confirm q f")).quiet()

    run(tmp_path, test)


@pytest.mark.anyio
async def test_over_http_too_and_a_websocket_counts_to_its_end(tmp_path: Path, elsewhere: None) -> None:
    async with running(tmp_path / "data", GatewaySettings(), QueueOptions()) as gateway:
        await gateway.http.aclose()
        door = admission(1)
        gateway.server.admit_by(door)
        async with gateway.socket("consume"):
            reply = await gateway.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert reply.startswith(b"HTTP/1.1 503 ")
            assert b"1 connections from this address are open" in reply
        async with asyncio.timeout(10):
            while door._visitors:
                await asyncio.sleep(0.001)
        reply = await gateway.raw(f"GET {QUEUE} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert reply.startswith(b"HTTP/1.1 200 ")


def test_the_peer_of_a_connection_is_known_when_it_is_let_in(tmp_path: Path) -> None:
    """What an event loop gives as the name of a peer is an address that the rules can read."""

    async def test(world: World) -> None:
        door = admission(1)
        seen: list[str] = []
        door.enter = lambda address: not seen.append(address)  # type: ignore[method-assign, func-returns-value]
        world.server.admit_by(door)
        await world.peer("r rebind --confirm q e")
        assert [socket.inet_aton(address) for address in seen] == [bytes((127, 0, 0, 1))]

    run(tmp_path, test)
