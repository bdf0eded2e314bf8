"""How messages end: leases, dead take_headers, expiry, redrive; the same of every engine."""

from __future__ import annotations

from typing import Any

import pytest

from curbstone.core import headers
from curbstone.core.errors import CurbstoneError, NotSupported
from curbstone.core.port import Queue
from curbstone.core.values import Capability, Lease, Outcome, Undone, UndoRequest
from curbstone.rabbit.queue import Queue as ClusterQueue
from curbstone.rabbit.shared.registry import Definition
from tests.engines.test_messages import TRACEPARENT
from tests.engines.worlds import PATIENCE_MS, ModelWorld, NodeWorld, World


def lease(world: World, queue: Queue, count: int = 1, duration_ms: int = 60_000, **more: Any) -> list[Lease]:
    (leases,) = world.answer(lambda done: queue.lease(count, duration_ms, done, **more))
    if isinstance(leases, CurbstoneError):
        raise leases
    taken: list[Lease] = leases
    return taken


def settle(world: World, queue: Queue, leases: list[Lease], outcome: Outcome, **more: Any) -> tuple[Any, ...]:
    tokens = [each.token for each in leases]
    return world.answer(lambda done: queue.settle_leases(tokens, outcome, done, **more))


def extend(world: World, queue: Queue, tokens: list[str], duration_ms: int) -> list[str]:
    stale: list[str]
    _, stale = world.answer(lambda done: queue.extend(tokens, duration_ms, done))
    return stale


def bodies(leases: list[Lease]) -> list[str]:
    return [each.delivery.message.body.decode() for each in leases]


def take_headers(world: World, queue: Queue) -> list[dict[str, str]]:
    """Return the headers of all messages, at least one, which are taken."""
    return [
        {**dict(headers.decode(each.message.headers)), "body": each.message.body.decode()}
        for each in world.take(queue, 1, wait_ms=200)
    ]


def test_leases_are_settled_once(queue: Queue, world: World) -> None:
    world.publish(queue, *"abcd")
    leases = lease(world, queue, 3)
    assert bodies(leases) == ["a", "b", "c"]
    assert queue.counts().wip == 3
    assert settle(world, queue, leases[:1], Outcome.ACK) == (None, 1, [])
    assert settle(world, queue, leases[:2], Outcome.ACK) == (None, 1, [leases[0].token])
    assert settle(world, queue, leases[2:], Outcome.NACK) == (None, 1, [])
    again = lease(world, queue, 5)
    assert sorted(bodies(again)) == ["c", "d"]
    assert {each.delivery.tries for each in again} == {0, 1}
    assert lease(world, queue) == []
    queue.give_back(again)
    assert sorted(world.bodies(queue, 2)) == ["c", "d"]


def test_a_lease_runs_out_unless_it_is_extended(queue: Queue, world: World) -> None:
    world.publish(queue, "a", "b")
    stale = ["all"]
    while stale != ["unknown"]:  # where all is slow, so short a lease may have ended before it is extended
        (kept,) = lease(world, queue, 1, 150, wait_ms=PATIENCE_MS // 2)
        stale = extend(world, queue, [kept.token, "unknown"], 600_000)
    (short,) = lease(world, queue, 1, 150, wait_ms=PATIENCE_MS // 2)
    (again,) = lease(world, queue, 1, wait_ms=PATIENCE_MS // 2)
    assert sorted([*bodies([kept]), *bodies([again])]) == ["a", "b"]
    assert bodies([again]) == bodies([short]) and again.delivery.tries == short.delivery.tries + 1
    assert extend(world, queue, [short.token], 1000) == [short.token]
    assert settle(world, queue, [kept], Outcome.ACK) == (None, 1, [])


def several(world: World, queue: Queue, count: int, owner: str) -> list[Lease]:
    """Lease so many; a cluster may not bring all of them at once."""
    found: list[Lease] = []
    while len(found) < count:
        found += lease(world, queue, count - len(found), owner=owner, wait_ms=PATIENCE_MS // 2)
    return found


def test_leases_are_counted_per_owner_until_they_end(world: World) -> None:
    leased, queue, other = world.broker.leased, world.queue(), world.queue()
    world.publish(queue, *"abcdef")
    world.publish(other, "g")
    mine = several(world, queue, 3, "ann")
    several(world, other, 1, "ann")
    theirs = several(world, queue, 2, "bob")
    assert (leased.of("ann"), leased.of("bob"), leased.of("eve")) == (4, 2, 0)
    assert {leased.queue_of(each.token) for each in (*mine, *theirs)} == {queue.name}
    lease(world, queue, 1, 150, owner="ann", wait_ms=PATIENCE_MS // 2)
    settle(world, queue, theirs, Outcome.ACK, owner="ann")
    assert leased.of("bob") == 2, "they are another's"
    settle(world, queue, theirs[:1], Outcome.ACK, owner="bob")
    settle(world, queue, mine[:1], Outcome.NACK, delay_ms=60_000, owner="ann")
    queue.give_back(mine[1:2])
    world.wait_until(lambda: leased.of("ann") == 2)  # one has run out
    world.answer(lambda done: world.broker.delete(other.name, done))
    world.wait_until(lambda: leased.of("ann") == 1)
    settle(world, queue, mine[2:], Outcome.ACK, owner="ann")
    settle(world, queue, theirs[1:], Outcome.ACK, owner="bob")
    assert (leased.of("ann"), leased.of("bob")) == (0, 0)
    assert {leased.queue_of(each.token) for each in (*mine, *theirs)} == {None}


def test_lease_can_wait_for_a_message(queue: Queue, world: World) -> None:
    got: list[Any] = []
    queue.lease(5, 60_000, got.append, wait_ms=10_000)
    world.pause()
    world.publish(queue, "a")
    world.wait_until(lambda: got)
    assert bodies(got[0]) == ["a"]


def test_rejected_message_is_dead_lettered_and_can_be_redriven(world: World) -> None:
    dead = world.queue()
    queue = world.queue(dead_letter=str(dead.name))
    peer = world.peer(queue)
    (seq,) = world.publish(queue, "a", headers=b"x:1\n" + TRACEPARENT)
    peer.expect("a")
    peer.settle("reject", "a", error="no good")
    world.ready(dead, 1)
    error, redriven = world.answer(lambda done: dead.redrive(None, 10, done))
    assert error is None and redriven.moved == 1 and not redriven.stayed
    peer.expect("a", "a")
    assert peer.deliveries[1].message.headers == b"x:1\n" + TRACEPARENT and peer.deliveries[1].tries == 0
    peer.settle("reject", "a", error="still no good")
    (letter,) = take_headers(world, dead)
    assert letter["body"] == "a" and letter["x"] == "1"
    assert letter["x-dead-queue"] == str(queue.name) and letter["x-dead-reason"] == "rejected"
    assert letter["x-dead-error"] == "still no good" and letter["x-dead-tries"] == "1"
    assert letter["x-dead-id"] != queue.message_id(seq)


def test_redrive_skips_messages_that_are_no_dead_letters(queue: Queue, world: World) -> None:
    world.publish(queue, "a", "b")
    error, redriven = world.answer(lambda done: queue.redrive(None, 10, done))
    assert error is None and redriven.moved == 0 and list(redriven.stayed.values()) == [2]
    assert sorted(world.bodies(queue, 2)) == ["a", "b"]


def test_message_beyond_max_tries_is_dead_lettered(world: World) -> None:
    dead = world.queue()
    queue = world.queue(max_tries=3, dead_letter=str(dead.name))
    (seq,) = world.publish(queue, "a")
    for tries in range(3):
        (held,) = lease(world, queue, wait_ms=PATIENCE_MS // 2)
        assert held.delivery.tries == tries
        delay = 50 if tries == 1 else 0
        assert settle(world, queue, [held], Outcome.NACK, delay_ms=delay, error="broken") == (None, 1, [])
    (letter,) = take_headers(world, dead)
    assert (letter["x-dead-reason"], letter["x-dead-tries"]) == ("max_tries", "3")
    assert letter["x-dead-id"] == queue.message_id(seq) and letter["x-dead-error"] == "broken"
    assert world.bodies(queue) == []


def test_without_a_dead_letter_queue_dead_messages_are_dropped(world: World) -> None:
    queue = world.queue(max_tries=1)
    world.publish(queue, "a", "b")
    leases = lease(world, queue, 2)
    assert settle(world, queue, leases[:1], Outcome.REJECT) == (None, 1, [])
    assert settle(world, queue, leases[1:], Outcome.NACK) == (None, 1, [])
    assert world.bodies(queue, wait_ms=200) == []
    assert queue.stats.dropped == 2


def test_expired_message_is_never_delivered(world: World) -> None:
    dead = world.queue()
    queue = world.queue(dead_letter=str(dead.name), ttl=600)
    (seq,) = world.publish(queue, "a", ttl_ms=150, headers=b"x:1\n")
    world.publish(queue, "b")
    world.wait_until(lambda: expired(world, dead))
    assert world.bodies(queue, 1) == ["b"]
    (letter,) = take_headers(world, dead)
    assert (letter["body"], letter["x"]) == ("a", "1")
    assert (letter["x-dead-reason"], letter["x-dead-queue"]) == ("expired", str(queue.name))
    assert letter["x-dead-id"] == queue.message_id(seq)


_asked: dict[int, bool] = {}


def expired(world: World, dead: Queue) -> bool:
    """Whether a letter is there; asks again each time."""
    found = dead.counts().rdy == 1
    if not found and not _asked.get(id(dead)):
        _asked[id(dead)] = True

        def seen(_error: CurbstoneError | None) -> None:
            del _asked[id(dead)]

        dead.refresh(seen)
    return found


def test_message_can_be_settled_by_id_leased_or_not(queue: Queue, world: World) -> None:
    first, second, _ = world.publish(queue, "a", "b", "c")
    (held,) = lease(world, queue)
    assert world.answer(lambda done: queue.settle_by_id(first, done)) == (None, True)
    assert settle(world, queue, [held], Outcome.ACK) == (None, 0, [held.token])
    assert world.answer(lambda done: queue.settle_by_id(second, done)) == (None, True)
    assert world.answer(lambda done: queue.settle_by_id(second, done)) == (None, False)
    assert world.bodies(queue) == ["c"]


def test_message_leased_elsewhere_cannot_be_settled_by_id(queue: Queue, world: World) -> None:
    (seq,) = world.publish(queue, "a")
    (held,) = lease(world, queue, owner="ann")
    assert world.answer(lambda done: queue.settle_by_id(seq, done, owner="bob")) == (None, False)
    assert settle(world, queue, [held], Outcome.NACK, delay_ms=0, owner="ann") == (None, 1, [])
    assert world.pop(queue, wait_ms=PATIENCE_MS // 2) is not None


def test_deletion_of_an_unfetched_message_reaches_all_gateways(model: ModelWorld) -> None:
    other = model.gateway()
    queue = model.queue()
    same = other.get(queue.name)
    first, second = model.publish(queue, "a", "b")
    assert model.answer(lambda done: queue.settle_by_id(first, done)) == (None, True)
    assert model.answer(lambda done: same.settle_by_id(first, done)) == (None, False)
    late = model.gateway().get(queue.name)
    (lease,) = model.answer(lambda done: same.lease(1, 60_000, done))[0]
    assert lease.delivery.message.seq == second
    model.wait_until(
        lambda: not known(queue).deleted and not known(late).deleted
    )  # what is dropped need not be remembered


def test_delayed_message_is_not_found(cluster: ModelWorld | NodeWorld) -> None:
    queue = cluster.queue()
    (seq,) = cluster.publish(queue, "a")
    assert cluster.answer(lambda done: queue.settle_by_id(seq + (1 << 40), done)) == (None, False)


def known(queue: object) -> Definition:
    """Return what the registry says of a queue."""
    assert isinstance(queue, ClusterQueue)
    return queue.definition


def test_undo_restores_popped_messages_where_supported(queue: Queue, world: World) -> None:
    world.publish(queue, "a", "b")
    assert world.bodies(queue) == ["a", "b"]
    if Capability.UNDOING in world.broker.capabilities:
        assert world.answer(lambda done: queue.undo(UndoRequest(1), done)) == (None, Undone(1, 0, 0, more=True))
        assert world.bodies(queue) == ["b"]
        return
    with pytest.raises(NotSupported, match="Undo needs the local engine"):
        queue.undo(UndoRequest(1), lambda _error, _undone: None)
    with pytest.raises(NotSupported, match="Undo needs the local engine"):
        queue.purge(lambda _error, _count: None, keep=True)
