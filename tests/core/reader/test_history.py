"""The journal: what the log says of the past."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import CurbstoneError, Gone
from curbstone.core.positions import KINDS, Event, ReadRequest
from tests.kit.lab import Lab, Peer, numbered

HOWS = pytest.mark.parametrize("how", ["shutdown", "kill", "power"])


def page(lab: Lab, queue: LocalQueue, position: int = 0, limit: int = 10_000, size: int = 1 << 20) -> tuple[Any, int]:
    """Return the events of one page, and where to continue."""
    lab.settle()
    events: list[Event] = []

    def render(some: list[Event]) -> bytes:
        events.extend(some)
        return bytes(44 * len(some))

    wanted = ReadRequest(position, limit, size)
    error, _, following = lab.answer(lambda done: queue.reading.events(wanted, render, done))
    if isinstance(error, CurbstoneError):
        raise error
    return events, following


def reported(events: list[Event]) -> list[tuple[str, int, int, str]]:
    return [(KINDS[event.kind], event.seq, event.span, event.group) for event in events]


def history(lab: Lab, queue: LocalQueue, limit: int = 10_000) -> list[Event]:
    """Return all there is, page by page."""
    found: list[Event] = []
    position, following = 0, -1
    while True:
        events, following = page(lab, queue, position, limit)
        if following == (position or queue.reading.events_start):
            assert not events and following == queue.reading.events_end
            return found
        found += events
        position = following


@HOWS
def test_journal_lists_events_in_order_after_a_restart(lab: Lab, how: str) -> None:
    queue = lab.queue(groups=["a"], max_tries=3)
    lab.publish(queue, *numbered(4))
    lab.publish(queue, "later", delay_ms=1000)
    peer = Peer(lab, queue)
    peer.ack(1, 2)
    peer.nack(3, delay_ms=5000)
    peer.reject(4)
    named = Peer(lab, queue, group="a")
    named.ack(1)
    named.nack(2)
    named.nack(2)
    named.nack(2)
    peer.close()
    named.close()
    lab.purge(queue)  # erases what is before
    lab.publish(queue, "one", groups=("a",))
    first = history(lab, queue)
    assert reported(first)[-1] == ("published", 6, 1, "a")
    lab.restart(how)
    queue = lab.reopened(queue)
    assert reported(history(lab, queue)) == reported(first)


def test_each_settle_reason_has_its_own_word(lab: Lab) -> None:
    queue = lab.queue(groups=["a"], max_tries=2)
    lab.publish(queue, *numbered(4))
    lab.publish(queue, "later", delay_ms=1000)
    peer = Peer(lab, queue)
    peer.ack(1, 2)
    peer.nack(3, delay_ms=5000)
    peer.reject(4)
    named = Peer(lab, queue, group="a")
    named.nack(2)
    named.nack(2)
    lab.publish(queue, "short", ttl_ms=10, groups=("x",))
    lab.pass_time(100)
    lab.answer(lambda done: queue.reading.ack_to("a", 4, done))
    found = history(lab, queue)
    assert reported(found) == [
        *[("published", seq, 1, "") for seq in range(1, 6)],
        ("settled", 1, 2, ""),
        ("released", 3, 1, ""),
        ("rejected", 4, 1, ""),
        ("released", 2, 1, "a"),
        ("dead", 2, 1, "a"),
        ("published", 6, 1, "x"),
        ("expired", 6, 1, "x"),
        ("settled", 1, 4, "a"),
    ]
    release = found[6]
    assert release.tries == 1 and release.value - release.time_ms == 5000
    assert found[0].value == len(numbered(4)[0]) and found[0].time_ms == lab.host.wall_ms() - 100


def test_journal_does_not_depend_on_page_size(lab: Lab, queue: LocalQueue) -> None:
    peer = Peer(lab, queue)
    for count in (7, 1, 30, 2):
        peer.ack(*lab.publish(queue, *numbered(count))[::2])
    whole = history(lab, queue)
    assert len({event.position for event in whole}) == len(whole)
    assert sorted(whole) == whole
    for limit in (1, 2, 3, 11):
        assert history(lab, queue, limit) == whole
    middle = whole[5].position
    assert page(lab, queue, middle)[0] == whole[5:]


def test_copied_messages_appear_once_in_the_journal() -> None:
    seed = 4
    print("seed", seed)
    rng = Random(seed)
    lab = Lab(cap=128 * 1024)
    queue = lab.queue(groups=["a"])
    lab.answer(lambda done: queue.reading.declare("pin", "earliest", True, done))  # it holds the log until that is full
    peers = [Peer(lab, queue, window=100_000), Peer(lab, queue, window=100_000, group="a")]
    position = 0
    events: list[Event] = []
    acked: set[tuple[str, int]] = set()
    nacked = 0
    published: list[int] = []
    for _ in range(120):
        published += lab.publish(queue, *numbered(10, 300))
        for peer in peers:
            kept = [seq for seq in peer.consumer.unsettled if rng.random() < 0.05]
            done = [seq for seq in peer.consumer.unsettled if seq not in kept]
            if done:
                peer.ack(*done)
                acked |= {(peer.consumer.group, seq) for seq in done}
            if kept and rng.random() < 0.2:
                peer.nack(kept[0])
                nacked += 1
        found, position = page(lab, queue, position)
        events += found
    assert queue.log.segments[0].number > 3
    pin = queue.reading.info("pin")
    skipped = [(e.seq, e.seq + e.span) for e in events if KINDS[e.kind] == "skipped"]
    assert skipped[0][0] == 1 and skipped[-1][1] == pin.floor == pin.position and pin.lost == pin.floor - 1
    assert [end for _, end in skipped[:-1]] == [start for start, _ in skipped[1:]]
    settled = [(e.group, seq) for e in events if KINDS[e.kind] == "settled" for seq in range(e.seq, e.seq + e.span)]
    assert sorted(settled) == sorted(acked)
    assert [e.seq for e in events if KINDS[e.kind] == "published"] == published
    assert sum(e.span for e in events if KINDS[e.kind] == "released") == nacked


def test_events_of_dropped_segments_are_gone() -> None:
    lab = Lab(cap=128 * 1024)
    queue = lab.queue()
    peer = Peer(lab, queue, window=100_000)
    first = queue.reading.events_start
    for _ in range(100):
        peer.ack(*lab.publish(queue, *numbered(10, 300)))
    with pytest.raises(Gone) as gone:
        page(lab, queue, first)
    assert gone.value.members == {"first": queue.reading.events_start, "epoch": queue.uid}
    assert page(lab, queue, queue.reading.events_start)[0] == page(lab, queue, 0)[0] != []
    with pytest.raises(Gone):
        page(lab, queue, queue.reading.events_end + 1)
