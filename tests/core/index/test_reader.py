"""What a queue keeps of its messages in memory: the newest, and what was read back, both bounded."""

from __future__ import annotations

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.index import reader
from curbstone.core.engine.shared import CACHE_BYTES_MAX
from curbstone.core.options import MIB
from tests.kit.lab import Lab, Peer, message

RUNS = 150


def with_a_backlog(lab: Lab) -> LocalQueue:
    """Return a queue of many runs that are on disk only; in each a message expires and another stays."""
    queue = lab.queue()
    for number in range(RUNS):
        lab.publish_messages(queue, [message(b"%d:" % number + b"x" * 60_000), message("expires", ttl_ms=5000)])
    lab.restart()
    assert lab.broker.shared.cache.bytes == 0
    return lab.reopened(queue)


def in_memory(queue: LocalQueue) -> int:
    """Return how many runs have their messages in memory."""
    return sum(run.messages is not None for run in queue.index.runs)


def test_read_cache_is_bounded() -> None:
    """Whatever was read back stayed in memory until it was settled, however much it was."""
    lab = Lab(cap=64 * MIB)
    queue = with_a_backlog(lab)
    lab.pass_time(5000)
    assert queue.counts()[:3] == (RUNS, 0, 0)
    assert lab.broker.shared.cache.bytes <= reader.TAIL_BYTES_MAX
    assert reader.READ_MIN < in_memory(queue) < RUNS / 2
    assert len(lab.pop_all(queue)) == RUNS
    assert lab.broker.shared.cache.bytes == in_memory(queue) == 0


def test_messages_are_read_back_when_other_queues_use_all_memory() -> None:
    lab = Lab(cap=64 * MIB)
    queue = with_a_backlog(lab)
    lab.broker.shared.cache.bytes += CACHE_BYTES_MAX
    lab.pass_time(5000)
    assert queue.counts()[:3] == (RUNS, 0, 0)
    assert in_memory(queue) <= reader.READ_MIN
    peers = [Peer(lab, queue, window=3) for _ in range(4)]
    while any(peer.consumer.unsettled for peer in peers):
        for peer in peers:
            peer.ack(*peer.consumer.unsettled)
    assert sorted(seq for peer in peers for seq in peer.seqs) == list(range(1, 2 * RUNS, 2))
    assert lab.broker.shared.cache.bytes == CACHE_BYTES_MAX


def test_damage_is_detected_after_segments_were_dropped() -> None:
    lab = Lab(cap=64 * MIB)
    queue = with_a_backlog(lab)
    first = queue.log.segments[0].number
    while queue.log.segments[0].number == first:
        assert lab.pop(queue)
    broken = queue.log.segments[-2].path
    cache = lab.disk.names[broken].cache
    cache[1000 : len(cache)] = bytes(len(cache) - 1000)
    left = len(lab.pop_all(queue))
    assert 0 < left < 2 * RUNS and queue.damaged
