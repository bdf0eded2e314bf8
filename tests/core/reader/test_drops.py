"""What is read while the commit is under way that copies it and removes its file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import CurbstoneError
from curbstone.core.options import QueueOptions
from curbstone.core.positions import Frame, ReadRequest, Wanted
from tests.kit.lab import Lab, numbered

BODIES = numbered(50, 20_000)
CAP = 960 * 1024
"""A little less than they take."""

Look = Callable[[Lab, LocalQueue, Callable[[object], None]], object]


def cleaning(lab: Lab) -> LocalQueue:
    """Return a queue that holds more than its cap, so that all of it is copied, segment by segment."""
    queue = lab.queue()
    for body in BODIES:
        lab.publish(queue, body)
    lab.shutdown()
    lab.defaults = QueueOptions(cap=CAP, max_message_size=100_000)
    lab.disk.caps = lambda _directory: None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab, "settle", lambda: None)
        lab.start(lab.host.wall_ms() + 1000)
    return lab.reopened(queue)


def drops(lab: Lab, queue: LocalQueue) -> Iterator[None]:
    """Yield each time files were removed by a commit of which the queue has not heard; none of them is in memory."""
    while queue.log.is_above_cap and queue.log.room.excess:
        while queue.log.segments[0].path in lab.disk.names:
            if not (lab.host.turn() or lab.host.work()):
                return
        for run in queue.index.runs:
            queue.index.reader.forget(run)
        ended, lab.host.ended = lab.host.ended, []
        yield
        lab.host.ended += ended
        lab.host.turn()


def peek(_: Lab, queue: LocalQueue, look: Callable[[object], None]) -> None:
    queue.peek(100, lambda found: look([each.message.body for each in found] if isinstance(found, list) else found))


def browse(_: Lab, queue: LocalQueue, look: Callable[[object], None]) -> None:
    def reported(error: CurbstoneError | None, count: int | None, _next: int) -> None:
        look(error or BODIES[:count])

    queue.reading.browse(Wanted(1, limit=100), lambda frames: sum(frame_messages(frame) for frame in frames), reported)


def frame_messages(frame: Frame) -> int:
    """Return how many messages of a frame are meant."""
    return frame.span if frame.mask is None else frame.mask.bit_count()


def events(_: Lab, queue: LocalQueue, look: Callable[[object], None]) -> None:
    """Look at the events; what there is of them changes, but there is no reason to refuse it."""
    queue.reading.events(ReadRequest(0, 1000, 1 << 20), lambda _found: b"", lambda error, *_: look(error or BODIES))


@pytest.mark.parametrize("ask", [peek, browse, events])
def test_message_is_readable_while_its_segment_is_dropped(ask: Look) -> None:
    """It was taken for lost, and the queue broke down over it; a page of events was refused."""
    lab = Lab(cap=4 << 20, max_message_size=100_000)
    queue = cleaning(lab)
    seen: list[object] = []
    count = 0
    for _ in drops(lab, queue):
        ask(lab, queue, seen.append)
        count += 1
        lab.settle()
        lab.pass_time(5)
        assert len(seen) < count
    lab.pass_time(1000)
    assert count > 3 and seen == [BODIES] * count
    assert not queue.state.damaged and not queue.state.broken
    assert lab.pop_all(queue) == BODIES


@pytest.mark.parametrize("seed", range(10))
def test_reads_do_not_block_the_cleaner(seed: int) -> None:
    """A look let go of what was read to be copied; and if it read that itself the queue was not told to continue."""
    lab = Lab(seed=seed, cap=4 << 20, max_message_size=100_000)
    queue = cleaning(lab)
    last = queue.log.active.number
    seen: list[object] = []
    for count in range(60):
        peek(lab, queue, seen.append)
        for _ in range(lab.rng.randrange(10)):
            (lab.host.turn if lab.rng.random() < 0.5 else lab.host.work)()
        if count % 10 == 0:  # other queues take all memory
            for run in queue.index.runs:
                queue.index.reader.forget(run)
    lab.pass_time(1000)
    assert seen == [BODIES] * 60
    assert queue.log.segments[0].number > last
