"""Messages that replace the one with their name that waits."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from curbstone.core import headers
from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.log.format import Reason
from curbstone.core.message import Message
from curbstone.core.orders import asked_name, check_names, orders_of
from curbstone.core.values import Outcome, UndoRequest
from tests.core.commit.test_unique import named as unique
from tests.kit.lab import Lab, Peer
from tests.kit.room_check import check_room


def named(name: str, body: str, *, most_ms: int = 0, **orders: object) -> Message:
    """Return a message that replaces others of its name."""
    lines = [("x-replace", name), *([("x-replace-max", str(most_ms))] if most_ms else [])]
    return Message(body.encode(), headers.encode(lines), orders_of(named=True, **orders))  # type: ignore[arg-type]


def publish(lab: Lab, queue: LocalQueue, *messages: Message, atomic: bool = False) -> list[int]:
    lab.publish_messages(queue, list(messages), atomic=atomic)
    assert not any(message.is_duplicate for message in messages)
    return [message.seq for message in messages]


@pytest.mark.parametrize("atomic", [False, True])
def test_a_message_replaces_the_one_of_its_name_that_waits(lab: Lab, queue: LocalQueue, atomic: bool) -> None:
    publish(lab, queue, named("a", "1"), named("b", "2"), Message(b"3"), atomic=atomic)
    publish(lab, queue, named("a", "4"), atomic=atomic)
    assert lab.bodies(queue) == [b"2", b"3", b"4"]
    assert (queue.stats.replaced, queue.counts()[:3]) == (1, (3, 0, 0))
    check_room(queue)
    assert lab.pop_all(queue) == [b"2", b"3", b"4"]
    assert publish(lab, queue, named("a", "5")) == [5]
    assert lab.bodies(queue) == [b"5"]


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("is_consumed", [False, True])
def test_last_of_many_with_one_name_in_a_batch_replaces_the_others(
    lab: Lab, queue: LocalQueue, atomic: bool, is_consumed: bool
) -> None:
    peer = Peer(lab, queue, window=1) if is_consumed else None
    publish(lab, queue, *[named("a", str(number)) for number in range(100)], Message(b"other"), atomic=atomic)
    if peer is not None:
        assert peer.bodies == [b"99"]
        peer.ack(*peer.seqs)
        assert peer.bodies == [b"99", b"other"]
        lab.restart("power")
        queue = lab.reopened(queue)
        assert lab.lease(queue)[0].delivery.tries == 1, "its delivery was noted"
    else:
        assert lab.bodies(queue) == [b"99", b"other"]
    check_room(queue)


def test_delivered_message_is_not_replaced_and_another_waits(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, named("a", "1"))
    peer = Peer(lab, queue, window=1)
    publish(lab, queue, named("a", "2"))
    publish(lab, queue, named("a", "3"))
    assert lab.bodies(queue) == [b"1", b"3"]
    peer.nack(1)
    assert peer.seqs == [1, 1], "it has kept its place"
    peer.ack(1)
    assert peer.bodies == [b"1", b"1", b"3"]


def test_requeued_message_is_replaced(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, named("a", "1"))
    (lease,) = lab.lease(queue)
    lab.answer(partial(queue.settle_leases, [lease.token], Outcome.NACK))
    publish(lab, queue, named("a", "2"))
    assert lab.bodies(queue) == [b"2"]
    check_room(queue)


def test_waiting_message_is_replaced_per_group(lab: Lab) -> None:
    queue = lab.queue(groups=["g"])
    publish(lab, queue, named("a", "1"))
    lab.lease(queue)
    publish(lab, queue, named("a", "2"))
    assert lab.pop_all(queue, "g") == [b"2"]
    assert [(found.message.body, found.state) for found in lab.peek(queue)] == [(b"1", "wip"), (b"2", "rdy")]


def test_delayed_replacement_debounces(lab: Lab, queue: LocalQueue) -> None:
    peer = Peer(lab, queue)
    for number in range(5):
        publish(lab, queue, named("a", str(number), delay_ms=1000))
        lab.pass_time(600)
    assert not peer.bodies
    assert queue.counts()[:3] == (0, 0, 1)
    lab.pass_time(500)
    assert peer.bodies == [b"4"]
    check_room(queue)


def test_longest_wait_delivers_despite_replacements(lab: Lab, queue: LocalQueue) -> None:
    peer = Peer(lab, queue)
    for number in range(30):
        publish(lab, queue, named("a", str(number), delay_ms=1000, most_ms=3000))
        lab.pass_time(300)
    lab.pass_time(1000)
    assert len(peer.bodies) in (3, 4)
    assert peer.bodies[-1] == b"29"
    assert lab.bodies(queue) == peer.bodies


def test_longest_wait_survives_a_restart(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, named("a", "1", delay_ms=60_000, most_ms=3000))
    lab.restart("power", after_ms=2000)
    queue = lab.reopened(queue)
    publish(lab, queue, named("a", "2", delay_ms=60_000, most_ms=3000))
    assert lab.bodies(queue) == [b"2"]
    peer = Peer(lab, queue)
    lab.pass_time(1100)
    assert peer.bodies == [b"2"]


def test_message_past_the_longest_wait_is_not_replaced(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, named("a", "1", most_ms=1000))
    lab.pass_time(1000)
    publish(lab, queue, named("a", "2", most_ms=1000))
    publish(lab, queue, named("a", "3", most_ms=1000))
    assert lab.bodies(queue) == [b"1", b"3"]


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_only_the_replacement_survives_any_restart(lab: Lab, queue: LocalQueue, how: str) -> None:
    publish(lab, queue, named("a", "1"), named("a", "2"))
    publish(lab, queue, named("a", "3"))
    lab.restart(how)
    queue = lab.reopened(queue)
    assert lab.bodies(queue) == [b"3"]
    publish(lab, queue, named("a", "4"))
    assert lab.bodies(queue) == [b"4"]
    check_room(queue)


@pytest.mark.parametrize("calls", range(12))
def test_crash_at_any_call_leaves_the_old_or_the_new_message(calls: int) -> None:
    lab = Lab(seed=calls)
    queue = lab.queue()
    publish(lab, queue, named("a", "old"))
    answers: list[object] = []
    queue.publish([named("a", "new")], lambda *given: answers.append(given))
    for _ in range(calls):
        lab.host.turn() or lab.host.work()
    lab.restart("power")
    queue = lab.reopened(queue)
    assert lab.bodies(queue) in ([[b"new"]] if answers else [[b"old"], [b"new"]])
    check_room(queue)


@pytest.mark.parametrize("delay_ms", [0, 3000])
def test_failed_replacement_keeps_the_old_message(lab: Lab, queue: LocalQueue, delay_ms: int) -> None:
    lab.publish(queue, b"first")
    publish(lab, queue, named("a", "old", delay_ms=delay_ms))
    peer = Peer(lab, queue, window=1)
    lab.disk.eio_chance = 1.0
    ((error, _, _),) = lab.publish_answers(queue, [named("a", "new")])
    assert error is not None
    lab.disk.eio_chance = 0
    lab.pass_time(2000)
    assert lab.bodies(queue) == [b"first", b"old"]
    peer.ack(1)
    assert peer.bodies == [b"first", b"old"][: 1 if delay_ms else 2]
    lab.pass_time(2000)
    assert (peer.bodies, peer.tries) == ([b"first", b"old"], [0, 0])
    check_room(queue)


def test_message_being_replaced_is_not_delivered(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, named("a", "old"))
    queue.publish([named("a", "new")], lambda *_: None)
    lab.host.turn()
    assert queue.writer.is_busy
    peer = queue.subscribe(lambda given: bodies.extend(each.message.body for each in given), window=5, on_closed=print)
    bodies: list[bytes] = []
    lab.settle()
    assert bodies == [b"new"]
    assert list(peer.unsettled) == [2]


def test_replacement_with_an_ordering_key_moves_to_the_end(lab: Lab, queue: LocalQueue) -> None:
    block = headers.encode([("x-key", "k"), ("x-replace", "a")])
    peer = Peer(lab, queue)
    lab.publish(queue, b"1", headers=b"x-key:k\n")
    lab.publish(queue, b"old", headers=block, named=True)
    lab.publish(queue, b"3", headers=b"x-key:k\n")
    lab.publish(queue, b"new", headers=block, named=True)
    for seq in (1, 3, 4):
        peer.ack(seq)
    assert peer.bodies == [b"1", b"3", b"new"]
    check_room(queue)


def test_replacement_has_its_own_priority(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, named("a", "low", level=1), Message(b"4"))
    publish(lab, queue, named("a", "high", level=10))
    assert queue.by_priority() == {9: 1, 4: 1}
    assert lab.pop_all(queue) == [b"high", b"4"]


def test_undo_does_not_restore_replaced_messages(lab: Lab) -> None:
    queue = lab.queue(undo=3600)
    publish(lab, queue, named("a", "1"))
    publish(lab, queue, named("a", "2"))
    lab.pop_all(queue)
    lab.answer(partial(queue.undo, UndoRequest(10)), passing_ms=1000)
    assert lab.bodies(queue) == [b"2"]
    publish(lab, queue, named("a", "3"))
    assert lab.bodies(queue) == [b"3"]


def test_replaced_message_is_logged_as_replaced(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, named("a", "1"))
    publish(lab, queue, named("a", "2"))
    assert not Reason.REPLACED.is_done and queue.stats.acked == 0


def test_unique_and_replacing_names_are_separate(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, named("a", "1"))
    publish(lab, queue, unique("a", b"2"))
    publish(lab, queue, named("a", "3"))
    assert lab.bodies(queue) == [b"2", b"3"]
    _, *rest = asked_name(b"x-replace:a\nx-replace-max:5\n")
    assert rest == [False, True, 5]


def test_transaction_replaces_in_each_of_its_queues(lab: Lab) -> None:
    queues = [lab.queue("one"), lab.queue("two")]
    for queue in queues:
        publish(lab, queue, named("a", "old"))
    transaction = lab.broker.transaction()
    for queue in queues:
        transaction.publish(queue, named("a", "new"))
    assert lab.answer(transaction.commit) == (None,)
    assert [lab.bodies(queue) for queue in queues] == [[b"new"]] * 2


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"x-replace": ""}, "x-replace has 0 bytes"),
        ({"x-replace": "a", "x-unique": "a"}, "a message has x-unique or x-replace, not both"),
        ({"x-replace-max": "5"}, "x-replace-max is for a message with x-replace, and there is none"),
        ({"x-replace": "a", "x-replace-max": "0"}, "x-replace-max is '0'; it is a whole number of ms from 1 to"),
        ({"x-replace": "a", "x-replace-max": "1.5"}, "x-replace-max is '1.5'; it is a whole number of ms"),
    ],
)
def test_invalid_name_is_refused(given: dict[str, str], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        check_names(given)


@pytest.mark.parametrize("seed", range(8))
def test_random_histories_keep_the_last_of_each_name(seed: int) -> None:
    dice = Random(seed)
    lab = Lab(seed=seed)
    queue = lab.queue()
    waiting: dict[str, bytes] = {}
    out: dict[int, str] = {}
    peer = Peer(lab, queue, window=2)
    seen = 0

    def see() -> None:
        nonlocal seen
        for delivery in peer.received[seen:]:
            name = delivery.message.headers.decode()[-2]
            assert delivery.message.seq in out or waiting.pop(name) == delivery.message.body, f"seed {seed}"
            out[delivery.message.seq] = name
        seen = len(peer.received)

    for step in range(150):
        what = dice.choice(["publish", "publish", "ack", "nack", "restart"])
        held = list(peer.consumer.unsettled)
        if what == "publish":
            names = [dice.choice("abcd") for _ in range(dice.choice([1, 1, 3, 20]))]
            for place, name in enumerate(names):
                waiting[name] = f"{step} {place}".encode()
            messages = [named(name, f"{step} {place}") for place, name in enumerate(names)]
            publish(lab, queue, *messages, atomic=dice.random() < 0.3)
        elif what == "ack" and held:
            seq = dice.choice(held)
            peer.ack(seq)
            del out[seq]
        elif what == "nack" and held:
            peer.nack(dice.choice(held))
        elif what == "restart" and dice.random() < 0.2:
            if held:
                peer.ack(*held)
                out.clear()
            see()
            held = list(peer.consumer.unsettled)
            peer.ack(*held)
            for seq in held:
                out.pop(seq, None)
            see()
            if list(peer.consumer.unsettled):
                continue
            lab.restart(dice.choice(["shutdown", "kill", "power"]))
            queue = lab.named("q")
            peer, seen = Peer(lab, queue, window=2), 0
        see()
        assert queue.counts()[:2] == (len(waiting), len(out)), f"seed {seed}, step {step}"
        check_room(queue)
