"""A dead-letter queue that is full, and nobody consumes: what died waits, and continues by itself."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from curbstone.core import headers
from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.delivery.dead_letters import ERROR_CHARS_MAX
from curbstone.core.errors import CurbstoneError, MessageTooLarge
from tests.kit.lab import Lab, Peer, message, numbered

KIB = 1024


def died(lab: Lab, queue: LocalQueue, why: str) -> None:
    """Let all messages of a queue die at once; then no consumer is left."""
    if why == "expired":
        lab.pass_time(1000)
        return
    peer = Peer(lab, queue, window=1000)
    peer.consumer.nack(peer.seqs) if why == "max_tries" else peer.consumer.reject(peer.seqs)
    lab.settle()
    peer.close()


@pytest.mark.parametrize(
    ("why", "restarted"), [("expired", False), ("expired", True), ("max_tries", False), ("rejected", False)]
)
def test_waiting_dead_letters_move_when_there_is_room(why: str, restarted: bool) -> None:
    """Messages that had expired stayed ready until a consumer came."""
    lab = Lab(cap=1024 * KIB)
    dead = lab.queue("dead", cap=64 * KIB)
    queue = lab.queue("a", dead_letter="dead", ttl=1 if why == "expired" else 0, max_tries=int(why == "max_tries"))
    bodies = numbered(100, 1500)
    lab.publish(queue, *bodies)
    died(lab, queue, why)
    held = dead.counts().rdy
    assert 0 < held < 60 and sum(queue.counts()[:3]) == 100 - held
    if restarted:
        lab.restart("power")
        queue, dead = lab.reopened(queue), lab.reopened(dead)
    seen = Counter[bytes]()
    for _ in range(8):
        lab.pass_time(60_000)
        letters = lab.bodies(dead)
        assert Counter(letters) + Counter(lab.bodies(queue)) + seen == Counter(bodies), "each is in one place"
        seen.update(letters)
        lab.purge(dead)
    assert seen == Counter(bodies) and sum(queue.counts()[:3]) == 0
    assert queue.stats.dead_lettered == 100 - (held if restarted else 0)


def test_waiting_dead_letters_are_reported_once_and_retried_in_batches(caplog: pytest.LogCaptureFixture) -> None:
    """Each wrote a line every five seconds."""
    lab = Lab(cap=1024 * KIB)
    lab.queue("dead", cap=64 * KIB)
    queue = lab.queue("a", dead_letter="dead", ttl=1)
    lab.publish(queue, *numbered(500, 1500))
    lab.pass_time(120_000)
    assert len([record for record in caplog.records if "could not be dead-lettered" in record.message]) == 1


@pytest.mark.parametrize("why", ["expired", "max_tries", "rejected"])
def test_message_dying_during_a_stop_is_dead_lettered_after_the_start(
    lab: Lab, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An orderly stop with rejects under way logged that they could not be dead-lettered."""
    queue = lab.queue("a", dead_letter="dead", ttl=1 if why == "expired" else 0, max_tries=int(why == "max_tries"))
    lab.publish(queue, b"one")
    peer = Peer(lab, queue)
    ended: list[bool] = []
    if why == "expired":
        peer.close()
        lab.host.pass_time(1000)
    else:
        queue.publish([message(b"two")], lambda *_: None)  # what is under way keeps the stop waiting
    lab.broker.shutdown(lambda: ended.append(True))
    if why != "expired":
        peer.consumer.nack(peer.seqs) if why == "max_tries" else peer.consumer.reject(peer.seqs)
    lab.pass_time(100)
    assert ended and [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
    lab.start(lab.host.wall_ms() + 1000)
    queue = lab.reopened(queue)
    if why != "expired":
        peer = Peer(lab, queue)
        peer.consumer.nack(peer.seqs[:1]) if why == "max_tries" else peer.consumer.reject(peer.seqs[:1])
    lab.pass_time(10_000)
    assert lab.bodies(lab.queue("dead"))[:1] == [b"one"]


def test_a_paused_dead_letter_queue_is_reported_even_while_the_server_stops(caplog: pytest.LogCaptureFixture) -> None:
    lab = Lab(cap=1024 * KIB)
    dead = lab.queue("dead", publish_paused=True)
    queue = lab.queue("a", dead_letter="dead")
    lab.publish(queue, b"one")
    peer = Peer(lab, queue)
    peer.consumer.reject(peer.seqs)
    lab.broker.shutdown(lambda: None)
    lab.pass_time(100)
    assert dead.counts().rdy == 0
    assert any("could not be dead-lettered" in record.message for record in caplog.records)


def headers_of_dead(lab: Lab, *, headers_block: bytes, error: str = "") -> dict[str, str]:
    """Return the headers of a message after it was rejected."""
    queue = lab.queue("a", dead_letter="dead")
    lab.publish(queue, "m", headers=headers_block)
    Peer(lab, queue).reject(1, error=error)
    (found,) = lab.peek(lab.named("dead"))
    return dict(headers.decode(found.message.headers))


def test_dead_letter_shows_its_name_and_batch_and_has_neither() -> None:
    lab = Lab()
    found = headers_of_dead(lab, headers_block=b"k:v\nx-unique:one\nx-batch:b1\nx-batch-size:2\n")
    assert (found["k"], found["x-dead-unique"], found["x-dead-batch"]) == ("v", "one", "b1")
    assert not {"x-unique", "x-batch", "x-batch-size"} & set(found)
    assert not {"x-dead-unique", "x-dead-replace", "x-dead-batch"} & set(headers_of_dead(Lab(), headers_block=b""))


def test_error_of_a_dead_letter_is_cut_and_has_no_zero_bytes() -> None:
    found = headers_of_dead(Lab(), headers_block=b"", error="\0" + "e" * 2000)
    assert found["x-dead-error"] == "e" * ERROR_CHARS_MAX


def test_how_messages_ended_is_counted() -> None:
    lab = Lab()
    moving, dropping = lab.queue("a", dead_letter="dead", max_tries=2), lab.queue("b", max_tries=2)
    for queue in (moving, dropping):
        lab.publish(queue, *numbered(4))
        lab.publish(queue, "short", ttl_ms=10)
        peer = Peer(lab, queue, window=4)
        peer.reject(1)
        peer.nack(2, 3)
        peer.nack(2, 3)
        peer.close()
        lab.pass_time(1000)
    assert [(queue.stats.expired, queue.stats.rejected) for queue in (moving, dropping)] == [(1, 1)] * 2
    assert (moving.stats.dead_lettered, moving.stats.dropped) == (4, 0)
    assert (dropping.stats.dead_lettered, dropping.stats.dropped) == (0, 3)
    assert [queue.stats.released for queue in (moving, dropping)] == [6, 6]


def test_waiting_dead_letters_are_reported_again_after_they_had_moved(caplog: pytest.LogCaptureFixture) -> None:
    lab = Lab(cap=1024 * KIB)
    dead = lab.queue("dead", publish_paused=True)
    queue = lab.queue("a", dead_letter="dead")
    for number in (1, 2):
        dead.store(dead.meta.with_options({"publish_paused": True}, 0), lambda _error: None)
        lab.publish(queue, b"m")
        peer = Peer(lab, queue)
        peer.consumer.reject([number])
        lab.pass_time(12_000)
        assert len([record for record in caplog.records if "could not be dead-lettered" in record.message]) == number
        assert queue.counts()[:3] == (0, 0, 1) and lab.peek(queue)[0].due_ms > lab.host.now_ms()
        dead.store(dead.meta.with_options({"publish_paused": False}, 0), lambda _error: None)
        lab.pass_time(5000)
        assert dead.counts().rdy == number and sum(queue.counts()[:3]) == 0
        peer.close()


def test_a_message_that_waits_to_be_dead_lettered_can_be_settled(lab: Lab) -> None:
    dead = lab.queue("dead", publish_paused=True)
    queue = lab.queue("a", dead_letter="dead")
    lab.publish(queue, b"one", b"two")
    Peer(lab, queue).consumer.reject([1, 2])
    lab.settle()
    assert queue.counts()[:3] == (0, 0, 2)
    assert lab.answer(lambda done: queue.settle_by_id(1, done)) == (None, True)
    dead.store(dead.meta.with_options({"publish_paused": False}, 0), lambda _error: None)
    lab.pass_time(10_000)
    assert lab.bodies(dead) == [b"two"] and sum(queue.counts()[:3]) == 0


@pytest.mark.parametrize("is_consumed", [True, False])
def test_more_dead_letters_than_are_tried_at_once_are_moved_and_not_delivered(is_consumed: bool) -> None:
    """With a consumer, those that are not tried yet are found when messages are delivered."""
    lab = Lab(cap=8 * 1024 * KIB)
    dead = lab.queue("dead", publish_paused=True)
    queue = lab.queue("a", dead_letter="dead")
    bodies = numbered(250, 100)
    lab.publish(queue, *bodies)
    peer = Peer(lab, queue)
    peer.consumer.reject(peer.seqs, "not today")
    lab.settle()
    assert queue.counts()[:3] == (0, 0, 250)
    if not is_consumed:
        peer.close()
    dead.store(dead.meta.with_options({"publish_paused": False}, 0), lambda _error: None)
    lab.pass_time(6000)
    assert peer.bodies == bodies and not peer.consumer.unsettled and sum(queue.counts()[:3]) == 0
    moved = [headers.decode(found.message.headers) for found in lab.peek(dead)]
    assert sorted(lab.bodies(dead)) == sorted(bodies)
    assert {(each["x-dead-reason"], each["x-dead-error"]) for each in map(dict, moved)} == {("rejected", "not today")}


def test_many_rejects_take_few_transactions_and_keep_their_order() -> None:
    """Each took one of its own, so that 10,000 kept the server busy for minutes."""
    lab = Lab(cap=8 * 1024 * KIB)
    dead = lab.queue("dead")
    queue = lab.queue("a", dead_letter="dead")
    bodies = numbered(1000, 100)
    lab.publish(queue, *bodies)
    peer = Peer(lab, queue)
    before = lab.broker.tx_log.next_tx
    peer.reject(*peer.seqs)
    assert lab.broker.tx_log.next_tx - before <= 1 + 1000 // 100 + 1
    assert lab.bodies(dead) == bodies and queue.stats.dead_lettered == 1000 and sum(queue.counts()[:3]) == 0


def test_refused_dead_letter_does_not_block_others() -> None:
    lab = Lab(cap=8 * 1024 * KIB)
    dead = lab.queue("dead", max_message_size=200)
    queue = lab.queue("a", dead_letter="dead")
    lab.publish(queue, *(b"x" * (300 if number in (5, 6, 60) else 100) for number in range(100)))
    peer = Peer(lab, queue)
    answers: list[CurbstoneError | None] = []
    peer.consumer.reject(peer.seqs[:50], on_done=answers.append)
    peer.consumer.reject(peer.seqs[50:], on_done=answers.append)
    lab.settle()
    assert [type(error) for error in answers] == [MessageTooLarge, MessageTooLarge]
    assert dead.counts().rdy == 97 and queue.counts()[:3] == (0, 0, 3)
    dead.store(dead.meta.with_options({"max_message_size": 1000}, 0), lambda _error: None)
    lab.pass_time(6000)
    assert dead.counts().rdy == 100 and sum(queue.counts()[:3]) == 0


def test_rejects_of_several_groups_each_end_the_message_in_their_group(lab: Lab) -> None:
    dead = lab.queue("dead")
    queue = lab.queue("a", dead_letter="dead", groups=["one", "two"])
    lab.publish(queue, *numbered(20, 10))
    peers = [Peer(lab, queue, group=name) for name in ("one", "two")]
    for seq in range(1, 21):
        for peer in peers:
            peer.consumer.reject([seq])
    lab.settle()
    assert dead.counts().rdy == 40
    assert [sum(queue.counts(name)[:3]) for name in ("one", "two")] == [0, 0]
