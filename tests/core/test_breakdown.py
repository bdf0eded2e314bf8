"""A bug in one queue, or in a callback, ends there: others continue, and nobody waits for ever."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.names import queue_name
from tests.kit.lab import Lab, Peer, message


def start() -> tuple[Lab, LocalQueue, LocalQueue]:
    lab = Lab()
    lab.expects_faults = True
    queue, other = lab.queue("q"), lab.queue("other")
    lab.publish(queue, "first", "second")
    lab.publish(other, "first")
    return lab, queue, other


def fault(*_: Any, **__: Any) -> Any:
    raise AssertionError("planted")


def plant(patch: pytest.MonkeyPatch, part: object, name: str) -> None:
    """Have a call of one object fail."""
    original = getattr(type(part), name)

    def call(self: object, *args: Any, **how: Any) -> Any:
        return fault() if self is part else original(self, *args, **how)

    patch.setattr(type(part), name, call)


PLACES: dict[str, Callable[[LocalQueue, pytest.MonkeyPatch], None]] = {
    "before a commit": lambda queue, patch: plant(patch, queue.log, "begin"),
    "composing a commit": lambda queue, patch: plant(patch, queue.log, "finish"),
    "after a commit": lambda queue, patch: plant(patch, queue.writer, "_apply"),
    "in the log after a commit": lambda queue, patch: plant(patch, queue.log, "succeeded"),
    "handing out": lambda queue, patch: plant(patch, queue.index.unnamed, "take"),
}


@pytest.mark.source
def test_fault_in_a_deferred_batch_ends_only_its_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, queue, other = start()
    writing = [lab.queue(name) for name in ("a", "b")]
    answers: dict[str, list[CurbstoneError | None]] = {}

    def publish(each: LocalQueue) -> None:
        reported = answers.setdefault(each.name.queue, [])
        each.publish([message("m")], lambda error, *_: reported.append(error))

    for each in writing:
        publish(each)
    lab.host.turn()  # now these two share a sync
    for each in (queue, other):
        publish(each)
    lab.host.turn()
    with monkeypatch.context() as patch:
        plant(patch, queue.log, "begin")
        lab.settle()
    assert queue.state.broken and isinstance(answers["q"][0], Unavailable)
    assert [answers[name] for name in ("a", "b", "other")] == [[None]] * 3
    for each in (other, *writing):
        lab.publish(each, "later")


@pytest.mark.source
@pytest.mark.parametrize("place", PLACES)
def test_fault_ends_only_its_queue_and_answers_all_callers(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lab, queue, other = start()
    peer = Peer(lab, queue, window=1)
    elsewhere = Peer(lab, other)
    with monkeypatch.context() as patch:
        PLACES[place](queue, patch)
        answers: list[tuple[str, CurbstoneError | None]] = []
        queue.publish([message("m")], lambda error, *_: answers.append(("publish", error)))
        peer.consumer.ack([1], on_done=lambda error: answers.append(("ack", error)))
        queue.pop(lambda given: answers.append(("pop", given if isinstance(given, CurbstoneError) else None)))
        other.publish([message("m")], lambda error, *_: answers.append(("other", error)))
        elsewhere.consumer.ack([1], on_done=lambda error: answers.append(("other's ack", error)))
        lab.settle()
    reported = dict(answers)
    assert len(answers) == 5 and reported["other"] is None and reported["other's ack"] is None
    assert all(isinstance(reported[who], Unavailable) and "planted" in str(reported[who]) for who in ("publish", "ack"))
    assert [type(error) for error in peer.closed_with] == [Unavailable] and not elsewhere.closed_with
    health = lab.broker.health()
    assert not health.ok and "queue default/q: broke down" in health.reasons[0] and "planted" in health.reasons[0]
    traces = [record for record in caplog.records if record.exc_info and "broke down" in record.message]
    assert len(traces) == 1
    with pytest.raises(Unavailable, match="broke down"):
        lab.named("q")
    assert [type(error) for error in Peer(lab, lab.broker.ensure(queue_name("q"))).closed_with] == [Unavailable]
    ((error, _, _),) = lab.publish_answers(queue, [message("later")])
    assert isinstance(error, Unavailable)
    assert lab.publish(other, "later")
    lab.restart("shutdown")
    assert lab.broker.health().ok
    assert {b"second"} <= set(lab.bodies(lab.reopened(queue))) <= {b"first", b"second", b"m"}
    assert lab.publish(lab.reopened(queue), "continues")


def test_fault_in_a_timer_ends_only_its_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, queue, other = start()
    lab.publish(queue, "late", delay_ms=50)
    plant(monkeypatch, queue.index.unnamed, "mature")
    lab.pass_time(100)
    assert queue.state.broken and not other.state.broken
    assert lab.publish(other, "continues")


@pytest.mark.source
def test_transaction_with_a_broken_part_is_whole_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, queue, other = start()
    transaction = lab.broker.transaction()
    transaction.publish(queue, message("part"))
    transaction.publish(other, message("part"))
    answers: list[CurbstoneError | None] = []
    with monkeypatch.context() as patch:
        plant(patch, queue.writer, "_apply")
        transaction.commit(answers.append)
        lab.settle()
    assert len(answers) == 1 and queue.state.broken
    lab.restart("kill")
    assert b"part" in lab.bodies(lab.reopened(queue)) and b"part" in lab.bodies(lab.reopened(other))


@pytest.mark.source
def test_broken_dead_letter_queue_does_not_break_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, queue, other = start()
    lab.queue("q", dead_letter="other")
    with monkeypatch.context() as patch:
        plant(patch, other.writer, "_apply")
        lab.publish_answers(other, [message("m")])
    Peer(lab, queue).consumer.reject([1], "bad")
    lab.pass_time(5000)
    assert other.state.broken and not queue.state.broken
    assert len(lab.bodies(queue)) == 2


def test_broken_queue_can_be_deleted_and_recreated(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, queue, _ = start()
    with monkeypatch.context() as patch:
        plant(patch, queue.writer, "_apply")
        lab.publish_answers(queue, [message("m")])
    (gone,) = lab.answer(lambda done: lab.broker.delete(queue.name, done), passing_ms=1000)
    assert gone is True and lab.broker.health().ok
    assert lab.publish(lab.queue("q"), "new")
    lab.restart("power")
    assert lab.bodies(lab.reopened(queue)) == [b"new"]


@pytest.mark.source
def test_fault_in_a_deleted_queue_leaves_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, queue, _ = start()
    queue.publish([message("m")], lambda *_: None)
    while not queue.writer.is_busy:
        assert lab.host.turn()
    with monkeypatch.context() as patch:
        plant(patch, queue.writer, "_apply")
        (gone,) = lab.answer(lambda done: lab.broker.delete(queue.name, done), passing_ms=1000)
    assert gone is True and queue.state.broken and lab.broker.health().ok


def test_failing_callback_does_not_affect_other_clients(caplog: pytest.LogCaptureFixture) -> None:
    lab, queue, _ = start()
    caplog.set_level(logging.ERROR)
    answers: list[CurbstoneError | None] = []
    queue.publish([message("a")], fault)
    queue.publish([message("b")], lambda error, *_: answers.append(error))
    peer = Peer(lab, queue)
    peer.consumer.ack([1], on_done=fault)
    peer.consumer.ack([2], on_done=answers.append)
    queue.watch(fault)
    lab.broker.declare(queue.name, {"ttl": 5}, fault)
    lab.broker.declare(queue_name("new"), {}, fault)
    lab.broker.declare(queue_name("new"), {}, answers.append)
    lab.settle()
    assert answers == [None, None, None] and not queue.state.broken and lab.broker.health().ok
    assert "planted" in caplog.text
    assert lab.publish(queue, "continues")
