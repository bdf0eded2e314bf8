"""What becomes of messages for several queues where one of them is full, and of those that were committed already."""

from __future__ import annotations

import secrets
from collections import Counter
from random import Random
from typing import Any

import pytest

from curbstone.core.errors import Conflict, CurbstoneError, EventRefused, MessageTooLarge, QueueFull, Unavailable
from curbstone.core.message import Message
from curbstone.core.names import queue_name
from curbstone.core.port import Queue
from curbstone.rabbit.amqp.port import REFUSED, AmqpError, Properties
from tests.engines.model import ModelChannel
from tests.engines.worlds import DEFAULTS, ModelWorld, NodeWorld, World

CAP = "64KiB"
FILLING = "x" * 60_000
BODY = "y" * 10_000


def batch(world: World, queue: Queue, *bodies: str) -> tuple[CurbstoneError | None, int, int]:
    """Publish as a whole; return the one answer."""
    messages = [Message(body.encode()) for body in bodies]
    error, first, count = world.answer(lambda done: queue.publish(messages, done, atomic=True))
    assert error is None or isinstance(error, CurbstoneError)
    return error, first, count


def commit(world: World, *targets: Queue | str, body: str = BODY) -> list[tuple[CurbstoneError | None]]:
    """Commit a transaction with a message for each queue or event; return the list its answer comes into."""
    answers: list[Any] = []
    transaction = world.broker.transaction()
    for target in targets:
        if isinstance(target, str):
            transaction.publish_event(target, Message(body.encode()))
        else:
            transaction.publish(target, Message(body.encode()))
    transaction.commit(lambda error: answers.append((error,)))
    return answers


def bind(world: World, event: str, *queues: Queue) -> None:
    for queue in queues:
        assert world.answer(lambda done, queue=queue: world.broker.bind(event, queue.name, done)) == (None,)  # type: ignore[misc]


def test_a_batch_is_stored_in_order_and_answered_once(world: World) -> None:
    queue = world.queue(groups=["g"])
    error, first, count = batch(world, queue, "a", "b", "c")
    assert error is None and count == 3
    peer = world.peer(queue)
    peer.expect("a", "b", "c")
    assert [each.message.seq for each in peer.deliveries] == [first, first + 1, first + 2]
    assert world.bodies(queue, 3, group="g") == ["a", "b", "c"]


def test_invalid_batch_stores_nothing(queue: Queue, world: World) -> None:
    error, _first, count = batch(world, queue, "a", "x" * (DEFAULTS.max_message_size + 1), "b")
    assert isinstance(error, MessageTooLarge) and count == 3
    assert world.bodies(queue, wait_ms=100) == []


@pytest.mark.parametrize("seed", range(15))
def test_connection_loss_leaves_batches_atomic(model: ModelWorld, seed: int) -> None:
    random = Random(seed)
    print("seed", seed)
    queue = model.queue()
    answers: dict[str, list[CurbstoneError | None]] = {}
    for number in range(6):
        errors = answers.setdefault(str(number), [])
        queue.publish([Message(b"%d" % number)] * 3, lambda error, _f, _c, to=errors: to.append(error), atomic=True)  # type: ignore[misc]
        for _ in range(random.randrange(6)):
            model.host.settle() if random.random() < 0.3 else model.pass_time(random.randrange(4))
        if random.random() < 0.5:
            model.model.loses_confirms = random.random() < 0.5
            model.model.lose(random.choice(["", "publishing", "consuming", "control"]))
    model.model.loses_confirms = False
    model.model.lose("")
    model.wait_until(lambda: all(answers.values()))
    model.pass_time(10_000)
    there = Counter(model.bodies(queue, wait_ms=100))
    for body, reported in answers.items():
        assert len(reported) == 1 and (reported[0] is None or isinstance(reported[0], Unavailable))
        assert there[body] >= 3 or (reported[0] is not None and not there[body]), (body, there)


def test_refusal_by_one_group_does_not_store_copies_in_others(model: ModelWorld) -> None:
    """A refusal does not say whose it is; each try stored a copy more where there was room."""
    queue = model.queue(cap=CAP, groups=["slow"])
    peer = model.peer(queue, auto=True)
    model.publish(queue, FILLING)
    answers: list[CurbstoneError | None] = []
    queue.publish([Message(BODY.encode())], lambda error, _first, _count: answers.append(error))
    model.wait_until(lambda: answers)
    assert isinstance(answers[0], QueueFull)
    model.pass_time(5000)
    assert Counter(peer.bodies)[BODY] <= 2
    assert model.bodies(queue, group="slow") == [FILLING]


def test_event_names_the_refusing_queue_and_reaches_the_others(model: ModelWorld) -> None:
    full, other = model.queue(cap=CAP), model.queue()
    model.publish(full, FILLING)
    bind(model, "news", full, other)
    peer = model.peer(other, auto=True)
    messages = [Message(BODY.encode())]
    error, _first, count = model.answer(lambda done: model.broker.publish_event("news", messages, done))
    assert isinstance(error, EventRefused) and count == 1
    assert (set(error.refused), error.stored) == ({full.name}, 1)
    model.pass_time(5000)
    assert 1 <= Counter(peer.bodies)[BODY] <= 2


def test_committed_event_is_not_duplicated_while_a_queue_is_full(model: ModelWorld) -> None:
    full, other, third = model.queue(cap=CAP), model.queue(), model.queue()
    model.publish(full, FILLING)
    bind(model, "news", full, other)
    peer = model.peer(other, auto=True)
    answers = commit(model, "news", third)
    model.wait_until(lambda: answers)
    assert answers == [(None,)]
    model.pass_time(20_000)
    assert 1 <= Counter(peer.bodies)[BODY] <= 2
    assert model.bodies(full) == [FILLING]
    model.pass_time(10_000)
    assert model.bodies(full) == [BODY] and model.bodies(third) == [BODY]
    model.pass_time(10_000)
    assert model.bodies(full) == [] and not model.model.queues[model.engine.names.transactions].ready


def test_message_waiting_for_a_full_queue_blocks_no_other(model: ModelWorld) -> None:
    """A hundred of them filled the window, and no transaction of anybody was carried out any more."""
    full, other = model.queue(cap=CAP), model.queue()
    model.publish(full, FILLING)
    waiting = [commit(model, full, full, body=f"{number}{BODY}") for number in range(150)]
    model.wait_until(lambda: all(waiting))
    assert {answer for each in waiting for answer in each} == {(None,)}
    model.pass_time(3000)
    answers = commit(model, other, other, body="a")
    began_ms = model.now_ms()
    model.wait_until(lambda: answers)
    assert answers == [(None,)] and model.now_ms() - began_ms < 1000
    assert model.bodies(other) == ["a", "a"]
    assert model.bodies(full) == [FILLING]
    found: Counter[str] = Counter()
    for _ in range(200):
        model.pass_time(1000)
        found.update(model.bodies(full))
        if sum(found.values()) >= 300:
            break
    assert set(found) == {f"{number}{BODY}" for number in range(150)} and set(found.values()) == {2}


def test_committed_message_that_cannot_be_stored_is_kept_as_lost(
    model: ModelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = model.queue(), model.queue()

    def refuses(_message: Message, _delay_ms: int, on_done: Any) -> None:
        on_done(Conflict("it has too many groups"))

    monkeypatch.setattr(model.engine.get(queue.name).publishing, "store", refuses)
    answers = commit(model, queue, other)
    model.wait_until(lambda: answers)
    assert answers == [(None,)] and model.bodies(other) == [BODY] and model.bodies(queue) == []
    lost = model.model.queues[model.engine.names.lost].ready
    assert [each.body.decode() for each in lost] == [BODY]


def test_batch_for_a_full_queue_is_refused_while_one_waits(model: ModelWorld) -> None:
    queue = model.queue(cap=CAP)
    model.publish(queue, FILLING)
    assert batch(model, queue, BODY, BODY)[0] is None
    model.pass_time(1500)
    assert isinstance(batch(model, queue, BODY, BODY)[0], QueueFull)
    assert model.bodies(queue, wait_ms=5000) == [FILLING, BODY, BODY]


def test_longest_queue_names_support_delays(cluster: ModelWorld | NodeWorld) -> None:
    """The routing key was too long. What came behind was confirmed by the confirms of what came before it."""
    name = queue_name(f"{secrets.token_hex(8)}{'n' * 184}")
    assert cluster.answer(lambda done: cluster.broker.declare(name, {}, done)) == (None,)
    queue = cluster.broker.get(name)
    cluster.publish(queue, "later", delay_ms=300)
    cluster.publish(queue, "a", "b")
    peer = cluster.peer(queue)
    peer.expect("a", "b", "later")
    peer.settle("nack", "a", delay_ms=200)
    peer.expect("a", "b", "later", "a")
    peer.settle("ack", "a", "b", "later")


def test_unsendable_message_consumes_no_confirm(model: ModelWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = model.queue()
    publish = ModelChannel.publish

    def refuses(self: ModelChannel, exchange: str, key: str, properties: Properties, body: bytes, **more: bool) -> None:
        if body == b"bad":
            raise AmqpError(REFUSED, "AMQP has no bytes for it")
        publish(self, exchange, key, properties, body, **more)

    monkeypatch.setattr(ModelChannel, "publish", refuses)
    answers: dict[str, CurbstoneError | None] = {}
    for body in ("a", "bad", "b", "c"):
        if body == "c":
            model.wait_until(lambda: len(answers) == 3)
            model.model.refuses = 1_000_000
        queue.publish([Message(body.encode())], lambda error, _f, _c, body=body: answers.update({body: error}))  # type: ignore[misc]
    model.wait_until(lambda: len(answers) == 4)
    assert answers["a"] is answers["b"] is None
    assert isinstance(answers["bad"], Unavailable) and isinstance(answers["c"], QueueFull)
    model.model.refuses = 0
    assert model.bodies(queue) == ["a", "b"]
