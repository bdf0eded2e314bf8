"""The checker is what makes a figure mean something, so each kind of damage has to be seen."""

import pytest

from bench.check import Checker, Tally, bodies, body, parse_mark


def checked(arrived: list[bytes], sent: int, *, size: int = 40, prepare: int = 0) -> Tally:
    checker = Checker(size, prepare=prepare)
    checker.take(arrived)
    return checker.tally((sent,))


@pytest.mark.parametrize("size", [16, 17, 100, 1024])
def test_a_body_has_its_size_and_names_its_producer_and_number(size: int) -> None:
    one = body(7, 123_456, size)
    assert len(one) == size
    assert parse_mark(one) == (7, 123_456)
    assert not set(one) & set(b"\0\r\n")


def test_bodies_in_a_row_are_the_single_bodies() -> None:
    assert bodies(3, 10, 4, 50) == [body(3, seq, 50) for seq in range(10, 14)]


@pytest.mark.parametrize("prepare", [0, 10, 20])
def test_messages_received_once_in_order_are_clean(prepare: int) -> None:
    checker = Checker(40, prepare=prepare)
    checker.take(bodies(0, 0, 12, 40))
    checker.take([])
    checker.take(bodies(0, 12, 8, 40))
    assert checker.tally((20,)) == Tally(received=20)
    assert checker.tally((20,)).clean


def test_a_missing_message_is_lost() -> None:
    arrived = bodies(0, 0, 10, 40)
    assert checked(arrived[:4] + arrived[5:], 10) == Tally(received=9, lost=1)


def test_messages_missing_at_the_end_are_lost() -> None:
    assert checked(bodies(0, 0, 7, 40), 10) == Tally(received=7, lost=3)


def test_message_received_twice_is_a_duplicate() -> None:
    arrived = bodies(0, 0, 10, 40)
    assert checked(arrived[:6] + arrived[5:], 10) == Tally(received=11, duplicate=1)


def test_message_that_was_not_sent_is_a_duplicate() -> None:
    assert checked(bodies(0, 0, 11, 40), 10) == Tally(received=11, duplicate=1)


def test_a_late_message_is_reordered_and_not_lost() -> None:
    arrived = bodies(0, 0, 4, 40)
    assert checked([arrived[0], arrived[2], arrived[1], arrived[3]], 4) == Tally(received=4, reordered=1)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"x" * 40,
        body(0, 1, 39),
        body(0, 1, 41),
        body(0, 1, 39) + b"!",
        body(0, 1, 24) + body(0, 2, 16),
        body(9, 1, 40),
    ],
    ids=["empty", "noise", "short", "long", "last byte", "mixed", "unknown producer"],
)
def test_a_damaged_message_is_corrupt_and_its_original_lost(damaged: bytes) -> None:
    arrived = [body(0, 0, 40), damaged, body(0, 2, 40)]
    assert checked(arrived, 3, prepare=3) == Tally(received=3, lost=1, corrupt=1)


def test_bodies_split_at_the_wrong_boundary_are_detected() -> None:
    joined = body(0, 0, 40) + body(0, 1, 40)
    tally = checked([joined[:39], joined[39:]], 2, prepare=2)
    assert (tally.corrupt, tally.lost) == (2, 2)


def test_each_of_several_producers_has_its_own_order() -> None:
    checker = Checker(40, producers=3)
    checker.take([body(2, 0, 40), body(0, 0, 40), body(2, 1, 40), body(0, 1, 40), body(2, 2, 40), body(2, 2, 40)])
    assert checker.tally((2, 1, 3)) == Tally(received=6, lost=1, duplicate=1)


def test_tallies_add_up() -> None:
    assert Tally(1, 2, 3, 4, 5, 6) + Tally(10, 20, 30, 40, 50, 60) == Tally(11, 22, 33, 44, 55, 66)
