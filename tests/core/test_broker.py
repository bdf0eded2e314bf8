"""The broker: declaring, deleting, events, shutdown, and what it says of itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop
from typing import Any

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.log.format import TriesRecord
from curbstone.core.engine.log.room import Room
from curbstone.core.errors import BadRequest, Conflict, EventRefused, MessageTooLarge, NoSuchQueue, Unavailable
from curbstone.core.names import private_name, queue_name
from curbstone.core.options import MIB
from curbstone.core.port import Broker
from curbstone.core.values import Capability
from tests.kit.lab import Lab, Peer, message, numbered

Q = queue_name("q")


def declare(lab: Lab, **options: Any) -> object:
    return lab.answer(lambda done: lab.broker.declare(Q, options, done))[0]


def test_declared_queue_survives_a_power_cut(lab: Lab) -> None:
    assert declare(lab, ttl=5, groups=["a"]) is None
    options = lab.broker.get(Q).options
    lab.restart("power")
    assert lab.broker.get(Q).options == options
    assert (options.ttl, options.groups, options.cap) == (5, ("a",), MIB)


def test_declaring_again_merges_options(lab: Lab) -> None:
    declare(lab, ttl=5, max_tries=2)
    declare(lab, max_tries=3, lease=9)
    declare(lab)
    lab.restart()
    options = lab.broker.get(Q).options
    assert (options.ttl, options.max_tries, options.lease) == (5, 3, 9)


def test_declarations_of_one_turn_are_merged(lab: Lab) -> None:
    done: list[object] = []
    for options in ({"ttl": 1}, {"max_tries": 2}, {"lease": 3}, {"ttl": 4}):
        lab.broker.declare(Q, options, done.append)
    lab.settle()
    assert done == [None] * 4
    lab.restart("power")
    found = lab.broker.get(Q).options
    assert (found.ttl, found.max_tries, found.lease) == (4, 2, 3)


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("options", [{"cap": 1}, {"what": 1}, {"groups": ["a b"]}, {"ttl": -1, "lease": 5}])
def test_a_bad_option_changes_and_creates_nothing(lab: Lab, exists: bool, options: dict[str, object]) -> None:
    if exists:
        declare(lab)
    with pytest.raises(BadRequest):
        lab.broker.declare(Q, options, lambda _: None)
    lab.settle()
    assert len(lab.broker.queues()) == exists
    if exists:
        assert lab.broker.get(Q).options.lease == 30


def test_cap_below_the_stored_bytes_is_a_conflict(lab: Lab) -> None:
    declare(lab)
    queue = lab.broker.get(Q)
    lab.publish(queue, *numbered(200, 1000))
    with pytest.raises(Conflict, match="more than a cap of 65536"):
        lab.broker.declare(Q, {"cap": 65536}, lambda _: None)
    assert queue.options.cap == MIB


def test_raised_cap_applies_immediately(lab: Lab) -> None:
    declare(lab, cap="64KiB")
    queue = lab.broker.get(Q)
    assert declare(lab, cap="1MiB") is None
    lab.publish(queue, *numbered(500, 1000))
    lab.restart()
    assert len(lab.bodies(lab.broker.get(Q))) == 500


def test_lowered_cap_of_a_small_queue_applies_immediately(lab: Lab) -> None:
    declare(lab)
    queue = lab.broker.get(Q)
    lab.publish(queue, *numbered(300, 1000))
    lab.pop_all(queue)
    lab.pass_time(5000)
    assert declare(lab, cap="128KiB") is None
    for _ in range(5):
        lab.publish(queue, *numbered(30, 1000))
        lab.pop_all(queue)
    assert lab.held(queue) <= 128 * 1024


def test_an_unknown_queue_is_reported(lab: Lab) -> None:
    with pytest.raises(NoSuchQueue, match="no such queue: default/q"):
        lab.broker.get(Q)
    assert lab.answer(lambda done: lab.broker.delete(Q, done)) == (False,)


def test_ensuring_twice_gives_the_same_queue(lab: Lab) -> None:
    queue = lab.broker.ensure(Q)
    assert lab.broker.ensure(Q) is queue
    lab.settle()
    assert lab.broker.get(Q) is queue and lab.broker.queues() == [queue]


def test_names_that_differ_in_case_or_project_are_different_queues(lab: Lab) -> None:
    names = [queue_name("q"), queue_name("Q"), queue_name("q", "p"), queue_name("p-q"), queue_name("a" * 200, "b" * 64)]
    for name in names:
        lab.publish(lab.broker.ensure(name), str(name))
    lab.restart()
    assert {queue.name: lab.bodies(queue) for queue in lab.broker.queues()} == {
        name: [str(name).encode()] for name in names
    }


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_a_deleted_queue_is_gone_with_its_messages(lab: Lab, how: str) -> None:
    declare(lab)
    lab.publish(lab.broker.get(Q), "a")
    assert lab.answer(lambda done: lab.broker.delete(Q, done)) == (True,)
    assert lab.disk.list_dir("queues") == []
    lab.restart(how)
    assert lab.broker.queues() == []
    assert lab.bodies(lab.broker.ensure(Q)) == []


def test_deleting_while_consuming_and_publishing_answers_all_callers(lab: Lab) -> None:
    declare(lab)
    queue = lab.broker.get(Q)
    lab.publish(queue, *numbered(10))
    peer = Peer(lab, queue, window=5)
    answers: list[Any] = []
    queue.publish([message("m")], lambda *given: answers.append(given))
    peer.consumer.ack([1], lambda error: answers.append(error))
    lab.host.turn()
    lab.broker.delete(Q, lambda existed: answers.append(existed))
    lab.settle()
    lab.pass_time(1000)
    assert True in answers and len(answers) == 3
    assert [type(error) for error in peer.closed_with] == [NoSuchQueue]
    assert not peer.consumer.unsettled and lab.disk.list_dir("queues") == []


def test_queue_recreated_after_a_delete_is_empty_and_works(lab: Lab) -> None:
    declare(lab)
    lab.publish(lab.broker.get(Q), "old")
    done: list[object] = []
    lab.broker.delete(Q, done.append)
    new = lab.broker.ensure(Q)
    assert lab.publish(new, "new") == [1]
    lab.pass_time(100)
    assert done == [True]
    lab.restart("power")
    assert lab.bodies(lab.broker.get(Q)) == [b"new"]


def test_deleting_a_queue_that_is_being_created_leaves_nothing() -> None:
    for seed in range(8):  # which of the jobs a thread takes first is chance
        lab = Lab(seed=seed)
        lab.broker.ensure(Q)
        done: list[object] = []
        lab.host.turn()
        lab.broker.delete(Q, done.append)
        lab.settle()
        lab.pass_time(100)
        assert len(done) == 1 and lab.broker.queues() == []
        lab.restart("power")
        assert lab.broker.queues() == []


@pytest.mark.parametrize("wait", ["delay", "ttl", "lease"])
def test_a_deleted_queue_keeps_no_timer_going(lab: Lab, wait: str) -> None:
    declare(lab)
    queue = lab.broker.get(Q)
    lab.publish(queue, "a", **({} if wait == "lease" else {f"{wait}_ms": 1000}))
    if wait == "lease":
        lab.lease(queue, 1, 1000)
    assert lab.answer(lambda done: lab.broker.delete(Q, done)) == (True,)
    fired = 0
    while lab.host.timers and fired < 100:
        due_ms, _, timer = heappop(lab.host.timers)
        lab.host.jump(max(0, due_ms - lab.host.now_ms()))
        if timer.fn is not None:
            fired += 1
            timer.fn()
    assert fired < 10


def test_a_cap_is_at_most_what_the_server_allows_and_no_queue_loses_its_own(lab: Lab) -> None:
    """Any client could set one of 16 TiB."""
    declare(lab, cap=64 * MIB)
    lab.broker.max_cap = 8 * MIB
    declare(lab, ttl=5, cap=64 * MIB)
    for name, cap in ((Q, 65 * MIB), (queue_name("new"), 9 * MIB)):
        with pytest.raises(BadRequest, match="is more than the server's --max-cap of 8388608"):
            lab.broker.declare(name, {"cap": cap}, lambda _: None)
    assert [queue.options.cap for queue in lab.broker.queues()] == [64 * MIB]
    declare(lab, cap=8 * MIB)
    with pytest.raises(BadRequest):
        lab.broker.declare(Q, {"cap": 64 * MIB}, lambda _: None)


# --- events


def test_an_event_is_copied_to_every_bound_queue(lab: Lab) -> None:
    for name in ("a", "b"):
        assert lab.answer(partial(lab.broker.bind, "order", queue_name(name))) == (None,)
    lab.queue("c")
    answer = lab.answer(lambda done: lab.broker.publish_event("order", [message("m"), message("n")], done))
    assert answer == (None, 2, 2)
    assert [lab.bodies(queue) for queue in lab.broker.queues()] == [[b"m", b"n"], [b"m", b"n"], []]


def test_queue_deleted_during_an_event_publish_is_skipped(lab: Lab) -> None:
    """It was reported as an error, although all queues that were still bound had the message."""
    for name in ("a", "q", "z"):
        lab.answer(partial(lab.broker.bind, "order", queue_name(name)))

    def publish_and_delete(done: Callable[..., None]) -> None:
        lab.broker.publish_event("order", [message("m"), message("n")], done)
        lab.broker.delete(Q, lambda _existed: None)

    assert lab.answer(publish_and_delete, passing_ms=100) == (None, 2, 2)
    assert [lab.bodies(queue) for queue in lab.broker.queues()] == [[b"m", b"n"]] * 2


def test_refusing_queue_is_reported_and_others_get_the_event(lab: Lab) -> None:
    """One error was reported for all messages and queues, without the name of the one that refused."""
    for name in ("a", "q", "z"):
        lab.answer(partial(lab.broker.bind, "order", queue_name(name)))
    declare(lab, max_message_size=3)
    answers: list[tuple[object, int, int]] = []
    messages = [message(body) for body in ("few", "more", "most", "end")]
    lab.broker.publish_event("order", messages, lambda *given: answers.append(given))
    lab.settle()
    assert [(error is None, count) for error, _, count in answers] == [(True, 1), (False, 2), (True, 1)]
    error = answers[1][0]
    assert isinstance(error, EventRefused) and isinstance(error.refused[Q], MessageTooLarge)
    assert (list(error.refused), error.stored) == ([Q], 2)
    assert [queues for _, queues, _ in answers] == [3, 0, 3]
    assert str(error).startswith("1 of 3 queues bound to the event refused the message: default/q: the message has 4")
    found = {queue.name.queue: lab.bodies(queue) for queue in lab.broker.queues()}
    assert found["q"] == [b"few", b"end"] and found["a"] == found["z"] == [b"few", b"more", b"most", b"end"]


def test_refusal_by_a_private_queue_does_not_reveal_its_name(lab: Lab) -> None:
    """Who knows the name of a private queue may send to it."""
    private = private_name("secret.topic0")
    lab.answer(lambda done: lab.broker.declare(private, {"max_message_size": 3}, done))
    lab.answer(partial(lab.broker.bind, "order", private))
    lab.answer(partial(lab.broker.bind, "order", Q))
    (error, _, _) = lab.answer(partial(lab.broker.publish_event, "order", [message("more")]))
    assert list(error.refused) == [private] and error.members == {"stored": 1, "refused": {}}
    assert str(error) == "1 of 2 queues bound to the event refused the message: 1 private to their subscribers"


def test_many_bindings_share_a_few_writes(lab: Lab) -> None:
    """Each was a file of its own, written and synced one after the other, with all that came before in it."""
    lab.queue()
    before = lab.disk.ops
    answers: list[object] = []
    for number in range(300):
        lab.broker.bind(f"e{number}", Q, answers.append)
        lab.host.turn()
    assert not answers
    lab.settle()
    assert answers == [None] * 300
    assert lab.disk.ops - before < 40
    lab.restart("power")
    assert lab.broker.bindings(Q).keys() == {f"e{number}" for number in range(300)}


def test_events_without_bindings_are_dropped(lab: Lab) -> None:
    """Each name that was ever bound kept an empty set: 90,000 of them took 30 MB."""
    for number in range(50):
        events = frozenset(f"e{number}.{each}" for each in range(20))
        lab.answer(partial(lab.broker.rebind, Q, events))
    assert lab.broker.events_bound == 20
    lab.answer(lambda done: lab.broker.delete(Q, done))
    assert lab.broker.events_bound == 0


def test_event_without_bindings_is_confirmed(lab: Lab) -> None:
    assert lab.answer(lambda done: lab.broker.publish_event("x", [message("m")], done)) == (None, 0, 1)


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_bindings_survive_a_restart_and_end_with_unbind_or_delete(lab: Lab, how: str) -> None:
    for event in ("one", "two", "one"):
        lab.answer(partial(lab.broker.bind, event, Q))
    lab.restart(how)
    assert lab.broker.bindings(Q).keys() == {"one", "two"}
    lab.answer(lambda done: lab.broker.unbind("one", Q, done))
    lab.answer(lambda done: lab.broker.unbind("never", Q, done))
    lab.restart(how)
    assert lab.broker.bindings(Q).keys() == {"two"}
    for event in ("one", "two"):
        lab.answer(partial(lab.broker.publish_event, event, [message(event)]))
    assert lab.bodies(lab.broker.get(Q)) == [b"two"]
    lab.answer(lambda done: lab.broker.delete(Q, done))
    assert lab.answer(lambda done: lab.broker.publish_event("two", [message("m")], done)) == (None, 0, 1)
    assert lab.broker.queues() == []


def test_options_and_bindings_are_independent(lab: Lab) -> None:
    declare(lab, ttl=5)
    lab.answer(lambda done: lab.broker.bind("e", Q, done))
    declare(lab, lease=7)
    lab.restart()
    assert lab.broker.bindings(Q).keys() == {"e"} and lab.broker.get(Q).options.ttl == 5


@pytest.mark.parametrize("event", ["", "a b", "a\n", "x" * 201])
def test_a_bad_event_name_binds_nothing(lab: Lab, event: str) -> None:
    with pytest.raises(BadRequest, match="bad event name"):
        lab.broker.bind(event, Q, lambda _: None)


def test_bindings_that_take_more_than_a_small_cap_leaves_are_refused() -> None:
    lab = Lab(cap=64 * 1024)
    lab.queue()
    with pytest.raises(BadRequest, match="options and bindings take"):
        for number in range(100):
            lab.answer(partial(lab.broker.bind, f"event-{number}-" + "x" * 100, Q))
    kept = lab.broker.bindings(Q)
    lab.restart()
    assert lab.broker.bindings(Q).keys() == kept.keys()


# --- shutdown and health


def test_shutdown_finishes_commits_ends_consumers_and_refuses_new_calls(lab: Lab) -> None:
    declare(lab)
    queue = lab.broker.get(Q)
    peer = Peer(lab, queue, window=1)
    answers: list[Any] = []
    queue.publish([message("a"), message("b")], lambda *given: answers.append(given))
    ended: list[bool] = []
    lab.broker.shutdown(lambda: ended.append(True))
    queue.publish([message("late")], lambda *given: answers.append(given))
    assert not lab.broker.health().ok and lab.broker.health().reasons == ["shutting down"]
    with pytest.raises(Unavailable):
        lab.broker.declare(queue_name("new"), {}, lambda _: None)
    lab.settle()
    lab.pass_time(1000)
    assert ended == [True]
    confirmed = [first for error, first, _ in answers if error is None]
    assert confirmed == [1] and len(answers) == 2
    assert [type(error) for error in peer.closed_with] == [Unavailable]
    lab.start(lab.host.wall_ms())
    assert lab.bodies(lab.broker.get(Q)) == [b"a", b"b"]


def test_shutdown_answers_waiting_leases_and_pops(lab: Lab) -> None:
    declare(lab)
    answers: list[object] = []
    lab.broker.get(Q).pop(answers.append, wait_ms=30_000)
    lab.settle()
    lab.shutdown()
    lab.settle()
    assert len(answers) == 1


def test_shutdown_never_answers_before_it_returned(lab: Lab) -> None:
    lab.answer(lambda done: lab.broker.shutdown(done))


@pytest.mark.source
def test_shutdown_does_not_wait_for_room_to_log_tries(
    lab: Lab, queue: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.publish(queue, "a")
    peer = Peer(lab, queue)
    monkeypatch.setattr(Room, "records_left", property(lambda _room: 0))
    queue.write_queue.record_redeliveries([TriesRecord("", peer.seqs[0], 1, 1, 0)])
    lab.settle()
    assert not queue.writer.is_idle  # else it has nothing left to say
    lab.shutdown()


def test_idle_broker_is_healthy_and_reports_its_sync_mode() -> None:
    for sync in ("always", "interval:100", "never"):
        lab = Lab(sync=sync)
        declare(lab)
        health = lab.broker.health()
        assert (health.ok, health.reasons, health.sync) == (True, [], sync)


# --- what else may lie in a data directory


def test_partially_created_directory_is_removed(lab: Lab) -> None:
    declare(lab)
    lab.disk.make_dir("queues/0123456789ab")
    lab.disk.open("queues/0123456789ab/meta.new", create=True)
    lab.restart()
    assert [queue.name for queue in lab.broker.queues()] == [Q]
    assert len(lab.disk.list_dir("queues")) == 1


def test_interrupted_deletion_is_completed(lab: Lab) -> None:
    declare(lab)
    directory = lab.broker.get(Q).log.directory
    lab.shutdown()
    lab.disk.rename(directory, directory + ".gone")
    lab.start(lab.host.wall_ms())
    assert lab.broker.queues() == [] and lab.disk.list_dir("queues") == []


def test_a_damaged_meta_is_reported_by_name_and_nothing_is_removed(lab: Lab) -> None:
    declare(lab)
    queue = lab.broker.get(Q)
    lab.publish(queue, "a")
    path = f"{queue.log.directory}/meta"
    good = bytes(lab.disk.names[path].cache)
    for index in range(len(good) - 1):
        lab.disk.names[path].cache[:] = good[:index] + bytes([good[index] ^ 1]) + good[index + 1 :]
        files = lab.files(queue)
        lab.start(lab.host.wall_ms())
        assert lab.broker.queues() == [] and path in lab.broker.health().reasons[0]
        assert lab.files(queue) == files
    lab.disk.names[path].cache[:] = good
    lab.start(lab.host.wall_ms())
    assert lab.bodies(lab.broker.get(Q)) == [b"a"]


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_auto_delete_deadline_is_stored_with_the_queue(lab: Lab, how: str) -> None:
    assert lab.answer(partial(lab.broker.occupy, Q, frozenset({"e"}), 5.5)) == (None,)
    declare(lab, ttl=5)
    lab.restart(how)
    assert (lab.broker.unused_s(Q), frozenset(lab.broker.bindings(Q)), lab.broker.get(Q).options.ttl) == (
        5.5,
        frozenset({"e"}),
        5.0,
    )
    lab.answer(lambda done: lab.broker.rebind(Q, frozenset({"f"}), done))
    assert lab.broker.unused_s(Q) == 5.5, "only who says so changes it"
    lab.answer(partial(lab.broker.occupy, Q, frozenset({"f"}), None))
    lab.restart(how)
    assert (lab.broker.unused_s(Q), frozenset(lab.broker.bindings(Q))) == (None, frozenset({"f"}))


def test_local_engine_implements_the_whole_port() -> None:
    engine: Broker = Lab().broker
    assert engine.capabilities == frozenset(Capability)
