"""What one user may have of sessions, tickets and tokens, and that admins come in whatever others have."""

from __future__ import annotations

import pytest

from curbstone.access import connections as presences
from curbstone.access import private_queues, sessions, tokens
from curbstone.access.authorization import AuthorizedBroker
from curbstone.access.errors import NotAllowed, NotLoggedIn, TooMany
from curbstone.access.secrets import Secret
from curbstone.access.sessions import SESSIONS_OF_USER_MAX, TICKETS_OF_USER_MAX
from curbstone.access.tokens import TOKENS_OF_USER_MAX
from curbstone.core.errors import BadRequest, CurbstoneError
from curbstone.core.message import Message
from curbstone.core.names import QueueName, private_name, queue_name
from tests.access.world import HERE, World, hashed

USERS = f"""
[users.ann]
password = ["{hashed("open sesame")}"]
grants = ["receive shop/*"]
[users.bob]
password = ["{hashed("shut sesame")}"]
grants = ["receive shop/*"]
[users.root]
password = ["{hashed("all of it")}"]
grants = ["admin server"]
"""
A = queue_name("a", "shop")


def user(world: World, name: str) -> AuthorizedBroker:
    return world.login(name, {"ann": "open sesame", "bob": "shut sesame", "root": "all of it"}[name])


def test_least_recently_used_session_ends_when_a_user_has_too_many(world: World) -> None:
    ann = user(world, "ann")
    opened: list[Secret] = []
    for number in range(SESSIONS_OF_USER_MAX):
        secret, access = world.authenticator.open_session(ann, HERE)
        opened.append(secret)
        if number == 0:
            world.authenticator.connections.add(access, HERE, end=lambda _error: None)
        world.lab.pass_time(1)
    world.login("", str(opened[1]))
    fresh, _ = world.authenticator.open_session(ann, HERE)
    with pytest.raises(NotLoggedIn):
        world.login("", str(opened[2]))
    for secret in (*opened[:2], *opened[3:], fresh):
        assert world.login("", str(secret)).identity.user == "ann"
    assert len(world.authenticator.sessions) == SESSIONS_OF_USER_MAX


def test_no_new_session_while_all_sessions_of_a_user_have_connections(world: World) -> None:
    ann = user(world, "ann")
    for _ in range(SESSIONS_OF_USER_MAX):
        _, access = world.authenticator.open_session(ann, HERE)
        world.authenticator.connections.add(access, HERE, end=lambda _error: None)
    with pytest.raises(TooMany, match="this user has 100 sessions with open connections"):
        world.authenticator.open_session(ann, HERE)
    world.authenticator.close_session(access)
    world.authenticator.open_session(ann, HERE)


def test_tickets_of_a_user_are_limited_until_used_or_expired(world: World) -> None:
    ann = user(world, "ann")
    made = [world.authenticator.make_ticket(ann, "consume", A) for _ in range(TICKETS_OF_USER_MAX)]
    with pytest.raises(TooMany, match="this user has 100 unused tickets"):
        world.authenticator.make_ticket(ann, "consume", A)
    world.authenticator.use_ticket(str(made[0]), "consume", A, HERE)
    world.authenticator.make_ticket(ann, "consume", A)
    with pytest.raises(TooMany):
        world.authenticator.make_ticket(ann, "consume", A)
    world.authenticator.make_ticket(user(world, "bob"), "consume", A)
    world.lab.pass_time(sessions.TICKET_MS)
    world.authenticator.make_ticket(ann, "consume", A)


def test_tokens_of_a_user_are_limited_except_for_admins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "TOKENS_OF_USER_MAX", 5)
    ann = user(world, "ann")
    for _ in range(5):
        world.token(ann)
    with pytest.raises(BadRequest, match="this user has 5 tokens"):
        world.token(ann)
    world.token(user(world, "root"), "ann")
    world.token(user(world, "bob"))
    assert TOKENS_OF_USER_MAX == 200


def test_limits_of_other_users_do_not_lock_out_an_admin(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((sessions, "SESSIONS_MAX"), (sessions, "TICKETS_MAX"), (tokens, "TOKENS_MAX")):
        monkeypatch.setattr(module, name, 12)
        monkeypatch.setattr(module, "RESERVED", 2)
    ann, bob, root = (user(world, name) for name in ("ann", "bob", "root"))
    for _ in range(10):
        world.token(ann)
        world.authenticator.open_session(ann, HERE)
        world.authenticator.make_ticket(ann, "consume", A)
    with pytest.raises(TooMany, match="the server has 10 sessions"):
        world.authenticator.open_session(bob, HERE)
    with pytest.raises(TooMany, match="the server has 10 unused tickets"):
        world.authenticator.make_ticket(bob, "consume", A)
    with pytest.raises(BadRequest, match="the server has 10 tokens"):
        world.token(bob)
    world.token(root)
    world.authenticator.open_session(root, HERE)
    world.authenticator.make_ticket(root, "consume", A)


def test_restricted_token_sees_and_revokes_only_itself_and_its_descendants(world: World) -> None:
    ann = user(world, "ann")
    wide, narrow = world.token(ann), world.token(ann, grants=["receive shop/a"])
    by_wide, by_narrow = world.login("", str(wide)), world.login("", str(narrow))
    child = world.token(by_narrow, grants=["receive shop/a"])
    grandchild = world.token(world.login("", str(child)), grants=["receive shop/a"])
    _, by_session = world.authenticator.open_session(by_narrow, HERE)

    def seen(access: AuthorizedBroker) -> set[str]:
        return {each.id for each in world.authenticator.tokens.listed() if world.authenticator.sees_token(access, each)}

    everything = {wide.id, narrow.id, child.id, grandchild.id}
    assert seen(ann) == seen(by_wide) == seen(user(world, "root")) == everything
    assert seen(by_narrow) == seen(by_session) == everything - {wide.id}
    assert seen(user(world, "bob")) == set()
    for access in (by_narrow, by_session, user(world, "bob")):
        with pytest.raises(NotAllowed):
            world.authenticator.revoke_token(access, wide.id, lambda _error: None)
    assert world.login("", str(wide)) is by_wide
    world.authenticator.revoke_token(by_narrow, narrow.id, lambda _error: None)
    assert seen(ann) == {wide.id}


def test_revoke_all_revokes_every_visible_token_of_a_user(world: World) -> None:
    ann, bob, root = (user(world, name) for name in ("ann", "bob", "root"))
    wide, narrow = world.token(ann), world.token(ann, grants=["receive shop/a"])
    by_narrow, of_bob = world.login("", str(narrow)), world.login("", str(world.token(bob)))
    world.token(by_narrow, grants=["receive shop/a"])

    def revoke(access: AuthorizedBroker, whose: str) -> int:
        answers: list[object] = []
        count = world.authenticator.revoke_tokens_of(access, whose, answers.append)
        world.lab.settle()
        assert answers == [None]
        return count

    for access, whose in ((ann, "bob"), (by_narrow, "bob"), (by_narrow, "root")):
        with pytest.raises(NotAllowed):
            world.authenticator.revoke_tokens_of(access, whose, lambda _error: None)
    assert revoke(by_narrow, "ann") == 2
    assert by_narrow.identity.end_reason and world.login("", str(wide))
    assert revoke(ann, "ann") == 1 and revoke(ann, "ann") == 0
    assert revoke(root, "bob") == 1
    assert of_bob.identity.end_reason and not bob.identity.end_reason
    assert world.authenticator.tokens.listed() == []


def test_private_queues_of_a_user_are_limited_and_deleted_ones_do_not_count(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need no right and are in no project's quota: any login could fill the disk with them."""
    monkeypatch.setattr(private_queues, "QUEUES_MAX", 2)
    ann, bob = user(world, "ann"), user(world, "bob")
    names = [private_name(f"temp.{number}") for number in range(4)]

    def make(access: AuthorizedBroker, name: QueueName) -> None:
        assert world.lab.answer(lambda done: access.private(name, {}, done)) == (None,)

    for name in (*names[:2], *names[:2]):
        make(ann, name)
    with pytest.raises(TooMany, match="temporary queues"):
        ann.private(names[2], {}, lambda _error: None)
    make(bob, names[3])
    ann.drop_private(names[:1])
    world.lab.settle()
    make(ann, names[2])
    everyone = world.authenticator.everyone
    for number in range(4):
        make(everyone, private_name(f"temp.more{number}"))


def test_bytes_in_private_queues_of_a_user_are_bounded_and_the_slowest_consumer_is_closed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 queues of 64 MiB each were 125 GiB that no quota counted."""
    monkeypatch.setattr(private_queues, "BYTES_MAX", 1024 * 1024)
    ann, bob = user(world, "ann"), user(world, "bob")
    names = [private_name(f"temp.{number}") for number in range(3)]
    of_bob = private_name("temp.bob")
    ended: list[tuple[QueueName, CurbstoneError]] = []

    def subscribe(access: AuthorizedBroker, name: QueueName) -> None:
        queue = access.private(name, {"cap": 1024 * 1024}, lambda _error: None)
        world.lab.settle()
        queue.subscribe(lambda _deliveries: None, window=1, on_closed=lambda error: ended.append((name, error)))

    def send(name: QueueName, kib: int) -> None:
        assert bob.reply(name, [Message(b"x" * 1024) for _ in range(kib)], lambda *_told: None)
        world.lab.settle()

    for name in names:
        subscribe(ann, name)
    subscribe(bob, of_bob)
    for name, kib in zip((*names, of_bob), (100, 500, 100, 700), strict=True):
        send(name, kib)
    world.lab.pass_time(private_queues.CHECK_EVERY_MS)
    assert ended == []
    send(names[0], 200)
    send(names[2], 200)
    world.lab.pass_time(private_queues.CHECK_EVERY_MS)
    [(name, reason)] = ended
    assert name == names[1] and isinstance(reason, TooMany) and "hold more than 1048576 bytes" in str(reason)
    world.lab.pass_time(10 * private_queues.CHECK_EVERY_MS)
    assert len(ended) == 1
    for left in (names[0], names[1], names[2]):
        ann.drop_private([left])
    world.lab.settle()
    assert not any(queue.name in names for queue in world.lab.broker.private_queues())


def test_subscriptions_of_a_user_are_limited_across_connections(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 on each of 1,000 connections made each message of their queue take as long as all of them."""
    monkeypatch.setattr(presences, "SUBSCRIPTIONS_MAX", 5)
    ann, bob = user(world, "ann"), user(world, "bob")
    connections = world.authenticator.connections
    first, second, other = (connections.add(each, HERE, end=lambda _error: None) for each in (ann, ann, bob))
    first.set_subscriptions(3)
    second.set_subscriptions(2)
    other.set_subscriptions(5)
    for one in (first, second):
        with pytest.raises(TooMany, match="this user has 5 subscriptions"):
            one.set_subscriptions(one.subscriptions + 1)
    second.set_subscriptions(1)
    first.set_subscriptions(4)
    first.close()
    first.set_subscriptions(1)
    second.set_subscriptions(5)
    second.close()
    third = connections.add(ann, HERE, end=lambda _error: None)
    third.set_subscriptions(5)


def test_private_queue_bytes_are_released_when_a_connection_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other queues were gone when their turn came. That raised a KeyError, and nothing was checked any more."""
    monkeypatch.setattr(private_queues, "BYTES_MAX", 1024 * 1024)
    ann, bob = user(world, "ann"), user(world, "bob")
    ended: list[str] = []

    def connect(text: str) -> None:
        names = [private_name(f"temp.{text}{number}") for number in range(4)]

        def on_closed(_error: CurbstoneError) -> None:
            ended.append(text)
            ann.drop_private(names)

        for name in names:
            queue = ann.private(name, {"cap": 1024 * 1024}, lambda _error: None)
            world.lab.settle()
            queue.subscribe(lambda _deliveries: None, window=1, on_closed=on_closed)
            assert bob.reply(name, [Message(b"x" * 1024) for _ in range(600)], lambda *_told: None)
        world.lab.settle()

    connect("a")
    world.lab.pass_time(private_queues.CHECK_EVERY_MS)
    assert ended
    ended.clear()
    connect("b")
    world.lab.pass_time(private_queues.CHECK_EVERY_MS)
    assert ended
