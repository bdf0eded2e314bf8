"""A disk that fills up: what is refused leaves nothing there, and settles continue."""

from __future__ import annotations

from random import Random

import pytest

from curbstone.core.engine.log.commit import reserve_path
from curbstone.core.errors import QueueFull
from curbstone.core.options import MIB
from tests.core.commit.test_faults import start, used
from tests.kit.lab import Lab, Peer, message, numbered


def test_a_full_disk_refuses_publishes_and_still_confirms_acks() -> None:
    lab, queue, _ = start()
    lab.publish(queue, *numbered(200, 100))
    peer = Peer(lab, queue)
    lab.disk.capacity = used(lab)
    answers = lab.publish_answers(queue, [message(b"x" * 50_000)])
    assert [type(error) for error, _, _ in answers] == [QueueFull]
    assert "no space left" in str(answers[0][0])
    for seq in list(peer.consumer.unsettled)[:20]:
        peer.ack(seq)
    peer.ack(*list(peer.consumer.unsettled)[:80])
    lab.restart("power")
    queue = lab.reopened(queue)
    assert len(lab.bodies(queue)) == 101 and not queue.damaged


def test_publishes_succeed_again_when_the_disk_has_room() -> None:
    lab, queue, _ = start()
    lab.disk.capacity = used(lab)
    ((error, _, _),) = lab.publish_answers(queue, [message(b"x" * 50_000)])
    assert isinstance(error, QueueFull)
    assert lab.broker.alarms and not lab.broker.alarms.is_disk_failing
    lab.disk.capacity = 1 << 60
    lab.pass_time(2000)
    assert lab.broker.health().ok
    lab.publish(queue, b"x" * 50_000)
    lab.restart("power")
    assert [len(body) for body in lab.bodies(lab.reopened(queue))] == [5, 50_000]


def test_disk_without_room_for_preallocation_accepts_a_message() -> None:
    lab, queue, peer = start()
    free = queue.log.active.size - queue.log.active.end
    lab.disk.capacity = used(lab) - free + 40_000 + 500
    assert lab.publish(queue, b"x" * 40_000) == [2]
    peer.ack(1)
    peer.ack(2)


@pytest.mark.parametrize("room", [0, 1, 100, 3000, 40_000])
def test_disk_that_fills_up_keeps_confirmed_messages(room: int) -> None:
    lab, queue, _ = start()
    confirmed = [b"first"]
    lab.disk.capacity = used(lab) + room
    for body in numbered(120, 1000):
        answers = lab.publish_answers(queue, [message(body)])
        if answers[0][0] is None:
            confirmed.append(body)
        lab.pass_time(100)
    assert len(confirmed) < 120
    lab.restart("power")
    queue = lab.reopened(queue)
    assert lab.bodies(queue) == confirmed and not queue.damaged


@pytest.mark.parametrize("how", ["kill", "power"])
@pytest.mark.parametrize("room", [0, 40, 400, 4000, 20_000])
@pytest.mark.parametrize("seed", range(4))
def test_publish_refused_by_a_full_disk_is_absent_after_a_crash(how: str, room: int, seed: int) -> None:
    lab = Lab(seed=seed)
    queue = lab.queue()
    lab.publish(queue, "first")
    lab.disk.capacity = used(lab) + room
    ((error, _, _),) = lab.publish_answers(queue, [message(b"x" * 60_000)])
    assert isinstance(error, QueueFull)
    lab.restart(how)
    queue = lab.reopened(queue)
    assert lab.bodies(queue) == [b"first"] and not queue.damaged
    assert lab.publish(queue, "second") == [2]


@pytest.mark.parametrize(("count", "size", "at_once"), [(200, 1000, 1), (3000, 100, 1), (8000, 20, 3)])
def test_backlog_can_be_acked_on_a_full_disk_while_producers_retry(count: int, size: int, at_once: int) -> None:
    lab = Lab(cap=2 * MIB)
    queue = lab.queue()
    lab.publish(queue, *numbered(count, size))
    peer = Peer(lab, queue, window=50)
    lab.disk.capacity = used(lab)
    assert isinstance(lab.publish_answers(queue, [message(b"x" * 100_000)])[0][0], QueueFull)
    while held := sorted(peer.consumer.unsettled)[:at_once]:
        if held[0] % 7 == 0:
            queue.publish([message(b"x" * 100_000)], lambda *_: None)
        (error,) = lab.answer(lambda done, held=held: peer.consumer.ack(held, done))  # type: ignore[misc]
        assert error is None
    assert len(peer.received) == count
    lab.pass_time(10_000)
    assert lab.held(queue) <= 64 * 1024, "an empty queue shrinks, also on a full disk"
    lab.restart("power")
    assert lab.bodies(lab.reopened(queue)) == []


@pytest.mark.parametrize("seed", range(12))
def test_repeatedly_full_disk_loses_only_refused_messages(caplog: pytest.LogCaptureFixture, seed: int) -> None:
    print(f"seed {seed}")
    rng = Random(seed)
    lab = Lab(seed=seed)
    queue = lab.queue()
    peer = Peer(lab, queue)
    confirmed: list[int] = []
    for _ in range(60):
        lab.disk.capacity = used(lab) + rng.choice([0, 500, 6000, 1 << 60])
        bodies = [message(b"x" * rng.choice([100, 6000, 70_000])) for _ in range(rng.randrange(1, 4))]
        for error, first, count in lab.publish_answers(queue, bodies):
            assert error is None or isinstance(error, QueueFull), error
            confirmed += range(first, first + count * (error is None))
        lab.disk.capacity = 1 << 60
        lab.pass_time(2000)
        assert lab.held(queue) == queue.log.bytes + queue.state.meta_bytes, "files that the log does not count"
        confirmed += lab.publish(queue, b"y" * rng.choice([1, 30_000]))
        settled = sorted(rng.sample(sorted(peer.consumer.unsettled), rng.randrange(len(peer.consumer.unsettled))))
        if settled:
            peer.ack(*settled)
            confirmed = sorted({*confirmed} - {*settled})
    failures = [record.getMessage() for record in caplog.records if "failed" in record.getMessage()]
    assert failures and all("No space left" in text for text in failures)
    lab.restart("power")
    assert [each.message.seq for each in lab.peek(lab.reopened(queue))] == confirmed


def test_full_disk_is_reported_until_there_is_room() -> None:
    lab, queue, _ = start()
    lab.disk.capacity = used(lab)
    while lab.publish_answers(queue, [message(b"x" * 1000)])[0][0] is None:
        pass
    health = lab.broker.health()
    assert not health.ok and "no space left on the disk" in health.reasons[0]
    lab.pass_time(10_000)
    assert not lab.broker.health().ok
    lab.disk.capacity = 1 << 60
    lab.pass_time(2000)
    assert lab.broker.health().ok


def test_settle_reserve_is_used_after_a_restart_on_a_full_disk() -> None:
    lab = Lab(cap=2 * MIB)
    queue = lab.queue()
    lab.publish(queue, *numbered(3000, 100))
    capacity = used(lab)
    lab.restart("kill")
    lab.disk.capacity = capacity
    queue = lab.reopened(queue)
    peer = Peer(lab, queue, window=10)
    while peer.consumer.unsettled:
        (error,) = lab.answer(lambda done: peer.consumer.ack([min(peer.consumer.unsettled)], done))
        assert error is None
    assert len(peer.received) == 3000


@pytest.mark.parametrize("seed", range(4))
def test_reserve_that_found_no_room_does_not_return_with_a_power_cut(seed: int) -> None:
    """What had been written of it was cut off, but not durably, and did not count against the cap."""
    lab = Lab(seed=seed, cap=2 * MIB)
    queue = lab.queue()
    lab.publish(queue, *numbered(200, 100))
    path = reserve_path(queue.log.directory)
    assert path not in lab.disk.names
    lab.disk.capacity = used(lab) + 20_000
    ((error, _, _),) = lab.publish_answers(queue, [message(b"x" * 100) for _ in range(100)], atomic=True)
    assert isinstance(error, QueueFull)
    assert lab.disk.names[path].most_bytes == queue.log.reserve == 0
