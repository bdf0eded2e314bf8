"""What all connections hold together: unfinished input, unread output, and pages that are being made."""

from __future__ import annotations

import pytest

from curbstone.net.budget import CALM_BYTES, CALM_S, SHARES, SLOW_S, SMALL_BYTES, Account, Budget
from curbstone.net.limits import UNREAD_S_MAX

KIB = 1024
MIB = 1024 * KIB


class Connection:
    """Keeps what it was told."""

    def __init__(self, budget: Budget, user: str) -> None:
        self.account: Account = budget.account(user)
        self.delivers = True
        self.reads = True
        self.evicted = False
        self.account.set_holder(self)

    def pause_output(self) -> None:
        self.delivers = False

    def resume_output(self) -> None:
        self.delivers = True

    def pause_input(self) -> None:
        self.reads = False

    def resume_input(self) -> None:
        self.reads = True

    def evict(self) -> None:
        self.evicted = True


def connections(budget: Budget, user: str, count: int) -> list[Connection]:
    return [Connection(budget, user) for _ in range(count)]


@pytest.fixture
def budget() -> Budget:
    return Budget(4 * MIB)


def test_small_unfinished_input_is_not_counted() -> None:
    budget = Budget(MIB)
    for connection in connections(budget, "ann", 100):
        connection.account.hold_input(SMALL_BYTES)
    assert budget.bytes == 0


def test_user_above_a_quarter_reads_only_its_first_unfinished_input(budget: Budget) -> None:
    ann, bob = connections(budget, "ann", 5), Connection(budget, "bob")
    for connection in [*ann, bob]:
        connection.account.hold_input(250 * KIB)
    assert [connection.reads for connection in ann] == [True, False, False, False, False]
    assert bob.reads and bob.delivers
    assert not any(connection.delivers for connection in ann)
    assert budget.users_held == 1
    for connection in ann[:2]:
        connection.account.hold_input(0)
    assert all(connection.reads and connection.delivers for connection in ann)


def test_concurrent_uploads_finish_one_after_the_other() -> None:
    budget = Budget(64 * MIB)
    ann = connections(budget, "ann", 20)
    left = dict.fromkeys(ann, 4 * MIB)
    while left:
        for connection in [each for each in left if each.reads]:
            left[connection] -= 256 * KIB
            connection.account.hold_input(4 * MIB - left[connection] if left[connection] else 0)
            if not left[connection]:
                del left[connection]
        budget.check()
        assert budget.bytes < budget.share_max * 3 // 2
    assert not any(connection.evicted for connection in ann)
    assert budget.bytes == 0


def test_concurrently_started_input_is_bounded(budget: Budget) -> None:
    """Each is read once before it can be stopped."""
    ann = connections(budget, "ann", 200)
    for connection in ann:
        connection.account.hold_input(100 * KIB)
        assert budget.bytes <= budget.share_max * 3 // 2
    assert any(not connection.evicted for connection in ann)


def test_stalled_first_input_refuses_the_largest(budget: Budget) -> None:
    small, large, later = connections(budget, "ann", 3)
    small.account.hold_input(100 * KIB)
    large.account.hold_input(800 * KIB)
    later.account.hold_input(200 * KIB)
    for _ in range(SLOW_S):
        budget.check()
        assert not large.evicted, "it may still continue"
    budget.check()
    assert [small.evicted, large.evicted, later.evicted] == [False, True, False]
    assert later.reads and later.delivers
    assert (budget.bytes, budget.refused) == (300 * KIB, 1)


def test_input_being_processed_counts_and_is_not_refused(budget: Budget) -> None:
    complete, begun, other = connections(budget, "ann", 3)
    complete.account.hold_input(600 * KIB, is_complete=True)
    begun.account.hold_input(300 * KIB)
    other.account.hold_input(200 * KIB)
    for _ in range(SLOW_S + 1):
        budget.check()
    assert [complete.evicted, begun.evicted] == [False, True]


def test_unread_output_stops_deliveries_of_its_user_until_a_quarter_is_read(budget: Budget) -> None:
    deaf, good, bob = Connection(budget, "ann"), Connection(budget, "ann"), Connection(budget, "bob")
    deaf.account.hold_output(MIB + 1)
    assert (deaf.delivers, good.delivers, bob.delivers) == (False, False, True)
    assert not Connection(budget, "ann").delivers, "a later one is notified, too"
    deaf.account.hold_output(900 * KIB)
    assert not good.delivers
    deaf.account.hold_output(768 * KIB)
    assert good.delivers and deaf.delivers


def test_a_page_waits_for_room_and_pages_are_made_in_order(budget: Budget) -> None:
    one, two, three, bob = *connections(budget, "ann", 3), Connection(budget, "bob")
    made: list[str] = []
    assert one.account.when_room(MIB, lambda: made.append("one")) is None
    assert two.account.when_room(MIB, lambda: made.append("two"))
    gone = three.account.when_room(KIB, lambda: made.append("gone"))
    assert three.account.when_room(KIB, lambda: made.append("three"))
    assert bob.account.when_room(MIB, lambda: made.append("bob")) is None
    assert gone
    gone.cancel()
    one.account.set_aside(0)
    assert made == ["two"]
    two.account.close()
    assert made == ["two"], "its page is still being made"
    two.account.set_aside(0)
    assert made == ["two", "three"]
    assert budget.bytes == MIB + KIB


def test_the_only_page_of_a_user_may_have_any_size() -> None:
    budget = Budget(MIB)
    ann = Connection(budget, "ann")
    assert ann.account.when_room(16 * MIB, lambda: None) is None


def test_largest_holders_are_stopped_at_the_total_limit(budget: Budget) -> None:
    users = [Connection(budget, f"user{number}") for number in range(5)]
    for user in users[:4]:
        user.account.hold_output(MIB)
    users[4].account.hold_output(100 * KIB)
    assert sum(user.delivers for user in users[:4]) == 3
    assert users[4].delivers
    for user in users[:4]:
        user.account.hold_output(0)
    assert all(user.delivers for user in users)


def test_held_bytes_move_to_the_user_at_login(budget: Budget) -> None:
    ann, stranger, other = Connection(budget, "ann"), Connection(budget, "10.0.0.1"), Connection(budget, "10.0.0.1")
    ann.account.hold_output(900 * KIB)
    stranger.account.hold_input(200 * KIB)
    stranger.account.move_to("ann")
    assert (ann.delivers, stranger.delivers, other.delivers) == (False, False, True)
    stranger.account.move_to("10.0.0.1")
    assert (ann.delivers, stranger.delivers) == (False, True)
    ann.account.close()
    stranger.account.close()
    assert budget.bytes == 0


def test_connection_that_reads_nothing_for_a_minute_is_stuck(budget: Budget) -> None:
    account = Connection(budget, "ann").account
    assert not account.is_stuck(0, 0)
    assert not account.is_stuck(1000, 100)
    assert not account.is_stuck(1000, 100 + UNREAD_S_MAX)
    assert not account.is_stuck(999, 101 + UNREAD_S_MAX), "it read a little"
    assert not account.is_stuck(999, 101 + 2 * UNREAD_S_MAX)
    assert account.is_stuck(2000, 102 + 2 * UNREAD_S_MAX), "more for it is no sign that it reads"
    assert budget.unread == 1


def test_ended_connection_holds_nothing(budget: Budget) -> None:
    account = Connection(budget, "ann").account
    account.close()
    account.hold_input(MIB)
    account.hold_output(MIB)
    assert account.when_room(MIB, lambda: None) is None
    account.set_aside(MIB)
    assert budget.bytes == 0


def test_disconnecting_clients_get_no_more_pages_than_their_share(budget: Budget) -> None:
    asked = connections(budget, "ann", 10)
    for connection in asked:
        connection.account.when_room(MIB // 2, lambda: None)
        connection.account.close()
    assert budget.bytes == MIB
    for connection in asked:
        connection.account.set_aside(0)
    assert budget.bytes == 0 and budget.users_held == 0


def test_memory_is_released_after_a_while_of_low_use() -> None:
    budget = Budget(SHARES * CALM_BYTES)
    given_back: list[int] = []
    budget.on_calm = lambda: given_back.append(1)
    account = Connection(budget, "ann").account
    account.hold_output(CALM_BYTES)
    budget.check()
    account.hold_output(0)
    for _ in range(3 * CALM_S):
        budget.check()
    assert given_back == [1]
