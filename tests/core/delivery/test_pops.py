"""Pops: what is not on disk as settled is not lost, whatever became of the disk or of whoever asked."""

from __future__ import annotations

import pytest

from curbstone.core.errors import CurbstoneError, QueueFull, Unavailable
from curbstone.core.message import Delivery, Message
from curbstone.core.queue import Queue
from tests.core.lab import Lab, Peer, numbered

Answers = list[Delivery | None | CurbstoneError]


def start_pop(lab: Lab, queue: Queue, **how: object) -> Answers:
    """Pop; return the list that the answer comes into."""
    answers: Answers = []
    queue.pop(answers.append, **how)  # type: ignore[arg-type]
    return answers


def until_writing(lab: Lab, queue: Queue) -> None:
    """Go on until a commit is under way."""
    while not queue.writer.is_busy:
        assert lab.host.turn()


@pytest.mark.parametrize("fault", ["eio", "enospc"])
@pytest.mark.parametrize("end", ["none", "shutdown", "power"])
def test_a_refused_pop_leaves_its_message_where_it_was(fault: str, end: str) -> None:
    """A pop answered 503 or 507 settled its message all the same: it was written again behind the refusal."""
    lab = Lab()
    queue = lab.queue()
    lab.publish(queue, *numbered(3))
    if fault == "eio":
        lab.disk.eio_chance = 1.0
    else:
        lab.disk.capacity = 0
    answers = start_pop(lab, queue)
    lab.settle()
    assert len(answers) == 1 and isinstance(answers[0], Unavailable | QueueFull)
    assert queue.counts()[:3] == (3, 0, 0)
    lab.disk.eio_chance, lab.disk.capacity = 0, 1 << 60
    lab.pass_time(5000)
    if end != "none":
        lab.restart(end)
        queue = lab.again(queue)
    assert lab.pop_all(queue) == numbered(3)


def test_a_refused_pop_counts_no_try_and_gives_the_message_to_the_next_in_its_order() -> None:
    lab = Lab()
    queue = lab.queue()
    lab.publish(queue, *numbered(3))
    lab.disk.eio_chance = 1.0
    start_pop(lab, queue)
    lab.settle()
    lab.disk.eio_chance = 0
    lab.pass_time(2000)
    peer = Peer(lab, queue)
    assert peer.bodies == numbered(3) and peer.tries == [0, 0, 0]


def test_a_pop_that_is_refused_keeps_the_tries_of_before() -> None:
    lab = Lab()
    queue = lab.queue()
    lab.publish(queue, "a")
    Peer(lab, queue).close()
    lab.disk.eio_chance = 1.0
    answers = start_pop(lab, queue)
    lab.settle()
    lab.disk.eio_chance = 0
    lab.pass_time(2000)
    assert isinstance(answers[0], Unavailable)
    lab.restart()
    assert Peer(lab, lab.again(queue)).tries == [1]


def test_a_pop_while_the_queue_can_not_write_is_refused_at_once() -> None:
    lab = Lab()
    queue = lab.queue()
    lab.publish(queue, "a")
    lab.disk.eio_chance = 1.0
    start_pop(lab, queue)
    lab.settle()
    assert queue.writer.failure
    answers = start_pop(lab, queue)
    lab.settle()
    assert isinstance(answers[0], Unavailable) and queue.counts()[:3] == (1, 0, 0)


def test_a_popped_message_is_held_until_its_settle_is_on_disk() -> None:
    lab = Lab()
    queue = lab.queue()
    lab.publish(queue, "a")
    answers = start_pop(lab, queue)
    until_writing(lab, queue)
    assert not answers and queue.counts()[:3] == (0, 1, 0)
    lab.settle()
    assert len(answers) == 1 and queue.counts()[:3] == (0, 0, 0) and queue.stats.acked == 1


def test_a_pop_given_up_before_its_settle_is_written_gives_the_message_back() -> None:
    """It had been served, and the message was gone, though its client was told that there was none."""
    lab = Lab()
    queue = lab.queue()
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


def test_a_pop_can_not_be_given_up_once_its_settle_is_being_written() -> None:
    lab = Lab()
    queue = lab.queue()
    lab.publish(queue, "a")
    answers: Answers = []
    pop = queue.pop(answers.append)
    until_writing(lab, queue)
    assert pop.cancel() is False
    lab.settle()
    assert isinstance(answers[0], Delivery)


def test_nothing_is_settled_for_who_is_gone_when_it_would_be_written() -> None:
    lab = Lab()
    queue = lab.queue()
    lab.publish(queue, "a", "b")
    answers = start_pop(lab, queue, is_wanted=lambda: False)
    lab.settle()
    assert answers == [None]
    assert lab.pop_all(queue) == [b"a", b"b"]


def test_pops_of_several_groups_and_publishes_share_a_commit() -> None:
    lab = Lab()
    queue = lab.queue()
    lab.publish(queue, *numbered(4), groups=("g", "h"))
    commits = queue.writer.commits
    answers = [start_pop(lab, queue, group=group) for group in ("g", "h", "g", "h")]
    lab.settle()
    bodies = [given.message.body for found in answers for given in found if isinstance(given, Delivery)]
    assert bodies == [body for body in numbered(2) for _ in ("g", "h")]
    assert queue.writer.commits - commits <= 2
    lab.restart("power")
    queue = lab.again(queue)
    assert lab.pop_all(queue, "g") == lab.pop_all(queue, "h") == numbered(4)[2:]


@pytest.mark.parametrize("fails", [False, True])
def test_a_message_that_is_deleted_by_its_id_while_it_is_popped_is_gone_once(fails: bool) -> None:
    lab = Lab()
    queue = lab.queue()
    lab.publish(queue, "a", "b")
    answers = start_pop(lab, queue)
    until_writing(lab, queue)
    lab.disk.eio_chance = float(fails)
    queue.settle_by_id(1, lambda *_: None)
    lab.settle()
    lab.disk.eio_chance = 0
    lab.pass_time(5000)
    assert isinstance(answers[0], Unavailable if fails else Delivery)
    assert queue.counts()[:3] == (1, 0, 0) and lab.bodies(queue) == [b"b"]
    lab.restart()
    assert lab.bodies(lab.again(queue)) == [b"b"]


def test_a_pop_of_a_queue_that_is_deleted_meanwhile_is_answered() -> None:
    lab = Lab()
    queue = lab.queue()
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


def test_a_stop_waits_for_a_pop_whose_settle_is_under_way() -> None:
    lab = Lab()
    queue = lab.queue()
    lab.publish(queue, "a", "b")
    answers = start_pop(lab, queue)
    lab.host.turn()
    lab.restart("shutdown")
    assert isinstance(answers[0], Delivery)
    assert lab.bodies(lab.again(queue)) == [b"b"]


# ---------------------------------------------------------------- consumers that settle by taking


def test_what_an_automatic_consumer_fails_to_take_is_not_settled() -> None:
    lab = Lab()
    queue = lab.queue()

    def fail(_: list[Delivery]) -> None:
        raise ValueError("a fault of an adapter")

    queue.subscribe(fail, window=10, auto=True, on_closed=lambda _: None)
    lab.publish(queue, "a", "b")
    assert lab.bodies(queue) == [b"a", b"b"]
    assert Peer(lab, queue).tries == [1, 1]


@pytest.mark.parametrize("auto", [False, True])
@pytest.mark.parametrize("leave", ["close", "pause"])
def test_a_consumer_that_leaves_while_hands_are_dealt_takes_nothing(auto: bool, leave: str) -> None:
    """Of two consumers of one connection the second was dealt messages after the first had ended it: they were lost."""
    lab = Lab()
    queue = lab.queue()
    second: Peer
    first = queue.subscribe(lambda _: getattr(second.consumer, leave)(), window=2, on_closed=lambda _: None)
    second = Peer(lab, queue, window=2, auto=auto)
    lab.publish(queue, *numbered(4))
    assert second.given == [] and len(first.unsettled) == 2
    assert queue.counts()[:3] == (2, 2, 0)
    assert Peer(lab, queue).tries == [0, 0]
