"""What RabbitMQ does that an engine on it must know, one trap after the other, on the model of a broker."""

from __future__ import annotations

from typing import Any, cast

import pytest

from curbstone.core.errors import CurbstoneError, NoSuchQueue, NotSupported, QueueFull, Unavailable
from curbstone.core.message import Message
from curbstone.core.names import private_name, queue_name
from curbstone.core.port import Queue
from curbstone.core.values import Outcome
from curbstone.rabbit.amqp.port import Properties
from curbstone.rabbit.engine import Engine
from tests.engines.worlds import ModelWorld, Peer


def outcomes(queue: Queue, *bodies: str) -> list[tuple[CurbstoneError | None, int]]:
    """Publish; return the list that the outcomes come into."""
    found: list[tuple[CurbstoneError | None, int]] = []
    queue.publish(
        [Message(body.encode()) for body in bodies], lambda error, _first, count: found.append((error, count))
    )
    return found


def test_unconfirmed_messages_are_resent_in_order(model: ModelWorld) -> None:
    queue = model.queue()
    model.model.loses_confirms = True
    found = outcomes(queue, *"abc")
    model.pass_time(50)
    assert not found
    model.model.loses_confirms = False
    model.model.lose("publishing")
    model.wait_until(lambda: found)
    assert found == [(None, 3)]
    peer = model.peer(queue)
    peer.expect("a", "b", "c")  # stored twice, shown once: the copies are unsettled beside them
    assert len({each.message.seq for each in peer.deliveries}) == 3
    peer.settle("ack", "a", "b", "c")
    model.ready(queue, 0)


def test_refusal_during_a_leader_change_is_retried(model: ModelWorld) -> None:
    queue = model.queue()
    model.model.refuses = 5
    found = outcomes(queue, *"ab")
    model.wait_until(lambda: found)
    assert sum(count for _, count in found) == 2 and {error for error, _ in found} == {None}


def test_persistent_refusal_is_a_full_queue(model: ModelWorld) -> None:
    queue = model.queue()
    model.model.refuses = 1_000_000
    began_ms = model.now_ms()
    found = outcomes(queue, "a")
    model.wait_until(lambda: found)
    assert isinstance(found[0][0], QueueFull) and 1000 <= model.now_ms() - began_ms < 2000


def test_missing_confirm_is_an_unknown_outcome(model: ModelWorld) -> None:
    queue = model.queue()
    model.model.loses_confirms = True
    found = outcomes(queue, "a")
    model.pass_time(29_000)
    assert not found
    model.wait_until(lambda: found)
    assert isinstance(found[0][0], Unavailable) and "unknown whether" in str(found[0][0])


def test_unreachable_broker_is_reported_and_retried(model: ModelWorld) -> None:
    queue = model.queue()
    model.model.is_down = True
    model.model.lose()
    model.pass_time(300)
    health = model.broker.health()
    assert not health.ok and any("refused" in reason for reason in health.reasons)
    found = outcomes(queue, "a")
    model.pass_time(5000)
    assert not found
    model.model.is_down = False
    model.wait_until(lambda: found)
    assert found == [(None, 1)]
    model.wait_until(lambda: model.broker.health().ok)


def test_blocked_broker_reports_its_reason(model: ModelWorld) -> None:
    model.model.block("low on memory")
    assert any("low on memory" in reason for reason in model.broker.health().reasons)
    model.model.block("")
    assert model.broker.health().ok


def test_connection_loss_ends_consumers_and_redelivers_messages(model: ModelWorld) -> None:
    queue = model.queue()
    model.publish(queue, "a")
    peer = model.peer(queue)
    peer.expect("a")
    (lease,) = model.answer(lambda done: model.queue().lease(1, 1000, done))
    model.model.lose("consuming")
    model.wait_until(lambda: peer.errors)
    assert isinstance(peer.errors[0], Unavailable) and lease == []
    again: list[Peer] = []

    def back() -> bool:
        again.append(Peer(model, queue))
        model.pass_time(100)
        return bool(again[-1].deliveries)

    for _ in range(20):
        if back():
            break
    assert [(each.message.body, each.tries) for each in again[-1].deliveries] == [(b"a", 1)]


def test_leases_end_when_their_connection_is_lost(model: ModelWorld) -> None:
    queue = model.queue()
    model.publish(queue, "a")
    ((lease,),) = model.answer(lambda done: queue.lease(1, 60_000, done))
    model.model.lose("consuming")
    model.pass_time(1000)
    settled = model.answer(lambda done: queue.settle_leases([lease.token], Outcome.ACK, done))
    assert settled == (None, 0, [lease.token])
    assert model.bodies(queue) == ["a"]


def test_delivery_count_is_read_from_either_header(model: ModelWorld) -> None:
    model.model.counts_acquired = True
    queue = model.queue()
    model.publish(queue, "a")
    peer = model.peer(queue)
    peer.expect("a")
    peer.settle("nack", "a")
    peer.expect("a", "a")
    assert peer.deliveries[1].tries == 1


def test_tries_are_kept_across_a_delay(model: ModelWorld) -> None:
    queue = model.queue()
    model.publish(queue, "a")
    peer = model.peer(queue)
    for tries, delay_ms in enumerate((0, 100, 0, 700)):
        model.wait_until(lambda tries=tries: len(peer.deliveries) > tries)  # type: ignore[misc]
        assert peer.deliveries[-1].tries == tries
        peer.settle("nack", "a", delay_ms=delay_ms)
    model.wait_until(lambda: len(peer.deliveries) == 5)
    assert peer.deliveries[-1].tries == 4


def test_queue_deleted_in_rabbitmq_is_recreated(model: ModelWorld) -> None:
    queue = model.queue()
    model.publish(queue, "a")
    del model.model.queues[model.engine.names.queue(queue.name)]
    found = outcomes(queue, "b")
    model.wait_until(lambda: found)
    assert found == [(None, 1)] and model.bodies(queue) == ["b"]


def test_foreign_amqp_message_becomes_a_message(model: ModelWorld) -> None:
    queue = model.queue()
    properties = Properties({"n": 7, "text": "ä"}, content_type="a/b", reply_to="r")
    model.model.publish("", model.engine.names.queue(queue.name), properties, b"foreign")
    delivery = model.pop(queue)
    assert delivery is not None and delivery.message.seq > 0
    assert delivery.message.headers == "content-type:a/b\nn:7\ntext:ä\namqp-reply-to:r\n".encode()


def test_slow_subscriber_is_closed_without_affecting_others(model: ModelWorld) -> None:
    name = private_name("topic.slow")
    assert model.answer(lambda done: model.broker.declare(name, {"cap": 64 * 1024}, done)) == (None,)
    queue = model.broker.get(name)
    assert model.answer(lambda done: model.broker.bind("e", name, done)) == (None,)
    peer = model.peer(queue, window=1)
    for _ in range(10):
        messages = [Message(b"x" * 20_000)]
        answer = model.answer(lambda done, messages=messages: model.broker.publish_event("e", messages, done))  # type: ignore[misc]
        assert answer[0] is None
    model.wait_until(lambda: peer.errors)
    assert isinstance(peer.errors[0], QueueFull)
    assert name not in [each.name for each in model.broker.private_queues()]


def test_subscriber_filter_is_applied_on_arrival(model: ModelWorld) -> None:
    """What does not pass is acked, so it is not in the way of what does."""
    name = private_name("topic.filtered")
    assert model.answer(lambda done: model.broker.declare(name, {}, done)) == (None,)
    queue = model.broker.get(name)
    assert model.answer(lambda done: model.broker.bind("e.*", name, done, filter_text="n > 1")) == (None,)
    assert model.broker.bindings(name) == {"default/e.*": "n > 1"}
    peer = model.peer(queue, window=1)

    def publish(*numbers: int) -> None:
        messages = [Message(b"%d" % number, b"n:%d\n" % number) for number in numbers]
        error, *_ = model.answer(lambda done: model.broker.publish_event("e.x", messages, done))
        assert error is None

    publish(0, 1, 2, 1, 3)
    peer.expect("2")
    peer.consumer.ack(peer.seqs("2"))
    peer.expect("2", "3")
    peer.consumer.ack(peer.seqs("3"))
    assert queue.stats.filtered == 3
    assert model.answer(lambda done: model.broker.bind("e.*", name, done)) == (None,)
    publish(0)
    peer.expect("2", "3", "0")
    peer.consumer.ack(peer.seqs("0"))
    assert model.broker.reply(name, [Message(b"answer")], lambda *_: None)
    peer.expect("2", "3", "0", "answer")


def test_queue_binding_filter_is_refused_without_creating_the_queue(model: ModelWorld) -> None:
    name = queue_name("filtered")
    with pytest.raises(NotSupported, match="needs the local engine"):
        model.broker.bind("e", name, lambda _error: None, filter_text="n > 1")
    assert name not in [queue.name for queue in model.broker.queues()]


# --- several gateways


def other(model: ModelWorld) -> Engine:
    """Start another gateway, which has another number."""
    engine = model.gateway()
    assert engine.ids.gateway != model.engine.ids.gateway
    return engine


def test_concurrent_creations_give_one_queue(model: ModelWorld) -> None:
    second = other(model)
    name = model.fresh()
    mine, theirs = model.engine.ensure(name), second.ensure(name)
    found = [*outcomes(mine, "a"), *outcomes(theirs, "b")]
    model.wait_until(lambda: mine.declaration.is_open and theirs.declaration.is_open)
    model.pass_time(50)
    assert mine.uid == theirs.uid and not found
    assert sorted(model.bodies(mine)) == ["a", "b"]


def test_creation_and_deletion_reach_other_gateways(model: ModelWorld) -> None:
    second = other(model)
    queue = model.queue(max_tries=7)
    assert model.answer(second.catch_up) == (None,)
    same = second.get(queue.name)
    assert (same.uid, same.options.max_tries) == (queue.uid, 7)
    peer = Peer(model, same)
    model.publish(queue, "a")
    peer.expect("a")
    model.answer(lambda done: model.broker.delete(queue.name, done))
    model.wait_until(lambda: peer.errors)
    assert isinstance(peer.errors[0], NoSuchQueue)


def test_leases_can_be_settled_and_extended_at_another_gateway(model: ModelWorld) -> None:
    second = other(model)
    queue = model.queue()
    model.publish(queue, "a", "b", "c")
    model.answer(second.catch_up)
    same = second.get(queue.name)
    (leases,) = model.answer(lambda done: queue.lease(3, 60_000, done))
    tokens = [each.token for each in leases]
    assert model.answer(lambda done: same.extend([tokens[0], "x"], 90_000, done)) == (None, ["x"])
    assert model.answer(lambda done: same.settle_leases(tokens[:1], Outcome.ACK, done)) == (None, 1, [])
    assert model.answer(lambda done: same.settle_by_id(leases[1].delivery.message.seq, done)) == (None, True)
    assert model.answer(lambda done: same.settle_leases(tokens[1:2], Outcome.ACK, done)) == (None, 0, tokens[1:2])
    model.pass_time(1500)
    assert same.counts().wip == 1 and queue.counts().wip == 1


def test_ack_of_leases_of_several_gateways_calls_each_once(model: ModelWorld) -> None:
    """Each life of a gateway that a client made up was a call of its own, of 5 s."""
    engines = [model.engine, other(model), other(model)]
    queue = model.queue()
    model.publish(queue, "a", "b", "c")
    tokens = []
    for engine in engines:
        model.answer(engine.catch_up)
        ((lease,),) = model.answer(lambda done, engine=engine: engine.get(queue.name).lease(1, 60_000, done))  # type: ignore[misc]
        tokens.append(lease.token)
    number = engines[1].ids.gateway
    made_up = [f"{number}-{life}.x" for life in range(1000)] + ["999-a.x", "1000000-a.x", "x", ""]
    published: list[str] = []
    publish = model.model.publish

    def watched(exchange: str, key: str, properties: Properties, body: bytes) -> tuple[bool, bool]:
        published.append(key)
        return publish(exchange, key, properties, body)

    model.model.publish = watched  # type: ignore[method-assign]
    error, settled, stale = model.answer(lambda done: queue.settle_leases([*tokens, *made_up], Outcome.ACK, done))
    assert (error, settled, sorted(stale)) == (None, 3, sorted(made_up))
    assert published.count(model.engine.names.gateway(number)) == 1
    model.pass_time(2000)
    model.ready(queue, 0)
    assert queue.counts().wip == 0


def test_leases_of_a_dead_gateway_are_stale_and_their_messages_requeued(model: ModelWorld) -> None:
    second = other(model)
    queue = model.queue()
    model.publish(queue, "a")
    model.answer(second.catch_up)
    same = second.get(queue.name)
    ((lease,),) = model.answer(lambda done: same.lease(1, 60_000, done))
    ended: list[Any] = []
    second.shutdown(lambda: ended.append(True))
    model.wait_until(lambda: ended)
    model.engines.remove(second)
    model.pass_time(100)
    settled = model.answer(lambda done: queue.settle_leases([lease.token], Outcome.ACK, done))
    assert settled == (None, 0, [lease.token])
    assert model.bodies(queue) == ["a"]


def test_later_started_gateway_has_all_queues(model: ModelWorld) -> None:
    queue = model.queue(groups=["g"], ttl=5)
    model.answer(lambda done: model.broker.bind("e", queue.name, done))
    late = other(model)
    same = late.get(queue.name)
    assert same.options == queue.options and late.bindings(queue.name).keys() == {"e"}
    answer = model.answer(lambda done: late.publish_event("e", [Message(b"x")], done))
    assert answer[0] is None and model.bodies(queue, group="g") == ["x"]


def test_gateway_catches_up_after_losing_the_registry(model: ModelWorld) -> None:
    second = other(model)
    model.model.lose("control")
    queue = model.queue()
    model.wait_until(lambda: any(each.name == queue.name for each in second.queues()))
    assert second.get(queue.name).uid == queue.uid


def halfway(model: ModelWorld, second: Engine, queue: Queue) -> None:
    """What this gateway changes of a queue gets into the registry and no further, as if it died there."""
    assert model.answer(second.get(queue.name).when_open) == (None,)
    cast(Any, second.get(queue.name)).declaration.changed = lambda *_: None


def test_half_made_binding_is_completed_by_a_retry(model: ModelWorld) -> None:
    second = other(model)
    queue = model.queue()
    model.answer(second.catch_up)
    halfway(model, second, queue)
    answers: list[Any] = []
    second.bind("e", queue.name, answers.append)
    model.wait_until(lambda: model.broker.bindings(queue.name).keys() == {"e"})
    assert model.answer(lambda done: model.broker.bind("e", queue.name, done)) == (None,) and not answers
    answer = model.answer(lambda done: model.broker.publish_event("e", [Message(b"x")], done))
    assert answer[0] is None and model.bodies(queue) == ["x"]


def test_half_made_group_receives_messages_of_others(model: ModelWorld) -> None:
    second = other(model)
    queue = model.queue()
    model.publish(queue, "a")
    model.answer(second.catch_up)
    halfway(model, second, queue)
    second.declare(queue.name, {"groups": ["g"]}, lambda _error: None)
    model.wait_until(lambda: queue.options.groups == ("g",))
    model.publish(queue, "b")
    assert model.bodies(queue, group="g") == ["b"] and model.bodies(queue) == ["a", "b"]


def test_failed_change_is_not_treated_as_done(model: ModelWorld) -> None:
    """It was answered with success when it was asked for again, and events went nowhere."""
    queue = model.queue()
    model.model.is_down = True
    model.model.lose("control")
    (error,) = model.answer(lambda done: model.broker.bind("e", queue.name, done))
    assert isinstance(error, Unavailable)
    model.model.is_down = False
    model.pass_time(1000)
    assert model.answer(lambda done: model.broker.bind("e", queue.name, done)) == (None,)
    answer = model.answer(lambda done: model.broker.publish_event("e", [Message(b"x")], done))
    assert answer[0] is None and model.bodies(queue) == ["x"]
