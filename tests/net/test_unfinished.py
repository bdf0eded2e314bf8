"""The sum of what all connections have begun."""

from __future__ import annotations

from curbstone.net.unfinished import SMALL_BYTES, Unfinished

MIB = 1024 * 1024


class Peer:
    def __init__(self) -> None:
        self.evicted = False

    def evict(self) -> None:
        self.evicted = True


def test_what_is_small_is_not_counted() -> None:
    unfinished = Unfinished(MIB)
    for _ in range(100):
        unfinished.note(Peer(), SMALL_BYTES, False)
    assert unfinished.bytes == 0


def test_above_the_sum_the_one_goes_that_began_the_longest_ago() -> None:
    unfinished = Unfinished(MIB)
    old, new = Peer(), Peer()
    unfinished.note(old, 300_000, False)
    unfinished.note(new, 300_000, False)
    unfinished.note(old, 500_000, False)
    assert unfinished.bytes == 800_000
    unfinished.note(new, 600_000, False)
    assert (old.evicted, new.evicted, unfinished.bytes) == (True, False, 600_000)


def test_who_begins_anew_stands_behind_the_others() -> None:
    unfinished = Unfinished(MIB)
    busy, lazy = Peer(), Peer()
    for peer in (busy, lazy):
        unfinished.note(peer, 300_000, False)
    unfinished.note(busy, 400_000, True)
    unfinished.note(busy, 800_000, False)
    assert (busy.evicted, lazy.evicted) == (False, True)


def test_who_is_done_or_gone_counts_no_more() -> None:
    unfinished = Unfinished(MIB)
    peers = [Peer() for _ in range(100)]
    for peer in peers:
        unfinished.note(peer, 900_000, False)
        unfinished.note(peer, 0, True)
    assert unfinished.bytes == 0
    assert not any(peer.evicted for peer in peers)


def test_many_that_began_and_do_not_end_are_never_more_than_the_sum() -> None:
    unfinished = Unfinished(MIB)
    peers = [Peer() for _ in range(200)]
    for peer in peers:
        unfinished.note(peer, 100_000, False)
        assert unfinished.bytes <= MIB
    assert [peer.evicted for peer in peers] == [True] * 190 + [False] * 10
