"""Logins: what proves a user, how guesses are slowed down, and what ends when it counts no more."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from curbstone.access import passwords, tokens
from curbstone.access.authorization import AuthorizedBroker
from curbstone.access.caller import Caller
from curbstone.access.errors import Busy, NotAllowed, NotLoggedIn, TooMany
from curbstone.access.passwords import WAITING_MAX
from curbstone.access.rights import Right
from curbstone.access.tokens import DAY_MS
from curbstone.access.users import UsersError
from curbstone.core.errors import BadRequest, CurbstoneError, DataDirectoryError
from curbstone.core.message import Message
from curbstone.core.names import queue_name
from curbstone.core.values import UNNAMED, UndoRequest
from tests.access.world import HERE, World, hashed

USERS = f"""
[users.ann]
password = ["{hashed("open sesame")}"]
home = "shop"
grants = ["send,receive shop/*"]
[users.root]
password = ["{hashed("all of it")}"]
grants = ["admin server"]
[users.far]
password = ["{hashed("from afar")}"]
sources = ["10.0.0.0/8"]
"""
A, B = queue_name("a", "shop"), queue_name("b", "shop")


def test_password_login_is_cached_without_hashing_again(world: World) -> None:
    access = world.login("ann", "open sesame")
    assert access.identity.user == "ann" and access.home == "shop"
    assert access.may(Right.SEND, A) and not access.may(Right.MANAGE, A)
    world.lab.host.jobs.clear()
    assert world.login("ann", "open sesame") is access
    assert not world.lab.host.jobs
    world.lab.pass_time(passwords.REMEMBERED_MS + 1)
    assert world.authenticator.enter(world_credentials("ann", "open sesame"), HERE) is None  # it has to be hashed again


def world_credentials(user: str, secret: str):  # type: ignore[no-untyped-def]
    from curbstone.access.caller import Credentials

    return Credentials(user, secret)


@pytest.mark.parametrize(
    ("user", "secret"), [("ann", "open sesame!"), ("bob", "open sesame"), ("ann", ""), ("far", "from afar"), ("", "x")]
)
def test_login_failures_are_indistinguishable(world: World, user: str, secret: str) -> None:
    with pytest.raises(NotLoggedIn, match=r"^the login failed$"):
        world.login(user, secret)


def test_login_without_credentials_requires_the_anonymous_user(world: World) -> None:
    with pytest.raises(NotLoggedIn, match="a login is needed"):
        world.login()
    assert world.reload(USERS + '[users.anonymous]\nsources = ["127.0.0.0/8"]\ngrants = ["send shop/in"]\n') is None
    assert world.login().may(Right.SEND, queue_name("in", "shop"))
    with pytest.raises(NotLoggedIn):
        world.login(caller=Caller("192.0.2.1"))


def test_unknown_user_costs_a_hash_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes: list[int] = []
    real = passwords._HASHER

    class Counting:
        def verify(self, kept: str, password: str) -> bool:
            hashes.append(1)
            return bool(real.verify(kept, password))

    monkeypatch.setattr(passwords, "_HASHER", Counting())
    for user in ("ann", "nobody", "far"):
        hashes.clear()
        with pytest.raises(NotLoggedIn):
            world.login(user, "wrong guess")
        assert len(hashes) == 1, user


def test_guesses_are_delayed_increasingly_without_lockout(world: World) -> None:
    for _ in range(5):
        with pytest.raises(NotLoggedIn):
            world.login("ann", "wrong guess")
    for wait_s in (1, 2, 4, 8, 16, 32, 60, 60):
        with pytest.raises(TooMany, match=rf"^too many logins failed; try again in {wait_s} s$"):
            world.login("ann", "wrong guess")
        assert world.login("ann", "open sesame", Caller("127.0.0.2")).identity.user == "ann"
        world.lab.pass_time(wait_s * 1000)
        with pytest.raises(NotLoggedIn):
            world.login("ann", "wrong guess")
    world.lab.pass_time(60_000)
    assert world.login("ann", "open sesame")
    with pytest.raises(NotLoggedIn):  # the success cleared them
        world.login("ann", "wrong guess")


def test_throttled_attempt_does_not_extend_the_delay(world: World) -> None:
    for _ in range(6):
        with pytest.raises(NotLoggedIn):
            world.login("ann", "wrong guess")
        world.lab.pass_time(1_000)
    for left_s in (1, 1, 1):
        with pytest.raises(TooMany) as throttled:
            world.login("ann", "open sesame")
        assert throttled.value.wait_s == left_s
    world.lab.pass_time(1_000)
    assert world.login("ann", "open sesame").identity.user == "ann"


def test_malformed_token_is_not_counted_as_a_guess_and_costs_no_hash(world: World) -> None:
    for _ in range(100):
        with pytest.raises(NotLoggedIn, match=r"^the login failed$"):
            world.login("", "cbs_0123456789_nonsense")
    assert not world.lab.host.jobs
    assert world.login("ann", "open sesame").identity.user == "ann"


def test_address_that_tries_many_users_is_delayed(world: World) -> None:
    caller = Caller("2001:db8::1")
    for number in range(50):
        with pytest.raises(NotLoggedIn):
            world.login(f"u{number}", "wrong guess", caller)
    with pytest.raises(TooMany):
        world.login("ann", "open sesame", Caller("2001:db8::2"))  # of the same /64
    assert world.login("ann", "open sesame", Caller("2001:db8:0:1::2"))


def test_too_many_concurrent_logins_must_retry(world: World) -> None:
    answers: list[object] = []
    for number in range(WAITING_MAX + 3):
        world.authenticator.admit(
            world_credentials(f"u{number}", "wrong guess"), Caller(f"10.0.0.{number}"), answers.append
        )
    assert len(world.lab.host.jobs) == passwords.AT_ONCE
    world.lab.host.turn()
    assert [type(answer) for answer in answers] == [Busy]
    world.lab.host.jobs.clear()


def test_token_login_works_with_or_without_its_user_name(world: World) -> None:
    ann = world.login("ann", "open sesame")
    secret = world.token(ann, grants=["send shop/a"])
    for name in ("", "ann"):
        access = world.login(name, str(secret))
        assert access.identity.credential == secret.id
        assert access.may(Right.SEND, A) and not access.may(Right.RECEIVE, A)
        assert not access.may(Right.SEND, queue_name("b", "shop"))
    for user, text in (("root", str(secret)), ("", str(secret)[:-1] + "x"), ("", f"cbs_{'a' * 10}_{secret.secret}")):
        with pytest.raises(NotLoggedIn, match=r"^the login failed$"):
            world.login(user, text)


def test_token_only_narrows_the_rights_of_its_user(world: World) -> None:
    ann = world.login("ann", "open sesame")
    access = world.login("", str(world.token(ann, grants=["send,manage */*", "metrics server"])))
    assert access.identity.on_queue(A) == Right.SEND
    assert access.identity.on_server() == 0
    assert not world.login("", str(world.token(ann, grants=["admin server"]))).identity.is_admin
    with pytest.raises(BadRequest, match="only have grants of that token"):
        world.token(access)
    with pytest.raises(NotAllowed, match="no right to admin on the server"):
        world.token(access, "root")


def test_token_file_holds_no_secrets_and_is_private(world: World) -> None:
    secret = world.token(world.login("ann", "open sesame"))
    path = world.data / "access" / "tokens"
    assert secret.secret not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    again = World(world.file.parent, USERS)
    assert again.login("", str(secret)).identity.user == "ann"


def test_revoking_a_token_ends_everything_created_with_it(world: World) -> None:
    root = world.login("root", "all of it")
    parent = world.token(world.login("ann", "open sesame"), grants=["send shop/*"])
    child = world.token(world.login("", str(parent)), grants=["send shop/*"])
    ended: list[str] = []
    access = world.login("", str(child))
    open_connection = world.authenticator.connections.add(access, HERE, end=lambda error: ended.append(str(error)))
    session, of_session = world.authenticator.open_session(access, HERE)
    world.authenticator.revoke_token(root, parent.id, lambda _error: None)
    assert ended == ["the login was revoked"]
    assert of_session.identity.end_reason
    open_connection.close()
    world.lab.settle()
    for secret in (parent, child, session):
        with pytest.raises(NotLoggedIn):
            world.login("", str(secret))
    with pytest.raises(NotLoggedIn):
        access.queue(A, Right.SEND)


def test_expiry_of_a_token_ends_its_connections(world: World) -> None:
    expires_ms = world.lab.host.wall_ms() + DAY_MS * 3
    secret = world.token(world.login("ann", "open sesame"), expires_ms=expires_ms)
    ended: list[CurbstoneError] = []
    world.authenticator.connections.add(world.login("", str(secret)), HERE, end=ended.append)
    world.lab.host.timers[:] = [timer for timer in world.lab.host.timers if timer[0] > world.lab.host.now_ms() + 60_000]
    world.lab.pass_time(DAY_MS * 3 - 1)
    assert not ended
    world.lab.pass_time(1)
    assert [str(error) for error in ended] == ["the login has expired"]
    with pytest.raises(NotLoggedIn):
        world.login("", str(secret))


def test_reload_disconnects_only_affected_clients(world: World) -> None:
    ann, root = world.login("ann", "open sesame"), world.login("root", "all of it")
    reported: list[str] = []
    for access in (ann, root):
        name = access.identity.user
        world.authenticator.connections.add(
            access, HERE, end=lambda error, name=name: reported.append(f"{name}: {error}"),  # type: ignore[misc]
            changed=lambda name=name: reported.append(f"{name} changed"),  # type: ignore[misc]
        )  # fmt: skip
    assert world.reload(USERS.replace("send,receive shop/*", "receive shop/*")) is None
    assert reported == ["ann changed"]
    assert not ann.may(Right.SEND, A)
    reported.clear()
    assert world.reload(USERS.replace("[users.ann]", "[users.eve]")) is None
    assert reported == ["ann: the login was revoked"]
    assert root.identity.is_admin


def test_replacing_a_password_ends_its_logins(world: World) -> None:
    old = world.login("ann", "open sesame")
    both = f'["{hashed("open sesame")}", "{hashed("shut sesame")}"]'
    one = f'["{hashed("open sesame")}"]'
    assert world.reload(USERS.replace(one, both)) is None
    new = world.login("ann", "shut sesame")
    assert not old.identity.end_reason
    assert world.reload(USERS.replace(one, f'["{hashed("shut sesame")}"]')) is None
    assert old.identity.end_reason and not new.identity.end_reason


def test_invalid_users_file_is_ignored_on_reload_and_refuses_a_start(world: World) -> None:
    ann = world.login("ann", "open sesame")
    error = world.reload("[users.x]\npassword = ['secret-text']")
    assert error is not None and "users: not reloaded: " in str(error) and "secret-text" not in str(error)
    assert not ann.identity.end_reason
    with pytest.raises(UsersError, match="curbstone user hash"):
        World(world.file.parent, "[users.x]\npassword = ['secret-text']")
    world.write(USERS)
    world.file.chmod(0o620)
    with pytest.raises(UsersError, match="users other than its owner may write it"):
        world.authenticator.open()


def test_users_file_may_be_a_symlink_but_not_the_token_file(world: World, tmp_path: Path) -> None:
    """Mounted secrets are links; in the data directory nobody makes one but who wants something."""
    world.file.rename(tmp_path / "mounted")
    world.file.symlink_to(tmp_path / "mounted")
    world.authenticator.open()
    assert world.token(world.login("ann", "open sesame"))
    kept = world.data / "access" / "tokens"
    kept.rename(tmp_path / "elsewhere")
    kept.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataDirectoryError, match="access/tokens can't be read"):
        world.authenticator.open()


def test_token_file_of_another_owner_is_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may write to the data directory could put tokens of their own there."""
    world.token(world.login("ann", "open sesame"))
    world.authenticator.open()
    real = os.fstat
    monkeypatch.setattr(os, "fstat", lambda file: os.stat_result([*real(file)[:4], 12345, *real(file)[5:10]]))
    with pytest.raises(DataDirectoryError, match="access/tokens can't be read: another user owns it"):
        tokens.read(world.data)


def test_changed_users_file_is_reloaded_automatically(world: World) -> None:
    ann = world.login("ann", "open sesame")
    world.write(USERS.replace("[users.ann]", "[users.anna]"))
    world.lab.pass_time(5_001)
    world.lab.settle()
    assert ann.identity.end_reason


def test_idle_session_expires_unless_a_connection_uses_it(world: World) -> None:
    secret, access = world.authenticator.open_session(world.login("ann", "open sesame"), HERE)
    open_connection = world.authenticator.connections.add(access, HERE, end=lambda _error: None)
    world.lab.host.timers.clear()
    world.lab.pass_time(40 * 60_000)
    assert world.login("", str(secret)) is access
    open_connection.close()
    world.lab.pass_time(31 * 60_000)
    with pytest.raises(NotLoggedIn):
        world.login("", str(secret))


def test_ticket_is_valid_once_for_one_queue_and_direction_and_expires(world: World) -> None:
    ann = world.login("ann", "open sesame")

    def ticket() -> str:
        return str(world.authenticator.make_ticket(ann, "consume", A))

    text = ticket()
    assert world.authenticator.use_ticket(text, "consume", A, HERE) is ann
    wrong = [
        (text, "consume", A),
        (ticket(), "publish", A),
        (ticket(), "consume", queue_name("b", "shop")),
        ("x", "", A),
    ]
    for given, way, queue in wrong:
        with pytest.raises(NotLoggedIn):
            world.authenticator.use_ticket(given, way, queue, HERE)
    late = ticket()
    world.lab.pass_time(30_001)
    with pytest.raises(NotLoggedIn):
        world.authenticator.use_ticket(late, "consume", A, HERE)


def test_ticket_requires_an_allowed_address(world: World) -> None:
    near, away = Caller("10.0.0.9", 1, "http"), Caller("192.0.2.9", 1, "http")
    far = world.login("far", "from afar", near)
    for caller in (near, away):
        text = str(world.authenticator.make_ticket(far, "consume", A))
        if caller is near:
            assert world.authenticator.use_ticket(text, "consume", A, caller) is far
        else:
            with pytest.raises(NotLoggedIn):
                world.authenticator.use_ticket(text, "consume", A, caller)


def test_ticket_of_a_removed_user_is_refused(world: World) -> None:
    text = str(world.authenticator.make_ticket(world.login("ann", "open sesame"), "consume", A))
    assert world.reload(USERS.replace("[users.ann]", "[users.bob]")) is None
    with pytest.raises(NotLoggedIn):
        world.authenticator.use_ticket(text, "consume", A, HERE)


def test_client_certificate_logs_in_a_user_that_names_it(world: World) -> None:
    assert world.reload(USERS + '[users.box]\ncertificate = ["DNS:box.example"]\n') is None
    caller = Caller("127.0.0.1", 1, "stomp", ("DNS:other.example", "DNS:box.example"))
    assert world.login(caller=caller).identity.user == "box"
    with pytest.raises(NotLoggedIn):
        world.login(caller=caller._replace(certificate=("DNS:box.example.evil",)))


def test_purge_redrive_and_delete_are_audited_and_require_manage(world: World) -> None:
    ann, root = world.login("ann", "open sesame"), world.login("root", "all of it")
    lab = world.lab
    for name in (A, B, A):
        root.declare(name, {}, lambda _error: None)
        lab.settle()
    calls: list[Callable[[AuthorizedBroker], object]] = [
        lambda access: access.purge(A, lambda *_: None, keep=True),
        lambda access: access.undo(A, UndoRequest(10, 0, 0, UNNAMED), lambda *_: None),
        lambda access: access.redrive(A, B, 1, lambda *_: None),
        lambda access: access.delete(A, lambda _outcome: None),
    ]
    for call in calls:
        with pytest.raises(NotAllowed, match="no right to manage"):
            call(ann)
    for call in calls[:3]:
        call(root)
        lab.settle()
    lab.publish_messages(lab.broker.get(A), [Message(b"m", b"x-dead-queue:shop/a\n")])
    for call in [*calls, calls[-1]]:
        call(root)
        lab.settle()
    recent = world.authenticator.audit.recent
    refused = [(line["user"], line["action"], line["target"]) for line in recent if line["outcome"] == "refused"]
    assert refused == [("ann", "manage", f"queue {A}")]
    done = [
        (line["action"], line["target"]) for line in recent if line["outcome"] == "ok" and line["action"] != "login"
    ]
    changed = [("change queue", str(A)), ("change queue", str(B))]
    assert done == [*changed, *[(action, str(A)) for action in ("purge queue", "undo", "redrive", "delete queue")]]


def test_audit_records_logins_failures_and_changes_without_secrets(world: World) -> None:
    for _ in range(3):
        root = world.login("root", "all of it")
    for _ in range(4):
        with pytest.raises(NotLoggedIn):
            world.login("ann", "a wrong guess")
    secret = world.token(root, "ann")
    root.declare(queue_name("new"), {}, lambda _error: None)
    world.lab.pass_time(10_001)
    text = ""
    reported = []
    for name in ("audit", "failed"):
        lines = (world.data / "access" / name).read_text()
        said = [json.loads(line) for line in lines.splitlines()]
        reported += [(line["action"], line["outcome"], line["user"], line.get("count", 0)) for line in said]
        text += lines
    assert reported == [
        ("login", "ok", "root", 0),
        ("make token", "ok", "root", 0),
        ("change queue", "ok", "root", 0),
        ("login", "failed", "ann", 0),
        ("login", "failed", "ann", 3),
    ]
    for shown in (secret.secret, "a wrong guess", "all of it"):
        assert shown not in text
    assert World(world.file.parent, USERS).authenticator.audit.recent[0]["user"] == "root"
