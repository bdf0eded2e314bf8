"""Private queues: no request can name them, no list has them, and they end with their process."""

from __future__ import annotations

import pytest

from curbstone.core.errors import BadRequest, CurbstoneError, EventRefused, QueueFull
from curbstone.core.names import QueueName, parse_queue_name, private_name, queue_name
from curbstone.core.options import MIB
from tests.kit.lab import Lab, Peer, message

MINE = private_name("topic.c1.1")
YOURS = private_name("topic.c2.1")
FORMER = queue_name("0123456789abcdef.topic.12", "_temp")
FORMER_CAP = 64 * MIB


def declare(lab: Lab, name: QueueName, *events: str, **options: object) -> None:
    assert lab.answer(lambda done: lab.broker.declare(name, options, done))[0] is None
    project = "default" if name.is_private else name.project
    for event in events:
        assert lab.answer(lambda done, event=event: lab.broker.bind(event, name, done, project))[0] is None  # type: ignore[misc]
    lab.publish(lab.broker.get(name), "m")


def test_no_name_that_a_request_can_hold_is_that_of_a_private_queue() -> None:
    for text in (str(MINE), f"/{MINE}", f"_temp/{MINE.queue}"):
        try:
            assert parse_queue_name(text) != MINE
        except BadRequest:
            continue
    with pytest.raises(BadRequest, match="bad project name"):
        queue_name(MINE.queue, MINE.project)
    assert MINE.is_private and not queue_name("q").is_private
    with pytest.raises(BadRequest, match="bad queue name"):
        private_name("a/b")


def test_they_are_in_no_list_and_their_names_in_no_report() -> None:
    lab = Lab()
    declare(lab, MINE)
    assert lab.broker.queues() == []
    queue = lab.broker.get(MINE)
    assert lab.broker.private_queues() == [queue]
    queue.damaged.append("a sector")
    assert lab.broker.health().reasons == ["a private queue is damaged: a sector"]


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_they_end_with_their_process(how: str) -> None:
    lab = Lab()
    declare(lab, MINE, "news")
    declare(lab, queue_name("kept"), "news")
    lab.restart(how)
    assert lab.broker.private_queues() == [] and len(lab.disk.list_dir("queues")) == 1
    assert [queue.name for queue in lab.broker.queues()] == [queue_name("kept")]
    lab.answer(lambda done: lab.broker.publish_event("news", [message("n")], done))
    assert lab.bodies(lab.broker.get(queue_name("kept"))) == [b"m", b"n"]


def test_one_that_is_deleted_before_its_directory_is_made_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab()
    made: list[str] = []
    monkeypatch.setattr(lab.disk, "make_dir", made.append)
    lab.broker.declare(MINE, {}, lambda _error: None)
    assert lab.answer(lambda done: lab.broker.delete(MINE, done), passing_ms=100) == (True,)
    assert not made and lab.broker.private_queues() == []


def test_a_stop_leaves_their_removal_to_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab()
    declare(lab, MINE, "news")
    declare(lab, YOURS, "news")
    renamed: list[str] = []
    monkeypatch.setattr(lab.disk, "rename", lambda old, _new: renamed.append(old))
    answers: list[object] = []
    lab.broker.delete(MINE, answers.append)
    lab.broker.shutdown(lambda: answers.append("stopped"))
    lab.broker.delete(YOURS, answers.append)
    lab.pass_time(100)
    assert sorted(map(str, answers)) == ["False", "True", "stopped"] and not renamed
    monkeypatch.undo()
    lab.start(lab.host.wall_ms())
    assert lab.disk.list_dir("queues") == [] and lab.broker.health().ok


def test_what_a_crash_left_of_their_removal_is_removed() -> None:
    lab = Lab()
    declare(lab, MINE)
    directory = lab.broker.get(MINE).log.directory
    lab.shutdown()
    lab.disk.rename(directory, directory + ".gone")
    lab.disk.remove(f"{directory}.gone/meta")
    lab.start(lab.host.wall_ms())
    assert lab.disk.list_dir("queues") == [] and lab.broker.health().ok


def test_those_of_an_earlier_version_are_known_and_removed() -> None:
    lab = Lab()
    declare(lab, FORMER, "news", cap=FORMER_CAP)
    lab.restart()
    assert lab.broker.queues() == [] and lab.disk.list_dir("queues") == []


@pytest.mark.parametrize(
    ("name", "options", "events"),
    [
        ("orders", {}, []),
        (FORMER.queue, {}, []),
        (FORMER.queue, {"cap": FORMER_CAP}, []),
        (FORMER.queue, {"cap": FORMER_CAP, "ttl": 5}, ["news"]),
        (FORMER.queue, {"cap": MIB}, ["news"]),
        (FORMER.queue, {"cap": FORMER_CAP}, ["news", "more"]),
        ("0123456789abcdef.answers", {"cap": FORMER_CAP}, []),
        ("0123456789abcdeF.topic.1", {"cap": FORMER_CAP}, ["news"]),
    ],
)
def test_a_user_may_have_a_project_of_that_name(name: str, options: dict[str, object], events: list[str]) -> None:
    """All of it was deleted at each start, confirmed messages and all. What might be a user's is kept."""
    lab = Lab()
    theirs = queue_name(name, "_temp")
    declare(lab, theirs, *events, **options)
    for how in ("shutdown", "power"):
        lab.restart(how)
        assert [queue.name for queue in lab.broker.queues()] == [theirs]
        assert lab.bodies(lab.broker.get(theirs)) == [b"m"]


def test_one_that_is_full_ends_and_its_consumer_is_told() -> None:
    """Else its client would miss a message and not know; whoever publishes is not to blame."""
    lab = Lab()
    declare(lab, MINE, "news", cap=MIB // 4)
    declare(lab, queue_name("kept"), "news")
    told: list[CurbstoneError] = []
    queue = lab.broker.get(MINE)
    queue.subscribe(lambda _deliveries: None, window=1000, on_closed=told.append)
    for n in range(30):
        error, _, count = lab.answer(lambda done: lab.broker.publish_event("news", [message(b"x" * 10_000)], done))
        assert (error, count) == (None, 1), n
        lab.settle()
    assert [type(error) for error in told] == [QueueFull]
    lab.pass_time(100)
    assert lab.broker.private_queues() == [] and len(lab.disk.list_dir("queues")) == 1
    assert len(lab.bodies(lab.broker.get(queue_name("kept")))) == 31


def test_a_durable_queue_that_is_full_is_told_to_the_publisher_also_beside_a_private_one() -> None:
    lab = Lab()
    declare(lab, queue_name("kept"), "news", cap=MIB // 4)
    declare(lab, MINE, "news", cap=MIB // 4)
    errors = []
    for _ in range(30):
        error, _, _ = lab.answer(lambda done: lab.broker.publish_event("news", [message(b"x" * 10_000)], done))
        errors.append(error)
    assert isinstance(errors[-1], EventRefused) and "default/kept" in str(errors[-1])


@pytest.mark.parametrize("auto", [True, False])
def test_a_message_to_a_subscriber_is_one_commit_and_its_ack_waits_for_the_next(auto: bool) -> None:
    """A message to a topic's thousand subscribers was two thousand commits."""
    lab = Lab()
    declare(lab, MINE)
    queue = lab.broker.get(MINE)
    peer = Peer(lab, queue, auto=auto)
    for number in range(10):
        before = queue.stats.commits
        lab.publish(queue, str(number))
        if not auto:
            peer.consumer.ack(list(peer.consumer.unsettled))
            lab.settle()
        assert queue.stats.commits - before == 1
        assert queue.counts()[:3] == (0, 0, 0)
    assert len(peer.given) == 11, "the first was there before"


def test_an_ack_that_somebody_waits_for_is_written_at_once_with_all_of_before() -> None:
    lab = Lab()
    declare(lab, MINE)
    queue = lab.broker.get(MINE)
    peer = Peer(lab, queue)
    lab.publish(queue, "a")
    peer.consumer.ack([1])
    lab.settle()
    before = queue.stats.commits
    peer.ack(2)
    assert queue.stats.commits - before == 1 and not queue.write_queue.lazy_acks


def test_acks_that_wait_for_a_commit_take_no_room_in_a_queue_that_is_used_for_long() -> None:
    lab = Lab()
    declare(lab, MINE, cap=64 * 1024)
    queue = lab.broker.get(MINE)
    peer = Peer(lab, queue, auto=True)
    for number in range(500):  # many times its cap
        lab.publish(queue, *[f"{number}.{each}".encode().ljust(100) for each in range(10)])
        assert len(queue.write_queue.lazy_acks.get("", [])) <= 10
    assert len(peer.given) == 5001
    lab.pass_time(60_000)
    assert queue.counts()[3] <= 64 * 1024 and not queue.write_queue.lazy_acks
