"""What the document of MQKS and its acceptance list say, over sockets and on the real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from curbstone.core.options import QueueOptions
from tests.kit.engine import wait_until
from tests.mqks.world import World, run

pytestmark = pytest.mark.anyio

FIVE = "--delete-queue-when-unused=5.0"


async def test_ping(world: World) -> None:
    peer = await world.peer()
    assert await peer.request("p1 ping hello world") == "p1 ok hello world"
    assert await peer.request("p1 ping --confirm hello") == "p1 ok hello"
    assert await peer.request("p2 ping crlf\r") == "p2 ok crlf"


async def test_errors_have_an_id_whose_detail_is_in_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    peer = await world.peer()
    error_id = (await peer.request("x blabla 1")).removeprefix("x error ")
    assert f"error {error_id}" in caplog.text
    assert "unknown action" in caplog.text and "blabla" not in caplog.text
    for line in ("onlyid", "", "p3 ping"):
        assert await peer.error(line) == "None"
    for line in (
        *("x PUBLISH e d", "x publish e", "x consume q --what", "x ack c", "x ack c m extra", "x rebind q"),
        *("x ack --confirm nobody m", "x reject nobody --all", "x delete_consumer nobody", "x delete_queue a b"),
        *("x _eval __import__('os').system('id')", "x _eval state", "x delete_queue bad/name"),
    ):
        assert await peer.error(line) == "x"
    await peer.quiet()


async def test_hello_world(world: World) -> None:
    alice = await world.peer("Alice consume --confirm greetings hi hello")
    bob = await world.peer("Bob consume --confirm greetings hi hello")
    charlie = await world.peer("Charlie consume --confirm greetings-and-byes hi hello bye good-bye")
    dave = await world.peer()
    dave.send("Dave publish hello world", "Dave publish hello again", "Dave publish bye all")
    assert await charlie.lines(3) == [
        "Charlie ok Dave event=hello world",
        "Charlie ok Dave event=hello again",
        "Charlie ok Dave event=bye all",
    ]
    got = sorted([await alice.line(), await bob.line()])
    assert got in (
        ["Alice ok Dave event=hello world", "Bob ok Dave event=hello again"],
        ["Alice ok Dave event=hello again", "Bob ok Dave event=hello world"],
    )
    for peer in (alice, bob, charlie, dave):
        await peer.quiet()


async def test_event_without_bindings_is_confirmed_and_dropped(world: World) -> None:
    peer = await world.peer("c consume --confirm q e", "m publish --confirm zz d")
    await peer.quiet()


async def test_messages_keep_their_order_ids_and_bytes(world: World) -> None:
    peer = await world.peer("c consume --confirm q e")
    peer.send("m0 publish e 0", "m1 publish e  led by a space", "m:2\\ publish e ä --confirm x")
    peer.writer.write(b"m3 publish e \xff\xfe\n")
    assert await peer.lines(3) == [
        "c ok m0 event=e 0",
        "c ok m1 event=e  led by a space",
        "c ok m:2\\ event=e ä --confirm x",
    ]
    assert await peer.reader.readline() == b"c ok m3 event=e \xff\xfe\n"


async def test_two_consumers_share_a_queue_evenly(world: World) -> None:
    one = await world.peer("c1 consume --confirm q e")
    two = await world.peer("c2 consume --confirm q e")
    two.send(*[f"m{n} publish e {n}" for n in range(6)])
    got = [*await one.lines(3), *await two.lines(3)]
    assert sorted(line[-1] for line in got) == list("012345")
    await one.quiet()
    await two.quiet()


async def test_a_queue_without_consumers_keeps_its_messages(world: World) -> None:
    peer = await world.peer("c consume --confirm q e1", "x delete_consumer --confirm c", "m publish --confirm e1 2")
    peer.send("d consume --confirm q e1")
    assert sorted(await peer.lines(2)) == ["d ok ", "d ok m event=e1 2"]


async def test_update_is_sent_after_adding_events_and_not_after_replacing(world: World) -> None:
    one = await world.peer("c1 consume --confirm q e1 --manual-ack")
    two = await world.peer()
    two.send("d consume --confirm q --add e2")
    assert await two.lines(2) == ["d ok --update q e1 e2", "d ok "]
    assert await one.line() == "c1 ok --update q e1 e2 --manual-ack"
    three = await world.peer("c3 consume --confirm q e2 e3")
    assert await one.line() == "c1 ok --update q e2 e3 --manual-ack"
    assert await two.line() == "d ok --update q e2 e3"
    await three.confirm("r rebind --confirm zzz e")
    await three.quiet()
    await three.confirm("c4 consume --confirm q", "c5 consume --confirm q e3 e2")
    await one.quiet()


async def test_rebind(world: World) -> None:
    peer = await world.peer("c consume --confirm q e1 e2.abc.c e2.efg.u e3.123.c --window=5")
    peer.send("r rebind --confirm q --remove-mask e2.*.u e2.*.c")
    assert await peer.lines(2) == ["c ok --update q e1 e3.123.c --window=5", "r ok "]
    await peer.confirm("r rebind --confirm q --remove-mask e3.*")
    peer.send("r rebind q e3 --add e4 --remove e3", "r2 ping x")
    assert await peer.lines(2) == ["c ok --update q e4 --window=5", "r2 ok x"]
    assert world.events("q") == {"e4"}
    await peer.confirm("m publish --confirm e1 lost")
    assert await peer.request("m publish e4 got") == "c ok m event=e4 got"


async def test_rebind_before_the_first_consumer_keeps_messages(world: World) -> None:
    peer = await world.peer("r rebind --confirm q e", "m publish --confirm e early")
    peer.send("c consume --confirm q")
    assert sorted(await peer.lines(2)) == ["c ok ", "c ok m event=e early"]


async def test_unacked_messages_are_redelivered_after_a_disconnect(world: World) -> None:
    one = await world.peer("c consume --confirm q e --manual-ack")
    assert await one.request("m publish e d") == "c ok m event=e d"
    await world.leave(one)
    two = await world.peer()
    two.send("c consume q e --manual-ack")
    assert await two.line() == "c ok m event=e,retry=1 d"
    await two.confirm("a ack --confirm c m", "a ack --confirm c m", "a ack --confirm c --all")
    await world.leave(two)
    three = await world.peer("c consume --confirm q e --manual-ack")
    await three.quiet()


async def test_reject_keeps_the_place_and_counts(world: World) -> None:
    peer = await world.peer("c consume --confirm q e --manual-ack --window=1")
    peer.send("m1 publish e 1", "m2 publish e 2")
    assert await peer.line() == "c ok m1 event=e 1"
    assert await peer.request("j reject c m1") == "c ok m1 event=e,retry=1 1"
    peer.send("j reject --confirm c --all")
    assert sorted(await peer.lines(2)) == ["c ok m1 event=e,retry=2 1", "j ok "]
    assert await peer.request("a ack c m1") == "c ok m2 event=e 2"
    await peer.confirm("a ack --confirm c --all")
    await world.leave(peer)
    await (await world.peer("c consume --confirm q e")).quiet()


async def test_messages_with_the_same_id_are_settled_in_order(world: World) -> None:
    peer = await world.peer("c consume --confirm q e --manual-ack")
    peer.send("m publish e 1", "m publish e 2")
    await peer.lines(2)
    await peer.confirm("a ack --confirm c m")
    assert world.broker.queues()[0].counts().wip == 1
    assert await peer.request("j reject c m") == "c ok m event=e,retry=1 2"


async def test_a_consumer_id_used_again_replaces_the_consumer(world: World) -> None:
    peer = await world.peer("c consume --confirm q e --manual-ack")
    assert await peer.request("m publish e 1") == "c ok m event=e 1"
    peer.send("c consume q e --manual-ack")
    assert await peer.line() == "c ok m event=e,retry=1 1"
    assert world.broker.queues()[0].counts().consumers == 1


async def test_window_limits_unsettled_messages(world: World) -> None:
    peer = await world.peer("c consume --confirm q e --manual-ack --window=2")
    peer.send(*[f"m{n} publish e {n}" for n in range(3)])
    await peer.lines(2)
    await peer.confirm("x publish --confirm e last")
    await peer.quiet()
    assert await peer.request("a ack c m0") == "c ok m2 event=e 2"


async def test_queue_is_deleted_with_its_last_consumer(world: World) -> None:
    one = await world.peer("c consume --confirm q e --delete-queue-when-unused --manual-ack")
    two = await world.peer("d consume --confirm q --delete-queue-when-unused")
    await one.confirm("x delete_consumer --confirm c")
    assert world.has("q")
    await world.leave(two)
    assert not world.has("q")
    await one.confirm("m publish --confirm e lost", "c consume --confirm q e")
    await one.quiet()


async def test_ack_in_flight_is_confirmed_although_the_queue_is_deleted(world: World) -> None:
    peer = await world.peer("c consume --confirm q e --delete-queue-when-unused --manual-ack")
    assert await peer.request("m publish e d") == "c ok m event=e d"
    peer.send("a ack --confirm c m", "x delete_consumer --confirm c")
    assert sorted(await peer.lines(2)) == ["a ok ", "x ok "]
    await wait_until(lambda: not world.has("q"))


async def test_queue_is_kept_for_its_time_without_a_consumer(world: World) -> None:
    peer = await world.peer("c consume --confirm q e --delete-queue-when-unused=60", "x delete_consumer --confirm c")
    await peer.confirm("m publish --confirm e kept")
    peer.send("c consume --confirm q e --delete-queue-when-unused=0.05")
    assert sorted(await peer.lines(2)) == ["c ok ", "c ok m event=e kept"]
    await peer.confirm("x delete_consumer --confirm c")
    await wait_until(lambda: not world.has("q"))


async def test_latest_consume_sets_auto_delete(world: World) -> None:
    one = await world.peer(f"c consume --confirm q e {FIVE}")
    two = await world.peer("d consume --confirm q e")
    assert await one.line() == "c ok --update q e"
    three = await world.peer("f consume --confirm q --delete-queue-when-unused=5")
    assert await one.line() == f"c ok --update q e {FIVE}"
    assert await two.line() == f"d ok --update q e {FIVE}"
    three.send("g consume --confirm q")
    assert await three.lines(2) == ["f ok --update q e", "g ok "]
    for peer in (one, two, three):
        await world.leave(peer)
    assert world.has("q")


@pytest.mark.parametrize("consumer_returns", [False, True])
def test_auto_delete_queue_is_deleted_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, consumer_returns: bool
) -> None:
    async def ends_with_its_consumer(world: World) -> None:
        await world.peer(
            "c consume --confirm q e --delete-queue-when-unused --manual-ack", "m publish --confirm e kept"
        )
        await world.server.stop()
        assert world.has("q"), "that the server ends is no reason for a queue to go"

    async def check_restored(world: World) -> None:
        assert world.has("q") and world.events("q") == {"e"}
        if consumer_returns:
            peer = await world.peer()
            assert await peer.request("x _eval len(state.queues_to_delete_when_unused)") == "x ok 1"
            peer.send("c consume --confirm q --delete-queue-when-unused")
            assert sorted(await peer.lines(2)) == ["c ok ", "c ok m event=e,retry=1 kept"]
            assert not world.server.registry._timers, "it is used"
            await world.leave(peer)
        await wait_until(lambda: not world.has("q"))

    monkeypatch.setattr("curbstone.mqks.registry.RETURN_MS", 60_000 if consumer_returns else 500)
    run(tmp_path, ends_with_its_consumer, check_restored)


def test_queue_is_kept_over_a_restart_without_auto_delete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def changes_its_mind(world: World) -> None:
        peer = await world.peer(f"c consume --confirm q e {FIVE}")
        peer.send("d consume --confirm q")
        assert await peer.lines(2) == ["c ok --update q e", "d ok "]

    async def check_restored(world: World) -> None:
        assert world.has("q") and not world.server.registry._timers

    monkeypatch.setattr("curbstone.mqks.registry.RETURN_MS", 0)
    run(tmp_path, changes_its_mind, check_restored)


async def test_delete_queue(world: World) -> None:
    peer = await world.peer(f"c consume --confirm q e {FIVE}")
    peer.send("x delete_queue --confirm q")
    assert await peer.lines(2) == ["c ok --update q", "x ok "]
    await peer.confirm("m publish --confirm e lost", "x delete_queue --confirm q", "x delete_consumer --confirm c")
    await peer.quiet()


async def test_a_queue_deleted_by_others_is_reported_as_well(world: World) -> None:
    peer = await world.peer("c consume --confirm q e --manual-ack")
    world.broker.delete(world.broker.queues()[0].name, lambda _existed: None)
    assert await peer.line() == "c ok --update q"
    await peer.confirm("a ack --confirm c --all", "c consume --confirm q e", "x delete_consumer --confirm c")


def test_queues_bindings_and_retries_survive_a_restart(tmp_path: Path) -> None:
    async def before(world: World) -> None:
        peer = await world.peer("c consume --confirm q e1 e2 --manual-ack --window=1", "m1 publish --confirm zz x")
        peer.send("m1 publish e1 1", "m2 publish e2 2")
        assert await peer.line() == "c ok m1 event=e1 1"
        assert await peer.request("j reject c m1") == "c ok m1 event=e1,retry=1 1"

    async def after(world: World) -> None:
        assert world.events("q") == {"e1", "e2"}
        peer = await world.peer()
        peer.send("m3 publish e2 3", "c consume q --manual-ack")
        first, second, third = await peer.lines(3)
        assert first.startswith("c ok m1 event=e1,retry=")
        assert second in ("c ok m2 event=e2 2", "c ok m2 event=e2,retry=1 2")
        assert third == "c ok m3 event=e2 3"

    run(tmp_path, before, after)


@pytest.mark.parametrize("options", [QueueOptions(cap=64 * 1024)])
async def test_a_full_queue_is_an_error_also_without_confirm(world: World) -> None:
    peer = await world.peer("c consume --confirm q e --manual-ack --window=1", "m publish --confirm e 0")
    assert await peer.line() == "c ok m event=e 0"
    for n in range(100):
        peer.send(f"m{n} publish e {'x' * 1000}")
    peer.send("p ping done")
    line = await peer.line()
    while line == "p ok done":
        line = await peer.line()
    assert line.split()[1] == "error"


async def test_statistics_expressions_are_looked_up_not_evaluated(world: World) -> None:
    peer = await world.peer("c consume --confirm q e1 e2 --manual-ack")
    assert await peer.request("m publish e1 d") == "c ok m event=e1 d"
    for code, figure in (
        ("len(state.queues)", "1"),
        ("--worker=0 len(state.queues)", "1"),
        ("state.published", "1"),
        ("len(state.queues_by_events)", "2"),
        ("len(state.consumer_ids_by_clients)", "1"),
        ("sum(len(ms) for ms in state.messages_by_consumer_ids.itervalues())", "1"),
        ("[state.published, sum(q.qsize() for q in state.queues.itervalues()), WORKERS]", "[1, 0, 1]"),
    ):
        assert await peer.request(f"ev _eval {code}") == f"ev ok {figure}"
    for code in ("--worker=1 len(state.queues)", "[len(state.queues), open('x')]", "1+1", "[", "[[]]", "()"):
        assert await peer.error(f"ev _eval {code}") == "ev"


async def test_priority_precedes_the_event(world: World) -> None:
    peer = await world.peer("c consume --confirm q e", "d delete_consumer --confirm c")
    await peer.confirm("m1 publish --confirm e first", "m2 publish --confirm --priority=2 e low")
    await peer.confirm("m3 publish --confirm --priority=9 e high")
    assert await peer.error("m4 publish --priority=x e never") == "m4"
    assert await peer.error("m5 publish --priority=9 e") == "m5"
    peer.send("c consume q e")
    expected = ["c ok m3 event=e high", "c ok m1 event=e first", "c ok m2 event=e low"]
    assert await peer.lines(3) == expected


async def test_key_and_names_precede_the_event(world: World) -> None:
    peer = await world.peer("c consume --confirm q e", "d delete_consumer --confirm c")
    await peer.confirm("m1 publish --confirm --unique=u --unique-until=delivered e first")
    await peer.confirm("m2 publish --confirm --unique=u e second", "m3 publish --confirm --replace=r e third")
    await peer.confirm("m4 publish --confirm --replace=r --replace-max=1.5 --key=k e fourth")
    await peer.confirm("m5 publish --confirm --key=k e fifth", "m6 publish --confirm --key e sixth")
    for wrong in ("--key=", "--unique=a --replace=b", "--replace-max=1", "--replace=a --replace-max=x"):
        assert await peer.error(f"m7 publish {wrong} e never") == "m7"
    peer.send("c consume q e --manual-ack")
    assert await peer.lines(2) == ["c ok m1 event=e first", "c ok m4 event=e fourth"]
    peer.send("a ack c m4")
    assert await peer.lines(1) == ["c ok m5 event=e fifth"]
