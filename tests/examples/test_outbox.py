"""The example of an outbox: what PostgreSQL has committed is in the queue, once, whatever is killed, and when."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from curbstone_client.sync import Client, Queue
from tests.kit.outbox import WAIT_S_MAX, Outbox, Relay
from tests.kit.postgres import Postgres, needs_postgres
from tests.kit.server import ServerProcess

pytestmark = needs_postgres
VICTIMS = ("relay", "server", "database")
ROUNDS = 6
PER_ROUND = 100


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as running:
        yield running


@pytest.fixture
def outbox(postgres: Postgres, server: ServerProcess) -> Outbox:
    return Outbox(postgres, server)


def test_each_order_is_published_once_despite_kills(server: ServerProcess, outbox: Outbox) -> None:
    """Two shops at once, so that ids become visible out of their order; something dies in the midst of each round."""
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    victims = [*VICTIMS, *chance.choices(VICTIMS, k=ROUNDS - len(VICTIMS))]
    chance.shuffle(victims)
    with Client(server.url, project="shop") as client:
        queue = client.declare("orders")
        with Relay(outbox) as relay:
            for turn, victim in enumerate(victims):
                enough = queue.info()["rdy"] + chance.randrange(1, PER_ROUND)
                shops = [outbox.shop(range(first, first + PER_ROUND)) for first in (2 * turn * PER_ROUND, 10**6)]
                relay.wait_until(lambda enough=enough: queue.info()["rdy"] >= enough)  # type: ignore[misc]
                if victim == "relay":
                    relay.kill()
                elif victim == "server":
                    server.kill()
                    server.restart(same_ports=True)
                else:
                    outbox.postgres.crash()
                codes = [shop.wait(WAIT_S_MAX) for shop in shops]
                assert codes == [0, 0] or victim == "database"
            relay.wait_until(outbox.is_empty)
            assert relay.ends <= ROUNDS - victims.count("server"), "a server that starts again ends no relay"
        placed = outbox.orders()
        assert len(placed) >= (ROUNDS - victims.count("database")) * 2 * PER_ROUND
        found = _messages(queue)
        assert sorted(found, key=lambda message: message["order"]) == placed


def test_a_row_that_becomes_visible_late_is_published(server: ServerProcess, outbox: Outbox) -> None:
    """Its id is smaller than that of one which is published: who goes by ids, as by numbers, loses it."""
    with Client(server.url, project="shop") as client, outbox.postgres.connect() as slow, Relay(outbox) as relay:
        queue = client.declare("orders")
        slow.execute("BEGIN")
        slow.execute("INSERT INTO outbox (body) VALUES ('{\"late\": true}')")
        assert outbox.shop(range(1)).wait(WAIT_S_MAX) == 0
        relay.wait_until(lambda: bool(queue.info()["rdy"]))
        slow.execute("COMMIT")
        relay.wait_until(outbox.is_empty)
        assert _messages(queue) == [{"order": 1, "total": 0}, {"late": True}]


def test_second_relay_waits_for_the_first_to_end(server: ServerProcess, outbox: Outbox) -> None:
    counted = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted = %s"
    with Client(server.url, project="shop") as client, outbox.postgres.connect() as database:

        def locks(*, granted: bool) -> int:
            [count] = database.execute(counted, [granted]).fetchone() or [0]
            return int(count)

        queue = client.declare("orders")
        with Relay(outbox) as first:
            first.wait_until(lambda: locks(granted=True) == 1)
            with Relay(outbox) as second:
                second.wait_until(lambda: locks(granted=False) == 1)
                assert outbox.shop(range(10)).wait(WAIT_S_MAX) == 0
                first.wait_until(outbox.is_empty)
                first.kill()
                assert outbox.shop(range(10, 20)).wait(WAIT_S_MAX) == 0
                second.wait_until(outbox.is_empty)
                assert not second.ends
        assert [message["total"] for message in _messages(queue)] == list(range(20))


def _messages(queue: Queue) -> list[dict[str, int]]:
    """Return all that the queue holds."""
    count = queue.info()["rdy"]
    messages = queue.consume(count)
    return [next(messages).json() for _ in range(count)]
