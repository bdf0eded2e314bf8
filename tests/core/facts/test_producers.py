"""Numbered producers: what is sent again is stored once, in order, also after crashes, failures and the cleaner."""

from __future__ import annotations

from random import Random
from time import process_time

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.facts.facts import Changes, put
from curbstone.core.engine.facts.kinds import KINDS, PRODUCER_IDLE_MS, encode_producer
from curbstone.core.engine.log.format import Note
from curbstone.core.errors import CurbstoneError, MessageTooLarge, NumberGap, QueueFull
from curbstone.core.options import CAP_BYTES_MIN
from curbstone.core.values import Numbered, producer_key
from tests.kit.lab import Lab, message
from tests.kit.room_check import check_room

Answer = tuple[CurbstoneError | None, int, int]

A, B = producer_key("", "a"), producer_key("", "b")


def send(
    lab: Lab,
    queue: LocalQueue,
    first: int,
    count: int = 1,
    *,
    after: int | None = None,
    who: bytes = A,
    whole: bool = False,
) -> list[Answer]:
    """Publish messages whose bodies are their numbers; return the list that their answers come to."""
    answers: list[Answer] = []
    messages = [message(str(number)) for number in range(first, first + count)]
    numbered = Numbered(who, first, first - 1 if after is None else after)
    queue.publish(messages, lambda *given: answers.append(given), atomic=whole, numbered=numbered)
    return answers


def sent(lab: Lab, queue: LocalQueue, first: int, count: int = 1, **how: object) -> list[Answer]:
    answers = send(lab, queue, first, count, **how)  # type: ignore[arg-type]
    lab.settle()
    check_room(queue)
    assert sum(answered for _, _, answered in answers) == count
    return answers


def numbers(lab: Lab, queue: LocalQueue) -> list[int]:
    return [int(body) for body in lab.bodies(queue)]


def test_resent_message_is_confirmed_and_not_stored_again(lab: Lab, queue: LocalQueue) -> None:
    assert sent(lab, queue, 1, 3) == [(None, 1, 3)]
    assert sent(lab, queue, 1, 3) == [(None, 0, 3)]
    assert sent(lab, queue, 2, 4) == [(None, 0, 2), (None, 4, 2)]
    assert numbers(lab, queue) == [1, 2, 3, 4, 5]


def test_unknown_producer_starts_at_one_with_its_own_numbers(lab: Lab, queue: LocalQueue) -> None:
    ((error, _, _),) = sent(lab, queue, 1041)
    assert isinstance(error, NumberGap) and error.expected == 1 and "begins with number 1" in str(error)
    assert sent(lab, queue, 1041, after=0) == [(None, 1, 1)]
    assert sent(lab, queue, 1, who=B) == [(None, 2, 1)]
    assert sent(lab, queue, 1041) == [(None, 0, 1)]
    assert sent(lab, lab.queue("other"), 1) == [(None, 1, 1)]


def test_messages_behind_a_refused_first_one_are_refused(lab: Lab, queue: LocalQueue) -> None:
    """It was stored, and then the first passed for a repeat when it was sent again: confirmed, and lost."""
    lab.publish(queue, b"x")
    lab.disk.eio_chance = 1
    refused = send(lab, queue, 1, 2)
    lab.settle()
    lab.disk.eio_chance = 0
    lab.pass_time(3000)
    assert refused and all(error is not None for error, _, _ in refused)
    ((error, _, _),) = sent(lab, queue, 3)
    assert isinstance(error, NumberGap) and error.expected == 1
    assert [error for error, _, _ in sent(lab, queue, 1, 3)] == [None]
    assert lab.bodies(queue) == [b"x", b"1", b"2", b"3"]


def test_early_number_is_refused_with_the_expected_number(lab: Lab, queue: LocalQueue) -> None:
    sent(lab, queue, 1)
    ((error, _, count),) = sent(lab, queue, 3, 2)
    assert isinstance(error, NumberGap) and (error.expected, count) == (2, 2)
    assert sent(lab, queue, 10, after=1) == [(None, 2, 1)], "an application's own numbers may have gaps"
    assert sent(lab, queue, 20, after=0) == [(None, 3, 1)]
    assert numbers(lab, queue) == [1, 10, 20]


@pytest.mark.parametrize("whole", [False, True])
def test_repeat_before_the_commit_waits_for_it(lab: Lab, queue: LocalQueue, whole: bool) -> None:
    first, second = send(lab, queue, 1, 3, whole=whole), send(lab, queue, 1, 5, whole=whole)
    lab.settle()
    assert (first, second) == ([(None, 1, 3)], [(None, 0, 3), (None, 4, 2)])
    assert numbers(lab, queue) == [1, 2, 3, 4, 5]


def test_refused_message_is_not_overtaken() -> None:
    lab = Lab(max_message_size=4096)
    queue = lab.queue()
    answers: list[Answer] = []
    messages = [message("1"), message(b"x" * 5000), message("3")]
    queue.publish(messages, lambda *given: answers.append(given), numbered=Numbered(A, 1, 0))
    behind = send(lab, queue, 4)
    lab.settle()
    assert [type(error) for error, _, _ in answers] == [type(None), MessageTooLarge, NumberGap]
    assert [type(error) for error, _, _ in behind] == [NumberGap]
    assert sent(lab, queue, 3, after=1) == [(None, 2, 1)]
    assert numbers(lab, queue) == [1, 3]


def test_a_gap_behind_a_refusal_alone_is_answered_too() -> None:
    """Nothing was written then, and there was no commit behind which to look again."""
    lab = Lab(max_message_size=4096)
    queue = lab.queue()
    sent(lab, queue, 1)
    answers: list[Answer] = []
    messages = [message(b"x" * 5000), message("3")]
    queue.publish(messages, lambda *given: answers.append(given), numbered=Numbered(A, 2, 1))
    lab.settle()
    assert [type(error) for error, _, _ in answers] == [MessageTooLarge, NumberGap]


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_numbers_survive_a_restart_together_with_their_messages(lab: Lab, queue: LocalQueue, how: str) -> None:
    sent(lab, queue, 1, 3)
    lab.restart(how)
    queue = lab.reopened(queue)
    check_room(queue)
    last = queue.last_number(A)
    assert last is not None and (last.number, last.seq) == (3, 3)
    assert sent(lab, queue, 1, 4) == [(None, 0, 3), (None, 4, 1)]
    assert numbers(lab, queue) == [1, 2, 3, 4]


def test_numbers_outlive_the_segment_they_were_written_in() -> None:
    lab = Lab(cap=CAP_BYTES_MIN, max_message_size=4096)
    queue = lab.queue()
    sent(lab, queue, 1, 2)
    first = queue.log.segments[0].number
    while queue.log.segments[0].number < first + 20:
        lab.publish(queue, b"x" * 1000)
        lab.pop_all(queue)
    check_room(queue)
    lab.restart("power")
    queue = lab.reopened(queue)
    assert sent(lab, queue, 1, 3) == [(None, 0, 2), (None, queue.reading.next - 1, 1)]


def test_longest_idle_producers_are_dropped_at_the_limit() -> None:
    lab = Lab(cap=CAP_BYTES_MIN, max_message_size=4096)
    queue = lab.queue()
    most = CAP_BYTES_MIN // KINDS[Note.PRODUCER].cap_bytes
    names = [producer_key("", str(number)) for number in range(most + 2)]
    for name in names:
        sent(lab, queue, 1, who=name)
        sent(lab, queue, 1, who=names[0])
        lab.pass_time(1)
    known = [number for number, name in enumerate(names) if queue.last_number(name)]
    assert known == [0, *range(3, most + 2)] or known == [*range(2, most + 2)]
    assert len(known) == most


def test_idle_producer_is_dropped(lab: Lab, queue: LocalQueue) -> None:
    sent(lab, queue, 5, after=0)
    lab.pass_time(PRODUCER_IDLE_MS)
    assert queue.last_number(A) is None
    assert [type(error) for error, _, _ in sent(lab, queue, 6)] == [NumberGap]
    assert sent(lab, queue, 6, after=0) == [(None, 2, 1)]
    assert sent(lab, queue, 7) == [(None, 3, 1)]


def test_deleted_queue_drops_its_producers(lab: Lab, queue: LocalQueue) -> None:
    sent(lab, queue, 5, after=0)
    lab.answer(lambda done: lab.broker.delete(queue.name, done))
    queue = lab.queue()
    assert sent(lab, queue, 1) == [(None, 1, 1)]


@pytest.mark.soak
def test_very_many_producers_can_be_dropped_together(lab: Lab, queue: LocalQueue) -> None:
    """Each step passed over all those that were gone already: minutes for 300,000, where it is a second now."""
    sent(lab, queue, 1)
    last = queue.last_number(A)
    assert last is not None
    facts = queue.facts
    for place in range(300_000):
        facts.recover(Note.PRODUCER, encode_producer(b"%016d" % place, last), 0, ())
    lab.pass_time(PRODUCER_IDLE_MS)
    began = process_time()
    assert queue.last_number(b"%016d" % 7) is None
    while facts.count(Note.PRODUCER) > 1:
        new: Changes = {}
        put(new, Note.PRODUCER, encode_producer(B, last._replace(time_ms=lab.host.now_ms())))
        facts.logged(facts.pending(new, 0), queue.log.active.number)
    assert process_time() - began < 60


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_store_each_message_once_in_order(seed: int) -> None:
    """Producers send on and on, and again behind refusals, full queues, failing disks and crashes."""
    print(f"seed {seed}")
    rng = Random(seed)
    lab = Lab(seed=seed, cap=CAP_BYTES_MIN, max_message_size=4096)
    queue = lab.queue()
    owners = [producer_key("", name) for name in "abc"]
    confirmed = dict.fromkeys(owners, 0)
    """By producer: all up to this number are stored, it was told."""
    taken: dict[bytes, list[int]] = {owner: [] for owner in owners}

    def drain() -> None:
        for body in lab.pop_all(queue):
            owner, number = body.split(b" ")[:2]
            taken[owners[int(owner)]].append(int(number))

    for _ in range(120):
        for place in rng.sample(range(3), rng.randint(1, 3)):
            owner = owners[place]
            first = rng.randint(max(1, confirmed[owner] - 5), confirmed[owner] + 1)
            count = rng.randint(1, 8)
            messages = [message(b"%d %d " % (place, first + i) + b"x" * rng.randint(0, 1500)) for i in range(count)]
            answered = [first]

            def answer(
                error: CurbstoneError | None, seq: int, count: int, owner: bytes = owner, at: list[int] = answered
            ) -> None:
                at[0] += count
                if error is None:
                    confirmed[owner] = max(confirmed[owner], at[0] - 1)

            queue.publish(
                messages,
                answer,
                atomic=rng.random() < 0.3,
                numbered=Numbered(owner, first, 0 if first == 1 else first - 1),
            )
        lab.disk.eio_chance = 0.2 if rng.random() < 0.1 else 0
        if rng.random() < 0.7:
            lab.settle()
        if rng.random() < 0.08:
            lab.restart("power")
            queue = lab.reopened(queue)
        elif lab.disk.eio_chance:
            lab.disk.eio_chance = 0
            lab.pass_time(3000)
        if rng.random() < 0.3:
            lab.settle()
            drain()
        check_room(queue)
    lab.pass_time(3000)
    for place, owner in enumerate(owners):
        messages = [message(b"%d %d " % (place, confirmed[owner] + 1))]
        queue.publish(messages, lambda *_: None, numbered=Numbered(owner, confirmed[owner] + 1, confirmed[owner]))
    drain()
    lab.settle()
    drain()
    for owner in owners:
        assert taken[owner] == sorted(set(taken[owner])), "twice, or out of order"
        assert set(range(1, confirmed[owner] + 1)) <= set(taken[owner]), "lost"


def test_full_queue_refuses_and_later_accepts_in_order() -> None:
    lab = Lab(cap=CAP_BYTES_MIN, max_message_size=4096)
    queue = lab.queue()
    sent(lab, queue, 1)
    while not any(error for error, _, _ in lab.publish_answers(queue, [message(b"x" * 3000)])):
        pass
    answers: list[Answer] = []
    big = [message(b"2" + b" " * 3000)]
    queue.publish(big, lambda *given: answers.append(given), numbered=Numbered(A, 2, 1))
    behind = send(lab, queue, 3)
    lab.settle()
    assert [type(error) for error, _, _ in answers + behind] == [QueueFull, NumberGap]
    lab.pop_all(queue)
    assert [error for error, _, _ in sent(lab, queue, 2) + sent(lab, queue, 3)] == [None, None]
    assert numbers(lab, queue) == [2, 3]


def full(lab: Lab) -> LocalQueue:
    """Return a queue that has no room for a large message any more, and some for small ones."""
    queue = lab.queue()
    while not any(error for error, _, _ in lab.publish_answers(queue, [message(b"0" + b" " * 3000)])):
        pass
    return queue


def test_refused_first_message_is_not_overtaken() -> None:
    """The second was stored with its number, so the first, sent again, was answered as a repeat and was nowhere."""
    lab = Lab(cap=CAP_BYTES_MIN, max_message_size=4096)
    queue = full(lab)
    answers: list[Answer] = []
    big = [message(b"1" + b" " * 3000)]
    queue.publish(big, lambda *given: answers.append(given), numbered=Numbered(A, 1, 0))
    behind = send(lab, queue, 2)
    lab.settle()
    assert [type(error) for error, _, _ in answers + behind] == [QueueFull, NumberGap]
    lab.pop_all(queue)
    assert [(error, count) for error, _, count in sent(lab, queue, 1, 2)] == [(None, 2)]
    assert numbers(lab, queue) == [1, 2]


def test_answers_follow_the_order_of_messages(lab: Lab) -> None:
    """Whose answer it is says the order alone: when a refusal came late, what it refused was confirmed."""
    queue = lab.queue(max_message_size=10)
    assert sent(lab, queue, 1) == [(None, 1, 1)]
    order: list[str] = []

    def publish(name: str, numbered: Numbered, *, size: int = 1) -> None:
        queue.publish(
            [message(b"x" * size)], lambda error, *_: order.append(f"{name} {type(error).__name__}"), numbered=numbered
        )

    publish("gap", Numbered(A, 3, 2))
    publish("large", Numbered(A, 4, 3), size=11)
    publish("gap too", Numbered(A, 5, 4))
    publish("large too", Numbered(A, 6, 5), size=11)
    publish("repeat", Numbered(A, 1, 0))
    publish("next", Numbered(A, 2, 1))
    publish("large after it", Numbered(A, 6, 5), size=11)
    publish("next again", Numbered(A, 2, 1))
    lab.settle()
    assert order == [
        "gap NumberGap", "large MessageTooLarge", "gap too NumberGap", "large too MessageTooLarge", "repeat NoneType",
        "next NoneType", "large after it MessageTooLarge", "next again NoneType",
    ]  # fmt: skip
