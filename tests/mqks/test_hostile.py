"""Clients of MQKS that ask for too much, or for what is not theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from curbstone.core.names import QueueName
from curbstone.mqks.limits import Limits
from tests.kit.engine import wait_until
from tests.mqks.world import World, run

pytestmark = pytest.mark.anyio

FIVE = "--delete-queue-when-unused=5.0"
TOGGLES = [f"r{n} rebind --confirm q --{'remove' if n % 2 else 'add'} x" for n in range(500)]


async def test_a_consumer_belongs_to_its_connection(world: World) -> None:
    """Anybody who knew or guessed an id could settle what others had in hand, or end their consumers."""
    one = await world.peer("c consume --confirm q1 e --manual-ack")
    two = await world.peer("c consume --confirm q2 e --manual-ack")
    other = await world.peer("m publish --confirm e d")
    assert await one.line() == await two.line() == "c ok m event=e d"
    for action in ("ack c m", "ack c --all", "reject c m", "reject c --all", "delete_consumer c"):
        assert await other.error(f"x {action}") == "x"
    assert [queue.counts()[:2] for queue in world.broker.queues()] == [(0, 1), (0, 1)]
    await one.confirm("a ack --confirm c m")
    await two.confirm("x delete_consumer --confirm c")
    assert {queue.name.queue: queue.counts()[:2] for queue in world.broker.queues()} == {"q1": (0, 0), "q2": (1, 0)}
    assert await two.error("x delete_consumer --confirm c") == "x"


BODIES = (
    *("m publish secret", "m publish", "publish secret secret", "m secret secret", "secret", "secret\tsecret x"),
    *(
        "m publish \x01secret x",
        "m consume secret/name",
        "m consume q --secret",
        "m rebind secret",
    ),
    *(
        "m rebind q --secret x",
        "m ack secret",
        "m delete_queue a secret",
        "m consume q --window=secret",
        "m _eval secret",
    ),
    *("m consume q --delete-queue-when-unused=secret", "m rebind q --add \x01secret", "m delete_consumer secret"),
    "m publish e " + "secret" * 20_000,
)


@pytest.mark.parametrize("line", BODIES, ids=lambda line: line[:40].encode("unicode_escape").decode())
def test_log_does_not_contain_invalid_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture, line: str) -> None:
    """A message with a line break in it, or without an event, was shown there in part."""

    async def test(world: World) -> None:
        peer = await world.peer()
        assert " error " in await peer.request(line)
        await peer.close()

    run(tmp_path, test, limits=Limits(body_bytes_max=10_000))
    assert "secret" not in caplog.text


async def test_lines_other_than_publish_have_a_small_limit(world: World) -> None:
    peer = await world.peer()
    assert await peer.error("x rebind q " + " ".join([f"event{n}" for n in range(20_000)])) == "x"
    assert await peer.error("x _eval [" + "WORKERS," * 101 + "]") == "x"
    assert await peer.request("x _eval [" + "WORKERS," * 100 + "]") == "x ok [" + ", ".join(["1"] * 100) + "]"
    assert await peer.request("p ping " + "x" * 100_000) == "p ok " + "x" * 100_000


async def test_many_masks_are_matched_fast_or_refused(world: World) -> None:
    """A thousand masks on as many events stopped the whole server for three seconds."""
    events = " ".join([f"a.b{n}.c" for n in range(1200)])
    peer = await world.peer(f"r rebind --confirm q {events}")
    many = " ".join([f"*.b{n}.*" for n in range(1000)])
    await peer.confirm(f"r rebind --confirm q --remove-mask {many}")
    assert world.events("q") == {f"a.b{n}.c" for n in range(1000, 1200)}
    assert await peer.error("r rebind q --remove-mask " + " ".join([f"a.b*{n}x.c" for n in range(1000)])) == "r"
    assert len(world.events("q")) == 200


async def test_expensive_requests_yield_to_other_connections(world: World) -> None:
    events = " ".join([f"a.b{n}.c" for n in range(1200)])
    greedy = await world.peer(f"r rebind --confirm q {events}")
    other = await world.peer()
    count = 500
    greedy.send(*[f"r{n} rebind --confirm q --{'remove' if n % 2 else 'add'} x" for n in range(count)], "p ping end")
    await wait_until(lambda: any(client.session._waiting for client in world.server.clients))
    assert await other.request("p ping between") == "p ok between"
    assert any(client.session._waiting for client in world.server.clients), "it was answered in between"
    lines = await greedy.lines(count + 1)
    assert sorted(lines) == sorted([*[f"r{n} ok " for n in range(count)], "p ok end"])


async def test_half_closed_client_gets_pending_answers(world: World) -> None:
    events = " ".join([f"a.b{n}.c" for n in range(1200)])
    peer = await world.peer(f"r rebind --confirm q {events}")
    peer.send(*TOGGLES[:100])
    peer.writer.write_eof()
    assert len(await peer.lines(100)) == 100
    assert await peer.line() == ""


async def test_only_the_latest_unread_update_is_kept(world: World) -> None:
    """Rebinding a queue again and again filled the memory with what its consumers were told and did not read."""
    lazy = await world.peer("c consume --confirm q e")
    (session,) = [client.session for client in world.server.clients]
    session.pause()
    other = await world.peer()
    for n in range(100):
        await other.confirm(f"r rebind --confirm q e{n}")
    assert len(session.updates) == 1
    session.resume()
    assert await lazy.line() == "c ok --update q e99"
    await lazy.quiet()


async def test_persistent_queue_is_kept(world: World) -> None:
    """Anybody's queue was gone when someone had consumed from it with that wanted, and had left."""
    world.broker.ensure(QueueName("default", "http"))
    owner = await world.peer("c consume --confirm q e", "r rebind --confirm bound e")
    other = await world.peer()
    for queue in ("http", "q"):
        for wanted in ("--delete-queue-when-unused", "--delete-queue-when-unused=0", FIVE):
            assert await other.error(f"v consume {queue} {wanted}") == "v"
    await world.leave(owner)
    await world.leave(other)
    assert world.has("q") and world.has("http")
    # A queue that was bound ahead of its first consumer is made by that consumer.
    one = await world.peer("c consume --confirm bound --delete-queue-when-unused")
    await world.leave(one)
    assert not world.has("bound")
    two = await world.peer("r rebind --confirm bound e", "c consume --confirm bound")
    assert await two.error("d consume bound --delete-queue-when-unused") == "d"


async def test_counters_never_decrease(world: World) -> None:
    peer = await world.peer("c consume --confirm q e")
    assert await peer.request("m publish e 1") == "c ok m event=e 1"
    assert await peer.request("v _eval [state.queued, state.consumed]") == "v ok [1, 1]"
    peer.send("x delete_queue --confirm q")
    assert await peer.lines(2) == ["c ok --update q", "x ok "]
    assert await peer.request("v _eval [state.queued, state.consumed]") == "v ok [1, 1]"
