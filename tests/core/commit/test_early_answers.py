"""Answers that are prepared while the messages are written, and sent before anything else is done."""

from __future__ import annotations

from typing import Any

import pytest

from curbstone.core.errors import Unavailable
from curbstone.core.message import Message
from tests.core.commit.test_faults import FailingSyncs
from tests.kit.lab import Lab


class Client:
    """What a publish prepared, sent and was answered, in order."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.queue = lab.queue()
        self.events: list[Any] = []

    def publish(self, *bodies: bytes) -> None:
        self.queue.publish([Message(body) for body in bodies], self._on_done, early=self)

    def prepare(self, first_seq: int) -> None:
        self.events.append(("prepare", first_seq))

    def send(self) -> None:
        self.events.append(("send", self.queue.counts().rdy))

    def _on_done(self, error: Any, first_seq: int, count: int) -> None:
        self.events.append((type(error) if error else "done", first_seq, count, self.queue.counts().rdy))


def test_answer_is_sent_before_the_message_is_indexed() -> None:
    client = Client(Lab())
    client.publish(b"a", b"b")
    client.lab.host.turn()
    assert client.events == [("prepare", 1)], "while it is written"
    client.lab.settle()
    assert client.events == [("prepare", 1), ("send", 0), ("done", 1, 2, 2)]
    client.publish(b"c")
    client.lab.settle()
    assert client.events[3:] == [("prepare", 3), ("send", 2), ("done", 3, 1, 3)]


def test_no_answer_before_durability_or_after_a_failure() -> None:
    client = Client(Lab())
    client.publish(b"first")
    client.lab.settle()
    FailingSyncs(client.lab.disk, 2)
    client.events.clear()
    client.publish(b"x")
    client.lab.settle()
    assert client.events == [("prepare", 2), (Unavailable, 0, 1, 1)]


def test_answer_behind_others_is_not_prepared() -> None:
    client = Client(Lab())
    queue = client.queue
    client.publish(b"a")
    client.publish(b"b")  # one commit, two answers
    client.lab.settle()
    queue.write_queue.when_committed(lambda error: client.events.append("acked"))
    client.publish(b"c")
    client.lab.settle()
    assert client.events == [("done", 1, 1, 2), ("done", 2, 1, 2), "acked", ("done", 3, 1, 3)]


def test_partially_committed_list_is_not_prepared() -> None:
    client = Client(Lab(cap=64 * 1024))
    client.publish(*[b"x" * 1500] * 8)
    client.lab.settle()
    done = [event for event in client.events if event[0] == "done"]
    assert len(done) > 1 and sum(event[2] for event in done) == 8
    assert [event for event in client.events if event[0] == "send"] == []


@pytest.mark.parametrize("raises", ["prepare", "send"])
def test_caller_that_raises_is_still_answered(raises: str) -> None:
    client = Client(Lab())
    client.lab.expects_faults = True

    def fail(*_: object) -> None:
        raise ValueError("a bug")

    setattr(client, raises, fail)
    client.publish(b"a")
    client.lab.settle()
    assert client.events[-1] == ("done", 1, 1, 1) and len(client.lab.broker.alarms.faults) == 1
    assert client.lab.publish(client.queue, b"b") == [2]


def test_broken_queue_sends_no_early_answers() -> None:
    client = Client(Lab())
    client.lab.expects_faults = True
    client.publish(b"a")
    client.lab.host.turn()
    client.queue.host.contain(lambda: 1 / 0)
    client.lab.settle()
    assert [event[0] for event in client.events] == ["prepare", Unavailable]
