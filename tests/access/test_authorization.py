"""`Access`: each call of an engine needs its right, is checked before it is looked up, and touches nothing without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curbstone.access import authorization
from curbstone.access.caller import Caller
from curbstone.access.errors import NotAllowed, QuotaReached, TooMany
from curbstone.access.rights import Right
from curbstone.core.errors import NoSuchQueue
from curbstone.core.message import Message
from curbstone.core.names import queue_name
from curbstone.core.orders import orders_in
from curbstone.core.values import Outcome
from tests.access.world import World, hashed
from tests.kit.lab import message

SECRET = hashed("open sesame")
CALLER = Caller("127.0.0.1", 1, "http")
A, B = queue_name("a", "shop"), queue_name("b", "shop")


def user(name: str, *grants: str, home: str = "shop") -> str:
    return f'[users.{name}]\nhome = "{home}"\npassword = ["{SECRET}"]\ngrants = {list(grants)}\n'


def world(path: Path, *users: str) -> World:
    made = World(path, "".join(users))
    for name in ("a", "b"):
        error = made.lab.answer(lambda done, name=name: made.lab.broker.declare(queue_name(name, "shop"), {}, done))  # type: ignore[misc]
        assert error == (None,)
    return made


def test_refusal_does_not_reveal_whether_a_queue_exists(tmp_path: Path) -> None:
    it = world(tmp_path, user("u", "send other/*"))
    access = it.login("u", "open sesame")
    texts = []
    for name in ("a", "nothing"):
        with pytest.raises(NotAllowed) as caught:
            access.queue(queue_name(name, "shop"), Right.PEEK)
        texts.append(str(caught.value).replace(name, "*"))
    assert texts == ["no right to peek on queue shop/*"] * 2
    with pytest.raises(NoSuchQueue):
        access.queue(queue_name("nothing", "other"), Right.SEND)


def test_first_use_creates_a_queue_only_with_manage(tmp_path: Path) -> None:
    it = world(tmp_path, user("sender", "send shop/*"), user("maker", "send,manage shop/*"))
    with pytest.raises(NoSuchQueue):
        it.login("sender", "open sesame").ensure(queue_name("new", "shop"), Right.SEND)
    assert it.login("maker", "open sesame").ensure(queue_name("new", "shop"), Right.SEND)
    assert it.login("sender", "open sesame").ensure(queue_name("new", "shop"), Right.SEND)


def test_lists_show_only_queues_with_any_right(tmp_path: Path) -> None:
    it = world(tmp_path, user("u", "peek shop/a"), user("none"))
    assert [queue.name for queue in it.login("u", "open sesame").queues()] == [A]
    assert it.login("none", "open sesame").queues() == []


def test_dead_letter_queue_requires_send(tmp_path: Path) -> None:
    it = world(tmp_path, user("u", "manage shop/*", "send shop/dead"))
    access = it.login("u", "open sesame")
    with pytest.raises(NotAllowed, match="no right to send on queue shop/b"):
        access.declare(A, {"dead_letter": "b"}, lambda _error: None)
    assert it.lab.broker.get(A).options.dead_letter == ""
    assert it.lab.answer(lambda done: access.declare(A, {"dead_letter": "dead"}, done)) == (None,)


def test_redrive_requires_send_on_the_target(tmp_path: Path) -> None:
    it = world(tmp_path, user("u", "manage shop/*", "send shop/b"))
    lab = it.lab
    access = it.login("u", "open sesame")
    for home in ("shop/a", "shop/b", "shop/b"):
        lab.publish_messages(lab.broker.get(A), [Message(b"m", f"x-dead-queue:{home}\n".encode())])
    name = queue_name("dead", "shop")
    lab.answer(lambda done: lab.broker.declare(name, {}, done))
    for home in ("shop/a", "shop/b", "shop/b"):
        lab.publish_messages(lab.broker.get(name), [Message(b"m", f"x-dead-queue:{home}\n".encode())])
    error, redriven = lab.answer(lambda done: access.redrive(name, None, 100, done))
    assert error is None
    assert redriven.moved == 2 and redriven.stayed == {"no right to send on queue shop/a": 1}
    with pytest.raises(NotAllowed, match="no right to send on queue shop/a"):
        access.redrive(name, A, 100, lambda *_given: None)


def test_leases_of_other_users_are_stale_and_their_messages_stay(tmp_path: Path) -> None:
    it = world(tmp_path, user("u", "receive shop/*"), user("v", "receive shop/*"))
    lab = it.lab
    mine, theirs = it.login("u", "open sesame"), it.login("v", "open sesame")
    queue = mine.queue(A, Right.RECEIVE)
    [seq] = lab.publish(lab.broker.get(A), "m")
    [lease] = lab.answer(lambda done: mine.lease(queue, 1, 30_000, done, CALLER))[0]
    settled = lab.answer(lambda done: theirs.settle_leases(queue, [lease.token], Outcome.ACK, done))
    assert settled == (None, 0, [lease.token])
    assert lab.answer(lambda done: theirs.extend(queue, [lease.token], 1000, done)) == (None, [lease.token])
    assert lab.answer(lambda done: theirs.settle_by_id(queue, seq, done)) == (None, False)
    assert lab.answer(lambda done: mine.extend(queue, [lease.token], 1000, done)) == (None, [])
    assert lab.answer(lambda done: mine.settle_leases(queue, [lease.token], Outcome.ACK, done)) == (None, 1, [])


def test_staging_requires_send_in_the_project(tmp_path: Path) -> None:
    """A part without messages names no queue, so a login without any right could use up all that may be staged."""
    it = world(tmp_path, user("u", "send shop/a", "receive web/*", "send topic:web/*"), user("none"))
    it.login("u", "open sesame").staging.upload("shop", "t", "p", 1000).cancel()
    for name, project in (("u", "web"), ("u", "_shop"), ("none", "shop"), ("none", "nowhere")):
        with pytest.raises(NotAllowed, match=f"no right to send on project {project}"):
            it.login(name, "open sesame").staging.upload(project, "t", "p", 1000)


def test_leases_of_a_user_are_limited_without_affecting_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One who may receive could lease all messages of all such queues, and millions of them stayed in memory."""
    monkeypatch.setattr(authorization, "LEASES_MAX", 3)
    it = world(tmp_path, user("u", "receive shop/*"), user("v", "receive shop/*"))
    lab = it.lab
    mine, theirs = it.login("u", "open sesame"), it.login("v", "open sesame")
    a, b = (mine.queue(name, Right.RECEIVE) for name in (A, B))
    waiting: list[Any] = []
    for queue in (a, b):
        mine.lease(queue, 2, 30_000, waiting.append, CALLER, wait_ms=10_000)
    lab.publish(lab.broker.get(A), "1", "2", "3")
    lab.publish(lab.broker.get(B), "4", "5")
    lab.settle()
    got, refused = waiting
    assert [lease.delivery.message.body for lease in got] == [b"1", b"2"]
    assert isinstance(refused, TooMany), "both had asked when there was room for either"
    [last] = lab.answer(lambda done: mine.lease(b, 9, 30_000, done, CALLER))[0]
    assert (last.delivery.message.body, last.delivery.tries) == (b"4", 0)
    with pytest.raises(TooMany, match="settle some"):
        mine.lease(a, 1, 30_000, lambda _leases: None, CALLER)
    assert len(lab.answer(lambda done: theirs.lease(a, 9, 30_000, done, CALLER))[0]) == 1
    lab.answer(lambda done: mine.settle_leases(a, [got[0].token], Outcome.ACK, done))
    assert len(lab.answer(lambda done: mine.lease(b, 9, 30_000, done, CALLER))[0]) == 1


def test_idempotency_keys_and_staged_transactions_are_per_user(tmp_path: Path) -> None:
    it = world(tmp_path, user("u", "send shop/*"), user("v", "send shop/*"))
    mine, theirs = it.login("u", "open sesame"), it.login("v", "open sesame")
    assert mine.key("k", []).hashed != theirs.key("k", []).hashed
    assert it.authenticator.everyone.key("k", []).key == "k"  # as before where there are no logins
    mine.staging.upload("shop", "t", "p", 1000).cancel()
    upload = mine.staging.upload("shop", "t", "p", 1000)
    with pytest.raises(Exception, match="nothing is staged under shop/t"):
        theirs.staging.status("shop", "t")
    assert mine.staging.status("shop", "t").parts == []
    upload.cancel()


def test_events_belong_to_the_home_project(tmp_path: Path) -> None:
    it = world(
        tmp_path,
        user("u", "manage,receive shop/*", "send,receive topic:shop/*"),
        user("v", "manage,receive other/*", "send,receive topic:other/*", home="other"),
    )
    lab = it.lab
    mine, theirs = it.login("u", "open sesame"), it.login("v", "open sesame")
    assert lab.answer(lambda done: mine.occupy(A, frozenset({"e"}), None, done)) == (None,)
    assert lab.answer(lambda done: theirs.publish_event("e", [message("not for us")], done)) == (None, 0, 1)
    assert lab.answer(lambda done: mine.publish_event("e", [message("for us")], done)) == (None, 1, 1)
    assert lab.bodies(lab.broker.get(A)) == [b"for us"]
    lab.restart()
    lab.answer(lambda done: lab.broker.publish_event("e", [message("again")], done, "shop"))
    assert lab.bodies(lab.broker.get(A)) == [b"for us", b"again"]


def test_binding_requires_manage_on_the_queue_and_receive_on_the_event(tmp_path: Path) -> None:
    it = world(
        tmp_path,
        user("consumer", "receive shop/a", "receive topic:shop/*"),
        user("manager", "manage,receive shop/a", "receive topic:shop/good"),
    )
    consumer, manager = it.login("consumer", "open sesame"), it.login("manager", "open sesame")
    for access, events, what in (
        (consumer, {"good"}, "manage on queue shop/a"),
        (manager, {"good", "other"}, "receive on topic shop/other"),
    ):
        with pytest.raises(NotAllowed, match=f"no right to {what}"):
            access.occupy(A, frozenset(events), None, lambda _error: None)
    with pytest.raises(NotAllowed, match="manage"):
        consumer.occupy(A, frozenset(), 10, lambda _error: None)  # that it goes when unused
    assert not it.lab.broker.bindings(A)
    assert it.lab.answer(lambda done: manager.occupy(A, frozenset({"good"}), None, done)) == (None,)
    assert it.lab.answer(lambda done: consumer.occupy(A, frozenset({"good"}), None, done)) == (None,)


def test_transaction_is_authorized_again_at_commit(tmp_path: Path) -> None:
    users = user("u", "send shop/*")
    it = world(tmp_path, users)
    transaction = it.login("u", "open sesame").transaction()
    transaction.publish(A, message("m"))
    assert it.reload(users.replace("send", "peek")) is None
    with pytest.raises(NotAllowed, match="no right to send on queue shop/a"):
        transaction.commit(lambda _error: None)
    assert it.lab.bodies(it.lab.broker.get(A)) == []


def test_project_quota_is_enforced(tmp_path: Path) -> None:
    quota = '[quotas.shop]\nqueues = 3\nbytes = "4MiB"\n'
    it = world(tmp_path, user("u", "manage,send */*"), quota)  # the two that are there have 1 MiB each
    access = it.login("u", "open sesame")

    def declare(name: str, **options: Any) -> None:
        access.declare(queue_name(name, "shop"), options, lambda _error: None)
        it.lab.settle()

    with pytest.raises(QuotaReached, match="4194304"):
        declare("c", cap="3MiB")
    declare("c", cap="2MiB")
    with pytest.raises(QuotaReached, match="has 3 queues"):
        declare("d", cap="64KiB")
    with pytest.raises(QuotaReached):
        access.ensure(queue_name("d", "shop"), Right.SEND)
    with pytest.raises(QuotaReached):
        declare("a", cap="2MiB")
    declare("a", cap="512KiB")
    declare("b", cap="1536KiB")
    access.declare(queue_name("d", "other"), {"cap": "100MiB"}, lambda _error: None)


def test_without_users_everything_is_allowed(tmp_path: Path) -> None:
    it = world(tmp_path, user("u"))
    everyone = it.authenticator.everyone
    assert everyone.identity.owner == "" and everyone.home == "default"
    assert everyone.queue(A, Right.MANAGE) and everyone.broker and len(everyone.queues()) == 2


def test_filter_requires_the_rights_of_its_binding(tmp_path: Path) -> None:
    it = world(
        tmp_path,
        user("u", "manage,receive shop/*", "send,receive topic:shop/*"),
        user("v", "receive shop/*", "receive topic:shop/*"),
    )
    manager, consumer = it.login("u", "open sesame"), it.login("v", "open sesame")
    assert it.lab.answer(lambda done: manager.bind("e", A, done, "a = 1")) == (None,)
    assert it.lab.answer(lambda done: consumer.bind("e", A, done, "a = 1")) == (None,), "it is bound already"
    for other in ("", "a = 2"):
        with pytest.raises(NotAllowed):
            consumer.bind("e", A, lambda _error: None, other)
    assert it.lab.broker.bindings(A) == {"e": "a = 1"}


def test_batch_report_requires_send_on_its_queue(tmp_path: Path) -> None:
    it = world(tmp_path, user("u", "send shop/a"))
    access = it.login("u", "open sesame")
    for to, is_allowed in (("a", True), ("b", False)):
        block = f"x-batch:1\nx-batch-size:1\nx-batch-to:{to}\n".encode()
        messages = [Message(b"1"), Message(b"2", block, orders_in(block))]
        if is_allowed:
            access.check_batches(A, messages)
            access.transaction().publish(A, messages[1])
        else:
            with pytest.raises(NotAllowed, match="no right to send on queue shop/b"):
                access.check_batches(A, messages)
            with pytest.raises(NotAllowed, match="no right to send on queue shop/b"):
                access.transaction().publish(A, messages[1])
