"""What a start restores besides messages: counts, sizes, numbers and names of files; and what it reports."""

from __future__ import annotations

import logging
from random import Random

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.log.format import SEGMENT_BYTES
from curbstone.core.positions import EARLIEST
from tests.core.recovery.test_headers import filled, lose_header, put_file
from tests.kit.lab import Lab, Peer, message, numbered
from tests.kit.room_check import check_room


def kept_bytes(lab: Lab) -> int:
    return sum(len(inode.cache) for path, inode in lab.disk.names.items() if path.endswith(".bad"))


def test_numbers_of_commits_and_sizes_of_the_backlog_are_the_same_after_a_start(lab: Lab) -> None:
    queue = filled(lab)
    Peer(lab, queue).ack(2, 3, 5, 20, 21)
    before = queue.log.next_batch, queue.index.runs.bytes_live, queue.counts().oldest_ms, queue.state.next_seq
    lab.restart("kill")
    queue = lab.reopened(queue)
    after = queue.log.next_batch, queue.index.runs.bytes_live, queue.counts().oldest_ms, queue.state.next_seq
    assert after == before
    check_room(queue)


def test_a_sealed_segment_is_cut_to_its_contents_again(lab: Lab) -> None:
    """Else its file would take room that the queue does not count, or counts without need."""
    queue = filled(lab)
    segment = queue.log.segments[1]
    size = segment.end
    assert segment.size == size == len(lab.disk.names[segment.path].cache)
    lab.disk.names[segment.path].cache += bytes(1000)
    lab.restart("kill")
    queue = lab.reopened(queue)
    inode = lab.disk.names[segment.path]
    assert len(inode.cache) == inode.most_bytes == queue.log.segments[1].size == size
    assert not queue.damaged
    check_room(queue)


@pytest.mark.parametrize("index", [0, 1])
def test_each_missing_segment_is_reported_also_the_first(lab: Lab, index: int) -> None:
    queue = filled(lab)
    before = lab.bodies(queue)
    del lab.disk.names[queue.log.segments[index].path]
    lab.restart("kill")
    queue = lab.reopened(queue)
    assert queue.damaged == [f"{queue.log.directory}: segment {index + 1} is missing"]
    assert set(lab.bodies(queue)) < set(before)


def test_damage_is_in_the_log_of_the_server(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    queue = filled(lab)
    lab.disk.names[queue.log.segments[0].path].cache[SEGMENT_BYTES + 100] ^= 1
    with caplog.at_level(logging.ERROR, "curbstone.core"):
        lab.restart("kill")
    (text,) = lab.reopened(queue).damaged
    assert f"damaged: {text}" in caplog.text


def test_segments_of_one_number_are_set_aside_under_different_names_and_their_room_is_counted(lab: Lab) -> None:
    queue = filled(lab)
    path = f"{queue.log.directory}/0000000090.seg"
    noise = [Random(seed).randbytes(2000 + seed) for seed in range(3)]
    names = [path.replace(".seg", f"{x}.bad") for x in ("", "x", "xx")]
    for turn, data in enumerate(noise):
        put_file(lab, path, data)
        lab.restart("kill")
        queue = lab.reopened(queue)
        assert [bytes(lab.disk.names[name].cache) for name in names[: turn + 1]] == noise[: turn + 1]
        assert path not in lab.disk.names
        assert queue.log.room.aside_bytes == kept_bytes(lab) == sum(map(len, noise[: turn + 1]))
        check_room(queue)


def test_messages_of_a_dropped_segment_that_a_crash_brought_back_do_not_return(lab: Lab) -> None:
    """Their settles were in another segment, which was dropped, too."""
    queue = lab.queue(cap=64 * 1024)
    peer = Peer(lab, queue)
    for number, body in enumerate(numbered(60, 400)):
        lab.publish(queue, body)
        if number == 20:
            peer.nack(2, delay_ms=60_000)
            peer.ack(1)
    first = queue.log.segments[0]
    data = bytes(lab.disk.names[first.path].cache)
    lab.pass_time(60_000)
    peer.ack(*peer.consumer.unsettled)
    lab.publish(queue, "new")
    assert first not in queue.log.segments
    lab.load({**lab.contents(), first.path: data})
    lab.restart("kill")
    queue = lab.reopened(queue)
    assert lab.bodies(queue) == [b"new"]
    assert first.path not in lab.disk.names and not queue.damaged
    check_room(queue)


@pytest.mark.parametrize("holds", ["a commit", "a torn commit", "noise", "nothing"])
def test_directory_without_meta_is_removed_only_if_it_holds_no_commit(lab: Lab, queue: LocalQueue, holds: str) -> None:
    if holds != "nothing":
        lab.publish(queue, "m")
    path = queue.log.active.path
    if holds == "a torn commit":
        lab.disk.names[path].cache[queue.log.active.end - 1] ^= 1
    if holds == "noise":
        lab.disk.names[path].cache[:] = Random(1).randbytes(2000)
    lab.disk.remove(f"{queue.log.directory}/meta")
    lab.restart("kill")
    assert lab.names() == []
    assert (path in lab.disk.names) == (holds != "nothing") == (not lab.broker.health().ok or bool(lab.broker.left))


@pytest.mark.parametrize("how", ["kill", "power"])
def test_group_declared_after_a_start_gets_all_messages_that_name_no_group(
    lab: Lab, queue: LocalQueue, how: str
) -> None:
    lab.publish(queue, "a", "b", ttl_ms=60_000)
    lab.publish(queue, "c", groups=("other",))
    lab.restart(how)
    queue = lab.reopened(queue)
    error, _info = lab.answer(lambda done: queue.reading.declare("g", EARLIEST, None, done))
    assert error is None and Peer(lab, queue, group="g").bodies == [b"a", b"b"]


def test_part_of_a_transaction_is_not_taken_again_after_its_segment_was_dropped(lab: Lab) -> None:
    queues = [lab.queue(name, cap=64 * 1024) for name in ("a", "b")]
    transaction = lab.broker.transaction()
    for queue in queues:
        transaction.publish(queue, message("part"))
    assert lab.answer(transaction.commit) == (None,)
    journal = bytes(lab.disk.names["journal"].cache)
    first = queues[0].log.segments[0]
    while first in queues[0].log.segments:
        lab.pop(queues[0])
        lab.publish(queues[0], b"x" * 1000)
    lab.pop_all(queues[0])
    lab.shutdown()
    lab.load({**lab.contents(), "journal": journal})
    lab.start(lab.host.wall_ms())
    assert [lab.bodies(lab.reopened(queue)) for queue in queues] == [[], [b"part"]]


def test_file_of_a_first_segment_that_was_never_begun_is_removed(lab: Lab, queue: LocalQueue) -> None:
    path = queue.log.active.path
    inode = lab.disk.names[path]
    inode.cache[:] = inode.durable[:] = bytes(len(inode.cache))
    lab.restart("kill")
    queue = lab.reopened(queue)
    assert path not in lab.disk.names and not queue.damaged
    assert lab.publish(queue, "first") == [1]
    lab.restart("power")
    assert lab.bodies(lab.reopened(queue)) == [b"first"]


def test_id_of_a_copied_message_is_not_used_again_although_no_header_is_left(lab: Lab) -> None:
    queue = filled(lab)
    last = queue.state.next_seq - 1
    peer = Peer(lab, queue)
    peer.consumer.hold()
    peer.ack(*range(2, last + 1))
    newest = queue.log.active.number
    while queue.log.segments[0].number <= newest:  # only tries of the first message are written
        peer.nack(1)
        peer.consumer.resume()
        lab.settle()
        peer.consumer.hold()
    paths = [segment.path for segment in queue.log.segments]
    lab.broker.disk.catch_up()
    for path in paths:
        lose_header(lab, path)
    lab.restart("kill")
    queue = lab.reopened(queue)
    assert lab.bodies(queue) == numbered(1, 400)
    assert lab.publish(queue, "next")[0] > 1


def test_a_segment_whose_name_was_not_synced_before_a_kill_survives_a_power_cut_after_the_start(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab.disk, "sync_all", lambda path: False)  # a system that can't sync a whole file system
    queue = filled(lab)
    before = lab.bodies(queue)
    path = queue.log.active.path
    lab.disk.changes.append(("create", path, lab.disk.durable_names.pop(path)))
    lab.restart("kill")
    assert lab.bodies(lab.reopened(queue)) == before
    lab.disk.changes.clear()
    lab.restart("power")
    assert lab.bodies(lab.reopened(queue)) == before
