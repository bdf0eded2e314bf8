"""The audit of changes: it has what was changed and nothing else, and one user can't push out the others' lines."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from curbstone.access.audit import CHANGES_MAX, COUNT_EVERY_MS, RECENT
from curbstone.access.authorization import AuthorizedBroker
from curbstone.access.caller import CURRENT_CALLER, Caller
from curbstone.core.errors import NoSuchQueue
from curbstone.core.message import Message
from curbstone.core.names import queue_name
from curbstone.core.values import UNNAMED, UndoRequest
from tests.access.world import World, hashed

USERS = f"""
[users.ann]
password = ["{hashed("open sesame")}"]
grants = ["send,receive,manage shop/*", "receive topic:shop/*"]
[users.bob]
password = ["{hashed("open barley")}"]
grants = ["manage shop/*"]
[users.root]
password = ["{hashed("all of it")}"]
grants = ["admin server"]
"""
Q = queue_name("q", "shop")


@pytest.fixture
def ann(world: World) -> AuthorizedBroker:
    return world.login("ann", "open sesame")


def changes(world: World, user: str = "ann") -> list[tuple[str, str, int]]:
    """Return the changes of a user in the audit, once those that are still counted are written."""
    world.lab.pass_time(COUNT_EVERY_MS + 1)
    lines = [each for each in world.authenticator.audit.recent if each["user"] == user and each["action"] != "login"]
    return [(each["action"], each["target"], each.get("count", 0)) for each in lines]


def test_requests_that_change_nothing_are_not_audited(world: World, ann: AuthorizedBroker) -> None:
    """Whoever had `manage` filled the audit with calls that did nothing, also on queues that did not exist."""
    answer = world.lab.answer
    for _ in range(3):
        answer(lambda done: ann.delete(Q, done))
        with pytest.raises(NoSuchQueue):
            ann.unbind("e", Q, lambda _error: None)
        with pytest.raises(NoSuchQueue):
            ann.purge(Q, lambda *_given: None)
    assert changes(world) == []
    for _ in range(3):
        answer(lambda done: ann.declare(Q, {"cap": "2MiB"}, done))
        answer(lambda done: ann.bind("e", Q, done))
        answer(lambda done: ann.rebind(Q, frozenset({"e"}), done))
        answer(lambda done: ann.occupy(Q, frozenset({"e"}), None, done))
        answer(lambda done: ann.purge(Q, done))
        answer(lambda done: ann.undo(Q, UndoRequest(1, 0, 0, UNNAMED), done))
        answer(lambda done: ann.redrive(Q, None, 1, done))
        ann.ensure(Q, 1)  # type: ignore[arg-type]
    assert changes(world) == [("change queue", "shop/q", 0), ("bind queue", "shop/q", 0)]


def test_every_change_is_audited(world: World, ann: AuthorizedBroker) -> None:
    answer, lab = world.lab.answer, world.lab
    other = queue_name("other", "shop")
    lab.answer(lambda done: lab.broker.declare(other, {}, done))
    answer(lambda done: ann.declare(Q, {}, done))
    answer(lambda done: ann.declare(Q, {"cap": "2MiB"}, done))
    answer(lambda done: ann.bind("e", Q, done))
    answer(lambda done: ann.unbind("e", Q, done))
    answer(lambda done: ann.rebind(Q, frozenset({"f"}), done))
    answer(lambda done: ann.occupy(Q, frozenset({"f"}), 60.0, done))
    lab.publish_messages(lab.broker.get(Q), [Message(b"m", b"x-dead-queue:shop/q\n")])
    answer(lambda done: ann.purge(Q, done, keep=True))
    answer(lambda done: ann.undo(Q, UndoRequest(1, 0, 0, UNNAMED), done))
    answer(lambda done: ann.redrive(Q, other, 1, done))
    answer(lambda done: ann.delete(Q, done))
    found: Counter[str] = Counter()
    for action, _, count in changes(world):
        found[action] += count or 1
    assert found == {
        "change queue": 2,
        "bind queue": 3,
        "unbind queue": 1,
        "purge queue": 1,
        "undo": 1,
        "redrive": 1,
        "delete queue": 1,
    }


def test_failed_changes_are_not_audited_and_entries_name_the_client(world: World, ann: AuthorizedBroker) -> None:
    answers: list[Any] = []
    CURRENT_CALLER.set(Caller("192.0.2.1", 7, "http"))
    ann.declare(Q, {}, answers.append)
    CURRENT_CALLER.set(Caller("192.0.2.2", 8, "stomp"))
    world.lab.settle()
    CURRENT_CALLER.set(None)
    assert answers == [None]
    [line] = [each for each in world.authenticator.audit.recent if each["action"] == "change queue"]
    assert (line["peer"], line["protocol"]) == ("192.0.2.1:7", "http")
    world.lab.disk.eio_chance = 1
    world.lab.expects_faults = True
    ann.declare(queue_name("other", "shop"), {}, answers.append)
    world.lab.settle()
    world.lab.disk.eio_chance = 0
    assert answers[-1] is not None
    assert ("change queue", "shop/other", 0) not in changes(world)


def test_one_user_cannot_evict_audit_entries_of_others(world: World, ann: AuthorizedBroker) -> None:
    """20,000 changes in half a minute left nothing of anybody else in the list, and some minutes' worth on the disk."""
    bob, root = world.login("bob", "open barley"), world.login("root", "all of it")
    answer = world.lab.answer
    for access in (bob, root):
        answer(lambda done, access=access: access.declare(queue_name("good", "shop"), {}, done))  # type: ignore[misc]
        answer(lambda done, access=access: access.delete(queue_name("good", "shop"), done))  # type: ignore[misc]
    total = 3 * CHANGES_MAX
    for number in range(total // 2):
        name = queue_name(f"q{number}", "shop")
        ann.declare(name, {}, lambda _error: None)
        world.lab.settle()
        ann.delete(name, lambda _outcome: None)
        world.lab.settle()
    for user in ("bob", "root"):
        assert [action for action, _, _ in changes(world, user)] == ["change queue", "delete queue"]
    lines = (world.data / "access" / "audit").read_text().splitlines()
    of_ann = [line for line in lines if '"user":"ann"' in line and '"login"' not in line]
    assert CHANGES_MAX <= len(of_ann) < CHANGES_MAX + 50
    assert len(world.authenticator.audit.recent) <= RECENT
    assert sum(count for _, target, count in changes(world) if target == "others") == total - CHANGES_MAX
