"""Browsing raw stretches of the log."""

from __future__ import annotations

from typing import Any

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import CurbstoneError, Gone, NoSuchQueue
from curbstone.core.frames import decode_frame
from curbstone.core.positions import Frame, Wanted
from tests.kit.lab import Lab, Peer, numbered


def page_of(lab: Lab, queue: LocalQueue, start: int = 1, **wanted: Any) -> tuple[list[tuple[int, bytes, int]], int]:
    """Return (seq, body, tries) of one page, and where to continue."""
    lab.settle()

    def render(frames: list[Frame]) -> list[tuple[int, bytes, int]]:
        return [(m.seq, m.body, tries) for frame in frames for m, tries in decode_frame(frame)]

    error, found, next_seq = lab.answer(lambda done: queue.reading.browse(Wanted(start, **wanted), render, done))
    if isinstance(error, CurbstoneError):
        raise error
    return found, next_seq


def seqs(lab: Lab, queue: LocalQueue, start: int = 1, **wanted: Any) -> tuple[list[int], int]:
    found, next_seq = page_of(lab, queue, start, **wanted)
    return [seq for seq, _, _ in found], next_seq


def test_page_has_live_messages_and_the_next_position(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(10))
    peer = Peer(lab, queue)
    peer.ack(3, 4, 9)
    assert seqs(lab, queue) == ([1, 2, 5, 6, 7, 8, 10], 11)
    assert seqs(lab, queue, 2, end=6) == ([2, 5], 6)
    assert seqs(lab, queue, 2, limit=2) == ([2, 5], 6)
    assert seqs(lab, queue, 6, end=99) == ([6, 7, 8, 10], 11)
    assert seqs(lab, queue, 11) == ([], 11)
    assert seqs(lab, queue, 50) == ([], 50)
    assert dict((seq, body) for seq, body, _ in page_of(lab, queue)[0])[5] == b"4:"


def test_page_is_bounded_by_bytes_but_has_one_message(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(10, 1000))
    assert seqs(lab, queue, bytes_max=1) == ([1], 2)
    assert seqs(lab, queue, 4, bytes_max=2 * 1024 + 24) == ([4, 5], 6)


def test_pages_show_every_message_once_despite_the_cleaner() -> None:
    lab = Lab(cap=256 * 1024)
    queue = lab.queue()
    peer = Peer(lab, queue, window=100_000)
    kept = []
    for turn in range(60):
        new = lab.publish(queue, *numbered(20, 500 + turn))
        kept += new[::10]
        peer.ack(*[seq for seq in new if seq not in kept])
    lab.publish(queue, *numbered(20, 500))
    assert queue.log.segments[0].number > 1
    for _ in range(2):
        found: list[int] = []
        next_seq = kept[0]
        while next_seq < queue.reading.next:
            page, next_seq = seqs(lab, queue, next_seq, limit=7)
            found += page
        assert found == [peeked.message.seq for peeked in lab.peek(queue)]
        assert set(kept) <= set(found)
        lab.restart()
        queue = lab.reopened(queue)


def test_tries_are_reported_per_group(lab: Lab) -> None:
    queue = lab.queue(groups=["a"])
    lab.publish(queue, *numbered(3))
    peer = Peer(lab, queue, group="a")
    peer.nack(2, delay_ms=60_000)
    assert [tries for _, _, tries in page_of(lab, queue, group="a")[0]] == [0, 1, 0]
    assert [tries for _, _, tries in page_of(lab, queue)[0]] == [0, 0, 0]


def test_positions_before_the_first_message_are_gone(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(3))
    Peer(lab, queue).ack(1, 2)
    with pytest.raises(Gone) as gone:
        page_of(lab, queue, 1)
    assert gone.value.members == {"first": 3, "epoch": queue.uid, "lost": 0}


def test_page_of_an_ended_queue_is_refused_without_damage(
    lab: Lab,
    queue: LocalQueue,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its files were looked for again and again, and then the log said that they could not be read."""
    lab.publish(queue, *numbered(10))
    assert lab.answer(lambda done: lab.broker.delete(queue.name, done)) == (True,)
    error, found, _ = lab.answer(lambda done: queue.reading.browse(Wanted(1), list, done))
    assert (type(error), found) == (NoSuchQueue, None)
    assert not caplog.records
