"""A dead-letter queue that is full, and nobody consumes: what died waits, and continues by itself."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from curbstone.core.admin.queue import LocalQueue
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
