"""Transactions: all or nothing, over one queue or several, also across a restart."""

from __future__ import annotations

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.broker import Broker
from curbstone.core.errors import CurbstoneError, MessageTooLarge, NoSuchQueue, QueueFull, StaleDelivery, Unavailable
from curbstone.core.names import queue_name
from curbstone.core.values import IdempotencyKey
from tests.kit.lab import Lab, Peer, message, numbered
from tests.kit.simulated import Crash, SimHost

HOWS = pytest.mark.parametrize("how", ["shutdown", "kill", "power"])


def commit(lab: Lab, transaction: object) -> CurbstoneError | None:
    (error,) = lab.answer(transaction.commit)  # type: ignore[attr-defined]
    assert error is None or isinstance(error, CurbstoneError)
    return error


def two(lab: Lab, **options: object) -> tuple[LocalQueue, LocalQueue]:
    return lab.queue("a", **options), lab.queue("b", **options)


def test_transaction_has_no_effect_before_the_commit(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "held")
    peer = Peer(lab, queue)
    transaction = lab.broker.transaction()
    transaction.publish(queue, message("m"))
    transaction.ack(peer.consumer, [1])
    lab.pass_time(1000)
    assert list(peer.consumer.unsettled) == [1] and lab.bodies(queue) == [b"held"]


@HOWS
@pytest.mark.parametrize("queues", [1, 2, 3])
def test_a_committed_transaction_is_whole_after_any_restart(lab: Lab, how: str, queues: int) -> None:
    names = [f"q{number}" for number in range(queues)]
    for name in names:
        lab.publish(lab.queue(name), "old", "held")
    peers = [Peer(lab, lab.queue(name)) for name in names]
    transaction = lab.broker.transaction()
    for name, peer in zip(names, peers, strict=True):
        transaction.publish(lab.queue(name), message("new", delay_ms=0))
        transaction.ack(peer.consumer, [1])
    assert commit(lab, transaction) is None
    for _ in range(2):
        lab.restart(how)
        for name in names:
            assert lab.bodies(lab.queue(name)) == [b"held", b"new"]


def test_an_empty_transaction_is_committed(lab: Lab) -> None:
    assert commit(lab, lab.broker.transaction()) is None


def test_messages_of_a_transaction_keep_their_order_delay_ttl_and_groups(lab: Lab) -> None:
    first, second = two(lab)
    transaction = lab.broker.transaction()
    for body in numbered(5):
        transaction.publish(first, message(body))
    transaction.publish(second, message("later", delay_ms=1000))
    transaction.publish(second, message("short", ttl_ms=500))
    transaction.publish(second, message("group", groups=("g",)))
    assert commit(lab, transaction) is None
    assert lab.bodies(first) == numbered(5)
    assert second.counts()[:3] == (1, 0, 1) and second.counts("g")[:3] == (1, 0, 0)
    lab.pass_time(1000)
    assert lab.pop_all(second) == [b"later"]


def test_nack_and_reject_take_effect_at_the_commit(lab: Lab) -> None:
    queue = lab.queue(dead_letter="dead")
    lab.publish(queue, *numbered(3))
    peer = Peer(lab, queue)
    transaction = lab.broker.transaction()
    transaction.nack(peer.consumer, [1], delay_ms=5000)
    transaction.reject(peer.consumer, [2], "bad")
    transaction.ack(peer.consumer, [3])
    assert commit(lab, transaction) is None
    lab.settle()
    assert queue.counts()[:3] == (0, 0, 1) and queue.stats.released == 1
    assert lab.bodies("dead") == [numbered(3)[1]]
    lab.pass_time(5000)
    assert peer.received[3].mature_ms == lab.host.wall_ms()


def test_nack_in_a_transaction_gives_the_message_to_the_next_consumer_at_once(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    first, second = Peer(lab, queue), Peer(lab, queue)
    first.consumer.hold()
    transaction = lab.broker.transaction()
    transaction.nack(first.consumer, [1])
    assert commit(lab, transaction) is None
    lab.settle()
    assert second.bodies == [b"a"] and second.tries == [1]


@pytest.mark.parametrize("queues", [1, 2])
@pytest.mark.parametrize("crash_in", range(24))
def test_a_nack_and_a_reject_are_with_the_commit_or_not_at_all_after_a_power_cut(crash_in: int, queues: int) -> None:
    lab = Lab(seed=crash_in)
    queue, other = two(lab, dead_letter="dead" if queues > 1 else "", max_tries=2)
    dead = lab.queue("dead")
    lab.publish(queue, *numbered(4))
    lab.pop(queue)
    peer = Peer(lab, queue)
    lab.pass_time(100)
    transaction = lab.broker.transaction()
    transaction.publish(queue if queues == 1 else other, message("new"))
    transaction.nack(peer.consumer, [2], delay_ms=60_000)
    transaction.reject(peer.consumer, [3], "bad")
    confirmed: list[CurbstoneError | None] = []
    lab.disk.crash_in = crash_in
    try:
        transaction.commit(confirmed.append)
        lab.settle()
    except Crash:
        pass
    lab.disk.crash_in = -1
    lab.restart("power")
    queue, other, dead = map(lab.reopened, (queue, other, dead))
    came = b"new" in lab.bodies(queue) + lab.bodies(other)
    assert came or not confirmed
    states = {found.message.seq: (found.state, found.tries) for found in lab.peek(queue)}
    assert states[2] == (("delayed", 1) if came else ("rdy", 1))
    assert (3 in states) != came
    assert lab.bodies(dead) == ([numbered(4)[2]] if came and queues > 1 else [])


def test_a_nack_in_a_transaction_counts_as_a_try(lab: Lab) -> None:
    queue = lab.queue(max_tries=2, dead_letter="dead")
    lab.publish(queue, "a")
    for _ in range(2):
        peer = Peer(lab, queue)
        transaction = lab.broker.transaction()
        transaction.nack(peer.consumer, [1], error="no luck")
        peer.consumer.pause()
        assert commit(lab, transaction) is None
    assert lab.bodies(queue) == []
    (letter,) = lab.peek(lab.queue("dead"))
    assert b"x-dead-reason:max_tries" in letter.message.headers and b"no luck" in letter.message.headers


@pytest.mark.parametrize("call", ["ack", "nack", "reject"])
@pytest.mark.parametrize("seqs", [[2], [1, 2], [0]])
def test_unheld_delivery_is_refused_when_added(lab: Lab, queue: LocalQueue, call: str, seqs: list[int]) -> None:
    lab.publish(queue, "a", "b")
    peer = Peer(lab, queue, window=1)
    transaction = lab.broker.transaction()
    with pytest.raises(StaleDelivery):
        getattr(transaction, call)(peer.consumer, seqs)


def test_the_same_delivery_is_not_added_twice(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    peer = Peer(lab, queue)
    transaction = lab.broker.transaction()
    transaction.ack(peer.consumer, [1])
    with pytest.raises(StaleDelivery):
        transaction.nack(peer.consumer, [1])


def test_the_same_delivery_is_not_named_twice_in_one_call(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    transaction = lab.broker.transaction()
    with pytest.raises(StaleDelivery):
        transaction.ack(Peer(lab, queue).consumer, [1, 1])


@pytest.mark.parametrize("call", ["ack", "nack", "reject"])
def test_a_delivery_that_ended_before_the_commit_refuses_all(lab: Lab, call: str) -> None:
    first, second = two(lab)
    lab.publish(first, "one", "two")
    peer = Peer(lab, first)
    transaction = lab.broker.transaction()
    transaction.publish(second, message("m"))
    transaction.ack(peer.consumer, [1])
    getattr(transaction, call)(peer.consumer, [2])
    peer.consumer.hold()
    peer.nack(2)
    assert isinstance(commit(lab, transaction), StaleDelivery)
    assert lab.bodies(second) == [] and list(peer.consumer.unsettled) == [1]
    peer.ack(1)


def test_a_consumer_that_closed_before_the_commit_refuses_all(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    peer = Peer(lab, queue)
    transaction = lab.broker.transaction()
    transaction.ack(peer.consumer, [1])
    transaction.publish(queue, message("m"))
    peer.close()
    assert isinstance(commit(lab, transaction), StaleDelivery)
    assert lab.bodies(queue) == [b"a"]


@pytest.mark.parametrize("spread", [False, True])
def test_too_large_message_refuses_all_and_releases_claims(lab: Lab, spread: bool) -> None:
    first, second = two(lab, max_message_size=10)
    lab.publish(first, "held")
    peer = Peer(lab, first)
    transaction = lab.broker.transaction()
    transaction.ack(peer.consumer, [1])
    transaction.publish(first, message("fits"))
    transaction.publish(second if spread else first, message("x" * 11))
    assert isinstance(commit(lab, transaction), MessageTooLarge)
    assert list(peer.consumer.unsettled) == [1]
    assert lab.bodies(first) == [b"held"] and lab.bodies(second) == []


def fill(lab: Lab, queue: LocalQueue) -> None:
    """Publish until nothing more of 1000 bytes fits."""
    while lab.publish_answers(queue, [message(b"x" * 1000)])[0][0] is None:
        pass


def test_delivery_settled_by_id_stays_settled_when_a_transaction_fails() -> None:
    """It stood among the unsettled again, and took a place of the window, though its message was gone."""
    lab = Lab(cap=64 * 1024)
    first, second = two(lab)
    lab.publish(first, "settled by id", "kept")
    peer = Peer(lab, first)
    fill(lab, second)
    transaction = lab.broker.transaction()
    transaction.ack(peer.consumer, [1, 2])
    transaction.publish(second, message(b"x" * 5000))
    answers: list[CurbstoneError | None] = []
    transaction.commit(answers.append)
    first.settle_by_id(1, lambda error, there: answers.append(error) if there else None)
    lab.settle()
    assert {type(answer) for answer in answers} == {QueueFull, type(None)}
    assert list(peer.consumer.unsettled) == [2]


@pytest.mark.parametrize("spread", [False, True])
def test_full_queue_refuses_all_and_releases_claims(spread: bool) -> None:
    lab = Lab(cap=64 * 1024)
    first, second = two(lab)
    lab.publish(first, "held")
    peer = Peer(lab, first)
    fill(lab, second)
    transaction = lab.broker.transaction()
    if spread:
        transaction.ack(peer.consumer, [1])
        transaction.publish(first, message("m"))
    for body in numbered(5, 1000):
        transaction.publish(second, message(body))
    before = second.counts()[:3]
    assert isinstance(commit(lab, transaction), QueueFull)
    assert lab.bodies(first) == [b"held"] and second.counts()[:3] == before
    assert list(peer.consumer.unsettled) == [1]
    peer.ack(1)


def test_transaction_that_can_never_fit_is_too_large() -> None:
    lab = Lab(cap=64 * 1024)
    queue = lab.queue()
    transaction = lab.broker.transaction()
    for body in numbered(40, 1000):
        transaction.publish(queue, message(body))
    assert isinstance(commit(lab, transaction), MessageTooLarge)
    assert lab.bodies(queue) == []


def test_a_deleted_queue_refuses_all(lab: Lab) -> None:
    first, second = two(lab)
    transaction = lab.broker.transaction()
    transaction.publish(first, message("m"))
    transaction.publish(second, message("m"))
    lab.answer(lambda done: lab.broker.delete(second.name, done))
    assert isinstance(commit(lab, transaction), NoSuchQueue)
    assert lab.bodies(first) == []


def test_transaction_waits_for_a_queue_in_creation(lab: Lab) -> None:
    transaction = lab.broker.transaction()
    for name in ("new", "newer"):
        transaction.publish(lab.broker.ensure(queue_name(name)), message("m"))
    assert commit(lab, transaction) is None
    lab.restart("power")
    assert [lab.bodies(queue) for queue in lab.broker.queues()] == [[b"m"], [b"m"]]


@pytest.mark.parametrize("crash_in", range(0, 24))
def test_a_power_cut_at_any_call_of_the_disk_leaves_all_or_nothing(crash_in: int) -> None:
    lab = Lab(seed=crash_in)
    first, second = two(lab)
    lab.publish(first, "held")
    peer = Peer(lab, first)
    transaction = lab.broker.transaction()
    transaction.ack(peer.consumer, [1])
    for queue in (first, second):
        for body in (b"m", b"n"):
            transaction.publish(queue, message(body))
    confirmed: list[CurbstoneError | None] = []
    transaction.commit(confirmed.append)
    lab.disk.crash_in = crash_in
    try:
        lab.settle()
    except Crash:
        assert not confirmed
    lab.disk.crash_in = -1
    lab.restart("power")
    found = lab.bodies(lab.reopened(first)), lab.bodies(lab.reopened(second))
    nothing: tuple[list[bytes], list[bytes]]
    nothing, everything = ([b"held"], []), ([b"m", b"n"], [b"m", b"n"])
    assert found == everything if confirmed else found in (nothing, everything)


def test_start_reports_when_interrupted_transactions_are_complete(lab: Lab) -> None:
    """A server that was ready before could show one queue with its part, and the other without."""
    queues = two(lab)
    transaction = lab.broker.transaction()
    for queue in queues:
        transaction.publish(queue, message("m"))
    transaction.commit(lambda error: None)
    while not lab.broker.tx_log.needed_until:  # until its record is on disk
        assert lab.host.turn() or lab.host.work()
    lab.host = SimHost(lab.rng, lab.host.wall_ms())
    lab.broker = Broker.open(lab.host, lab.disk, defaults=lab.defaults, sync=lab.sync)
    reported: list[list[int]] = []
    lab.broker.missing_parts.when_written(lambda: reported.append([each.counts().rdy for each in lab.broker.queues()]))
    assert not reported and [each.counts().rdy for each in lab.broker.queues()] == [0, 0]
    lab.settle()
    assert reported == [[1, 1]]
    lab.broker.missing_parts.when_written(lambda: reported.append([]))
    assert reported == [[1, 1], []], "there is nothing to wait for any more"


def test_unwritable_journal_refuses_transactions(lab: Lab) -> None:
    first, second = two(lab)
    lab.publish(first, "held")
    peer = Peer(lab, first)
    transaction = lab.broker.transaction()
    transaction.ack(peer.consumer, [1])
    transaction.publish(second, message("m"))
    lab.disk.eio_chance = 1.0
    answers: list[CurbstoneError | None] = []
    transaction.commit(answers.append)
    lab.settle()
    lab.disk.eio_chance = 0.0
    lab.pass_time(60_000)
    assert [type(error) for error in answers] == [Unavailable]
    assert list(peer.consumer.unsettled) == [1] and lab.bodies(second) == []
    again = lab.broker.transaction()
    again.ack(peer.consumer, [1])
    again.publish(second, message("n"))
    assert commit(lab, again) is None
    lab.restart("power")
    assert lab.bodies(lab.reopened(first)) == [] and lab.bodies(lab.reopened(second)) == [b"n"]


def test_transactions_of_one_turn_are_all_committed(lab: Lab) -> None:
    first, second = two(lab)
    done: list[CurbstoneError | None] = []
    for number in range(30):
        transaction = lab.broker.transaction()
        transaction.publish(first, message(b"%d" % number))
        transaction.publish(second, message(b"%d" % number))
        transaction.commit(done.append)
    lab.settle()
    assert done == [None] * 30
    assert sorted(lab.bodies(first)) == sorted(lab.bodies(second)) == sorted(b"%d" % number for number in range(30))


@HOWS
def test_publish_after_a_commit_follows_it_in_every_queue(lab: Lab, how: str) -> None:
    first, second = two(lab)
    lab.publish(first, "before")
    answers: list[object] = []
    transaction = lab.broker.transaction()
    transaction.publish(first, message("in it"))
    transaction.publish(second, message("in it"))
    transaction.commit(answers.append)
    for queue in (first, second):
        queue.publish([message("after")], lambda *answer: answers.append(answer))
    lab.settle()
    assert answers.count(None) == 1 and len(answers) == 3
    lab.restart(how)
    assert lab.bodies(lab.reopened(first)) == [b"before", b"in it", b"after"]
    assert lab.bodies(lab.reopened(second)) == [b"in it", b"after"]


def test_transactions_over_the_same_full_queues_are_all_answered(lab: Lab) -> None:
    first, second = two(lab, cap=64 * 1024)
    answers: list[CurbstoneError | None] = []
    for number in range(60):
        transaction = lab.broker.transaction()
        for queue in (first, second)[:: 1 if number % 2 else -1]:
            transaction.publish(queue, message(b"x" * 2000))
        transaction.commit(answers.append)
        first.publish([message("alone")], lambda *_: None)
    lab.settle()
    assert len(answers) == 60 and {type(answer) for answer in answers} == {type(None), QueueFull}
    taken = answers.count(None)
    assert [lab.bodies(queue).count(b"x" * 2000) for queue in (first, second)] == [taken, taken]
    assert first.log.room.reserved == second.log.room.reserved == 0


def test_a_queue_deleted_while_a_transaction_waits_for_room_ends_it(lab: Lab) -> None:
    first, second = two(lab, cap=64 * 1024)
    answers: list[CurbstoneError | None] = []
    transaction = lab.broker.transaction()
    transaction.publish(first, message("a"))
    transaction.publish(second, message("b"))
    transaction.commit(answers.append)
    lab.broker.delete(second.name, lambda _: None)
    lab.settle()
    lab.pass_time(100)
    assert len(answers) == 1
    assert lab.bodies(first) == ([b"a"] if answers[0] is None else [])
    assert first.log.room.reserved == 0


def test_transactions_of_one_queue_share_a_commit(lab: Lab, queue: LocalQueue) -> None:
    """Each had a commit for itself."""
    lab.publish(queue, *numbered(60))
    peer = Peer(lab, queue)
    before = queue.stats.commits
    answers: list[CurbstoneError | None] = []
    for seq in range(1, 61):
        transaction = lab.broker.transaction()
        transaction.publish(queue, message(f"after {seq}"))
        if seq % 3:
            transaction.ack(peer.consumer, [seq])
        else:
            transaction.nack(peer.consumer, [seq], 60_000)
        transaction.commit(answers.append)
        queue.publish([message(f"alone {seq}")], lambda error, _first, _count: answers.append(error))
    lab.settle()
    assert answers == [None] * 120 and queue.stats.commits - before <= 3
    lab.restart("kill")
    queue = lab.reopened(queue)
    waiting = [found for found in lab.peek(queue) if found.state == "delayed"]
    assert [(found.message.seq, found.tries) for found in waiting] == [(seq, 1) for seq in range(3, 61, 3)]
    expected = [b"%s %d" % (kind, seq) for seq in range(1, 61) for kind in (b"after", b"alone")]
    assert lab.bodies(queue)[20:] == expected


def test_atomic_writes_that_share_a_commit_fail_together_and_leave_nothing(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(10))
    peer = Peer(lab, queue)
    answers: list[CurbstoneError | None] = []
    lab.disk.eio_chance = 1
    lab.expects_faults = True
    for seq in range(1, 11):
        transaction = lab.broker.transaction()
        transaction.publish(queue, message("never"))
        transaction.ack(peer.consumer, [seq])
        transaction.commit(answers.append)
    lab.host.settle()
    assert [type(answer) for answer in answers] == 10 * [Unavailable]
    assert sorted(peer.consumer.unsettled) == list(range(1, 11))
    lab.disk.eio_chance = 0
    lab.pass_time(5000)
    lab.publish(queue, "after")  # until a new segment says where the old one ends, a crash may bring them back
    lab.restart("power")
    assert lab.bodies(lab.reopened(queue)) == [*numbered(10), b"after"]


def test_a_publish_that_is_repeated_in_the_same_turn_is_stored_once(lab: Lab, queue: LocalQueue) -> None:
    answers: list[tuple[CurbstoneError | None, int]] = []
    for _ in range(3):
        for key in ("one", "two"):
            queue.publish(
                [message(key)],
                lambda error, first, _count: answers.append((error, first)),
                key=IdempotencyKey(key, b"content"),
            )
    lab.settle()
    assert answers == 3 * [(None, 1), (None, 2)] and lab.bodies(queue) == [b"one", b"two"]
