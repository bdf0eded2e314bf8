"""After a power cut at any moment a queue's directory holds no more than its cap, whatever of it was undone."""

from __future__ import annotations

from random import Random

import pytest

from curbstone.core.engine.log.commit import reserve_path
from tests.kit.lab import Lab, Peer, message

CAP = 64 * 1024


def work(lab: Lab, dice: Random) -> None:
    """Publish and ack in a queue at its cap, so that segments are dropped, recycled and begun all the time."""
    queue = lab.queue("q", cap=CAP)
    peer = Peer(lab, queue, window=200)
    for _ in range(120):
        size = dice.choice([20, 700, 3000])
        queue.publish([message(b"x" * size) for _ in range(dice.randrange(1, 6))], lambda *_: None)
        lab.settle()
        held = list(peer.consumer.unsettled)
        done = [seq for seq in held[:-3] if dice.random() < 0.5 or len(held) > 15]
        if done:
            peer.consumer.ack(done)
        lab.settle()


@pytest.mark.parametrize("seed", range(6))
def test_power_cut_at_any_moment_keeps_the_cap(seed: int) -> None:
    """Segments that were removed returned beside what was written in their place."""
    lab = Lab(seed=seed, cap=CAP)
    work(lab, Random(seed))  # `settle` looks at what a power cut could have left at each write


def test_unsynced_truncation_is_durable_after_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A later power cut undid it, and the queue held more than its cap."""
    lab = Lab(cap=CAP)
    monkeypatch.setattr(lab.disk, "sync_all", lambda _path: False)  # as on a system without syncfs
    queue = lab.queue("q", cap=CAP)
    lab.publish(queue, *[b"x" * 1000] * 12)
    sealed = queue.log.segments[:-1]
    assert len(sealed) > 2
    for segment in sealed:
        file = lab.disk.open(segment.path)
        file.write(segment.size, [bytes(5000)])
        file.sync()
        file.truncate(segment.size)  # and the process is killed before it syncs that
    lab.restart("kill")
    assert [lab.disk.names[segment.path].most_bytes for segment in sealed] == [segment.size for segment in sealed]


def test_unsynced_truncation_of_the_reserve_is_durable_after_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(cap=CAP)
    monkeypatch.setattr(lab.disk, "sync_all", lambda _path: False)
    queue = lab.queue("q", cap=CAP)
    lab.publish(queue, b"x")
    path = reserve_path(queue.log.directory)
    file = lab.disk.open(path, create=True)
    file.write(0, [bytes(5000)])
    file.sync()
    file.truncate(0)
    lab.restart("kill")
    assert lab.disk.names[path].most_bytes == lab.reopened(queue).log.reserve == 0
