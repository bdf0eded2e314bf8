"""Private queues: no request can name them, no list has them, and they end with their process."""

from __future__ import annotations

import pytest

from curbstone.core.errors import BadRequest, CurbstoneError, EventRefused, QueueFull
from curbstone.core.names import QueueName, parse_queue_name, private_name, queue_name
from curbstone.core.options import MIB
from curbstone.core.wal import sync_group
from tests.kit.lab import Lab, Peer, message
from tests.kit.simulated import SimDisk, SimFile

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


def test_request_names_never_match_a_private_queue() -> None:
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


def test_private_queues_are_not_listed_or_named(lab: Lab) -> None:
    declare(lab, MINE)
    assert lab.broker.queues() == []
    queue = lab.broker.get(MINE)
    assert lab.broker.private_queues() == [queue]
    queue.damaged.append("a sector")
    assert lab.broker.health().reasons == ["a private queue is damaged: a sector"]


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_private_queues_end_with_their_process(lab: Lab, how: str) -> None:
    declare(lab, MINE, "news")
    declare(lab, queue_name("kept"), "news")
    lab.restart(how)
    assert lab.broker.private_queues() == [] and len(lab.disk.list_dir("queues")) == 1
    assert [queue.name for queue in lab.broker.queues()] == [queue_name("kept")]
    lab.answer(lambda done: lab.broker.publish_event("news", [message("n")], done))
    assert lab.bodies("kept") == [b"m", b"n"]


def test_private_queue_deleted_before_its_directory_exists_creates_none(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(lab.disk, "make_dir", made.append)
    lab.broker.declare(MINE, {}, lambda _error: None)
    assert lab.answer(lambda done: lab.broker.delete(MINE, done), passing_ms=100) == (True,)
    assert not made and lab.broker.private_queues() == []


def test_stop_leaves_private_queues_to_the_next_start(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_interrupted_removal_of_private_queues_is_completed(lab: Lab) -> None:
    declare(lab, MINE)
    directory = lab.broker.get(MINE).log.directory
    lab.shutdown()
    lab.disk.remove(f"{directory}/0000000001.seg")
    lab.start(lab.host.wall_ms())
    assert lab.disk.list_dir("queues") == [] and lab.broker.health().ok


def test_private_queues_of_an_earlier_version_are_removed(lab: Lab) -> None:
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
def test_users_can_have_a_project_named_like_private_queues(
    lab: Lab, name: str, options: dict[str, object], events: list[str]
) -> None:
    """All of it was deleted at each start, confirmed messages and all. What might be a user's is kept."""
    theirs = queue_name(name, "_temp")
    declare(lab, theirs, *events, **options)
    for how in ("shutdown", "power"):
        lab.restart(how)
        assert [queue.name for queue in lab.broker.queues()] == [theirs]
        assert lab.bodies(lab.broker.get(theirs)) == [b"m"]


def test_full_private_queue_ends_and_notifies_its_consumer(lab: Lab) -> None:
    """Else its client would miss a message and not know; whoever publishes is not to blame."""
    declare(lab, MINE, "news", cap=MIB // 4)
    declare(lab, queue_name("kept"), "news")
    reported: list[CurbstoneError] = []
    queue = lab.broker.get(MINE)
    queue.subscribe(lambda _deliveries: None, window=1000, on_closed=reported.append)
    for n in range(30):
        error, _, count = lab.answer(lambda done: lab.broker.publish_event("news", [message(b"x" * 10_000)], done))
        assert (error, count) == (None, 1), n
        lab.settle()
    assert [type(error) for error in reported] == [QueueFull]
    lab.pass_time(100)
    assert lab.broker.private_queues() == [] and len(lab.disk.list_dir("queues")) == 1
    assert len(lab.bodies("kept")) == 31


def test_a_durable_queue_that_is_full_is_reported_to_the_publisher_also_beside_a_private_one(lab: Lab) -> None:
    declare(lab, queue_name("kept"), "news", cap=MIB // 4)
    declare(lab, MINE, "news", cap=MIB // 4)
    errors = []
    for _ in range(30):
        error, _, _ = lab.answer(lambda done: lab.broker.publish_event("news", [message(b"x" * 10_000)], done))
        errors.append(error)
    assert isinstance(errors[-1], EventRefused) and "default/kept" in str(errors[-1])


@pytest.mark.parametrize("auto", [True, False])
def test_a_message_to_a_subscriber_is_one_commit_and_its_ack_waits_for_the_next(lab: Lab, auto: bool) -> None:
    """A message to a topic's thousand subscribers was two thousand commits."""
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
    assert len(peer.received) == 11, "the first was there before"


def test_an_ack_that_waits_for_a_commit_makes_room_in_the_window_at_once(lab: Lab) -> None:
    declare(lab, MINE)
    queue = lab.broker.get(MINE)
    lab.publish(queue, "a", "b")
    peer = Peer(lab, queue, window=1)
    for seq in (1, 2, 3):
        assert list(peer.consumer.unsettled) == [seq]
        peer.consumer.ack([seq])
        lab.settle()
    assert peer.bodies == [b"m", b"a", b"b"]


def test_awaited_ack_is_written_immediately_with_earlier_ones(lab: Lab) -> None:
    declare(lab, MINE)
    queue = lab.broker.get(MINE)
    peer = Peer(lab, queue)
    lab.publish(queue, "a")
    peer.consumer.ack([1])
    lab.settle()
    before = queue.stats.commits
    peer.ack(2)
    assert queue.stats.commits - before == 1 and not queue.write_queue.lazy_acks


def test_acks_that_wait_for_a_commit_take_no_room_in_a_queue_that_is_used_for_long(lab: Lab) -> None:
    declare(lab, MINE, cap=64 * 1024)
    queue = lab.broker.get(MINE)
    peer = Peer(lab, queue, auto=True)
    for number in range(500):  # many times its cap
        lab.publish(queue, *[f"{number}.{each}".encode().ljust(100) for each in range(10)])
        assert len(queue.write_queue.lazy_acks.get("", [])) <= 10
    assert len(peer.received) == 5001
    lab.pass_time(60_000)
    assert queue.counts()[3] <= 64 * 1024 and not queue.write_queue.lazy_acks


# --- no syncs


def counting_syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each sync of a file or directory adds a word."""
    syncs: list[str] = []
    of_files, of_directories = SimFile.sync, SimDisk.sync_dir

    def sync(file: SimFile) -> None:
        syncs.append("file")
        of_files(file)

    def sync_dir(disk: SimDisk, path: str) -> None:
        syncs.append("directory")
        of_directories(disk, path)

    monkeypatch.setattr(SimFile, "sync", sync)
    monkeypatch.setattr(SimDisk, "sync_dir", sync_dir)
    return syncs


def publish_news(lab: Lab, *bodies: str) -> None:
    answer = lab.answer(lambda done: lab.broker.publish_event("news", [message(body) for body in bodies], done))
    assert (answer[0], answer[2]) == (None, len(bodies))


def test_private_queues_are_never_synced(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each topic subscription was made with six syncs, and had one for each message, that no restart could use."""
    syncs = counting_syncs(monkeypatch)
    names = [private_name(f"topic.c{number}.1") for number in range(20)]
    for name in names:
        declare(lab, name, "news", cap=64 * 1024)
    peers = [Peer(lab, lab.broker.get(name)) for name in names]
    for number in range(200):  # several times the cap of each
        publish_news(lab, str(number).ljust(1000))
        for peer in peers:
            peer.consumer.ack(list(peer.consumer.unsettled))
        lab.settle()
    publish_news(lab, "one")
    for name in names[1:]:
        assert lab.answer(lambda done, name=name: lab.broker.delete(name, done), passing_ms=100) == (True,)  # type: ignore[misc]
    publish_news(lab, "alone")
    assert peers[0].bodies[-2:] == [b"one", b"alone"] and all(len(peer.received) >= 202 for peer in peers)
    assert syncs == [] and lab.broker.commits.syncs == 0


@pytest.mark.parametrize("most", [0, 1 << 30], ids=["written at once", "written later"])
def test_unsynced_messages_are_read_back_from_their_segment(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_group, "VOLATILE_BYTES_MAX", most)
    lab = Lab()
    for name in (MINE, YOURS):
        declare(lab, name, "news")
    publish_news(lab, "a", "b")
    for queue in lab.broker.private_queues():
        for run in queue.index.runs:
            queue.index.reader.forget(run)
        assert lab.bodies(queue) == [b"m", b"a", b"b"]


def test_deferred_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_group, "VOLATILE_BYTES_MAX", 3000)
    lab = Lab()
    for name in (MINE, YOURS):
        declare(lab, name, "news")
    late = []
    for _ in range(4):
        publish_news(lab, "x" * 1000)
        late.append(len(lab.broker.disk.late))
    assert late == [2, 0, 2, 0]
    publish_news(lab, "x" * 1000)
    lab.pass_time(sync_group.CATCH_UP_MS)
    assert not lab.broker.disk.late


@pytest.mark.parametrize("seed", range(10))
def test_private_copy_is_delivered_after_durable_copies_are_synced(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(seed=seed)
    kept = queue_name("kept")
    declare(lab, MINE, "news", "more")
    declare(lab, YOURS, "news")
    declare(lab, kept, "news")
    steps = counting_syncs(monkeypatch)
    for name in (MINE, YOURS):
        lab.broker.get(name).subscribe(
            lambda given, name=name: steps.extend(f"{name.queue} {each.message.body.decode()}" for each in given),  # type: ignore[misc]
            window=10,
            on_closed=lambda _error: None,
        )
    lab.settle()
    steps.clear()
    lab.broker.get(kept).publish([message("before")], lambda *_: None)
    lab.host.turn()  # so its commit is under way, and the next message waits for its end
    lab.broker.publish_event("news", [message("1")], lambda *_: None)
    lab.broker.publish_event("more", [message("2")], lambda *_: None)  # which nothing durable is bound to
    lab.settle()
    assert sorted(step for step in steps if " " in step) == sorted(
        [f"{MINE.queue} 1", f"{MINE.queue} 2", f"{YOURS.queue} 1"]
    )
    first = min(place for place, step in enumerate(steps) if " " in step)
    assert steps[:first].count("file") == 2, "of the commit before, and of the copy in the durable queue"
    assert steps.index(f"{MINE.queue} 1") < steps.index(f"{MINE.queue} 2")


def test_private_copy_does_not_wait_for_a_refusing_durable_queue(lab: Lab) -> None:
    declare(lab, MINE, "news")
    declare(lab, queue_name("kept"), "news")
    lab.queue("kept", publish_paused=True)
    answer = lab.answer(lambda done: lab.broker.publish_event("news", [message("a")], done))
    assert isinstance(answer[0], EventRefused) and lab.bodies(lab.broker.get(MINE)) == [b"m", b"a"]
