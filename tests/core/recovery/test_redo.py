"""Commits of several queues that share one sync: after a power cut at any moment all that was confirmed is there."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.log.format import SEGMENT_BYTES, decode_segment_header, encode_segment_header
from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.values import IdempotencyKey
from curbstone.core.wal import sync_group
from curbstone.core.wal.replay import redo_names, replay_redo
from tests.kit.lab import Lab, Peer, message
from tests.kit.simulated import Crash, SimFile

NAMES = ["a", "b", "c"]


def prepared(seed: int = 0) -> tuple[Lab, list[LocalQueue]]:
    lab = Lab(seed=seed)
    queues = [lab.queue(name) for name in NAMES]
    for queue in queues:
        lab.publish(queue, "before")
    return lab, queues


def publish_each(lab: Lab, queues: Sequence[LocalQueue], body: str) -> list[CurbstoneError | None]:
    """Publish to all queues in one turn; return what was answered up to now."""
    answers: list[CurbstoneError | None] = []
    for queue in queues:
        queue.publish([message(body)], lambda error, _first, _count: answers.append(error))
    lab.settle()
    return answers


def bodies(lab: Lab) -> list[list[bytes]]:
    return [lab.bodies(lab.queue(name)) for name in NAMES]


def syncs(lab: Lab) -> int:
    return lab.broker.commits.syncs


def test_the_commits_of_one_turn_share_a_sync_and_survive_a_power_cut() -> None:
    lab, queues = prepared()
    before = syncs(lab)
    for number in range(5):
        assert publish_each(lab, queues, f"m{number}") == [None] * 3
    assert syncs(lab) == before + 5
    assert redo_names(lab.disk) == ["redo.1"]
    lab.restart("power")
    assert bodies(lab) == [[b"before", *(b"m%d" % number for number in range(5))]] * 3
    assert redo_names(lab.disk) == []


def test_publishes_during_a_shared_sync_form_one_commit_per_queue() -> None:
    lab, queues = prepared()
    others = [lab.queue(name) for name in ("d", "e", "f")]
    before = [queue.stats.commits for queue in others]
    answers: list[CurbstoneError | None] = []
    for turn, several in enumerate([queues, others, others, others]):
        for queue in several:
            queue.publish([message(f"m{turn}")], lambda error, _first, _count: answers.append(error))
        lab.host.turn()
    assert len(lab.host.jobs) == 1, "the first three are on their way to the disk"
    assert not answers
    lab.settle()
    assert answers == [None] * 12
    assert [queue.stats.commits for queue in others] == [commits + 1 for commits in before]
    lab.restart("power")
    assert [lab.bodies(lab.queue(name)) for name in ("d", "e", "f")] == [[b"m1", b"m2", b"m3"]] * 3


def test_deferred_commits_are_all_written_although_the_first_are_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lab, queues = prepared()
    key = IdempotencyKey("k", b"once")
    others = [lab.queue(f"other-{number:02}") for number in range(3 * sync_group.REPORTED_AT_ONCE)]
    for queue in others[: sync_group.REPORTED_AT_ONCE]:
        queue.publish([message("once")], lambda *_answer: None, key=key)
    lab.settle()
    monkeypatch.setattr(sync_group, "REPORT_US_MAX", 0)
    answers: list[CurbstoneError | None] = []
    for queue in queues:
        queue.publish([message("first")], lambda error, _first, _count: answers.append(error))
    lab.host.turn()
    for number, queue in enumerate(others):
        repeated = key if number < sync_group.REPORTED_AT_ONCE else None
        queue.publish([message("once")], lambda error, _first, _count: answers.append(error), key=repeated)
    lab.settle()
    assert answers == [None] * (len(queues) + len(others))


def test_shared_commits_are_written_to_segments_before_a_read() -> None:
    lab, queues = prepared()
    publish_each(lab, queues, "late")
    segment = queues[0].log.active
    file = lab.disk.names[segment.path]
    assert b"late" not in file.cache
    for run in list(queues[0].index.runs):
        queues[0].index.reader.forget(run)
    assert lab.bodies(queues[0]) == [b"before", b"late"]
    assert b"late" in file.cache and b"late" not in file.durable
    lab.restart("power")
    assert bodies(lab) == [[b"before", b"late"]] * 3


def test_shared_commits_are_written_to_segments_after_a_second() -> None:
    lab, queues = prepared()
    publish_each(lab, queues, "late")
    files = [lab.disk.names[queue.log.active.path] for queue in queues]
    lab.pass_time(sync_group.CATCH_UP_MS - 1)
    assert not any(b"late" in file.cache for file in files)
    lab.pass_time(1)
    assert all(b"late" in file.cache for file in files)
    assert not lab.host.timers, "nothing is to be done later"


def test_full_redo_file_is_kept_while_a_segment_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was confirmed is in memory and in that file alone; it is served all the same, and there after a crash."""
    lab, queues = prepared()
    publish_each(lab, queues, "late")
    segment = lab.disk.names[queues[0].log.active.path]
    original = SimFile.write

    def write(self: SimFile, offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        if self._inode is segment:
            raise OSError(errno.EIO, "no")
        original(self, offset, buffers)

    with monkeypatch.context() as during:
        during.setattr(SimFile, "write", write)
        for _ in range(40):
            publish_each(lab, queues[1:], "more".ljust(500))
    health = lab.broker.health()
    assert not health.ok and any("kept for the next start" in reason for reason in health.reasons)
    assert "redo.1" in redo_names(lab.disk) and lab.bodies(queues[0]) == [b"before", b"late"]
    lab.restart("power")
    assert lab.broker.health().ok
    assert [len(each) for each in bodies(lab)] == [2, 42, 42]


def test_a_queue_that_is_alone_in_its_turn_needs_no_redo_file() -> None:
    lab, queues = prepared()
    lab.publish(queues[0], "alone")
    assert redo_names(lab.disk) == []


def test_acks_share_the_sync() -> None:
    lab, queues = prepared()
    peers = [Peer(lab, queue) for queue in queues]
    done: list[object] = []
    for peer in peers:
        peer.consumer.ack(list(peer.consumer.unsettled), done.append)
    lab.settle()
    assert done == [None] * 3
    lab.restart("power")
    assert bodies(lab) == [[]] * 3


@pytest.mark.parametrize("how", ["power", "kill"])
def test_a_crash_at_any_call_of_the_disk_loses_nothing_that_was_confirmed(how: str) -> None:
    rounds = 12  # so that redo files are full, synced, and used again
    reached = 0
    for crash_in in range(400):
        lab, queues = prepared(seed=crash_in)
        lab.disk.crash_in = crash_in
        confirmed = [0] * len(queues)
        asked = 0
        with suppress(Crash):
            for asked in range(1, rounds + 1):
                for n, queue in enumerate(queues):

                    def reported(
                        error: object, _first: int, count: int, n: int = n, reported: list[int] = confirmed
                    ) -> None:
                        reported[n] += count if error is None else 0

                    queue.publish([message(f"{asked}".ljust(400))], reported)
                lab.settle()
            lab.disk.crash_in = -1
        is_over = lab.disk.crash_in == -1 and confirmed == [rounds] * 3
        lab.disk.crash_in = -1
        again = crash_in % 7
        if how == "power":
            lab.disk.crash()
            lab.disk.crash_in = again
            with suppress(Crash):  # and once more, while it recovers
                lab.start(lab.host.wall_ms() + 1000)
            lab.disk.crash()
        lab.disk.crash_in = -1
        lab.start(lab.host.wall_ms() + 1000)
        for n, name in enumerate(NAMES):
            queue = lab.queue(name)
            assert not queue.damaged
            got = [body.strip() for body in lab.bodies(queue)][1:]
            assert got == [b"%d" % (number + 1) for number in range(len(got))], f"crash in {crash_in}"
            assert confirmed[n] <= len(got) <= asked, f"crash in {crash_in}"
        if is_over:
            reached += 1
            break
    assert reached, "more calls than expected"


def test_redo_file_is_reused_after_its_segments_are_synced() -> None:
    lab, queues = prepared()
    for number in range(60):
        assert publish_each(lab, queues, f"{number}".ljust(500)) == [None] * 3
    assert redo_names(lab.disk) == ["redo.1", "redo.2"]
    lab.restart("power")
    assert [len(each) for each in bodies(lab)] == [61] * 3


def test_a_stop_leaves_no_redo_file() -> None:
    lab, queues = prepared()
    publish_each(lab, queues, "m")
    lab.shutdown()
    assert redo_names(lab.disk) == []
    lab.start(lab.host.wall_ms())
    assert bodies(lab) == [[b"before", b"m"]] * 3


def test_stop_leaves_segments_to_the_next_start_without_loss(lab: Lab) -> None:
    queues = [lab.queue(f"q{number}") for number in range(sync_group.SYNCED_AT_STOP_MAX + 8)]
    for queue in queues:
        lab.publish(queue, "before")
    assert publish_each(lab, queues, "m") == [None] * len(queues)
    before = syncs(lab)
    lab.shutdown()
    assert syncs(lab) == before and redo_names(lab.disk), "so many are not synced while somebody waits for the stop"
    lab.disk.crash()
    lab.start(lab.host.wall_ms())
    assert [lab.bodies(lab.reopened(queue)) for queue in queues] == [[b"before", b"m"]] * len(queues)
    assert redo_names(lab.disk) == []


def test_full_redo_file_of_many_segments_is_reused(lab: Lab) -> None:
    queues = [lab.queue(f"q{number}") for number in range(sync_group.SYNCED_AT_STOP_MAX + 8)]
    for number in range(12):
        assert publish_each(lab, queues, f"{number}".ljust(100)) == [None] * len(queues)
    assert redo_names(lab.disk) == ["redo.1", "redo.2"]
    lab.restart("power")
    assert [len(lab.bodies(lab.reopened(queue))) for queue in queues] == [12] * len(queues)


@pytest.mark.parametrize("rounds", range(20, 30))
def test_full_redo_file_is_not_reused_before_unreported_commits_are_synced(
    rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments that had something there for the first time were left out: nobody had been told, so nobody knew."""
    monkeypatch.setattr(sync_group, "REPORT_US_MAX", -1)
    lab = Lab()
    busy, others = ([lab.queue(f"{kind}{number}") for number in range(count)] for kind, count in (("b", 2), ("o", 12)))
    for queue in [*busy, *others]:
        lab.publish(queue, "before")
    for number in range(rounds):
        assert publish_each(lab, busy, f"{number}".ljust(400)) == [None] * 2
    confirmed: list[object] = []
    for queues, body in ((others, "m"), (busy, "large".ljust(1200))):
        for queue in queues:
            queue.publish([message(body)], lambda error, _first, _count: confirmed.append(error))
        lab.host.turn()
    while lab.host.work() or lab.host.turn():  # a job ends before anything else happens
        pass
    assert confirmed == [None] * 14
    for _ in range(20):
        publish_each(lab, busy, "more".ljust(400))
    lab.restart("power")
    assert [lab.bodies(lab.reopened(queue))[1:] for queue in others] == [[b"m"]] * 12


def on_redo(monkeypatch: pytest.MonkeyPatch, call: str, error: int) -> None:
    """Let a call on redo files fail, and only there."""
    original = getattr(SimFile, call)

    def failing(self: SimFile, *args: object) -> object:
        names = [name for name, inode in self._disk.names.items() if inode is self._inode]
        if any(name.startswith("redo.") for name in names):
            raise OSError(error, "no")
        return original(self, *args)

    monkeypatch.setattr(SimFile, call, failing)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("call", ["write", "sync"])
def test_without_a_redo_file_each_commit_is_synced_separately(
    call: str, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, queues = prepared()
    on_redo(monkeypatch, call, error)
    before = syncs(lab)
    for number in range(3):
        assert publish_each(lab, queues, f"m{number}") == [None] * 3
    assert syncs(lab) == before + 9 and lab.broker.health().ok
    lab.restart("power")
    assert bodies(lab) == [[b"before", b"m0", b"m1", b"m2"]] * 3


def test_redo_file_that_fails_later_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, queues = prepared()
    publish_each(lab, queues, "good")
    with monkeypatch.context() as during:
        on_redo(during, "sync", errno.EIO)
        assert publish_each(lab, queues, "m") == [None] * 3
    assert redo_names(lab.disk) == []
    assert publish_each(lab, queues, "more") == [None] * 3
    assert redo_names(lab.disk) == ["redo.2"]
    lab.restart("power")
    assert bodies(lab) == [[b"before", b"good", b"m", b"more"]] * 3


def test_unsyncable_segment_keeps_redo_files_and_fails_health(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lab, queues = prepared()
    publish_each(lab, queues, "shared")
    original = SimFile.sync

    def sync(self: SimFile) -> None:
        if self._inode is lab.disk.names[queues[0].log.active.path]:
            self._disk.tear(self._inode)
            raise OSError(errno.EIO, "no")
        original(self)

    with monkeypatch.context() as during:
        during.setattr(SimFile, "sync", sync)
        lab.publish_answers(queues[0], [message("alone")])
    health = lab.broker.health()
    assert not health.ok and any("kept for the next start" in reason for reason in health.reasons)
    assert publish_each(lab, queues[1:], "after") == [None] * 2
    assert redo_names(lab.disk) == ["redo.1"]
    lab.restart("power")
    assert lab.broker.health().ok
    assert bodies(lab)[0][:2] == [b"before", b"shared"]
    assert bodies(lab)[1:] == [[b"before", b"shared", b"after"]] * 2


def test_failing_redo_file_is_kept_if_a_segment_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was removed once: the segment's next sync, of which the system says that it is well, was believed."""
    lab, queues = prepared()
    publish_each(lab, queues, "shared")
    original = SimFile.sync
    failing = [lab.disk.names[path] for path in ("redo.1", queues[0].log.active.path)]

    def sync(self: SimFile) -> None:
        if self._inode in failing:
            failing.remove(self._inode)
            self._disk.tear(self._inode)
            raise OSError(errno.EIO, "no")
        original(self)

    with monkeypatch.context() as during:
        during.setattr(SimFile, "sync", sync)
        answers = publish_each(lab, queues, "m")
    assert len([answer for answer in answers if answer is not None]) == 1 and not failing
    assert redo_names(lab.disk) == ["redo.1"] and not lab.broker.health().ok
    lab.restart("power")
    assert [each[:2] for each in bodies(lab)] == [[b"before", b"shared"]] * 3


def test_crash_after_truncating_a_failed_commit_leaves_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The redo file had the failed commit, the segment was cut before its place, and the start reported damage."""
    lab, queues = prepared()
    publish_each(lab, queues, "shared")
    path = queues[0].log.active.path
    original, cut = SimFile.sync, SimFile.truncate
    failing = [lab.disk.names["redo.1"], lab.disk.names[path]]

    def sync(self: SimFile) -> None:
        if self._inode in failing:
            failing.remove(self._inode)
            self._inode.make_durable()
            raise OSError(errno.EIO, "no")
        original(self)

    def truncate(self: SimFile, size: int) -> None:
        cut(self, size)
        if self._inode is lab.disk.names[path]:
            self._inode.make_durable()
            raise Crash

    with monkeypatch.context() as during:
        during.setattr(SimFile, "sync", sync)
        during.setattr(SimFile, "truncate", truncate)
        with pytest.raises(Crash):
            publish_each(lab, queues, "doubtful")
            lab.publish_answers(queues[0], [message("after")])
    lab.restart("power")
    assert lab.broker.health().ok and redo_names(lab.disk) == []
    assert bodies(lab) == [[b"before", b"shared", b"doubtful"]] * 3


def everything_on(lab: Lab) -> bytes:
    return b"".join(bytes(inode.cache) + bytes(inode.durable) for inode in lab.disk.durable_names.values())


def test_purge_is_confirmed_after_erasing_redo_files() -> None:
    lab, queues = prepared()
    publish_each(lab, queues, "secret")
    assert lab.answer(queues[0].purge)[0] is None
    assert lab.answer(queues[1].purge)[0] is None
    assert lab.answer(queues[2].purge)[0] is None
    assert redo_names(lab.disk) == [] and b"secret" not in everything_on(lab)


def test_purge_that_cannot_erase_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was refused when all messages were settled already; of the file in use it was not even refused."""
    lab, queues = prepared()
    publish_each(lab, queues, "shared")
    path = queues[0].log.active.path
    original = SimFile.sync

    def sync(self: SimFile) -> None:
        if self._inode is lab.disk.names[path]:
            raise OSError(errno.EIO, "no")
        original(self)

    with monkeypatch.context() as during:
        during.setattr(SimFile, "sync", sync)
        lab.publish_answers(queues[0], [message("alone")])
    error, count = lab.answer(queues[1].purge)
    assert isinstance(error, Unavailable) and "kept for the next start" in str(error) and count == 0
    assert lab.bodies(queues[1]) == [b"before", b"shared"]
    assert lab.answer(lambda done: queues[1].purge(done, keep=True)) == (None, 2)
    assert lab.bodies(queues[1]) == []
    lab.restart("power")
    assert lab.purge(lab.queue("c")) == 2


def test_deletion_is_confirmed_after_erasing_redo_files() -> None:
    lab, queues = prepared()
    publish_each(lab, queues, "secret")
    for queue in queues:
        assert lab.answer(lambda done, name=queue.name: lab.broker.delete(name, done)) == (True,)  # type: ignore[misc]
    assert not any(name.startswith("redo.") for name in [*lab.disk.names, *lab.disk.durable_names])


def test_redo_records_of_an_earlier_segment_use_are_skipped() -> None:
    lab, queues = prepared()
    publish_each(lab, queues, "m")
    first, second = (lab.disk.names[queue.log.active.path].cache for queue in queues[:2])
    header = decode_segment_header(bytes(first[:SEGMENT_BYTES]))
    assert header is not None
    first[:] = encode_segment_header(header._replace(salt=header.salt ^ 1)) + bytes(len(first) - SEGMENT_BYTES)
    second[SEGMENT_BYTES:] = bytes(len(second) - SEGMENT_BYTES)
    replay_redo(lab.disk)
    assert not any(first[SEGMENT_BYTES:]) and b"m" in second[SEGMENT_BYTES:]
