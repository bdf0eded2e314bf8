"""Publishing: what is confirmed, in which order, what is refused, and the ids."""

from __future__ import annotations

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.log.format import TriesRecord
from curbstone.core.engine.write_queue import AtomicWrite, Publish, Release, StagedMark
from curbstone.core.errors import CurbstoneError, MessageTooLarge, NoSuchQueue
from curbstone.core.message import Delivery, Message
from curbstone.core.names import queue_name
from tests.kit.lab import Lab, Peer, message, numbered


def test_list_is_confirmed_together_with_consecutive_seqs(lab: Lab, queue: LocalQueue) -> None:
    messages = [message(body) for body in numbered(5)]
    assert lab.publish_answers(queue, messages) == [(None, 1, 5)]
    assert [found.seq for found in messages] == [1, 2, 3, 4, 5]
    assert lab.bodies(queue) == numbered(5)


def test_nothing_is_confirmed_or_delivered_before_it_is_on_disk(lab: Lab, queue: LocalQueue) -> None:
    peer = Peer(lab, queue)
    answers: list[object] = []
    queue.publish([message("a")], lambda *given: answers.append(given))
    while lab.host.turn():
        assert not answers and not peer.received
    lab.settle()
    assert answers == [(None, 1, 1)] and peer.bodies == [b"a"]


def test_publishes_during_a_sync_join_the_next_commit(lab: Lab, queue: LocalQueue) -> None:
    commits = queue.stats.commits
    for number in range(50):
        queue.publish([message(b"%d" % number)], lambda *_: None)
    lab.host.turn()
    for number in range(50):
        queue.publish([message(b"%d" % number)], lambda *_: None)
    lab.settle()
    assert queue.counts().rdy == 100
    assert queue.stats.commits - commits == 2


def test_an_empty_list_is_answered(lab: Lab) -> None:
    assert lab.publish_answers(lab.queue(), []) == [(None, 0, 0)]


@pytest.mark.parametrize("body", [b"", b"\0", bytes(range(256)), b"x" * 300_000], ids=["empty", "nul", "all", "large"])
def test_any_body_and_headers_round_trip_over_restarts(lab: Lab, queue: LocalQueue, body: bytes) -> None:
    lab.publish_messages(queue, [Message(body, b"content-type:a/b\nx\\c:\\\\\n"), Message(body)])
    for how in ("shutdown", "kill", "power"):
        lab.restart(how)
        queue = lab.reopened(queue)
        found = [peeked.message for peeked in lab.peek(queue)]
        assert [(m.body, m.headers) for m in found] == [(body, b"content-type:a/b\nx\\c:\\\\\n"), (body, b"")]


def test_a_message_keeps_its_publish_time_and_id(lab: Lab, queue: LocalQueue) -> None:
    published_ms = lab.host.wall_ms()
    lab.publish(queue, "a")
    lab.pass_time(5000)
    for _ in range(2):
        (found,) = lab.peek(queue)
        assert found.message.timestamp_ms == published_ms
        assert queue.parse_id(queue.message_id(found.message.seq)) == 1
        lab.restart()
        queue = lab.reopened(queue)


def test_message_id_needs_no_escaping(lab: Lab) -> None:
    text = lab.queue().message_id(12345)
    assert not set(text) & set(": \\,/\r\n") and text.isascii()


@pytest.mark.parametrize("text", ["", "-", "1", "x-1", "{uid}", "{uid}-", "{uid}-x", "{uid}--1", "{uid}-١", "{uid}-1 "])
def test_foreign_message_id_is_reported(text: str) -> None:
    queue = Lab().queue()
    assert queue.parse_id(text.format(uid=queue.uid)) is None


def test_ids_differ_between_queues_and_recreations(lab: Lab) -> None:
    uids = {lab.queue("a").uid, lab.queue("b").uid}
    lab.answer(lambda done: lab.broker.delete(queue_name("a"), done))
    uids.add(lab.queue("a").uid)
    assert len(uids) == 3


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_seqs_never_repeat_when_everything_was_settled_before_a_restart(how: str) -> None:
    lab = Lab(cap=64 * 1024)
    queue = lab.queue()
    last = 0
    for _ in range(6):
        (*_, newest) = lab.publish(queue, *numbered(40, 100))
        assert newest == last + 40
        last = newest
        assert len(lab.pop_all(queue)) == 40
        lab.pass_time(3000)  # an idle, empty queue shrinks
        lab.restart(how)
        queue = lab.reopened(queue)
    lab.publish(queue, "a")
    assert lab.purge(queue) == 1
    lab.restart(how)
    assert lab.publish(lab.reopened(queue), "b") == [last + 2]


def test_too_large_message_in_a_list_is_refused_alone(lab: Lab) -> None:
    queue = lab.queue(max_message_size=10)
    sizes = [1, 11, 10, 12, 13, 2]
    answers = lab.publish_answers(queue, [message(b"x" * size) for size in sizes])
    reported = [type(error) for error, _, count in answers for _ in range(count)]
    none = type(None)
    assert reported == [none, MessageTooLarge, none, MessageTooLarge, MessageTooLarge, none]
    assert [len(body) for body in lab.bodies(queue)] == [1, 10, 2]
    assert "12 bytes, the queue's max_message_size is 10" in str(answers[3][0])


def test_too_large_message_refuses_an_atomic_list(lab: Lab) -> None:
    queue = lab.queue(max_message_size=10)
    messages = [message(b"x" * size) for size in (1, 11, 2)]
    ((error, first, count),) = lab.publish_answers(queue, messages, atomic=True)
    assert isinstance(error, MessageTooLarge) and (first, count) == (0, 3)
    assert lab.bodies(queue) == []


def test_an_atomic_list_that_could_never_fit_is_too_large(lab: Lab) -> None:
    queue = lab.queue(cap=64 * 1024)
    ((error, _, count),) = lab.publish_answers(queue, [message(b"x" * 4096) for _ in range(10)], atomic=True)
    assert isinstance(error, MessageTooLarge) and count == 10
    assert lab.bodies(queue) == []


def test_answers_cover_a_list_that_takes_several_commits_in_order() -> None:
    lab = Lab(cap=4 << 20)
    queue = lab.queue()
    answers = lab.publish_answers(queue, [message(b"x" * 1000) for _ in range(2000)])
    seqs = [seq for error, first, count in answers for seq in range(first, first + count) if error is None]
    assert seqs == list(range(1, 2001)) and len(answers) > 1


def test_a_publish_to_a_queue_that_is_being_created_waits_for_it(lab: Lab) -> None:
    queue = lab.broker.ensure(queue_name("new"))
    assert not queue.counts().rdy
    assert lab.publish(queue, "a", "b") == [1, 2]
    lab.restart("power")
    assert lab.bodies(lab.reopened(queue)) == [b"a", b"b"]


def test_a_publish_to_a_deleted_queue_is_refused(lab: Lab, queue: LocalQueue) -> None:
    lab.answer(lambda done: lab.broker.delete(queue.name, done))
    ((error, _, count),) = lab.publish_answers(queue, [message("a"), message("b")])
    assert isinstance(error, NoSuchQueue) and count == 2


def test_publishers_of_one_turn_are_answered_in_their_order(lab: Lab) -> None:
    queue = lab.queue(max_message_size=10)
    order: list[tuple[int, CurbstoneError | None]] = []
    for number, size in enumerate([1, 11, 1, 12, 1]):
        queue.publish([message(b"x" * size)], lambda error, *_, n=number: order.append((n, error)))
    lab.settle()
    assert [number for number, _ in order] == [0, 1, 2, 3, 4]
    assert [error is None for _, error in order] == [True, False, True, False, True]


def test_the_disk_is_synced_once_per_commit_and_not_per_message(lab: Lab, queue: LocalQueue) -> None:
    before = lab.disk.ops
    lab.publish(queue, *numbered(1000))
    assert lab.disk.ops - before < 10


def test_replayed_commits_are_never_refused() -> None:
    promised, staged, whole = (AtomicWrite([], lambda *_: None, 1) for _ in range(3))
    plain = Publish([], lambda *_: None)
    promised.tx = 1
    staged.mark = StagedMark(1, 0)
    assert (promised.must_not_fail, staged.must_not_fail) == (True, True)
    assert (whole.must_not_fail, plain.must_not_fail) == (False, False)
    assert whole.reserved == 0


def test_message_requeued_by_a_transaction_has_one_more_try() -> None:
    held = message(b"")
    held.seq = 7
    release = Release("g", [Delivery(held, 2, 0)], 99, lambda _: None)
    assert release.records == [TriesRecord("g", 7, 1, 3, 99)]
