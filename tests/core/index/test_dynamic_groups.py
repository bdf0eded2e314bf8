"""Groups that nobody declared: whoever invents names takes no memory that lasts."""

from __future__ import annotations

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.index.dynamic_groups import SPARE_MAX, UNDECLARED_MAX
from curbstone.core.engine.log.format import Note
from curbstone.core.errors import Conflict
from tests.kit.lab import Lab, Peer, message, numbered

FEW = 2 * SPARE_MAX + 4


def kept(queue: LocalQueue) -> tuple[int, int]:
    """Return how many groups, and how many rings of takers, are in memory."""
    return len(queue.index.groups), len(queue.dispatcher.round_robins)


def test_settled_undeclared_groups_are_dropped(lab: Lab) -> None:
    """Each name that was ever named stayed in memory, with its ring, as long as the server ran."""
    queue = lab.queue(groups=["declared"])
    lab.publish(queue, "for all")
    for number in range(20 * FEW):
        lab.publish(queue, "m", groups=(f"g{number}",))
        assert lab.pop(queue, f"g{number}") == b"m"
    assert max(kept(queue)) <= FEW
    assert lab.pop(queue, "declared") == b"for all"
    assert lab.pop(queue) == b"for all"


def test_undeclared_groups_only_queried_are_dropped(lab: Lab, queue: LocalQueue) -> None:
    for number in range(20 * FEW):
        assert lab.pop(queue, f"pop{number}") is None
        assert lab.lease(queue, group=f"lease{number}") == []
        Peer(lab, queue, group=f"peer{number}").close()
    assert max(kept(queue)) <= FEW


def test_empty_queue_drops_undeclared_groups(lab: Lab) -> None:
    queue = lab.queue(groups=["declared"])
    lab.publish(queue, "m", groups=("a", "declared"))
    assert lab.pop(queue, "a") == lab.pop(queue, "declared") == b"m"
    lab.pass_time(2000)
    assert set(queue.index.groups) == {"", "declared"}


def test_formerly_declared_groups_are_dropped(lab: Lab, queue: LocalQueue) -> None:
    for number in range(2 * FEW):
        lab.queue(groups=[f"g{number}"])
        lab.publish(queue, "m")
        lab.answer(lambda done, n=number: queue.reading.ack_to(f"g{n}", queue.reading.next - 1, done))  # type: ignore[misc]
    lab.queue(groups=[])
    lab.publish(queue, "m")
    assert kept(queue)[0] <= FEW
    assert queue.facts.count(Note.ACKED) == 0


def test_groups_in_use_are_kept(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "waits", groups=("pending",))
    lab.publish(queue, "n", groups=("leased", "delayed"))
    (lease,) = lab.lease(queue, group="leased")
    delayed = Peer(lab, queue, group="delayed")
    delayed.nack(2, delay_ms=5000)
    joined = Peer(lab, queue, group="joined")
    delayed.close()
    for number in range(5 * FEW):
        lab.pop(queue, f"g{number}")
    lab.publish(queue, "late", groups=("joined",))
    assert joined.bodies == [b"late"]
    queue.give_back([lease])
    lab.pass_time(5000)
    assert lab.pop(queue, "pending") == b"waits"
    assert lab.pop(queue, "leased") == lab.pop(queue, "delayed") == b"n"


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_settles_of_a_dropped_group_survive_copying(lab: Lab, how: str) -> None:
    """A copy says for each group that its message names what is settled, also for those that are forgotten."""
    queue = lab.queue(cap=64 * 1024)
    lab.publish(queue, *numbered(3, 100), groups=("done", "waits"))
    assert lab.pop_all(queue, "done") == numbered(3, 100)
    for number in range(5 * FEW):
        lab.pop(queue, f"g{number}")
    assert "done" not in queue.index.groups
    first = queue.log.segments[0].number
    for _ in range(100):
        lab.publish(queue, *[b"x" * 600] * 20, groups=("filler",))
        assert len(lab.pop_all(queue, "filler")) == 20
    assert queue.log.segments[0].number > first
    for _ in range(2):
        lab.restart(how)
        queue = lab.reopened(queue)
    assert lab.pop_all(queue, "done") == []
    assert Peer(lab, queue, group="waits").bodies == numbered(3, 100)


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_recreated_group_knows_earlier_deliveries(lab: Lab, queue: LocalQueue, how: str) -> None:
    lab.publish(queue, "one", groups=("g",))
    assert lab.pop(queue, "g") == b"one"
    for number in range(5 * FEW):
        lab.pop(queue, f"g{number}")
    assert "g" not in queue.index.groups
    lab.publish(queue, "two", groups=("g",))
    assert Peer(lab, queue, group="g").tries == [0]
    lab.pass_time(0)
    lab.publish(queue, "three", groups=("g2",))
    lab.restart(how)
    queue = lab.reopened(queue)
    assert Peer(lab, queue, group="g").tries == [1]
    assert Peer(lab, queue, group="g2").tries == [0]


def test_start_creates_only_groups_with_pending_messages(lab: Lab, queue: LocalQueue) -> None:
    for number in range(5 * FEW):
        lab.publish(queue, "m", groups=(f"g{number}",))
        if number % FEW:
            assert lab.pop(queue, f"g{number}") == b"m"
    lab.restart()
    queue = lab.reopened(queue)
    assert set(queue.index.groups) == {"", *(f"g{number}" for number in range(0, 5 * FEW, FEW))}
    assert [lab.pop(queue, f"g{number}") for number in (0, FEW)] == [b"m", b"m"]


def crowd(lab: Lab, queue: LocalQueue) -> None:
    """Use as many groups as there may be."""
    for number in range(UNDECLARED_MAX):
        lab.publish(queue, "m", groups=(f"g{number}",))


def test_undeclared_groups_are_limited(lab: Lab) -> None:
    """There was no limit: a client could have a queue keep a group for each name it could think of."""
    queue = lab.queue(groups=["declared"])
    crowd(lab, queue)
    answers = lab.publish_answers(
        queue, [message("a"), message("b", groups=("new",)), message("c", groups=("g0", "declared"))]
    )
    assert [(type(error), count) for error, _, count in answers] == [(type(None), 1), (Conflict, 1), (type(None), 1)]
    assert f"more than {UNDECLARED_MAX} undeclared groups" in str(answers[1][0])
    with pytest.raises(Conflict):
        lab.publish_messages(queue, [message("a"), message("b", groups=("new",))], atomic=True)
    with pytest.raises(Conflict):
        lab.pop(queue, "new")
    with pytest.raises(Conflict):
        lab.lease(queue, group="new")
    peer = Peer(lab, queue, group="new")
    assert [type(error) for error in peer.closed_with] == [Conflict]
    assert kept(queue)[0] == UNDECLARED_MAX + 2
    lab.queue(groups=["declared", "new"])
    assert lab.pop(queue, "g5") == b"m"
    lab.publish(queue, "d", groups=("new", "other"))
    assert lab.pop(queue, "new") == lab.pop(queue, "other") == b"d"


def test_group_names_of_one_commit_count_together(lab: Lab, queue: LocalQueue) -> None:
    answers = lab.publish_answers(queue, [message("m", groups=(f"g{n}",)) for n in range(UNDECLARED_MAX + 3)])
    assert sum(count for error, _, count in answers if error is None) == UNDECLARED_MAX
    with pytest.raises(Conflict):
        lab.publish_messages(queue, [message("m", groups=("a", "b"))])
    lab.restart()
    assert len(lab.reopened(queue).index.groups) == UNDECLARED_MAX + 1


def test_a_transaction_over_two_queues_is_refused_whole(lab: Lab) -> None:
    queue, other = lab.queue(), lab.queue("other")
    crowd(lab, queue)
    transaction = lab.broker.transaction()
    transaction.publish(other, message("m"))
    transaction.publish(queue, message("m", groups=("new",)))
    (error,) = lab.answer(transaction.commit)
    assert isinstance(error, Conflict)
    assert lab.bodies(other) == [] and len(lab.bodies(queue)) == UNDECLARED_MAX
    lab.publish(queue, "continues")
