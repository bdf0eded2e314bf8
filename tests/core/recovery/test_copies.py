"""A directory is copied file by file while its queue works: publishes, settles, the cleaner going round."""

from __future__ import annotations

import pytest

from tests.core.recovery.stored_queues import body, is_whole
from tests.kit.lab import Lab, Peer

CAP = 128 * 1024


class Busy:
    """A queue at work: who follows what was confirmed."""

    def __init__(self, seed: int) -> None:
        self.lab = Lab(seed=seed)
        self.queue = self.lab.queue(cap=CAP)
        self.peer = Peer(self.lab, self.queue, window=60)
        self.live: set[int] = set()
        self.settled: set[int] = set()

    def work(self, rounds: int) -> None:
        """Publish, and settle about as much, in any order."""
        dice = self.lab.rng
        for _ in range(rounds):
            bodies = [body(dice.randrange(10**6), dice.choice([20, 300, 1200])) for _ in range(dice.randrange(1, 5))]
            self.live.update(self.lab.publish(self.queue, *bodies))
            held = list(self.peer.consumer.unsettled)
            chosen = dice.sample(held, min(len(held), dice.randrange(6))) if len(held) > 20 else []
            if chosen:
                self.peer.ack(*chosen)
                self.live -= {*chosen}
                self.settled |= {*chosen}

    def copied(self, rounds: int) -> dict[str, bytes]:
        """Copy what is there file by file, with so many rounds of work between two of them."""
        files: dict[str, bytes] = {}
        for path in sorted(self.lab.disk.names):
            if path in self.lab.disk.names:  # a file may go meanwhile
                files[path] = bytes(self.lab.disk.names[path].cache)
            self.work(rounds)
        return files


def started_on(lab: Lab, files: dict[str, bytes]) -> None:
    """Start the lab's server on these files."""
    lab.load(files)
    lab.restart("kill")


@pytest.mark.parametrize("rounds", [1, 4, 20])
@pytest.mark.parametrize("seed", range(6))
def test_copy_made_under_load_opens_without_hiding_messages(seed: int, rounds: int) -> None:
    """What was confirmed before the copy began and is not in it was settled meanwhile, or is reported as damage."""
    busy = Busy(seed)
    busy.work(120)
    assert busy.queue.log.segments[0].number > 1, "the cleaner has been round"
    live, settled = set(busy.live), set(busy.settled)
    files = busy.copied(rounds)
    meanwhile = busy.settled - settled
    started_on(busy.lab, files)
    queue = busy.lab.reopened(busy.queue)
    found = {peeked.message.seq: peeked.message.body for peeked in busy.lab.peek(queue)}
    assert all(map(is_whole, found.values())), "a message that was never sent"
    missing, back = live - found.keys() - meanwhile, settled & found.keys()
    assert not missing or queue.damaged, f"seed {seed}: {sorted(missing)} are missing, and nothing is reported"
    assert not back or queue.damaged, f"seed {seed}: {sorted(back)} are back, and nothing is reported"
    new = busy.lab.publish(queue, "new")
    busy.lab.restart("power")
    after = {peeked.message.seq for peeked in busy.lab.peek(busy.lab.reopened(queue))}
    assert after == {*found, *new}, "it continues like any other"


def test_copy_made_between_commits_is_complete() -> None:
    busy = Busy(0)
    busy.work(150)
    started_on(busy.lab, busy.copied(0))
    queue = busy.lab.reopened(busy.queue)
    assert {peeked.message.seq for peeked in busy.lab.peek(queue)} == busy.live and not queue.damaged
