"""Staged transactions: parts on disk, one commit for all of them, and an id that is remembered."""

from __future__ import annotations

from functools import partial

import pytest

from curbstone.core.errors import (
    AlreadyCommitted,
    BadRequest,
    Conflict,
    CurbstoneError,
    MessageTooLarge,
    NoSuchQueue,
    NoSuchTransaction,
    QueueFull,
    StagedDamaged,
    Unavailable,
)
from curbstone.core.message import Message
from curbstone.core.names import QueueName, queue_name
from curbstone.core.options import MIB
from curbstone.core.orders import Orders, orders_of
from curbstone.core.staging.committed import KEPT_MS
from tests.core.commit.test_faults import FailingSyncs
from tests.core.staging.lab import commit, drop, frames_of, stage, staged_files, start_with_two_queues, state, upload
from tests.kit.lab import Lab, Peer, numbered

HOWS = pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
HOUR_MS = 3_600_000


@pytest.fixture
def lab() -> Lab:
    """A broker with the queues a and b."""
    return start_with_two_queues()


def test_staged_messages_are_invisible_and_committed_ones_in_order(lab: Lab) -> None:
    stage(lab, "t", "1", {"a": [b"1", b"2"], "b": [b"3"]})
    stage(lab, "t", "0", {"a": [b"0"]})
    lab.pass_time(1000)
    assert lab.bodies("a") == lab.bodies("b") == [] and state(lab, "t") == "staged"
    assert commit(lab, "t") == (None, False, 4)
    assert lab.bodies("a") == [b"0", b"1", b"2"] and lab.bodies("b") == [b"3"]
    assert not staged_files(lab) and lab.broker.staging.bytes == 0 and not len(lab.broker.staging)


def test_commit_uses_the_named_parts_in_order_and_drops_others(lab: Lab) -> None:
    for part in "xyz":
        stage(lab, "t", part, {"a": [part.encode()]})
    assert commit(lab, "t", ["z", "x"]) == (None, False, 2)
    assert lab.bodies("a") == [b"z", b"x"]
    assert not staged_files(lab) and lab.broker.staging.bytes == 0


def test_staged_messages_keep_their_priority(lab: Lab) -> None:
    messages = [
        Message(b"low", b"priority:0\n"),
        Message(b"none"),
        Message(b"high", b"priority:9\n", orders_of(level=10)),
    ]
    stage(lab, "t", "0", {"a": [*messages, Message(b"bad", b"priority:no\n")]})
    assert commit(lab, "t") == (None, False, 4)
    assert lab.pop_all(lab.named("a")) == [b"high", b"none", b"bad", b"low"]


@HOWS
def test_repeated_commit_changes_nothing_also_after_a_restart(lab: Lab, how: str) -> None:
    stage(lab, "t", "0", {"a": [b"m"]})
    assert commit(lab, "t") == (None, False, 1)
    for _ in range(3):
        assert commit(lab, "t") == (None, True, 1)
        assert state(lab, "t") == "committed"
        with pytest.raises(AlreadyCommitted):
            upload(lab, "t", "0")
        with pytest.raises(AlreadyCommitted):
            drop(lab, "t")
        lab.restart(how)
    assert lab.bodies("a") == [b"m"]


def test_committed_id_is_dropped_after_seven_days(lab: Lab) -> None:
    stage(lab, "t", "0", {"a": [b"m"]})
    commit(lab, "t")
    lab.restart(after_ms=KEPT_MS - 10_000)
    assert state(lab, "t") == "committed"
    lab.restart(after_ms=20_000)
    assert state(lab, "t") == ""
    stage(lab, "t", "0", {"a": [b"n"]})
    assert commit(lab, "t") == (None, False, 1)
    assert lab.bodies("a") == [b"m", b"n"]


def test_id_list_is_compacted_when_mostly_old(lab: Lab) -> None:
    committed = lab.broker.staging.committed
    lab.broker.disk.make_dir("staging")
    lab.broker.disk.sync_dir("")
    for day in range(30):
        for number in range(100):
            hashed = b"%08d%08d" % (day, number)
            assert lab.answer(partial(committed.add, hashed, 1)) == (None,)
        lab.pass_time(KEPT_MS // 7)
    assert len(committed) <= 900
    assert len(lab.disk.names["staging/committed"].cache) < 3000 * 36
    lab.restart("power")
    committed = lab.broker.staging.committed
    assert committed.messages_of(b"%08d%08d" % (29, 99)) == 1
    assert committed.messages_of(b"%08d%08d" % (20, 99)) is None


@HOWS
def test_staged_messages_survive_a_restart_until_they_expire(lab: Lab, how: str) -> None:
    stage(lab, "t", "0", {"a": [b"m"]})
    stage(lab, "t", "0", {"a": [b"n"]})
    size = lab.broker.staging.bytes
    lab.restart(how, after_ms=HOUR_MS // 2)
    assert lab.broker.staging.bytes == size and state(lab, "t") == "staged"
    lab.restart(how, after_ms=HOUR_MS // 4)
    assert commit(lab, "t") == (None, False, 1)
    assert lab.bodies("a") == [b"n"]


@HOWS
def test_idle_transaction_is_dropped_after_an_hour_across_restarts(lab: Lab, how: str) -> None:
    stage(lab, "t", "0", {"a": [b"m"]})
    lab.pass_time(HOUR_MS - 1000)
    assert state(lab, "t") == "staged"  # which is a call
    lab.restart(how, after_ms=HOUR_MS)
    lab.pass_time(2000)
    assert state(lab, "t") == "" and not staged_files(lab) and lab.broker.staging.bytes == 0
    with pytest.raises(NoSuchTransaction):
        commit(lab, "t")


def test_calls_keep_a_transaction_alive(lab: Lab) -> None:
    stage(lab, "t", "0", {"a": [b"m"]})
    for _ in range(5):
        lab.pass_time(HOUR_MS - 10_000)
        assert state(lab, "t") == "staged"
    lab.pass_time(HOUR_MS + 10_000)
    assert state(lab, "t") == "" and not staged_files(lab)


def test_abort_removes_everything_and_can_be_repeated(lab: Lab) -> None:
    stage(lab, "t", "0", {"a": [b"m"]})
    assert drop(lab, "t") is None and drop(lab, "t") is None
    assert not staged_files(lab) and lab.broker.staging.bytes == 0
    lab.restart("power")
    assert state(lab, "t") == ""


def test_staging_limit_counts_all_transactions_after_a_restart(lab: Lab) -> None:
    stage(lab, "t", "0", {"a": [b"x" * 50_000]})
    lab.restart("power")
    staging = lab.broker.staging
    staging.area.bytes_max = 90_000
    with pytest.raises(QueueFull, match="max-staged"):
        stage(lab, "u", "0", {"a": [b"x" * 50_000]})
    lab.settle()
    assert 50_000 < staging.bytes < 60_000 and len(staging) == 1
    commit(lab, "t")
    stage(lab, "u", "0", {"a": [b"x" * 50_000]})
    assert commit(lab, "u") == (None, False, 1)


@pytest.mark.parametrize("how", ["", "shutdown", "power"])
def test_staging_limit_per_project(lab: Lab, how: str) -> None:
    """The limit was shared by all, so one project could keep all others from staging."""
    lab.queue("a", cap=MIB)
    other = QueueName("other", "a")
    lab.answer(lambda done: lab.broker.declare(other, {}, done))
    lab.broker.staging.area.bytes_max = 1_600_000
    for number in range(29):
        stage(lab, "t", str(number), {"a": [b"x" * 50_000]})
    if how:
        lab.restart(how)
        lab.broker.staging.area.bytes_max = 1_600_000
    with pytest.raises(QueueFull, match="for projects that stage no more than these; see --max-staged"):
        stage(lab, "u", "0", {"a": [b"x" * 60_000]})
    coming = lab.broker.staging.upload("other", "mine", "0", MIB)
    coming.feed(frames_of({"a": [b"x" * 60_000]}))
    assert lab.answer(coming.finish)[0] is None
    late = lab.broker.staging.upload("other", "mine", "1", MIB)
    with pytest.raises(QueueFull):
        late.feed(frames_of({"a": [b"x" * 50_000]}))
    late.cancel()
    lab.settle()
    assert drop(lab, "t") is None
    stage(lab, "u", "0", {"a": [b"x" * 60_000]})


@pytest.mark.parametrize("how", ["", "shutdown", "power"])
def test_staging_limit_per_user(lab: Lab, how: str) -> None:
    """By as many projects as one liked, each with a little, everything could be used up; or by a restart."""
    lab.broker.staging.area.bytes_max = 16 * 4096 * 4

    def stage_nothing(owner: str, project: str) -> None:
        upload = lab.broker.staging.upload(project, "t", "0", MIB, owner=owner)
        try:
            assert lab.answer(upload.finish)[0] is None
        except QueueFull:
            upload.cancel()
            raise

    for number in range(60):
        stage_nothing("ann", f"p{number}")
    if how:
        lab.restart(how)
        lab.broker.staging.area.bytes_max = 16 * 4096 * 4
    with pytest.raises(QueueFull, match="for users that stage no more than these"):
        stage_nothing("ann", "another")
    for number in range(4):
        stage_nothing("bob", f"p{number}")  # also in a project of the other's
    with pytest.raises(QueueFull, match="bytes are staged"):
        stage_nothing("eve", "p0")
    lab.settle()
    assert lab.broker.staging.bytes == 64 * 4096


def test_missing_part_or_transaction_is_reported(lab: Lab) -> None:
    stage(lab, "t", "0", {"a": [b"m"]})
    with pytest.raises(NoSuchTransaction, match="no part 1"):
        commit(lab, "t", ["0", "1"])
    with pytest.raises(NoSuchTransaction):
        commit(lab, "other")
    with pytest.raises(BadRequest):
        commit(lab, "t", ["0", "0"])
    assert commit(lab, "t", ["0"]) == (None, False, 1)


def test_an_empty_part_can_be_committed(lab: Lab) -> None:
    stage(lab, "t", "0", {})
    assert commit(lab, "t") == (None, False, 0)
    lab.restart("power")
    assert commit(lab, "t") == (None, True, 0)


def test_missing_queue_is_named_when_staging_and_committing(lab: Lab) -> None:
    with pytest.raises(NoSuchQueue, match="default/none"):
        stage(lab, "t", "0", {"none": [b"m"]})
    stage(lab, "t", "0", {"a": [b"m"], "b": [b"m"]})
    lab.answer(lambda done: lab.broker.delete(queue_name("b"), done), passing_ms=100)
    error, _, _ = commit(lab, "t")
    assert isinstance(error, NoSuchQueue) and "default/b" in str(error)
    assert lab.bodies("a") == [] and state(lab, "t") == "staged"


def test_a_message_too_large_for_its_queue_is_refused(lab: Lab) -> None:
    lab.queue("a", max_message_size=100)
    with pytest.raises(MessageTooLarge):
        stage(lab, "t", "0", {"a": [b"x" * 101]})
    stage(lab, "t", "0", {"a": [b"x" * 100]})
    lab.queue("a", max_message_size=99)
    error, _, _ = commit(lab, "t")
    assert isinstance(error, MessageTooLarge)


def test_parts_are_refused_during_a_commit_and_concurrent_commits_share_it(lab: Lab) -> None:
    stage(lab, "t", "0", {"a": [b"m"]})
    late = upload(lab, "t", "late")
    answers: list[tuple[CurbstoneError | None, bool, int]] = []
    for _ in range(2):
        lab.broker.staging.commit("default", "t", None, lambda *given: answers.append(given))
    with pytest.raises(Conflict, match="being committed"):
        upload(lab, "t", "1")
    with pytest.raises(Conflict):
        late.feed(frames_of({"a": [b"late"]}))
    late.cancel()
    with pytest.raises(Conflict):
        drop(lab, "t")
    lab.settle()
    assert answers == [(None, False, 1), (None, True, 1)]
    assert lab.bodies("a") == [b"m"]


def test_incomplete_part_of_a_disconnected_client_leaves_nothing(lab: Lab) -> None:
    coming = upload(lab, "t", "0")
    coming.feed(frames_of({"a": [b"x" * 600_000, b"y" * 600_000]})[:-1])
    lab.settle()
    assert staged_files(lab)
    with pytest.raises(BadRequest, match="middle"):
        coming.finish(lambda _error, _part: None)
    coming.cancel()
    lab.settle()
    assert not staged_files(lab) and lab.broker.staging.bytes == 0 and not len(lab.broker.staging)


def test_abandoned_part_does_not_affect_the_next_transaction_of_that_id() -> None:
    """The next one could be begun, and write under the same name, before the first one's file was removed."""
    data = frames_of({"a": [b"x" * 700_000]})
    for seed in range(20):  # of the order in which jobs are done
        lab = Lab(seed=seed, cap=4 * MIB)
        lab.queue("a")
        left = upload(lab, "t", "0")
        left.feed(data[:600_000])
        lab.settle()
        left.cancel()
        while len(lab.broker.staging):
            assert lab.host.work()
            lab.host.turn()
        again = upload(lab, "t", "0")
        again.feed(data[:600_000])
        again.feed(data[600_000:])
        error, _ = lab.answer(again.finish)
        assert error is None, f"seed {seed}"
        assert commit(lab, "t") == (None, False, 1)


def test_delays_count_from_the_commit_and_the_ttl_of_the_queue_applies(lab: Lab) -> None:
    lab.queue("b", ttl=10)
    stage(
        lab,
        "t",
        "0",
        {
            "a": [Message(b"late", orders=Orders(delay_ms=5000)), b"now"],
            "b": [b"m", Message(b"short", orders=Orders(ttl_ms=2000))],
        },
    )
    lab.pass_time(60_000)
    commit(lab, "t")
    a, b = lab.named("a"), lab.named("b")
    assert lab.pop_all(a) == [b"now"]
    assert lab.bodies(b) == [b"m", b"short"]
    lab.pass_time(4000)
    assert lab.pop_all(a) == [] and lab.bodies(b) == [b"m"]
    lab.pass_time(1000)
    assert lab.pop_all(a) == [b"late"]
    lab.pass_time(6000)
    assert lab.bodies(b) == []


def test_queue_deleted_after_the_marker_loses_only_its_part() -> None:
    for turns in range(1, 60):
        lab = start_with_two_queues()
        stage(lab, "t", "0", {"a": numbered(300, 1000), "b": numbered(300, 1000)})
        answers: list[tuple[CurbstoneError | None, bool, int]] = []
        lab.broker.staging.commit("default", "t", None, lambda *given, reported=answers: reported.append(given))
        for _ in range(turns):
            lab.host.turn()
            lab.host.work()
        lab.broker.delete(queue_name("b"), lambda _there: None)
        lab.pass_time(1000)
        ((error, _, count),) = answers
        assert error is None and count == 600
        assert lab.bodies("a") == numbered(300, 1000)
        assert commit(lab, "t") == (None, True, 600)
        lab.restart("power")
        assert lab.bodies("a") == numbered(300, 1000)


@pytest.mark.parametrize("failures", range(1, 5))
@pytest.mark.parametrize("after", range(8))
def test_failed_syncs_keep_commits_atomic(lab: Lab, failures: int, after: int) -> None:
    mine = numbered(50, 1000)
    stage(lab, "t", "0", {"a": mine, "b": mine})
    FailingSyncs(lab.disk, failures, after=after)
    error, _, _ = commit(lab, "t", passing_ms=60_000)
    found = lab.bodies("a"), lab.bodies("b")
    if error is None:
        assert found == (mine, mine)
    else:
        assert isinstance(error, Unavailable) and found == ([], []) and state(lab, "t") == "staged"
        assert commit(lab, "t", passing_ms=60_000)[0] is None
    lab.restart("power")
    assert (lab.bodies("a"), lab.bodies("b")) == (mine, mine)
    assert commit(lab, "t") == (None, True, 100)


def test_damaged_part_is_detected_before_the_commit(lab: Lab) -> None:
    stage(lab, "t", "0", {"a": [b"hello" * 100]})
    (path,) = staged_files(lab)
    lab.disk.names[path].cache[100] ^= 1
    error, _, _ = commit(lab, "t", passing_ms=5000)
    assert isinstance(error, StagedDamaged) and "checksum" in str(error)
    assert lab.bodies("a") == [] and state(lab, "t") == "staged"


def test_message_settled_during_the_commit_does_not_return() -> None:
    lab = start_with_two_queues(cap=2 * MIB)
    stage(lab, "t", "0", {"a": numbered(1000, 700)})
    peer = Peer(lab, lab.named("a"), window=10_000)
    lab.broker.staging.commit("default", "t", None, lambda *_given: None)
    for _ in range(40):
        lab.host.turn()
        lab.host.work()
        if peer.consumer.unsettled:
            peer.consumer.ack(list(peer.consumer.unsettled))
    lab.restart("kill")
    lab.settle()
    queue = lab.named("a")
    left = lab.pop_all(queue)
    given = peer.bodies
    assert not set(given[:-300]) & set(left) and {*given, *left} == set(numbered(1000, 700))
