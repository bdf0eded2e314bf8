"""Turns: who sends what costs much waits for the others, and gets all of it carried out in its order."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from curbstone.net import fair_reader as turns
from curbstone.net.fair_reader import ALONE_US, SHARED_US, SMALL_BYTES, TURN_BYTES, TURN_US, Intake, Turns

BUG = b"what the server can not carry out"


class FreeIntake:
    """Whose bytes cost nothing."""

    def take(self, data: bytes) -> None:
        pass

    def caught_up(self) -> None:
        pass

    def abort(self) -> None:
        pass


class World:
    """A clock that continues when something is carried out, and the turns of a loop."""

    def __init__(self) -> None:
        self.us = 0
        self.turns = Turns(self)
        self._soon: list[Callable[[], object]] = []
        self.other_sender: Intake | None = Intake(self.turns, FreeIntake())
        """Another connection that sends a byte now and then, so that turns are shared; None where there is none."""

    def now_us(self) -> int:
        return self.us

    def call_soon(self, fn: Callable[[], object]) -> None:
        self._soon.append(fn)

    def turn(self) -> int:
        """Make one turn; return how long it data."""
        started_us = self.us
        self.share()
        soon, self._soon = self._soon, []
        for fn in soon:
            fn()
        return self.us - started_us

    def share(self) -> None:
        if self.other_sender is not None:
            self.other_sender.receive(b".")

    @property
    def is_idle(self) -> bool:
        return not self._soon


class Client:
    """A connection whose bytes cost so much each."""

    def __init__(self, world: World, us_per_byte: float) -> None:
        self.us_per_byte = us_per_byte
        self.pieces: list[bytes] = []
        self.is_read = True
        self.is_open = True
        self.intake = Intake(world.turns, self)
        self._world = world

    def send(self, data: bytes) -> None:
        assert self.is_read
        self._world.share()
        self.intake.receive(data)
        self.is_read = not self.intake.is_waiting

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)

    def take(self, data: bytes) -> None:
        self._world.us += int(len(data) * self.us_per_byte)
        self.pieces.append(data)
        if data.endswith(BUG):
            raise RuntimeError("bug")

    def caught_up(self) -> None:
        self.is_read = True

    def abort(self) -> None:
        self.is_open = False


@pytest.fixture
def world() -> World:
    return World()


def test_one_read_of_a_flood_does_not_block_others(world: World) -> None:
    """A quarter of a megabyte of tiny frames was carried out at once, and everybody else waited for a second."""
    flood, honest = Client(world, 4.0), Client(world, 1.0)
    flood.send(b"x" * 256 * 1024)
    assert world.us < 12 * TURN_US, "what it costs was not fixed_cost"
    while world.turn() < TURN_US:
        pass  # what the first turn data too much
    for number in range(50):
        before = len(flood.data)
        honest.send(b"%d" % number)
        assert honest.pieces[-1] == b"%d" % number, "it did not wait"
        assert world.turn() <= TURN_US + SMALL_BYTES * 4
        assert len(flood.data) >= before
        assert not flood.is_read
    while not flood.is_read:
        world.turn()
    assert flood.data == b"x" * 256 * 1024


def test_all_floods_share_the_time_of_one_turn(world: World) -> None:
    floods = [Client(world, 1.0) for _ in range(20)]
    for client in floods:
        client.send(b"x" * 30_000)
    data = [world.turn() for _ in range(1000)]
    assert max(data) <= 2 * TURN_US
    assert all(client.data == b"x" * 30_000 for client in floods)


def test_first_large_read_is_limited(world: World) -> None:
    """224 SUBSCRIBEs, which cost 4 us a byte, were carried out in one turn of 200 ms."""
    world.other_sender = None
    Client(world, 4.0).send(b"x" * 64 * 1024)
    assert world.us < 2 * ALONE_US


@pytest.fixture
def fixed_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection is assumed to cost 1 us a byte, as it does in these tests, so that lengths are exact."""
    monkeypatch.setattr(turns, "UNKNOWN_US_PER_BYTE", 1.0)


@pytest.mark.usefixtures("fixed_cost")
def test_floods_take_turns(world: World) -> None:
    one, other = Client(world, 1.0), Client(world, 1.0)
    one.send(b"1" * 100_000)
    other.send(b"2" * 100_000)
    while not (one.is_read and other.is_read):
        before = len(one.data) - len(other.data)
        world.turn()
        after = len(one.data) - len(other.data)
        assert abs(after) < abs(before) + 2 * TURN_US
        assert abs(after) < 20_000
    assert (one.data, other.data) == (b"1" * 100_000, b"2" * 100_000)


def test_cheap_bytes_are_processed_immediately(world: World) -> None:
    """A publisher of large reads loses nothing by turns, once it is fixed_cost what its bytes cost."""
    client = Client(world, 0.004)
    for _ in range(10):
        client.send(b"x" * 256_000)
        world.turn()
    client.pieces.clear()
    client.send(b"x" * 256_000)
    assert client.is_read
    assert len(client.pieces) == 3


def test_read_size_adapts_to_the_current_cost(world: World) -> None:
    client = Client(world, 2.0)
    client.send(b"x" * 20_000)
    while not world.is_idle:
        world.turn()
    client.us_per_byte = 0.001
    for _ in range(20):
        client.send(b"x" * 20_000)
        while not world.is_idle:
            world.turn()
    count = len(client.pieces)
    client.send(b"x" * 20_000)
    assert len(client.pieces) == count + 2
    client.us_per_byte = 1.0
    client.send(b"x" * 100_000)
    while not world.is_idle:
        world.turn()
    assert len(client.pieces) > count + 10


def test_excess_of_a_turn_is_deducted_from_the_next(world: World) -> None:
    costly, other = Client(world, 30.0), Client(world, 1.0)
    costly.send(b"x" * (SMALL_BYTES + 1))
    other.send(b"y" * 3000)
    turns = 0
    while not other.pieces:
        assert not other.is_read
        world.turn()
        turns += 1
    assert turns == 30 * (SMALL_BYTES + 1) // TURN_US


def test_stream_is_processed_completely_in_order() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    world = World()
    clients = [Client(world, rng.choice([0.001, 0.1, 1.0, 5.0])) for _ in range(6)]
    sent = {client: b"" for client in clients}
    for _ in range(500):
        client = rng.choice(clients)
        if client.is_read:
            data = rng.randbytes(rng.choice([1, 100, 2000, 20_000]))
            sent[client] += data
            client.send(data)
        world.turn()
    while not world.is_idle:
        world.turn()
    for client in clients:
        assert client.is_read
        assert client.data == sent[client]


def test_closed_connection_does_not_block_others(world: World) -> None:
    gone, other = Client(world, 1.0), Client(world, 1.0)
    gone.send(b"x" * 100_000)
    other.send(b"y" * 10_000)
    gone.intake.close()
    count = len(gone.pieces)
    while not world.is_idle:
        world.turn()
    assert len(gone.pieces) == count
    assert other.data == b"y" * 10_000


def test_exception_ends_only_its_connection(world: World) -> None:
    bad, other = Client(world, 1.0), Client(world, 1.0)
    bad.send(b"x" * 10_000 + BUG)
    other.send(b"y" * 10_000)
    assert not other.is_read
    with pytest.raises(RuntimeError, match="bug"):
        while not world.is_idle:
            world.turn()
    while not world.is_idle:
        world.turn()
    assert not bad.is_open
    assert other.data == b"y" * 10_000


@pytest.mark.usefixtures("fixed_cost")
def test_turn_ends_after_a_megabyte(world: World) -> None:
    """The next commit begins only after the turn. The disk was idle while 8 MiB of large messages were read in one."""
    world.other_sender = None
    client = Client(world, 0.0)
    for _ in range(3):
        for _ in range(TURN_BYTES // 2**18):
            client.send(b"x" * 2**18)
        assert client.is_read, "nothing waits yet"
        client.send(b"y" * 2**18)
        assert not client.is_read
        world.turn()
        assert client.is_read
        assert client.pieces[-1] == b"y" * 2**18
        while not world.is_idle:
            world.turn()


@pytest.mark.usefixtures("fixed_cost")
def test_single_sender_has_long_turns(world: World) -> None:
    other, world.other_sender = world.other_sender, None
    assert other is not None
    client = Client(world, 1.0)
    client.send(b"x" * 4 * ALONE_US)
    assert world.us == ALONE_US
    assert world.turn() == ALONE_US
    other.receive(b".")
    assert world.turn() <= TURN_US
    while not client.is_read:
        assert world.turn() <= 2 * TURN_US
        client.is_read = not client.intake.is_waiting
        other.receive(b".")
    client.send(b".")
    world.us += SHARED_US
    client.send(b"x" * 30_000)
    assert len(client.pieces[-1]) == 30_000
