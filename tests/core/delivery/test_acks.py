"""Ending deliveries: ack, nack, reject, tries, dead letters and their way home."""

from __future__ import annotations

from functools import partial

import pytest

from curbstone.core import headers
from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import BadRequest, CurbstoneError, NoSuchQueue, StaleDelivery, Unavailable
from curbstone.core.message import Message
from tests.kit.lab import Lab, Peer, message, numbered


def dead_facts(lab: Lab, queue: LocalQueue) -> list[dict[str, str]]:
    """Return what each dead letter of a queue says of its death."""
    return [dict(headers.decode(found.message.headers)) for found in lab.peek(queue)]


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_acked_message_never_returns(lab: Lab, queue: LocalQueue, how: str) -> None:
    lab.publish(queue, *numbered(6))
    peer = Peer(lab, queue)
    peer.ack(2, 5, 1)
    lab.restart(how)
    assert lab.bodies(lab.reopened(queue)) == [numbered(6)[index] for index in (2, 3, 5)]


def test_an_ack_is_confirmed_only_when_it_is_on_disk(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    peer = Peer(lab, queue)
    confirmed: list[object] = []
    peer.consumer.ack([1], confirmed.append)
    while lab.host.turn():
        assert not confirmed
    lab.settle()
    assert confirmed == [None]


@pytest.mark.parametrize("seqs", [[3], [1, 3], [1, 1], [1, 2, 1], [0], [-1]])
@pytest.mark.parametrize("call", ["ack", "nack", "reject"])
def test_settling_unheld_messages_changes_nothing(lab: Lab, queue: LocalQueue, call: str, seqs: list[int]) -> None:
    lab.publish(queue, *numbered(3))
    peer = Peer(lab, queue, window=2)
    with pytest.raises(StaleDelivery):
        getattr(peer.consumer, call)(seqs)
    lab.settle()
    assert list(peer.consumer.unsettled) == [1, 2] and queue.counts()[:3] == (1, 2, 0)


def test_settling_twice_is_stale(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    peer = Peer(lab, queue)
    peer.ack(1)
    with pytest.raises(StaleDelivery):
        peer.consumer.ack([1])


@pytest.mark.parametrize("call", ["ack", "nack", "reject"])
def test_settling_is_refused_while_the_queue_cannot_write_and_succeeds_later(
    lab: Lab, queue: LocalQueue, call: str
) -> None:
    lab.publish(queue, "a")
    peer = Peer(lab, queue)
    peer.consumer.hold()
    settle = getattr(peer.consumer, call)
    lab.disk.eio_chance = 1.0
    while not queue.state.write_failure:
        lab.publish_answers(queue, [message("refused")])
    (error,) = lab.answer(lambda done: settle([1], on_done=done))
    assert isinstance(error, Unavailable)
    settle([1])  # nobody waits for an answer
    lab.settle()
    assert list(peer.consumer.unsettled) == [1] and queue.counts()[:3] == (0, 1, 0)
    lab.disk.eio_chance = 0
    lab.pass_time(2000)
    assert lab.answer(lambda done: settle([1], on_done=done)) == (None,)
    assert not peer.consumer.unsettled
    if call == "ack":
        lab.restart("power")
        assert lab.bodies(lab.reopened(queue)) == []


def test_settling_in_a_deleted_queue_is_refused(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    pull = lab.lease(queue)
    peer_answers: list[CurbstoneError | None] = []
    lab.broker.delete(queue.name, lambda _: None)
    queue.acks.ack("", [pull[0].delivery], peer_answers.append)
    assert not peer_answers, "answered before the call returned"
    lab.settle()
    assert [type(error) for error in peer_answers] == [NoSuchQueue]


def test_acks_are_counted_and_rejects_are_not(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(6))
    peer = Peer(lab, queue)
    peer.ack(1, 2, 3)
    peer.reject(4)
    peer.nack(5)
    assert (queue.stats.acked, queue.stats.rejected, queue.stats.dropped) == (3, 1, 1)


def test_message_that_reached_no_client_goes_to_the_next_one_at_once(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    unseen = lab.lease(queue)
    peer = Peer(lab, queue)
    queue.give_back(unseen)
    lab.settle()
    assert peer.bodies == [b"a"] and peer.tries == [0]


@pytest.mark.parametrize("how", ["kill", "power"])
def test_message_that_reached_no_client_keeps_its_tries_and_is_ready_after_a_crash(
    lab: Lab, queue: LocalQueue, how: str
) -> None:
    lab.publish(queue, "a", "b")
    peer = Peer(lab, queue, window=1)
    peer.consumer.hold()
    peer.nack(1)
    queue.give_back(lab.lease(queue))
    lab.settle()
    lab.restart(how)
    found = lab.peek(lab.reopened(queue))
    assert [(each.tries, each.state, each.due_ms) for each in found] == [(1, "rdy", 0), (0, "rdy", 0)]


def test_settling_by_id_counts_once_and_finds_nothing_the_second_time(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    assert lab.answer(partial(queue.settle_by_id, 1)) == (None, True)
    assert lab.answer(partial(queue.settle_by_id, 1)) == (None, False)
    assert queue.state.stats.acked == 1


def test_unsettled_is_in_the_order_of_delivery(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(4))
    peer = Peer(lab, queue)
    peer.nack(2)
    assert list(peer.consumer.unsettled) == [1, 3, 4, 2]


def test_a_nacked_message_returns_to_its_place_with_one_more_try(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(5))
    peer = Peer(lab, queue, window=3)
    peer.consumer.hold()
    peer.nack(2)
    peer.nack(1)
    assert queue.counts()[:3] == (4, 1, 0)
    assert lab.pop_all(queue) == [numbered(5)[index] for index in (0, 1, 3, 4)]


def test_tries_count_up_and_survive_every_restart(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    for tries, how in enumerate(["shutdown", "kill", "power"] * 2):
        peer = Peer(lab, queue)
        assert peer.tries[0] == tries
        peer.consumer.hold()
        peer.nack(1)
        lab.restart(how)
        queue = lab.reopened(queue)
    assert lab.peek(queue)[0].tries == 6


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_message_held_at_a_restart_is_redelivered(lab: Lab, queue: LocalQueue, how: str) -> None:
    lab.publish(queue, "a", "b", "c")
    Peer(lab, queue, window=2)
    lab.restart(how)  # no time has passed: what was handed out is written down at once
    queue = lab.reopened(queue)
    assert queue.counts()[:3] == (3, 0, 0)
    assert Peer(lab, queue).tries == [1, 1, 0]


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_message_leased_from_a_backlog_is_marked_redelivered(lab: Lab, how: str) -> None:
    queue = lab.queue(groups=["g"])
    lab.publish(queue, "a", "b", "c")
    lab.lease(queue, 2)
    lab.lease(queue, 1, group="g")
    lab.restart(how)
    queue = lab.reopened(queue)
    assert Peer(lab, queue).tries == [1, 1, 0]
    assert Peer(lab, queue, group="g").tries == [1, 0, 0]


def test_delivery_mark_is_written_only_after_new_deliveries(lab: Lab, queue: LocalQueue) -> None:
    peer = Peer(lab, queue, window=2)
    before = queue.stats.commits
    lab.publish(queue, "a", "b")  # who will get them is said in the same batch
    assert queue.stats.commits == before + 1
    lab.publish(queue, "c")
    peer.ack(1)
    assert queue.stats.commits == before + 3, "the mark goes with the ack that made room"
    lab.pass_time(100)
    assert queue.stats.commits == before + 3


def test_nack_delay_lets_others_pass(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a", "b")
    peer = Peer(lab, queue)
    peer.nack(1, delay_ms=1000)
    assert queue.counts()[:3] == (0, 1, 1)
    lab.pass_time(999)
    assert peer.seqs == [1, 2]
    lab.pass_time(1)
    assert peer.seqs == [1, 2, 1] and peer.received[2].tries == 1
    assert peer.received[2].mature_ms == lab.host.wall_ms()


@pytest.mark.parametrize("how", ["kill", "power"])
def test_nack_leaves_the_next_message_as_it_was_after_a_crash(lab: Lab, queue: LocalQueue, how: str) -> None:
    lab.publish(queue, "a", "b", "c")
    peer = Peer(lab, queue, window=1)
    peer.consumer.hold()
    peer.nack(1, delay_ms=60_000)
    lab.restart(how)
    found = lab.peek(lab.reopened(queue))
    assert [(each.tries, each.state) for each in found] == [(1, "delayed"), (0, "rdy"), (0, "rdy")]


def test_nack_with_the_shortest_delay_waits_for_it(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    peer = Peer(lab, queue)
    peer.nack(1, delay_ms=1)
    assert peer.seqs == [1] and queue.counts()[:3] == (0, 0, 1)
    lab.pass_time(1)
    assert peer.seqs == [1, 1]


def test_nack_uses_its_own_delay_or_that_of_the_queue(lab: Lab) -> None:
    queue = lab.queue(nack_delay=2.5)
    lab.publish(queue, "a", "b")
    peer = Peer(lab, queue)
    peer.nack(1)
    peer.nack(2, delay_ms=0)
    assert peer.seqs == [1, 2, 2]
    lab.pass_time(2500)
    assert peer.seqs == [1, 2, 2, 1]


def test_a_rejected_message_without_a_dead_letter_queue_is_dropped_and_counted(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    Peer(lab, queue).reject(1, error="bad")
    assert queue.counts()[:3] == (0, 0, 0) and queue.stats.dropped == 1
    lab.restart("power")
    assert lab.bodies(lab.reopened(queue)) == []


def test_rejected_message_is_dead_lettered_with_its_origin_and_reason(lab: Lab) -> None:
    queue = lab.queue(dead_letter="dead")
    lab.publish_messages(queue, [Message(b"a", b"k:v\n")])
    Peer(lab, queue).reject(1, error="no: good\n")
    dead = lab.named("dead")
    assert lab.bodies(dead) == [b"a"] and queue.counts()[:3] == (0, 0, 0)
    assert dead_facts(lab, dead) == [
        {
            "k": "v",
            "x-dead-queue": "default/q",
            "x-dead-reason": "rejected",
            "x-dead-time": str(lab.host.wall_ms()),
            "x-dead-tries": "1",
            "x-dead-id": queue.message_id(1),
            "x-dead-error": "no: good\n",
        }
    ]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_max_tries_limits_deliveries(lab: Lab, most: int) -> None:
    queue = lab.queue(max_tries=most, dead_letter="dead")
    lab.publish(queue, "a", "b")
    peer = Peer(lab, queue)
    while 1 in peer.consumer.unsettled:
        peer.nack(1, error="again")
    assert peer.seqs.count(1) == most
    dead = lab.named("dead")
    (facts,) = dead_facts(lab, dead)
    assert (facts["x-dead-reason"], facts["x-dead-tries"], facts["x-dead-error"]) == ("max_tries", str(most), "again")


def test_closing_a_consumer_counts_as_a_try(lab: Lab) -> None:
    queue = lab.queue(max_tries=2)
    lab.publish(queue, "a")
    for _ in range(2):
        Peer(lab, queue).close()
    assert queue.counts()[:3] == (0, 0, 0) and queue.stats.dropped == 1


def test_lowered_max_tries_applies_to_earlier_tries(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a", "b")
    peer = Peer(lab, queue, window=1)
    for _ in range(3):
        peer.nack(1)
    peer.close()
    lab.queue(max_tries=3)
    assert Peer(lab, queue).bodies == [b"b"]
    assert (queue.stats.dropped, queue.stats.expired) == (1, 0)


def test_max_tries_holds_across_restarts(lab: Lab) -> None:
    queue = lab.queue(max_tries=3)
    lab.publish(queue, "a")
    given = 0
    for _ in range(8):
        peer = Peer(lab, queue)
        given += len(peer.received)
        if given == 1:
            peer.consumer.hold()
            peer.nack(1)
        lab.pass_time(200)
        lab.restart("shutdown")
        queue = lab.reopened(queue)
    assert given <= 3


def test_dead_letter_that_dies_again_reports_only_the_last_death(lab: Lab) -> None:
    queue, dead = lab.queue(dead_letter="dead"), lab.queue("dead", dead_letter="grave")
    lab.publish_messages(queue, [Message(b"a", b"k:v\n")])
    Peer(lab, queue).reject(1, error="first")
    Peer(lab, dead).reject(1)
    (facts,) = dead_facts(lab, lab.named("grave"))
    assert facts["x-dead-queue"] == "default/dead" and "x-dead-error" not in facts and facts["k"] == "v"


def test_a_reject_is_confirmed_when_the_dead_letter_is_on_disk(lab: Lab) -> None:
    queue = lab.queue(dead_letter="dead")
    lab.publish(queue, *numbered(20))
    Peer(lab, queue).reject(*range(1, 21))
    lab.restart("power")
    assert sorted(lab.bodies("dead")) == sorted(numbered(20))
    assert lab.bodies(lab.reopened(queue)) == []


def test_full_dead_letter_queue_keeps_the_message_in_its_queue(lab: Lab) -> None:
    queue, dead = lab.queue(dead_letter="dead"), lab.queue("dead", cap=64 * 1024)
    while True:
        ((error, _, _),) = lab.publish_answers(dead, [Message(b"x" * 1000)])
        if error is not None:
            break
    lab.publish(queue, b"y" * 6000)
    peer = Peer(lab, queue)
    peer.consumer.reject([1], "bad")
    lab.settle()
    lab.pass_time(100)
    assert queue.counts()[:3] == (0, 0, 1)
    lab.purge(dead)
    lab.pass_time(10_000)
    assert [facts["x-dead-error"] for facts in dead_facts(lab, dead)] == ["bad"]
    assert queue.counts()[:3] == (0, 0, 0) and peer.seqs == [1]


def test_a_queue_is_not_its_own_dead_letter_queue(lab: Lab, queue: LocalQueue) -> None:
    with pytest.raises(BadRequest, match="can't be its own"):
        lab.broker.declare(queue.name, {"dead_letter": "q"}, lambda _: None)
    assert queue.options.dead_letter == ""


def test_new_queue_is_not_its_own_dead_letter_queue() -> None:
    with pytest.raises(BadRequest, match="can't be its own"):
        Lab().queue("new", dead_letter="new")


def test_settling_nothing_is_answered(lab: Lab, queue: LocalQueue) -> None:
    """An ack of no message ended the queue, and a reject of none was never answered."""
    lab.publish(queue, "m")
    peer = Peer(lab, queue)
    peer.ack()
    peer.nack()
    peer.reject()
    peer.ack(1)
    assert lab.bodies(queue) == []
