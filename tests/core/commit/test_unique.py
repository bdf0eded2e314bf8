"""Unique names: a message is left out as long as another one with its name is pending."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from curbstone.core import headers
from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.commit.batch import Batch
from curbstone.core.engine.log.format import Note
from curbstone.core.errors import CurbstoneError, QueueFull
from curbstone.core.message import Message
from curbstone.core.orders import asked_name, check_names, orders_in, orders_of
from curbstone.core.values import IdempotencyKey, Numbered, Outcome, UndoRequest
from tests.kit.lab import Lab, Peer
from tests.kit.room_check import check_room


def named(name: str, body: bytes = b"x", *, until: str = "", **orders: object) -> Message:
    """Return a message with a unique name."""
    lines = [("x-unique", name), *([("x-unique-until", until)] if until else [])]
    return Message(body, headers.encode(lines), orders_of(named=True, **orders))  # type: ignore[arg-type]


def publish(lab: Lab, queue: LocalQueue, *messages: Message, atomic: bool = False) -> list[int]:
    """Publish these; return their seqs. A negative one is that of the message that has the name."""
    lab.publish_messages(queue, list(messages), atomic=atomic)
    return [-message.seq if message.is_duplicate else message.seq for message in messages]


# --- who has a name, and how long


@pytest.mark.parametrize("atomic", [False, True])
def test_a_message_is_left_out_while_another_one_has_its_name(lab: Lab, queue: LocalQueue, atomic: bool) -> None:
    assert publish(lab, queue, named("a", b"1"), named("b", b"2"), atomic=atomic) == [1, 2]
    assert publish(lab, queue, named("a", b"3"), named("c", b"4"), named("b", b"5"), atomic=atomic) == [-1, 3, -2]
    assert lab.bodies(queue) == [b"1", b"2", b"4"]
    assert (queue.stats.duplicates, queue.stats.published) == (2, 3)
    assert lab.pop(queue) == b"1"
    assert publish(lab, queue, named("a", b"6"), atomic=atomic) == [4]


@pytest.mark.parametrize("atomic", [False, True])
def test_first_of_a_list_gets_the_unique_name(lab: Lab, queue: LocalQueue, atomic: bool) -> None:
    given = [named("a", b"1"), named("a", b"2"), Message(b"3"), named("a", b"4")]
    assert publish(lab, queue, *given, atomic=atomic) == [1, -1, 2, -1]
    assert lab.bodies(queue) == [b"1", b"3"]


def test_unique_names_hold_across_publishes_in_one_batch(lab: Lab, queue: LocalQueue) -> None:
    mine = [named("a", b"%d" % number) for number in range(5)]
    answers: list[tuple[int, int]] = []
    for message in mine:
        queue.publish([message], lambda _error, first, count: answers.append((first, count)))
    lab.settle()
    assert answers == [(1, 1)] * 5
    assert [message.is_duplicate for message in mine] == [False, True, True, True, True]
    assert lab.bodies(queue) == [b"0"]


def test_unique_names_are_per_queue(lab: Lab) -> None:
    assert publish(lab, lab.queue("a"), named("n")) == publish(lab, lab.queue("b"), named("n")) == [1]


@pytest.mark.parametrize("ending", ["ack", "pop", "reject", "purge", "expiry", "by id", "oldest", "dead letter"])
def test_name_is_released_however_its_message_ends(lab: Lab, ending: str) -> None:
    lab.queue("dead")
    overflow = "drop-oldest" if ending == "oldest" else "refuse"
    queue = lab.queue(dead_letter="dead" if ending == "dead letter" else "", overflow=overflow, cap=64 * 1024)
    assert publish(lab, queue, named("a", ttl_ms=1000 if ending == "expiry" else 0)) == [1]
    if ending in ("ack", "reject", "dead letter"):
        peer = Peer(lab, queue)
        assert publish(lab, queue, named("a")) == [-1], "it is delivered, and not settled"
        (peer.ack if ending == "ack" else peer.reject)(1)
        peer.close()
    elif ending == "pop":
        lab.pop(queue)
    elif ending == "purge":
        lab.purge(queue)
    elif ending == "expiry":
        lab.pass_time(2000)
    elif ending == "by id":
        lab.answer(lambda done: queue.settle_by_id(1, done))
    else:
        for _ in range(40):
            lab.publish(queue, b"x" * 2000)
    assert publish(lab, queue, named("a"))[0] > 0


@pytest.mark.parametrize("waiting", ["delayed", "leased", "given back"])
def test_message_holds_its_name_in_every_state(waiting: str) -> None:
    lab = Lab()
    queue = lab.queue()
    publish(lab, queue, named("a", delay_ms=60_000 if waiting == "delayed" else 0))
    if waiting != "delayed":
        (lease,) = lab.lease(queue)
        if waiting == "given back":
            lab.answer(partial(queue.settle_leases, [lease.token], Outcome.NACK))
    assert publish(lab, queue, named("a")) == [-1]


def test_name_is_held_until_the_last_group_settles(lab: Lab) -> None:
    queue = lab.queue(groups=["g"])
    publish(lab, queue, named("a"))
    assert lab.pop(queue) == b"x"
    assert publish(lab, queue, named("a")) == [-1]
    assert lab.pop(queue, "g") == b"x"
    assert publish(lab, queue, named("a")) == [2]


def test_name_until_delivered_is_released_after_delivery_in_every_group(lab: Lab) -> None:
    queue = lab.queue(groups=["g"])
    publish(lab, queue, named("a", until="delivered"))
    peer = Peer(lab, queue)
    assert peer.seqs == [1]
    assert publish(lab, queue, named("a", until="delivered")) == [-1], "the group g has yet to get it"
    lab.lease(queue, group="g")
    assert publish(lab, queue, named("a", b"2", until="delivered")) == [2]
    peer.nack(1, delay_ms=60_000)
    lab.lease(queue, group="g")
    assert publish(lab, queue, named("a")) == [3], "the second was delivered, too"


def test_name_until_delivered_stays_released_after_a_crash(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, named("a", until="delivered"), named("b", until="delivered"))
    lab.lease(queue)
    lab.settle()
    lab.restart("power")
    queue = lab.reopened(queue)
    assert publish(lab, queue, named("a"), named("b")) == [3, -2]


# --- what a crash leaves


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_names_survive_restarts(lab: Lab, queue: LocalQueue, how: str) -> None:
    publish(lab, queue, named("a"), named("b"), named("c"))
    lab.pop(queue)
    for _ in range(2):
        lab.restart(how)
        queue = lab.reopened(queue)
        assert publish(lab, queue, named("b"), named("c")) == [-2, -3]
    assert publish(lab, queue, named("a")) == [4]
    check_room(queue)


def test_names_outlive_their_segments(lab: Lab) -> None:
    queue = lab.queue(cap=64 * 1024)
    publish(lab, queue, named("kept"), named("gone"))
    lab.lease(queue, 2)
    lab.answer(lambda done: queue.settle_by_id(2, done))
    for _ in range(100):
        lab.publish(queue, b"x" * 2000)
        lab.answer(lambda done: queue.settle_by_id(queue.state.committed_end - 1, done))
    assert queue.log.segments[0].number > 2
    lab.restart("power")
    queue = lab.reopened(queue)
    assert queue.facts.count(Note.NAME) == 1
    assert publish(lab, queue, named("kept"), named("gone")) == [-1, 103]
    check_room(queue)


def test_failed_commit_reserves_no_name(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, b"x")
    lab.disk.eio_chance = 1.0
    messages = [named("a"), named("a")]
    answers = lab.publish_answers(queue, messages)
    assert all(error is not None for error, _, _ in answers), "the second has the outcome of the first"
    lab.disk.eio_chance = 0
    lab.pass_time(5000)
    assert publish(lab, queue, named("a")) == [queue.state.next_seq - 1]


@pytest.mark.source
def test_name_is_held_until_a_delayed_settle_is_logged(
    lab: Lab, queue: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash would have brought the first message back beside the second."""
    publish(lab, queue, named("a"))
    peer = Peer(lab, queue)
    monkeypatch.setattr(Batch, "take_records", lambda self: None)
    peer.consumer.ack([1])
    second = named("a", b"2")
    answers: list[object] = []
    queue.publish([second], lambda *given: answers.append(given))
    for _ in range(5):
        lab.host.turn()
        lab.host.work()
    assert not answers
    monkeypatch.undo()
    queue.wakeups.schedule()
    lab.settle()
    assert answers == [(None, 2, 1)]


# --- with everything else


def test_a_transaction_may_settle_a_message_and_publish_another_with_its_name(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, named("a"), named("b"))
    peer = Peer(lab, queue)
    transaction = lab.broker.transaction()
    transaction.ack(peer.consumer, [1])
    again = [named("a", b"again"), named("b", b"left out"), named("a", b"left out")]
    for message in again:
        transaction.publish(queue, message)
    assert lab.answer(transaction.commit) == (None,)
    assert lab.bodies(queue) == [b"x", b"again"]


@pytest.mark.parametrize("calls", [*range(0, 24, 2), None])
def test_each_queue_of_a_transaction_checks_names_itself_also_after_a_crash(lab: Lab, calls: int | None) -> None:
    first, second = lab.queue("first"), lab.queue("second")
    publish(lab, first, named("a"))
    transaction = lab.broker.transaction()
    transaction.publish(first, named("a", b"left out"))
    transaction.publish(first, named("b", b"stored"))
    transaction.publish(second, named("a", b"stored"))
    answers: list[object] = []
    transaction.commit(answers.append)
    for _ in range(100 if calls is None else calls):
        lab.host.turn() or lab.host.work()
    if calls is not None:
        lab.restart("power")
        first, second = lab.reopened(first), lab.reopened(second)
    assert (lab.bodies(first), lab.bodies(second)) in [([b"x", b"stored"], [b"stored"]), ([b"x"], [])]
    if answers or calls is None:
        assert (answers, lab.bodies(second)) == ([None], [b"stored"])
    assert publish(lab, first, named("a"), named("b"))[0] == -1
    check_room(first)


def test_event_names_are_unique_per_queue(lab: Lab) -> None:
    queues = [lab.queue("a"), lab.queue("b")]
    for queue in queues:
        lab.answer(partial(lab.broker.bind, "e", queue.name))
    publish(lab, queues[0], named("n"))
    lab.answer(partial(lab.broker.publish_event, "e", [named("n", b"event")]))
    assert [lab.bodies(queue) for queue in queues] == [[b"x"], [b"event"]]


def test_idempotency_key_is_checked_before_the_name_and_consumed_by_a_duplicate(lab: Lab, queue: LocalQueue) -> None:
    key = IdempotencyKey("k", b"content")
    publish(lab, queue, named("a"))
    left_out = named("a")
    assert lab.answer(partial(queue.publish, [left_out], key=key)) == (None, 1, 1)
    assert left_out.is_duplicate
    lab.restart("power")
    queue = lab.reopened(queue)
    lab.pop(queue)
    assert lab.answer(partial(queue.publish, [named("a")], key=key)) == (None, 1, 1)
    assert lab.bodies(queue) == []


def test_duplicate_name_consumes_the_producer_number(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, named("a"))
    producer = b"p" * 16
    answers: list[object] = []
    for first in (1, 3):
        messages = [named("a"), named("a")]
        queue.publish(messages, lambda *given: answers.append(given), numbered=Numbered(producer, first, first - 1))
        lab.settle()
    assert answers == [(None, 1, 1)] * 4
    lab.restart("power")
    queue = lab.reopened(queue)
    last = queue.last_number(producer)
    assert last is not None and (last.number, last.seq) == (4, 1)
    lab.pop(queue)
    assert lab.answer(partial(queue.publish, [named("a")], numbered=Numbered(producer, 4, 3))) == (None, 0, 1)
    assert lab.bodies(queue) == []


def test_dead_letters_and_redrives_need_no_name(lab: Lab) -> None:
    dead = lab.queue("dead")
    queue = lab.queue(dead_letter="dead")
    for body in (b"1", b"2"):
        publish(lab, queue, named("a", body))
        peer = Peer(lab, queue)
        peer.reject(peer.seqs[0])
        peer.close()
    assert lab.bodies(dead) == [b"1", b"2"]
    assert publish(lab, dead, named("a")) == [3]
    publish(lab, queue, named("a", b"3"))
    lab.answer(lambda done: dead.redrive(None, 10, done), passing_ms=100)
    assert lab.bodies(queue) == [b"3", b"1", b"2"]


def test_undo_restores_the_name_unless_taken(lab: Lab) -> None:
    queue = lab.queue(undo=3600)
    publish(lab, queue, named("a"), named("b"))
    lab.pop_all(queue)
    publish(lab, queue, named("b", b"other"))
    lab.answer(partial(queue.undo, UndoRequest(10)), passing_ms=1000)
    assert lab.bodies(queue) == [b"x", b"x", b"other"]
    assert publish(lab, queue, named("a"), named("b")) == [-1, -3]
    lab.restart("power")
    queue = lab.reopened(queue)
    assert publish(lab, queue, named("a"), named("b")) == [-1, -3]
    check_room(queue)


def test_refused_message_reserves_no_name() -> None:
    lab = Lab(max_message_size=1000)
    queue = lab.queue()
    answers = lab.publish_answers(queue, [named("a", b"x" * 2000), named("a", b"small")])
    assert [type(error).__name__ for error, _, _ in answers] == ["MessageTooLarge", "NoneType"]
    assert lab.bodies(queue) == [b"small"]


# --- bounds


def test_names_expire_after_their_messages(lab: Lab, queue: LocalQueue) -> None:
    for number in range(200):
        publish(lab, queue, named(f"n{number}"))
        lab.pop(queue)
    assert queue.facts.count(Note.NAME) < 20
    check_room(queue)


def test_full_queue_drops_unused_names_before_refusing(lab: Lab) -> None:
    queue = lab.queue(cap=64 * 1024)
    stored = 0
    with pytest.raises(QueueFull):
        while True:
            stored += len(publish(lab, queue, *[named(f"{stored} {number}", b"x" * 100) for number in range(20)]))
    assert publish(lab, queue, named("0 0")) == [-1], "a duplicate needs no room"
    lab.purge(queue)
    check_room(queue)
    again = 0
    with pytest.raises(QueueFull):
        while True:
            again += len(publish(lab, queue, *[named(f"{again} {number}", b"x" * 100) for number in range(20)]))
    assert again >= 0.9 * stored
    check_room(queue)


@pytest.mark.source
def test_names_are_limited(lab: Lab, queue: LocalQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(queue.facts), "most", lambda self, note: 3)
    publish(lab, queue, named("a"), named("b"), named("c"))
    (error, _, _), *_ = lab.publish_answers(queue, [named("d")])
    assert isinstance(error, QueueFull) and "3 messages with unique names" in str(error)
    batch = [named("d"), named("a"), named("d"), named("e")]
    ((error, _, _),) = lab.publish_answers(queue, batch, atomic=True)
    assert isinstance(error, QueueFull) and "3 messages with unique names" in str(error)
    transaction = lab.broker.transaction()
    transaction.publish(queue, named("d"))
    transaction.publish(lab.queue("other"), Message(b"m"))
    assert isinstance(lab.answer(transaction.commit)[0], QueueFull)
    lab.pop(queue)
    assert publish(lab, queue, named("d"), named("d"), named("b"), atomic=True) == [4, -4, -2]


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"x-unique": ""}, "x-unique has 0 bytes; a name has 1 to 256"),
        ({"x-unique": "ü" * 129}, "x-unique has 258 bytes; a name has 1 to 256"),
        ({"x-unique": "a", "x-unique-until": "then"}, "x-unique-until is 'then'; it is settled or delivered"),
        ({"x-unique-until": "settled"}, "x-unique-until is for a message with x-unique, and there is none"),
    ],
)
def test_invalid_name_is_refused(given: dict[str, str], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        check_names(given)


def test_escaping_does_not_change_a_name() -> None:
    assert asked_name(b"x-unique:a\\cb\n") == asked_name(b"x:y\nx-unique:a:b\n")
    assert asked_name(b"x-unique:a\n") != asked_name(b"x-unique:b\n")
    assert orders_in(b"x-x-unique:a\n") is None
    found = orders_in(b"x-unique:a\npriority:9\n")
    assert found is not None and found.level == 10 and found.named


@pytest.mark.parametrize("seed", range(8))
def test_random_histories_keep_names_unique(seed: int) -> None:
    dice = Random(seed)
    lab = Lab(seed=seed)
    queue = lab.queue(cap=64 * 1024, groups=["g"] if dice.random() < 0.3 else [])
    groups = ["", *queue.meta.groups]
    held: dict[str, int] = {}
    left: dict[int, set[str]] = {}
    for step in range(120):
        what = dice.choice(["publish", "publish", "pop", "restart"])
        if what == "publish":
            count = dice.choice([1, 1, 2, 6])
            names = [dice.choice("abcdefgh") for _ in range(count)]
            given = [named(name, b"x" * dice.choice([10, 500])) for name in names]
            try:
                publish(lab, queue, *given, atomic=dice.random() < 0.3)
            except CurbstoneError as error:
                raise AssertionError(f"seed {seed}, step {step}") from error
            for name, message in zip(names, given, strict=True):
                has_holder = left.get(held.get(name, 0))
                assert message.is_duplicate == bool(has_holder), f"seed {seed}, step {step}"
                if has_holder:
                    assert message.seq == held[name], f"seed {seed}, step {step}"
                else:
                    held[name] = message.seq
                    left[message.seq] = set(groups)
        elif what == "pop":
            group = dice.choice(groups)
            ready = [seq for seq in sorted(left) if group in left[seq]]
            assert (lab.pop(queue, group) is not None) == bool(ready), f"seed {seed}, step {step}"
            if ready:
                left[ready[0]].discard(group)
                if not left[ready[0]]:
                    del left[ready[0]]
        elif dice.random() < 0.3:
            lab.restart(dice.choice(["shutdown", "kill", "power"]))
            queue = lab.named("q")
        check_room(queue)
