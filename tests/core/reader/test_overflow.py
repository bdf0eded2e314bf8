"""`overflow: drop-oldest`: at the cap the oldest messages give way, but for those that somebody holds."""

from __future__ import annotations

import os
import random

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import MessageTooLarge, QueueFull
from curbstone.core.message import Message
from tests.kit.lab import Lab, Peer

KIB = 1024
SEED = int(os.environ.get("CURBSTONE_OVERFLOW_SEED", "1"))


def dropping(lab: Lab, **options: object) -> LocalQueue:
    return lab.queue("q", cap=64 * KIB, overflow="drop-oldest", **options)


def numbers(bodies: list[bytes]) -> list[int]:
    return [int(body.split()[0]) for body in bodies]


def body(number: int, size: int = 500) -> bytes:
    return b"%d " % number + b"x" * size


def test_newest_messages_are_kept_in_order_and_dropped_ones_counted(lab: Lab) -> None:
    queue = dropping(lab)
    for number in range(1000):
        lab.publish(queue, body(number))
        assert lab.held(queue) <= 64 * KIB
    kept = numbers(lab.bodies(queue))
    assert kept == list(range(1000 - len(kept), 1000))
    assert len(kept) * 500 > 64 * KIB // 3, "not much more than needed"
    assert queue.stats.overflowed == 1000 - len(kept) and not queue.stats.lost
    lab.restart("power")
    queue = lab.reopened(queue)
    assert numbers(lab.pop_all(queue)) == kept


def test_unsettled_messages_are_kept_and_delayed_ones_dropped(lab: Lab) -> None:
    queue = dropping(lab)
    peer = Peer(lab, queue, window=5)
    lab.publish(queue, *[body(number) for number in range(5)])
    lab.publish(queue, body(5), delay_ms=3_600_000)
    for number in range(6, 500):
        lab.publish(queue, body(number))
    assert numbers(lab.bodies(queue))[:5] == [0, 1, 2, 3, 4]
    assert 5 not in numbers(lab.bodies(queue))
    assert queue.counts().delayed == 0
    peer.ack(*peer.seqs[:4])
    peer.nack(peer.seqs[4])
    assert numbers([found.message.body for found in lab.peek(queue)])[0] == 4, "it went back to its place"
    peer.close()
    lab.restart("power")
    kept = numbers(lab.pop_all(lab.reopened(queue)))
    assert kept == sorted(kept) and kept[0] == 4 and kept[-1] == 499


def test_all_groups_drop_and_declared_ones_record_losses(lab: Lab) -> None:
    queue = dropping(lab, groups=["g"])
    for number in range(400):
        lab.publish(queue, body(number))
        lab.pop(queue)
    info = queue.reading.info("g")
    assert info.lost == info.floor - 1 > 200 and queue.stats.lost == info.lost
    kept = numbers(lab.pop_all(queue, "g"))
    assert kept == list(range(info.lost, 400))


def test_queue_refuses_while_everything_is_held_and_recovers(lab: Lab) -> None:
    queue = dropping(lab)
    peer = Peer(lab, queue, window=100_000)
    with pytest.raises(QueueFull):
        for number in range(1000):
            lab.publish(queue, body(number))
    held = numbers(peer.bodies)
    assert held == list(range(len(held))) and len(held) > 20
    peer.close()
    lab.publish(queue, body(5000))
    assert numbers(lab.bodies(queue))[-1] == 5000


def test_message_too_large_for_the_cap_drops_no_other(lab: Lab) -> None:
    queue = dropping(lab)
    lab.publish(queue, *[body(number) for number in range(10)])
    for _ in range(2):
        with pytest.raises((QueueFull, MessageTooLarge)):
            lab.publish_messages(queue, [Message(b"x" * 31 * KIB)] * 2, atomic=True)
    assert numbers(lab.bodies(queue)) == list(range(10))
    for number in range(10, 400):
        lab.publish(queue, body(number))
    assert numbers(lab.bodies(queue))[-1] == 399


@pytest.mark.parametrize("seed", range(SEED, SEED + 12))
def test_random_histories_keep_newest_and_held_messages(seed: int) -> None:
    """Publishes, consumers, delays and crashes at random; `CURBSTONE_OVERFLOW_SEED` begins elsewhere."""
    print(f"seed {seed}")
    dice = random.Random(seed)
    lab = Lab(seed=seed)
    queue = dropping(lab)
    number, gone = 0, set[int]()
    peer = Peer(lab, queue, window=7)
    for _ in range(120):
        what = dice.random()
        if what < 0.55:
            bodies = [body(number + n, dice.choice([0, 300, 3000])) for n in range(dice.randrange(1, 12))]
            number += len(bodies)
            lab.publish(queue, *bodies, **({"delay_ms": 1000} if dice.random() < 0.1 else {}))
        elif what < 0.75 and (held_seqs := list(peer.consumer.unsettled)):
            seqs = dice.sample(held_seqs, dice.randrange(1, len(held_seqs) + 1))
            if dice.random() < 0.7:
                gone.update(numbers([peer.consumer.unsettled[seq].message.body for seq in seqs]))
                peer.ack(*seqs)
            else:
                peer.nack(*seqs)
        elif what < 0.9:
            peer.close()
            peer = Peer(lab, queue, window=dice.choice([0, 3, 7]) or 1)
        else:
            lab.restart(dice.choice(["power", "shutdown"]))
            queue = lab.reopened(queue)
            peer = Peer(lab, queue, window=7)
        held = set(numbers([each.message.body for each in peer.consumer.unsettled.values()]))
        found = numbers(lab.bodies(queue))
        assert found == sorted(set(found)) and held <= set(found)
        assert not gone & set(found), "acked, and there again"
        assert lab.held(queue) <= 64 * KIB
        if number and number - 1 not in gone:
            assert found[-1] == number - 1, "the newest is there"
        counts = queue.counts()
        assert counts.rdy + counts.wip + counts.delayed == len(found)
