"""The room for a staged commit: reserved in all queues or in none, waited for, and given back."""

from __future__ import annotations

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.compaction.cleaner import Cleaner
from curbstone.core.errors import Conflict, NoSuchQueue, QueueFull, Unavailable
from curbstone.core.message import Message
from curbstone.core.names import queue_name
from curbstone.core.options import MIB
from curbstone.core.staging.commit import ROOM_MS_MAX
from tests.core.staging.lab import commit, stage, start_with_two_queues, state
from tests.kit.lab import Lab, Peer, numbered
from tests.kit.room_check import check_room


def test_full_queue_refuses_the_commit_and_keeps_staged_messages() -> None:
    lab = start_with_two_queues(cap=128 * 1024)
    big = [b"x" * 1000] * 70
    stage(lab, "t", "0", {"a": big, "b": big})
    queue = lab.named("b")
    lab.publish(queue, *([b"y" * 1000] * 30))
    error, _, _ = commit(lab, "t", passing_ms=20_000)
    assert isinstance(error, QueueFull) and "default/b" in str(error)
    assert state(lab, "t") == "staged" and lab.bodies("a") == []
    assert all(queue.log.room.reserved == 0 for queue in lab.broker.queues())
    lab.pop_all(queue)
    assert commit(lab, "t", passing_ms=20_000) == (None, False, 140)
    assert lab.bodies("a") == lab.bodies("b") == big


def scattered(lab: Lab, name: str) -> LocalQueue:
    """Return a queue that is full of segments in which every second message is settled."""
    queue = lab.named(name)
    seqs: list[int] = []
    while not (answers := lab.publish_answers(queue, [Message(b"x" * 1000)]))[0][0]:
        seqs.append(answers[0][1])
    peer = Peer(lab, queue)
    peer.ack(*seqs[::2])
    return queue


def test_commit_waits_for_the_cleaner_without_a_timer() -> None:
    lab = start_with_two_queues(cap=128 * 1024)
    queue = scattered(lab, "a")
    stage(lab, "t", "0", {"a": [b"staged" * 100] * 40, "b": [b"too"]})
    assert queue.log.room.publish_left < 24_000
    order: list[str] = []
    lab.broker.staging.commit("default", "t", None, lambda error, *_: order.append(f"staged {error}"))
    queue.publish([Message(b"behind it")], lambda error, *_: order.append(f"published {error}"))
    lab.settle()
    assert sorted(order) == ["published None", "staged None"]
    assert lab.bodies("a").count(b"staged" * 100) == 40
    assert lab.bodies("b") == [b"too"]
    assert all(each.log.room.reserved == 0 for each in lab.broker.queues())
    check_room(queue)


def test_fitting_publishes_pass_a_commit_waiting_for_room() -> None:
    lab = start_with_two_queues(cap=128 * 1024)
    queue = scattered(lab, "a")
    lab.pop_all(queue)
    while queue.log.room.budget > 3000:
        lab.publish(queue, b"x" * 1000)
        lab.pop(queue)
    stage(lab, "t", "0", {"a": [b"staged" * 100] * 40})
    order: list[str] = []
    lab.broker.staging.commit("default", "t", None, lambda error, *_: order.append(f"staged {error}"))
    queue.publish([Message(b"behind it")], lambda error, *_: order.append(f"published {error}"))
    while not order:
        if not lab.host.turn():
            assert lab.host.work()
    assert order == ["published None"] and not queue.log.room.reserved, "it was granted at once"
    lab.settle()
    assert order == ["published None", "staged None"]


@pytest.mark.source
def test_commit_waits_for_room_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = start_with_two_queues(cap=128 * 1024)
    queue = scattered(lab, "a")
    stage(lab, "t", "0", {"a": [b"staged" * 100] * 40, "b": [b"too"]})
    monkeypatch.setattr(Cleaner, "make_room", lambda *_: True)
    answers: list[object] = []
    lab.broker.staging.commit("default", "t", None, lambda error, *_: answers.append(str(error)))
    lab.settle()
    lab.publish(queue, "meanwhile")
    lab.pass_time(ROOM_MS_MAX - 1)
    assert not answers
    lab.pass_time(1)
    assert answers == ["queue default/a has made no room in 10 s"]
    assert all(each.log.room.reserved == 0 for each in lab.broker.queues())
    monkeypatch.undo()
    lab.publish(queue, "after it")
    assert commit(lab, "t")[0] is None


@pytest.mark.parametrize("how", ["delete", "shutdown"])
def test_a_commit_that_waits_for_room_is_answered_when_a_queue_ends(how: str) -> None:
    lab = start_with_two_queues(cap=128 * 1024)
    queue = scattered(lab, "a")
    stage(lab, "t", "0", {"a": [b"staged" * 100] * 40, "b": [b"too"]})
    answers: list[object] = []
    lab.broker.staging.commit("default", "t", None, lambda error, *_: answers.append(type(error)))
    lab.host.turn()
    assert not queue.log.room.reserved and not answers
    ended: list[object] = []
    if how == "delete":
        lab.broker.delete(queue.name, ended.append)
    else:
        lab.broker.shutdown(lambda: ended.append(None))
    lab.pass_time(100)
    assert len(ended) == 1
    assert answers == [NoSuchQueue if how == "delete" else Unavailable]
    assert lab.named("b").log.room.reserved == 0
    if how == "shutdown":
        lab.restart("kill")
        lab.pop_all(lab.named("a"))
        assert commit(lab, "t")[0] is None


def test_cap_cannot_be_lowered_below_reserved_commits() -> None:
    lab = start_with_two_queues(cap=4 * MIB)
    stage(lab, "t", "0", {"a": numbered(2000, 1000)})
    lab.broker.staging.commit("default", "t", None, lambda *_given: None)
    while not lab.named("a").log.room.reserved:
        assert lab.host.turn()
    assert lab.named("a").log.room.reserved > 2_000_000
    with pytest.raises(Conflict):
        lab.broker.declare(queue_name("a"), {"cap": MIB}, lambda _error: None)
    lab.settle()
    assert lab.bodies("a") == numbered(2000, 1000)
    assert lab.named("a").log.room.reserved == 0
