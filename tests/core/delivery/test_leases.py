"""Leases, and pop: takers of a single answer."""

from __future__ import annotations

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.delivery.pull import LEASE_BYTES_MAX
from curbstone.core.errors import CurbstoneError, NoSuchQueue, Unavailable
from curbstone.core.message import Delivery
from curbstone.core.options import MIB
from curbstone.core.values import Lease, Outcome
from tests.kit.lab import Lab, Peer, message, numbered


def settle(lab: Lab, queue: LocalQueue, tokens: list[str], outcome: Outcome = Outcome.ACK, **how: object) -> object:
    return lab.answer(lambda done: queue.settle_leases(tokens, outcome, done, **how))  # type: ignore[arg-type]


def test_lease_returns_up_to_count_in_order(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(5))
    assert [lease.delivery.message.seq for lease in lab.lease(queue, 3)] == [1, 2, 3]
    assert [lease.delivery.message.seq for lease in lab.lease(queue, 3)] == [4, 5]
    assert lab.lease(queue, 3) == []
    assert queue.counts()[:3] == (0, 5, 0) and queue.counts().consumers == 0


def test_expired_lease_requeues_its_message(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a", "b")
    (lease,) = lab.lease(queue, 1, 1000)
    assert lease.expires_ms == lab.host.now_ms() + 1000
    lab.pass_time(999)
    assert queue.counts()[:3] == (1, 1, 0)
    lab.pass_time(1)
    assert queue.counts()[:3] == (2, 0, 0)
    assert Peer(lab, queue).tries == [1, 0]
    assert settle(lab, queue, [lease.token]) == (None, 0, [lease.token])


def test_an_extended_lease_returns_later(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    (lease,) = lab.lease(queue, 1, 1000)
    lab.pass_time(900)
    assert lab.extend(queue, [lease.token, "unknown"], 1000) == ["unknown"]
    lab.pass_time(999)
    assert queue.counts().wip == 1
    lab.pass_time(1)
    assert queue.counts().rdy == 1
    assert lab.extend(queue, [lease.token], 1000) == [lease.token]


def test_a_lease_can_be_made_shorter(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    (lease,) = lab.lease(queue, 1, 60_000)
    lab.extend(queue, [lease.token], 10)
    lab.pass_time(10)
    assert queue.counts().rdy == 1


def test_settled_leases_are_counted_and_stale_ones_reported(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(3))
    first, second, third = (lease.token for lease in lab.lease(queue, 3))
    assert settle(lab, queue, [first, "junk", second, first]) == (None, 2, ["junk", first])
    lab.restart("power")
    queue = lab.reopened(queue)
    assert lab.bodies(queue) == numbered(3)[2:]
    assert settle(lab, queue, [third]) == (None, 0, [third])


def test_nacked_lease_returns_after_its_delay(lab: Lab) -> None:
    queue = lab.queue(nack_delay=5)
    lab.publish(queue, "a", "b")
    first, second = lab.lease(queue, 2)
    settle(lab, queue, [first.token], Outcome.NACK, delay_ms=0)
    settle(lab, queue, [second.token], Outcome.NACK)
    assert queue.counts()[:3] == (1, 0, 1)
    lab.pass_time(5000)
    assert [found.tries for found in lab.peek(queue, state="rdy")] == [1, 1]


def test_rejected_lease_is_dead_lettered_before_the_answer(lab: Lab) -> None:
    queue = lab.queue(dead_letter="dead")
    lab.publish(queue, "a", "b")
    tokens = [lease.token for lease in lab.lease(queue, 2)]
    answers: list[object] = []
    queue.settle_leases(tokens, Outcome.REJECT, lambda *given: answers.append(given), error="why")
    while not answers:
        assert lab.host.turn() or lab.host.work()
    lab.restart("power")
    dead = next(queue for queue in lab.broker.queues() if queue.name.queue == "dead")
    assert answers == [(None, 2, [])] and sorted(lab.bodies(dead)) == [b"a", b"b"]


@pytest.mark.parametrize("outcome", [Outcome.ACK, Outcome.NACK, Outcome.REJECT])
def test_leases_are_not_settled_while_the_queue_cannot_write(lab: Lab, queue: LocalQueue, outcome: Outcome) -> None:
    lab.publish(queue, "a")
    (lease,) = lab.lease(queue)
    lab.disk.eio_chance = 1.0
    while not queue.state.write_failure:
        lab.publish_answers(queue, [message("refused")])
    error, settled, stale = lab.answer(lambda done: queue.settle_leases([lease.token], outcome, done))
    assert isinstance(error, Unavailable) and (settled, stale) == (0, [])
    assert queue.counts()[:3] == (0, 1, 0)
    lab.disk.eio_chance = 0
    lab.pass_time(2000)
    assert settle(lab, queue, [lease.token], outcome) == (None, 1, [])


@pytest.mark.parametrize("outcome", [Outcome.ACK, Outcome.NACK])
def test_failed_commit_of_settled_leases_counts_none(lab: Lab, queue: LocalQueue, outcome: Outcome) -> None:
    lab.publish(queue, "a")
    (lease,) = lab.lease(queue)
    lab.disk.eio_chance = 1.0
    error, settled, stale = lab.answer(lambda done: queue.settle_leases([lease.token, "junk"], outcome, done))
    assert isinstance(error, Unavailable) and (settled, stale) == (0, ["junk"])


def test_leases_of_a_deleted_queue_are_refused(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    (lease,) = lab.lease(queue)
    lab.broker.delete(queue.name, lambda _: None)
    error, settled, stale = lab.answer(lambda done: queue.settle_leases([lease.token], Outcome.ACK, done))
    assert isinstance(error, NoSuchQueue) and (settled, stale) == (0, [])
    assert len(queue.leases) == 0 and queue.leases.next_due_ms is None


def test_leases_of_another_owner_are_stale(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    given: list[list[Lease]] = []
    queue.lease(1, 60_000, given.append, owner="me")  # type: ignore[arg-type]
    lab.settle()
    token = given[0][0].token
    assert settle(lab, queue, [token], owner="you") == (None, 0, [token])
    assert lab.answer(lambda done: queue.extend([token], 10, done, owner="you")) == (None, [token])
    lab.pass_time(10)
    assert queue.counts().wip == 1
    assert settle(lab, queue, [token], owner="me") == (None, 1, [])


def test_a_lease_begins_when_it_is_given(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    lab.pass_time(5000)
    (lease,) = lab.lease(queue, ms=1000)
    assert lease.delivery.handed_ms == lab.host.now_ms() == lease.expires_ms - 1000


@pytest.mark.parametrize("how", ["settled", "given back", "run out"])
def test_ended_leases_are_no_longer_among_those_of_the_server(lab: Lab, queue: LocalQueue, how: str) -> None:
    lab.publish(queue, "a")
    (lease,) = lab.lease(queue, ms=1000)
    assert lab.broker.leased.queue_of(lease.token) == queue.name
    if how == "settled":
        settle(lab, queue, [lease.token])
    elif how == "given back":
        queue.give_back([lease])
    else:
        lab.pass_time(1000)
    assert lab.broker.leased.queue_of(lease.token) is None
    queue.give_back([lease])  # has no effect
    lab.settle()
    assert queue.counts()[:3] == (int(how != "settled"), 0, 0)


def test_settling_no_lease_is_answered(lab: Lab) -> None:
    assert settle(lab, lab.queue(), []) == (None, 0, [])


def test_lease_tokens_are_unpredictable_and_unique(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(200))
    tokens = {lease.token for lease in lab.lease(queue, 200)}
    lab.pass_time(30_000)
    tokens |= {lease.token for lease in lab.lease(queue, 200)}
    assert len(tokens) == 400
    secrets = {token.rpartition(".")[2] for token in tokens}
    assert len(secrets) == 400 and all(len(secret) >= 20 for secret in secrets)


def test_lease_token_fits_only_its_message(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a", "b")
    first, second = lab.lease(queue, 2)
    forged = second.token.partition(".")[0] + "." + first.token.partition(".")[2]
    assert settle(lab, queue, [forged]) == (None, 0, [forged])


def test_renewed_lease_has_a_new_token(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    (old,) = lab.lease(queue, 1, 10)
    lab.pass_time(10)
    (new,) = lab.lease(queue, 1, 10_000)
    assert new.token != old.token and new.delivery.tries == 1
    assert lab.extend(queue, [old.token], 99_999) == [old.token]
    assert settle(lab, queue, [old.token]) == (None, 0, [old.token])
    assert settle(lab, queue, [new.token]) == (None, 1, [])


def test_waiting_lease_takes_the_first_message(lab: Lab, queue: LocalQueue) -> None:
    answers: list[list[Lease] | CurbstoneError] = []
    queue.lease(5, 1000, answers.append, wait_ms=500)
    lab.pass_time(499)
    assert not answers
    lab.publish(queue, "a")
    (given,) = answers
    assert isinstance(given, list) and [lease.delivery.message.body for lease in given] == [b"a"]
    lab.publish(queue, "b")
    assert len(answers) == 1 and queue.counts().rdy == 1


def test_lease_or_pop_timeout_returns_nothing(lab: Lab, queue: LocalQueue) -> None:
    answers: list[object] = []
    queue.lease(1, 1000, answers.append, wait_ms=500)
    queue.pop(answers.append, wait_ms=500)
    lab.pass_time(499)
    assert answers == []
    lab.pass_time(1)
    assert answers == [[], None]
    lab.publish(queue, "a")
    assert queue.counts().rdy == 1


def test_cancelled_waiter_takes_nothing(lab: Lab, queue: LocalQueue) -> None:
    answers: list[object] = []
    waiters = [queue.lease(1, 1000, answers.append, wait_ms=500), queue.pop(answers.append, wait_ms=500)]
    lab.settle()
    for waiter in waiters:
        waiter.cancel()
        waiter.cancel()
    lab.publish(queue, "a")
    lab.pass_time(1000)
    assert answers == [] and queue.counts()[:3] == (1, 0, 0)


def test_a_pop_is_settled_and_on_disk_before_the_answer(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a", "b")
    answers: list[object] = []
    queue.pop(answers.append)
    while not answers:
        assert lab.host.turn() or lab.host.work()
    lab.restart("power")
    assert isinstance(answers[0], Delivery) and answers[0].message.body == b"a"
    assert lab.bodies(lab.reopened(queue)) == [b"b"]


def test_waiting_pops_are_served_in_order_also_by_a_delayed_message(lab: Lab, queue: LocalQueue) -> None:
    answers: list[tuple[str, Delivery | None | CurbstoneError]] = []
    queue.pop(lambda given: answers.append(("first", given)), wait_ms=5000)
    queue.pop(lambda given: answers.append(("second", given)), wait_ms=5000)
    lab.publish(queue, "a", "b", delay_ms=1000)
    assert not answers
    lab.pass_time(1000)
    given = {client_info: delivery.message.body for client_info, delivery in answers if isinstance(delivery, Delivery)}
    assert given == {"first": b"a", "second": b"b"}


@pytest.mark.parametrize("waits", [0, 1000])
def test_waiters_of_a_deleted_queue_are_answered(lab: Lab, queue: LocalQueue, waits: int) -> None:
    answers: list[object] = []
    queue.pop(answers.append, wait_ms=waits)
    queue.lease(1, 1000, answers.append, wait_ms=waits)
    lab.broker.delete(queue.name, lambda _: None)
    lab.settle()
    lab.pass_time(2000)
    assert len(answers) == 2


def test_leases_and_consumers_share_the_messages(lab: Lab, queue: LocalQueue) -> None:
    peer = Peer(lab, queue, window=2)
    lab.publish(queue, *numbered(4))
    assert [lease.delivery.message.seq for lease in lab.lease(queue, 10, 1000)] == [3, 4]
    peer.ack(1, 2)
    lab.pass_time(1000)
    assert peer.seqs == [1, 2, 3, 4] and peer.tries == [0, 0, 1, 1]


def test_a_lease_of_a_thousand_gives_a_thousand() -> None:
    """It gave 512, which is what is dealt out at once, and 1 MiB of large messages."""
    lab = Lab(cap=16 * MIB)
    queue = lab.queue()
    for _ in range(15):
        lab.publish(queue, *[b"x" * 1000] * 100)
    assert len(lab.lease(queue, 1000)) == 1000
    assert len(lab.lease(queue, 1000)) == 500


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("wait_ms", [0, 1000])
def test_lease_is_bounded_by_bytes(restart: bool, wait_ms: int) -> None:
    """After a restart it gave one message a call, for it was answered with what the first read of the disk brought."""
    lab = Lab(cap=32 * MIB)
    queue = lab.queue()
    for _ in range(20):
        lab.publish(queue, b"x" * 256 * 1024)
    if restart:
        lab.restart()
        queue = lab.reopened(queue)
    (leases,) = lab.answer(lambda done: queue.lease(1000, 60_000, done, wait_ms=wait_ms))
    assert len(leases) == LEASE_BYTES_MAX // (256 * 1024) == 16
    assert [lease.delivery.message.seq for lease in leases] == list(range(1, 17))
    assert queue.counts()[:3] == (4, 16, 0)
    assert [lease.delivery.tries for lease in lab.lease(queue, 1000)] == [0] * 4


def test_message_larger_than_the_lease_bytes_is_leased_alone() -> None:
    lab = Lab(cap=64 * MIB, max_message_size=16 * MIB)
    queue = lab.queue(max_message_size=16 * MIB)
    lab.publish(queue, b"x" * 5 * MIB, "y")
    assert [len(lab.lease(queue, 10)) for _ in range(3)] == [1, 1, 0]


def test_concurrent_leases_share_the_messages(lab: Lab, queue: LocalQueue) -> None:
    answers: list[list[Lease] | CurbstoneError] = []
    queue.lease(1000, 60_000, answers.append, wait_ms=5000)
    queue.lease(1000, 60_000, answers.append, wait_ms=5000)
    lab.publish(queue, *numbered(900))
    seqs = [{lease.delivery.message.seq for lease in given} for given in answers if isinstance(given, list)]
    assert [len(found) for found in seqs] == [450, 450] and not seqs[0] & seqs[1]


def test_cancelled_lease_requeues_gathered_messages() -> None:
    lab = Lab(cap=32 * MIB)
    queue = lab.queue()
    for _ in range(8):
        lab.publish(queue, b"x" * 256 * 1024)
    lab.restart()
    queue = lab.reopened(queue)
    answers: list[object] = []
    waiter = queue.lease(1000, 60_000, answers.append)
    while not queue.counts().wip:
        assert lab.host.turn() or lab.host.work()
    assert waiter.cancel() is True
    lab.settle()
    assert not answers and queue.counts()[:3] == (8, 0, 0)
    assert [lease.delivery.tries for lease in lab.lease(queue, 1000)] == [0] * 8


def test_unseen_leases_are_requeued_immediately_without_a_try(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a", "b")
    seen, unseen = lab.lease(queue, 2)
    settle(lab, queue, [seen.token])
    queue.give_back([seen, unseen])
    lab.settle()
    assert queue.counts()[:3] == (1, 0, 0)
    assert [lease.delivery.tries for lease in lab.lease(queue, 2)] == [0]


def test_leases_that_are_kept_alive_take_no_more_memory(lab: Lab, queue: LocalQueue) -> None:
    """Each extension, and each long lease that was settled early, was remembered until its time would have come."""
    lab.publish(queue, *numbered(100))
    tokens = [lease.token for lease in lab.lease(queue, 100, 43_200_000)]
    for step in range(200):
        lab.extend(queue, tokens, 43_200_000 - 1000 * (step % 3) + step)
    assert len(queue.leases._due) <= 3 * len(tokens) + 100
    lab.extend(queue, tokens, 1000)
    lab.pass_time(999)
    assert queue.counts().wip == 100
    lab.pass_time(1)
    assert queue.counts().wip == 0
    for _ in range(50):
        settle(lab, queue, [lease.token for lease in lab.lease(queue, 5, 43_200_000)], Outcome.NACK)
    assert len(queue.leases._due) <= 100
