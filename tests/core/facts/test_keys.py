"""Idempotency keys: stored once, the same answer, also after a restart and after the cleaner."""

from __future__ import annotations

from random import Random

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.broker import Broker
from curbstone.core.engine.delivery.consumer import Consumer
from curbstone.core.engine.facts.kinds import KINDS
from curbstone.core.engine.log.format import Note
from curbstone.core.errors import CurbstoneError, KeyReused, QueueFull
from curbstone.core.message import Delivery, Message
from curbstone.core.names import queue_name
from curbstone.core.options import CAP_BYTES_MIN, QueueOptions, SyncMode
from curbstone.core.values import IdempotencyKey
from tests.kit.room_check import check_room
from tests.kit.simulated import SimDisk, SimHost

NAME = queue_name("keyed")
KEY_ROOM = KINDS[Note.KEY].room
Answer = tuple[CurbstoneError | None, int, int]


class Bench:
    """A broker on a made disk, and the answers of its publishes."""

    def __init__(self) -> None:
        self.rng = Random(7)
        self.disk = SimDisk(self.rng)
        self.host = SimHost(self.rng, 1_700_000_000_000)
        self.answers: list[Answer] = []
        self.failures: list[CurbstoneError | None] = []
        self.open()

    def open(self) -> None:
        self.host = SimHost(self.rng, self.host.now_ms())
        options = QueueOptions(cap=CAP_BYTES_MIN)
        self.broker = Broker.open(
            self.host, self.disk, defaults=options, sync=SyncMode(), salt=lambda: self.rng.randrange(1 << 32)
        )

    def crash(self) -> None:
        self.disk.crash()
        self.open()

    def set_window(self, seconds: float) -> None:
        self.broker.declare(NAME, {"idempotency_window": seconds}, lambda error: self.failures.append(error))
        self.host.settle()
        assert self.failures.pop() is None

    @property
    def queue(self) -> LocalQueue:
        return self.broker.ensure(NAME)

    def publish(self, key: str, content: bytes, count: int = 1) -> None:
        messages = [Message(content) for _ in range(count)]
        self.queue.publish(messages, lambda *answer: self.answers.append(answer), key=IdempotencyKey(key, content))

    def settled(self) -> list[Answer]:
        self.host.settle()
        answers, self.answers = self.answers, []
        return answers


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_repeated_publish_is_stored_once_with_the_same_answer(bench: Bench) -> None:
    bench.publish("k", b"one", 3)
    assert bench.settled() == [(None, 1, 3)]
    bench.publish("k", b"one", 3)
    assert bench.settled() == [(None, 1, 3)]
    assert bench.queue.counts().rdy == 3


def test_a_repeat_while_the_first_is_under_way_waits_for_its_answer(bench: Bench) -> None:
    bench.publish("k", b"one")
    bench.publish("k", b"one")
    assert bench.settled() == [(None, 1, 1), (None, 1, 1)]
    assert bench.queue.counts().rdy == 1


def test_other_content_under_the_same_key_is_refused(bench: Bench) -> None:
    bench.publish("k", b"one")
    bench.publish("k", b"two")
    refused = [error for error, _, _ in bench.settled() if error]
    assert [type(error) for error in refused] == [KeyReused]
    assert bench.queue.counts().rdy == 1


def test_a_key_survives_a_crash_together_with_its_message(bench: Bench) -> None:
    bench.publish("k", b"one")
    assert bench.settled() == [(None, 1, 1)]
    bench.crash()
    bench.publish("k", b"one")
    assert bench.settled() == [(None, 1, 1)]
    assert bench.queue.counts().rdy == 1


def test_a_key_outlives_the_segment_it_was_written_in(bench: Bench) -> None:
    bench.publish("k", b"one")
    bench.settled()
    first_segment = bench.queue.log.segments[0].number
    holder: list[Consumer] = []

    def deliver(deliveries: list[Delivery]) -> None:
        holder[0].ack([delivery.message.seq for delivery in deliveries])

    holder.append(bench.queue.subscribe(deliver, window=10, on_closed=lambda _: None))
    while bench.queue.log.segments[0].number < first_segment + 20:
        bench.queue.publish([Message(b"x" * 1000)], lambda *_: None)
        bench.host.settle()
    bench.crash()
    bench.publish("k", b"one")
    assert bench.settled() == [(None, 1, 1)]
    assert bench.queue.counts().rdy == 0


def test_key_is_dropped_after_its_window(bench: Bench) -> None:
    bench.publish("k", b"one")
    bench.settled()
    bench.host.pass_time(300_001)
    bench.publish("k", b"one")
    assert bench.settled() == [(None, 2, 1)]


def test_keys_are_kept_for_the_window_of_the_queue(bench: Bench) -> None:
    bench.set_window(7 * 86400)
    bench.publish("k", b"one")
    bench.settled()
    bench.host.pass_time(7 * 86_400_000 - 1000)
    bench.crash()
    bench.publish("k", b"one")
    assert bench.settled() == [(None, 1, 1)]
    bench.publish("k", b"two")
    [(refused, _, _)] = bench.settled()
    assert str(refused) == "the idempotency key was used for other content in the last 604800 s"
    bench.host.pass_time(1001)
    bench.publish("k", b"one")
    assert bench.settled() == [(None, 2, 1)]


def test_shorter_window_applies_behind_longer_ones(bench: Bench) -> None:
    """The keys were forgotten in the order of publishing only, so the first one kept all others."""
    bench.set_window(86400)
    bench.publish("long", b"x")
    bench.settled()
    bench.set_window(1)
    bench.publish("short", b"x")
    bench.settled()
    bench.host.pass_time(1001)
    bench.publish("short", b"x")
    bench.publish("long", b"x")
    assert bench.settled() == [(None, 3, 1), (None, 1, 1)]
    assert bench.queue.log.room.notes_bytes == 2 * KEY_ROOM


def test_key_reused_after_its_window_is_kept_again(bench: Bench) -> None:
    for number in range(200):
        bench.publish(f"k{number % 3}", b"x")
        [(error, first, _)] = bench.settled()
        assert (error, first) == (None, number + 1)
        bench.host.pass_time(301_000)
        if number % 50 == 49:
            bench.crash()
        check_room(bench.queue)
    bench.publish("k0", b"x")
    bench.settled()
    assert bench.queue.log.room.notes_bytes == KEY_ROOM


def test_keys_are_limited_by_the_cap(bench: Bench) -> None:
    for number in range(70):
        bench.publish(f"k{number}", b"x")
    errors = [error for error, _, _ in bench.settled() if error]
    assert len(errors) == 70 - CAP_BYTES_MIN // 1024
    assert all(isinstance(error, QueueFull) for error in errors)
