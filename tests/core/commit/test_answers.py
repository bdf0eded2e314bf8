"""Answers to what is published to one queue come in the order it was published, whatever becomes of each."""

from __future__ import annotations

from typing import Any

import pytest

from curbstone.core import headers
from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.commit.publishes import BATCH_BYTES_MAX
from curbstone.core.engine.log.log import Log
from curbstone.core.errors import CurbstoneError, NoSuchQueue, Unavailable
from curbstone.core.values import IdempotencyKey, Numbered
from tests.core.commit.test_faults import FailingSyncs
from tests.kit.lab import Lab, Peer, message

A = b"A" * 16
LARGE = 100


class NamedPublishes:
    """Publishes under names, and writes down the answers as they come."""

    def __init__(self, lab: Lab, queue: LocalQueue) -> None:
        self.lab = lab
        self.queue = queue
        self.answers: list[str] = []

    def publish(self, name: str, *, size: int = 1, count: int = 1, **how: Any) -> None:
        def done(error: CurbstoneError | None, first_seq: int, count: int) -> None:
            self.answers.append(f"{name}: {first_seq if error is None else type(error).__name__} {count}")

        before = len(self.answers)
        self.queue.publish([message(b"x" * size) for _ in range(count)], done, **how)
        assert len(self.answers) == before, "answered before the call returned"

    def reported(self) -> list[str]:
        """Return all answers since the last call."""
        self.lab.settle()
        answers, self.answers = self.answers, []
        return answers


def begin(**options: Any) -> NamedPublishes:
    lab = Lab()
    return NamedPublishes(lab, lab.queue(max_message_size=LARGE, **options))


def key(name: str, content: bytes = b"") -> IdempotencyKey:
    return IdempotencyKey(name, content)


def test_repeat_under_a_key_is_not_confirmed_before_earlier_publishes() -> None:
    """It was, at once: a crash then lost a message though one behind it had been confirmed."""
    publishes = begin()
    publishes.publish("first", key=key("k"))
    assert publishes.reported() == ["first: 1 1"]
    publishes.publish("plain")
    publishes.publish("repeat", key=key("k"))
    publishes.publish("other content", key=key("k", b"other"))
    publishes.publish("behind")
    assert publishes.reported() == ["plain: 2 1", "repeat: 1 1", "other content: KeyReused 1", "behind: 3 1"]
    publishes.publish("again", key=key("k"))
    assert publishes.reported() == ["again: 1 1"], "a repeat that waited for a commit is no new first"
    publishes.lab.restart("power")
    publishes.queue = publishes.lab.reopened(publishes.queue)
    publishes.publish("after a crash", key=key("k"))
    assert publishes.reported() == ["after a crash: 1 1"]


def test_repeat_after_a_refusal_under_its_key_is_published() -> None:
    publishes = begin()
    publishes.publish("first", key=key("k"))
    publishes.publish("repeat", key=key("k"))
    FailingSyncs(publishes.lab.disk, 1)
    assert publishes.reported() == ["first: Unavailable 1", "repeat: 2 1"]
    assert len(publishes.lab.bodies(publishes.queue)) == 1


def test_too_large_message_is_refused_in_order() -> None:
    publishes = begin()
    publishes.publish("plain")
    publishes.publish("whole", size=LARGE + 1, atomic=True)
    publishes.publish("one by one", size=LARGE + 1)
    publishes.publish("under a key", size=LARGE + 1, key=key("k"))
    publishes.publish("behind")
    assert publishes.reported() == [
        "plain: 1 1", "whole: MessageTooLarge 1", "one by one: MessageTooLarge 1", "under a key: MessageTooLarge 1",
        "behind: 2 1",
    ]  # fmt: skip


def test_publish_paused_queue_refuses_after_earlier_answers() -> None:
    publishes = begin()
    publishes.publish("before")
    publishes.lab.broker.declare(publishes.queue.name, {"publish_paused": True}, lambda _error: None)
    publishes.publish("paused")
    publishes.lab.broker.declare(publishes.queue.name, {"publish_paused": False}, lambda _error: None)
    publishes.publish("after")
    assert publishes.reported() == ["before: 1 1", "paused: PublishPaused 1", "after: 2 1"]


def test_repeat_is_confirmed_although_its_awaited_commit_fails() -> None:
    """It is on disk; and what came behind it on the same connection is told after it."""
    publishes = begin()
    publishes.publish("one", numbered=Numbered(A, 1, 0))
    assert publishes.reported() == ["one: 1 1"]
    publishes.publish("plain")
    publishes.publish("one again", numbered=Numbered(A, 1, 0))
    publishes.publish("two", numbered=Numbered(A, 2, 1))
    publishes.publish("two again", numbered=Numbered(A, 2, 1))
    publishes.publish("four", numbered=Numbered(A, 4, 3))
    FailingSyncs(publishes.lab.disk, 1)
    assert publishes.reported() == [
        "plain: Unavailable 1", "one again: 0 1", "two: Unavailable 1", "two again: 4 1", "four: NumberGap 1",
    ]  # fmt: skip


def test_a_disk_that_fails_is_reported_in_order() -> None:
    publishes = begin()
    publishes.publish("lost")
    FailingSyncs(publishes.lab.disk, 3)
    publishes.lab.settle()
    publishes.publish("refused")
    publishes.publish("large", size=LARGE + 1)
    assert publishes.reported() == ["lost: Unavailable 1", "refused: Unavailable 1", "large: MessageTooLarge 1"]
    assert publishes.queue.state.write_failure
    publishes.publish("not now")
    publishes.publish("nor this", size=LARGE + 1)
    assert publishes.reported() == ["not now: Unavailable 1", "nor this: Unavailable 1"]
    publishes.lab.pass_time(5000)
    publishes.publish("stored")
    assert [answer.partition(":")[0] for answer in publishes.reported()] == ["stored"]


@pytest.mark.source
def test_broken_queue_answers_each_message_of_a_list_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were in the commit, while others of their list waited, were never answered."""
    lab.expects_faults = True
    publishes = NamedPublishes(lab, lab.queue(cap=64 << 20, max_message_size=BATCH_BYTES_MAX))

    def fault(*_: Any) -> None:
        raise AssertionError("planted")

    monkeypatch.setattr(Log, "succeeded", fault)
    publishes.publish("list", size=BATCH_BYTES_MAX * 2 // 3, count=3)
    assert publishes.reported() == ["list: Unavailable 1", "list: Unavailable 2"]


@pytest.mark.source
@pytest.mark.parametrize("how", ["delete", "break down"])
@pytest.mark.parametrize("where", ["in the commit", "behind it"])
def test_waiter_for_settles_is_notified_when_the_queue_ends(
    lab: Lab, how: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were forgotten, unless their settles were in a commit that went well."""
    lab.expects_faults = True
    queue = lab.queue()
    lab.publish(queue, "a", "b")
    peer = Peer(lab, queue)
    reported: list[CurbstoneError | None] = []
    peer.consumer.ack([1])
    if where == "behind it":
        lab.host.turn()
        peer.consumer.ack([2])
        queue.write_queue.when_settled(reported.append)
    else:
        queue.write_queue.when_settled(reported.append)
        lab.host.turn()
    assert queue.writer.is_busy and reported == []
    if how == "delete":
        lab.end(queue, "delete")
    else:

        def fault(*_: Any) -> None:
            raise AssertionError("planted")

        monkeypatch.setattr(Log, "succeeded", fault)
        lab.settle()
        assert queue.state.broken
    if (how, where) == ("delete", "in the commit"):
        assert reported == [None], "it is on disk"
    else:
        assert [type(error) for error in reported] == [NoSuchQueue if how == "delete" else Unavailable]


def test_commit_ending_after_its_queue_leaves_no_waiter_for_settles(lab: Lab, queue: LocalQueue) -> None:
    """What a transaction settles is settled in memory when it is on disk, and only then did anybody ask to be told."""
    block = headers.encode([(headers.KEY, "k")])
    lab.publish_messages(queue, [message("a", headers=block), message("b", headers=block)])
    peer = Peer(lab, queue)
    transaction = lab.broker.transaction()
    transaction.ack(peer.consumer, [1])
    transaction.publish(queue, message("c"))
    answers: list[CurbstoneError | None] = []
    transaction.commit(answers.append)
    lab.host.turn()
    assert queue.writer.is_busy
    lab.end(queue, "delete")
    assert answers == [None] and queue.write_queue.after_settles == [] and peer.bodies == [b"a"]
