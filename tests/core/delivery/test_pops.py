"""Pops: what is not on disk as settled is not lost, whatever became of the disk or of whoever asked."""

from __future__ import annotations

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.message import Delivery, Message
from tests.kit.lab import Lab, Peer, numbered

Answers = list[Delivery | None | CurbstoneError]


def start_pop(lab: Lab, queue: LocalQueue, **how: object) -> Answers:
    """Pop; return the list that the answer comes into."""
    answers: Answers = []
    queue.pop(answers.append, **how)  # type: ignore[arg-type]
    return answers


def until_writing(lab: Lab, queue: LocalQueue) -> None:
    """Continue until a commit is under way."""
    while not queue.writer.is_busy:
        assert lab.host.turn()


def refused_pop(lab: Lab, queue: LocalQueue) -> Answers:
    """Pop, and again while the disk is failing for the second time; return the answers of the first. The second is
    refused, though it was served: its settle waited for its turn."""
    lab.disk.eio_chance = 1.0
    first = start_pop(lab, queue)
    while not (lab.broker.commits.failed and queue.writer.is_busy):
        assert lab.host.turn() or lab.host.work()
    second = start_pop(lab, queue)
    lab.settle()
    assert len(second) == 1 and isinstance(second[0], Unavailable)
    return first


@pytest.mark.parametrize("end", ["none", "shutdown", "kill", "power"])
def test_refused_pop_keeps_its_message_in_place(lab: Lab, queue: LocalQueue, end: str) -> None:
    """A pop answered 503 or 507 settled its message all the same: it was written again behind the refusal."""
    lab.publish(queue, *numbered(3))
    first = refused_pop(lab, queue)
    assert first == [] and queue.counts()[:3] == (2, 1, 0)
    if end == "none":
        lab.disk.eio_chance = 0
        lab.pass_time(5000)
        assert isinstance(first[0], Delivery)
    else:
        lab.restart(end)
    peer = Peer(lab, lab.reopened(queue))
    assert peer.bodies[-2:] == numbered(3)[1:] and (end != "none" or peer.tries == [0, 0])


def test_refused_pop_keeps_the_tries(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a", "b")
    Peer(lab, queue).close()
    refused_pop(lab, queue)
    lab.disk.eio_chance = 0
    lab.pass_time(5000)
    lab.restart()
    assert Peer(lab, lab.reopened(queue)).tries == [1]


def test_pop_is_refused_while_the_queue_cannot_write(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a", "b")
    lab.disk.eio_chance = 1.0
    start_pop(lab, queue)
    lab.settle()
    assert queue.state.failure
    answers = start_pop(lab, queue)
    lab.settle()
    assert isinstance(answers[0], Unavailable) and queue.counts()[:3] == (1, 1, 0)


@pytest.mark.parametrize("fault", ["eio", "enospc"])
def test_pop_with_a_failed_commit_is_answered_when_its_outcome_is_known(
    lab: Lab, queue: LocalQueue, fault: str
) -> None:
    """What a failed sync left in the file counts after a kill: whoever was refused before would lose the message."""
    lab.publish(queue, "a", "b")
    if fault == "eio":
        lab.disk.eio_chance = 1.0
    else:
        lab.disk.capacity = 0  # so full that nothing can even be written over
    answers: Answers = []
    pop = queue.pop(answers.append)
    lab.pass_time(5000)
    assert answers == [] and queue.state.failure and queue.counts()[:3] == (1, 1, 0)
    assert pop.cancel() is False
    lab.disk.eio_chance, lab.disk.capacity = 0, 1 << 60
    lab.pass_time(2000)
    assert isinstance(answers[0], Delivery) and answers[0].message.body == b"a"
    lab.restart("power")
    assert lab.bodies(lab.reopened(queue)) == [b"b"]


def test_cancelled_pop_with_a_failed_commit_keeps_its_message(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a", "b")
    lab.disk.eio_chance = 1.0
    is_there = [True]
    answers = start_pop(lab, queue, is_wanted=lambda: is_there[0])
    lab.pass_time(5000)
    is_there[0] = False
    lab.disk.eio_chance = 0
    lab.pass_time(2000)
    assert answers == [None]
    lab.restart("power")
    assert lab.bodies(lab.reopened(queue)) == [b"a", b"b"]


@pytest.mark.parametrize("end", ["shutdown", "delete"])
def test_a_pop_whose_commit_failed_is_answered_when_its_queue_ends(lab: Lab, queue: LocalQueue, end: str) -> None:
    lab.publish(queue, "a")
    lab.disk.eio_chance = 1.0
    answers = start_pop(lab, queue)
    lab.settle()
    if end == "shutdown":
        lab.restart()
    else:
        lab.broker.delete(queue.name, lambda _: None)
        lab.settle()
    assert len(answers) == 1 and isinstance(answers[0], CurbstoneError)


def test_a_popped_message_is_held_until_its_settle_is_on_disk(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    answers = start_pop(lab, queue)
    until_writing(lab, queue)
    assert not answers and queue.counts()[:3] == (0, 1, 0)
    lab.settle()
    assert len(answers) == 1 and queue.counts()[:3] == (0, 0, 0) and queue.stats.acked == 1


def test_pop_cancelled_before_its_settle_requeues_the_message(lab: Lab, queue: LocalQueue) -> None:
    """It had been served, and the message was gone, though its client was told that there was none."""
    lab.publish(queue, "a")
    queue.publish([Message(b"b")], lambda *_: None)
    until_writing(lab, queue)
    answers: Answers = []
    pop = queue.pop(answers.append, wait_ms=5000)
    lab.host.turn()
    assert queue.counts()[:3] == (0, 1, 0) and not answers
    assert pop.cancel() is True and pop.cancel() is False
    lab.settle()
    assert not answers and queue.counts()[:3] == (2, 0, 0)
    assert Peer(lab, queue).tries == [0, 0]


def test_pop_cannot_be_cancelled_during_its_settle(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    answers: Answers = []
    pop = queue.pop(answers.append)
    until_writing(lab, queue)
    assert pop.cancel() is False
    lab.settle()
    assert isinstance(answers[0], Delivery)


def test_pop_of_a_closed_client_is_not_settled(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a", "b")
    answers = start_pop(lab, queue, is_wanted=lambda: False)
    lab.settle()
    assert answers == [None]
    assert lab.pop_all(queue) == [b"a", b"b"]


def test_pops_of_several_groups_and_publishes_share_a_commit(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(4), groups=("g", "h"))
    commits = queue.stats.commits
    answers = [start_pop(lab, queue, group=group) for group in ("g", "h", "g", "h")]
    lab.settle()
    bodies = [given.message.body for found in answers for given in found if isinstance(given, Delivery)]
    assert bodies == [body for body in numbered(2) for _ in ("g", "h")]
    assert queue.stats.commits - commits <= 2
    lab.restart("power")
    queue = lab.reopened(queue)
    assert lab.pop_all(queue, "g") == lab.pop_all(queue, "h") == numbered(4)[2:]


@pytest.mark.parametrize("fails", [False, True])
def test_message_deleted_by_id_during_a_pop_is_settled_once(lab: Lab, queue: LocalQueue, fails: bool) -> None:
    lab.publish(queue, "a", "b")
    answers = start_pop(lab, queue)
    until_writing(lab, queue)
    lab.disk.eio_chance = float(fails)
    queue.settle_by_id(1, lambda *_: None)
    lab.settle()
    lab.disk.eio_chance = 0
    lab.pass_time(5000)
    assert isinstance(answers[0], Delivery)
    assert queue.counts()[:3] == (1, 0, 0) and lab.bodies(queue) == [b"b"]
    lab.restart()
    assert lab.bodies(lab.reopened(queue)) == [b"b"]


def test_pop_of_a_deleted_queue_is_answered(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    answers = start_pop(lab, queue)
    lab.host.turn()
    lab.broker.delete(queue.name, lambda _: None)
    lab.settle()
    lab.pass_time(1000)
    assert len(answers) == 1
    late = start_pop(lab, queue)
    lab.settle()
    assert late == [None]


def test_a_stop_waits_for_a_pop_whose_settle_is_under_way(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a", "b")
    answers = start_pop(lab, queue)
    lab.host.turn()
    lab.restart("shutdown")
    assert isinstance(answers[0], Delivery)
    assert lab.bodies(lab.reopened(queue)) == [b"b"]


# ---------------------------------------------------------------- consumers that settle by taking


def test_failed_automatic_delivery_is_not_settled(lab: Lab, queue: LocalQueue) -> None:
    def fail(_: list[Delivery]) -> None:
        raise ValueError("a fault of an adapter")

    queue.subscribe(fail, window=10, auto=True, on_closed=lambda _: None)
    lab.publish(queue, "a", "b")
    assert lab.bodies(queue) == [b"a", b"b"]
    assert Peer(lab, queue).tries == [1, 1]


@pytest.mark.parametrize("auto", [False, True])
@pytest.mark.parametrize("leave", ["close", "pause"])
def test_consumer_closed_during_dispatch_takes_nothing(lab: Lab, queue: LocalQueue, auto: bool, leave: str) -> None:
    """Of two consumers of one connection the second was dealt messages after the first had ended it: they were lost."""
    second: Peer
    first = queue.subscribe(lambda _: getattr(second.consumer, leave)(), window=2, on_closed=lambda _: None)
    second = Peer(lab, queue, window=2, auto=auto)
    lab.publish(queue, *numbered(4))
    assert second.received == [] and len(first.unsettled) == 2
    assert queue.counts()[:3] == (2, 2, 0)
    assert Peer(lab, queue).tries == [0, 0]
