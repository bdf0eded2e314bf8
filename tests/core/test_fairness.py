"""Much work for many queues is spread over turns of the loop: who wants little does not wait for all of it."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from functools import partial
from typing import Any, cast
from unittest.mock import Mock

import pytest

from curbstone.core import host as core_host
from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.turns import TURNS_AT_ONCE, Turns
from curbstone.core.errors import CurbstoneError
from curbstone.core.events.events import COPIES_AT_ONCE
from curbstone.core.host import DONE_AT_ONCE, AsyncioHost
from curbstone.core.names import queue_name
from tests.kit.lab import Lab, message

QUEUES = 30
EACH = 20  # three times what is copied at once, together


def bound(lab: Lab) -> list[LocalQueue]:
    names = [queue_name(f"q{n}") for n in range(QUEUES)]
    for name in names:
        lab.answer(partial(lab.broker.bind, "order", name))
    return [lab.broker.get(name) for name in names]


def batch(start: int, count: int = EACH) -> list[Any]:
    return [message(str(n)) for n in range(start, start + count)]


def expected(count: int) -> list[list[bytes]]:
    return [[str(n).encode() for n in range(count)]] * QUEUES


def begun(queues: list[LocalQueue]) -> int:
    return sum(not queue.writer.is_idle for queue in queues)


def test_a_large_fan_out_is_spread_and_each_queue_has_all_in_order(lab: Lab) -> None:
    queues = bound(lab)
    answers: list[tuple[CurbstoneError | None, int, int]] = []
    lab.broker.publish_event("order", batch(0), lambda *given: answers.append(given))
    assert begun(queues) == COPIES_AT_ONCE // EACH, "the rest in later turns"
    lab.broker.publish_event("order", batch(EACH, 1), lambda *given: answers.append(given))
    assert not any(queue.writer.is_idle for queue in queues[: begun(queues)]) and begun(queues) < QUEUES
    lab.settle()
    assert answers == [(None, QUEUES, EACH), (None, QUEUES, 1)]
    assert [lab.bodies(queue) for queue in queues] == expected(EACH + 1)


def test_small_fan_out_begins_immediately(lab: Lab) -> None:
    queues = bound(lab)
    lab.broker.publish_event("order", batch(0, 1), lambda *_given: None)
    assert begun(queues) == QUEUES


def test_transaction_does_not_overtake_a_fan_out(lab: Lab) -> None:
    queues = bound(lab)
    lab.broker.publish_event("order", batch(0), lambda *_given: None)
    transaction = lab.broker.transaction()
    transaction.publish_event("order", message(str(EACH)))
    transaction.commit(lambda _error: None)
    lab.settle()
    assert [lab.bodies(queue) for queue in queues] == expected(EACH + 1)


def test_shutdown_waits_for_a_fan_out(lab: Lab) -> None:
    queues = bound(lab)
    answers: list[CurbstoneError | None] = []
    lab.broker.publish_event("order", batch(0), lambda error, _first, _count: answers.append(error))
    lab.restart()
    assert answers == [None]
    assert [lab.bodies(lab.reopened(queue)) for queue in queues] == expected(EACH)


def test_queue_deleted_during_a_fan_out_is_skipped(lab: Lab) -> None:
    queues = bound(lab)
    answers: list[CurbstoneError | None] = []
    lab.broker.publish_event("order", batch(0), lambda error, _first, _count: answers.append(error))
    lab.broker.delete(queues[-1].name, lambda _existed: None)
    lab.pass_time(100)
    assert answers == [None]
    assert [lab.bodies(queue) for queue in queues[:-1]] == expected(EACH)[:-1]


class _Loop:
    """A host's `call_soon`, turn by turn, where each look at the clock is a second later."""

    def __init__(self) -> None:
        self.soon: list[Any] = []
        self._now_us = 0

    def now_us(self) -> int:
        self._now_us += 1_000_000
        return self._now_us

    def call_soon(self, fn: Any) -> None:
        self.soon.append(fn)

    def turn(self) -> None:
        now, self.soon = self.soon, []
        for fn in now:
            fn()


@pytest.mark.source
@pytest.mark.parametrize("count", [1, TURNS_AT_ONCE, TURNS_AT_ONCE + 1, 5 * TURNS_AT_ONCE])
def test_turns_of_many_queues_are_spread_in_request_order(count: int) -> None:
    loop = _Loop()
    committer = Mock()
    turns = Turns(cast(Any, loop), committer)
    had: list[int] = []

    class WaitingQueue:
        def __init__(self, number: int) -> None:
            self.number = number

        def turn(self) -> None:
            had.append(self.number)
            if self.number == 0 and len(had) == 1:
                turns.add(self.turn)  # a turn may want another

    queues = [WaitingQueue(number) for number in range(count)]
    for queue in queues + queues:
        turns.add(queue.turn)
    rounds = 0
    while loop.soon:
        assert len(loop.soon) == 1
        before = len(had)
        loop.turn()
        rounds += 1
        assert 0 < len(had) - before <= TURNS_AT_ONCE
    assert had == [*range(count), 0] and len(turns) == 0
    assert rounds == -(-count // TURNS_AT_ONCE) + (count % TURNS_AT_ONCE == 0 or count < TURNS_AT_ONCE)


def test_slow_completions_are_reported_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_host, "DONE_NS_MAX", 0)

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        host = AsyncioHost(loop)
        jobs = 5 * DONE_AT_ONCE
        finished = threading.Semaphore(0)
        reported = [0]
        seen: list[int] = []
        for _ in range(jobs):
            host.submit(finished.release, lambda _result, _error: reported.__setitem__(0, reported[0] + 1))
        for _ in range(jobs):
            finished.acquire()  # the loop is busy until all have finished
        while reported[0] < jobs:
            seen.append(reported[0])
            await asyncio.sleep(0)
        host.close()
        return [*seen, reported[0]]

    seen = asyncio.run(main())
    assert max(after - before for before, after in zip(seen, seen[1:], strict=False)) <= DONE_AT_ONCE


def test_closed_consumer_is_freed_without_garbage_collection(lab: Lab, queue: LocalQueue) -> None:
    """Its taker held it and it held its taker: a thousand subscriptions that ended were ten thousand dead objects."""

    class Receiver:
        def __init__(self) -> None:
            self.consumer = queue.subscribe(self.take, window=1, on_closed=self.take)

        def take(self, _said: object) -> None:
            raise AssertionError("nothing is said to it")

    gc.disable()
    try:
        taker = Receiver()
        taker.consumer.close()
        dead = weakref.ref(taker)
        del taker
        lab.settle()
        assert dead() is None
    finally:
        gc.enable()
