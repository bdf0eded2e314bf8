"""Guesses of passwords, many at once or from where a user may not come, and what the audit keeps of failures."""

from __future__ import annotations

import pytest
from argon2.exceptions import VerifyMismatchError

from curbstone.access import passwords
from curbstone.access.audit import FAILED_MAX, RECENT, RECENT_FAILED, REFUSED_MAX
from curbstone.access.authorization import AuthorizedBroker
from curbstone.access.caller import Caller, Credentials
from curbstone.access.errors import Busy, NotAllowed, NotLoggedIn, TooMany
from curbstone.access.login_throttle import AT_ONCE_OF_ADDRESS, AT_ONCE_OF_USER, FREE_OF_USER
from curbstone.access.passwords import AT_ONCE, WAITING_MAX
from curbstone.access.rights import Right
from curbstone.core.errors import CurbstoneError
from curbstone.core.names import queue_name
from tests.access.world import HERE, World, hashed

USERS = f"""
[users.ann]
password = ["{hashed("open sesame")}"]
grants = ["send shop/*"]
[users.root]
password = ["{hashed("all of it")}"]
grants = ["admin server"]
[users.far]
password = ["{hashed("from afar")}"]
sources = ["10.0.0.0/8"]
"""
TWO = f"""
[users.two]
password = ["{hashed("one two three")}", "{hashed("four five six")}"]
"""


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    real = passwords._HASHER

    class Counting:
        def verify(self, kept: str, password: str) -> bool:
            found.append(password)
            if password not in ("open sesame", "all of it", "from afar"):  # real hashes of guesses take long
                raise VerifyMismatchError
            return bool(real.verify(kept, password))

    monkeypatch.setattr(passwords, "_HASHER", Counting())
    return found


def log_in_concurrently(
    world: World, tries: list[tuple[str, str]], caller: Caller = HERE
) -> list[AuthorizedBroker | CurbstoneError]:
    """Log in by many passwords before any of them is looked at."""
    answers: list[AuthorizedBroker | CurbstoneError] = []
    for name, secret in tries:
        world.authenticator.admit(Credentials(name, secret), caller, answers.append)
    world.lab.settle()
    assert len(answers) == len(tries)
    return answers


def kinds(answers: list[AuthorizedBroker | CurbstoneError]) -> tuple[int, int]:
    """Return how many were looked at and wrong, and how many were not looked at."""
    return sum(isinstance(each, NotLoggedIn) for each in answers), sum(isinstance(each, TooMany) for each in answers)


def test_concurrent_guesses_do_not_bypass_the_delay(world: World, hashes: list[str]) -> None:
    guesses = [("ann", f"guess {number}") for number in range(60)]
    assert kinds(log_in_concurrently(world, guesses)) == (AT_ONCE_OF_USER, 60 - AT_ONCE_OF_USER)
    assert kinds(log_in_concurrently(world, guesses)) == (
        FREE_OF_USER - AT_ONCE_OF_USER,
        60 - FREE_OF_USER + AT_ONCE_OF_USER,
    )
    assert kinds(log_in_concurrently(world, guesses)) == (0, 60)
    world.lab.pass_time(60_000)
    assert kinds(log_in_concurrently(world, guesses)) == (1, 59)
    assert len(hashes) == FREE_OF_USER + 1


def test_concurrent_logins_of_an_address_are_limited(world: World) -> None:
    answers = log_in_concurrently(world, [(f"u{number}", "wrong guess") for number in range(40)])
    assert kinds(answers) == (AT_ONCE_OF_ADDRESS, 40 - AT_ONCE_OF_ADDRESS)
    assert {each.wait_s for each in answers if isinstance(each, TooMany)} == {1}
    assert world.authenticator.logins["http", "throttled"] == 40 - AT_ONCE_OF_ADDRESS
    assert world.login("ann", "open sesame").identity.user == "ann"


def test_concurrent_logins_with_one_password_share_one_hash(world: World, hashes: list[str]) -> None:
    answers = log_in_concurrently(world, [("ann", "open sesame")] * 100 + [("root", "all of it")] * 100)
    assert all(isinstance(each, AuthorizedBroker) for each in answers)
    assert sorted(hashes) == ["all of it", "open sesame"]
    assert kinds(log_in_concurrently(world, [("ann", f"guess {number}") for number in range(4)])) == (4, 0), (
        "nothing was counted"
    )


def test_password_from_a_forbidden_address_counts_as_wrong(world: World, hashes: list[str]) -> None:
    assert world.login("far", "from afar", Caller("10.0.0.1")).identity.user == "far"
    hashes.clear()
    for _ in range(FREE_OF_USER):
        with pytest.raises(NotLoggedIn, match=r"^the login failed$"):
            world.login("far", "from afar")
    assert len(hashes) == FREE_OF_USER
    with pytest.raises(TooMany):
        world.login("far", "from afar")
    assert world.login("far", "from afar", Caller("10.0.0.1")).identity.user == "far"


def test_cached_password_is_no_oracle_for_a_throttled_address(world: World) -> None:
    """A guesser got the right password of an active user at once, when all wrong ones had to wait."""
    assert world.login("ann", "open sesame").identity.user == "ann"
    guesser = Caller("192.0.2.1", 1, "http")
    assert kinds(log_in_concurrently(world, [("ann", f"guess {number}") for number in range(9)], guesser)) == (4, 5)
    assert kinds(log_in_concurrently(world, [("ann", "guess 9")], guesser)) == (1, 0)
    assert kinds(log_in_concurrently(world, [("ann", "open sesame"), ("ann", "guess 10")], guesser)) == (0, 2)
    assert world.login("ann", "open sesame").identity.user == "ann", "others do not notice"
    world.lab.pass_time(60_000)
    assert world.login("ann", "open sesame", guesser).identity.user == "ann"


def test_guesses_do_not_throttle_a_user_at_a_known_address(world: World) -> None:
    assert world.login("ann", "open sesame").identity.user == "ann"
    for _ in range(3):
        log_in_concurrently(world, [("ann", f"guess {number}") for number in range(9)])
    with pytest.raises(TooMany):
        world.login("ann", "guess 9")
    assert world.login("ann", "open sesame").identity.user == "ann"


@pytest.mark.usefixtures("hashes")
def test_throttled_logins_are_summed_in_the_audit(world: World) -> None:
    for turn in range(3):
        for number in range(20):
            log_in_concurrently(
                world,
                [("ann", f"guess {turn} {each}") for each in range(10)],
                Caller(f"10.{turn}.{number}.1", 1, "http"),
            )
    world.lab.pass_time(10_001)
    lines = [each for each in world.authenticator.audit.recent if each["outcome"] == "throttled"]
    assert {each["user"] for each in lines} == {"ann", ""}
    assert len(lines) == 2 * FAILED_MAX + 1
    assert sum(each.get("count", 1) for each in lines) == world.authenticator.logins["http", "throttled"] == 3 * 20 * 6
    text = (world.data / "access" / "failed").read_text()
    assert text.count('"throttled"') == len(lines) and "guess" not in text


def flood(world: World, addresses: int, answers: list[AuthorizedBroker | CurbstoneError]) -> None:
    """Have so many networks guess as often as they may."""
    for number in range(addresses):
        for turn in range(AT_ONCE_OF_ADDRESS):
            caller = Caller(f"2001:db8:{number:x}:{turn // 4:x}::1", 1, "http")
            world.authenticator.admit(Credentials(f"u{number}-{turn}", "a guess"), caller, answers.append)


def hash_one(world: World, hashes: list[str]) -> None:
    """Finish the hash that was begun first, and what was begun before it."""
    host, before = world.lab.host, len(hashes)
    while len(hashes) == before:
        job, done = host.jobs.pop(0)
        done(job(), None)
    host.turn()


def test_guesses_from_many_networks_do_not_block_a_login_from_another(world: World, hashes: list[str]) -> None:
    """A handful of addresses filled all places, and every login that was not remembered was answered 503."""
    guesses: list[AuthorizedBroker | CurbstoneError] = []
    honest: list[AuthorizedBroker | CurbstoneError] = []
    flood(world, 10, guesses)
    world.authenticator.admit(Credentials("ann", "open sesame"), HERE, honest.append)
    for _ in range(AT_ONCE + 11):
        flood(world, 10, guesses)
        hash_one(world, hashes)
    assert [type(each) for each in honest] == [AuthorizedBroker]
    assert any(isinstance(each, Busy) for each in guesses)
    world.lab.settle()


def test_network_gets_no_more_turns_with_more_addresses(world: World, hashes: list[str]) -> None:
    guesses: list[AuthorizedBroker | CurbstoneError] = []
    honest: list[AuthorizedBroker | CurbstoneError] = []
    for number in range(WAITING_MAX + 10):
        caller = Caller(f"2001:db8:1:{number:x}::1", 1, "http")
        world.authenticator.admit(Credentials("ann", f"guess {number}"), caller, guesses.append)
    world.authenticator.admit(Credentials("ann", "open sesame"), HERE, honest.append)
    for _ in range(AT_ONCE + 2):
        hash_one(world, hashes)
    assert [type(each) for each in honest] == [AuthorizedBroker]
    world.lab.settle()


def test_user_at_a_known_address_is_served_when_all_slots_are_taken(world: World, hashes: list[str]) -> None:
    assert world.login("ann", "open sesame").identity.user == "ann"
    world.lab.pass_time(passwords.REMEMBERED_MS + 1)
    guesses: list[AuthorizedBroker | CurbstoneError] = []
    stranger: list[AuthorizedBroker | CurbstoneError] = []
    known: list[AuthorizedBroker | CurbstoneError] = []
    flood(world, WAITING_MAX + AT_ONCE, guesses)
    world.authenticator.admit(Credentials("root", "all of it"), HERE, stranger.append)
    world.authenticator.admit(Credentials("ann", "open sesame"), HERE, known.append)
    hashes.clear()
    hash_one(world, hashes)
    assert [type(each) for each in stranger] == [Busy], "all networks have a guess that waits"
    hash_one(world, hashes)
    hash_one(world, hashes)
    assert [type(each) for each in known] == [AuthorizedBroker]
    assert len(hashes) == AT_ONCE + 1
    world.lab.settle()


def test_all_logins_cost_two_hashes_while_a_user_has_two_passwords(world: World, hashes: list[str]) -> None:
    assert world.reload(USERS + TWO) is None
    for user in ("two", "ann", "far", "nobody"):
        hashes.clear()
        with pytest.raises(NotLoggedIn):
            world.login(user, "wrong guess")
        assert len(hashes) == 2, user


def test_invalid_user_names_are_counted_as_one_name(world: World) -> None:
    for number in range(FREE_OF_USER):
        with pytest.raises(NotLoggedIn):
            world.login(f"{number}{'é' * 60_000}", "wrong guess")
    with pytest.raises(TooMany):
        world.login(f"another{'é' * 60_000}", "wrong guess")
    with pytest.raises(NotLoggedIn):
        world.login("a-name", "wrong guess")


def bad_token(world: World, user: str, caller: Caller) -> None:
    with pytest.raises(NotLoggedIn):
        world.login(user, "cbs_0123456789_" + "a" * 43, caller)


def test_failures_from_one_address_are_one_audit_line(world: World) -> None:
    before = len(world.authenticator.audit.recent)
    for number in range(500):
        bad_token(world, f"x{number:0127d}", HERE)
    bad_token(world, "ann", HERE)
    reported = world.authenticator.audit.recent[before:]
    assert [each["user"] for each in reported] == ["", "ann"]
    world.lab.pass_time(10_001)
    assert [(each["user"], each["count"]) for each in world.authenticator.audit.recent[before + 2 :]] == [("", 499)]


def test_failures_from_many_addresses_evict_no_audit_entries(world: World) -> None:
    world.authenticator.audit.note("reload", "ok", user="")
    for turn in range(2 * RECENT_FAILED // FAILED_MAX):
        for number in range(3 * FAILED_MAX):
            bad_token(world, "", Caller(f"10.{turn}.{number}.1"))
        world.lab.pass_time(10_001)
    reported = world.authenticator.audit.recent
    assert len(reported) <= RECENT and [each["action"] for each in reported if each["outcome"] == "ok"] == ["reload"]
    failed = [each for each in reported if each["outcome"] == "failed"]
    assert len(failed) == RECENT_FAILED
    assert failed[-1]["target"] == "others" and failed[-1]["count"] == 2 * FAILED_MAX


def test_refusals_and_sessions_of_one_user_evict_no_audit_entries(world: World) -> None:
    """Whoever had a login could push all else out of what is kept, within a minute or so."""
    ann = world.login("ann", "open sesame")
    world.authenticator.audit.note("reload", "ok", user="")
    for turn in range(RECENT // REFUSED_MAX):
        for number in range(REFUSED_MAX):
            with pytest.raises(NotAllowed):
                ann.queue(queue_name(f"q{number}", f"web{turn}"), Right.SEND)
        for _ in range(REFUSED_MAX):
            world.authenticator.open_session(ann, HERE)
        world.lab.pass_time(10_001)
    done = [each for each in world.authenticator.audit.recent if each["outcome"] == "ok"]
    assert [each["action"] for each in done].count("reload") == 1 and len(done) < 2 * RECENT // REFUSED_MAX + 4
    assert sum(each.get("count", 1) for each in done if each["action"] == "open session") == RECENT
    kept = {file.name for file in (world.data / "access").iterdir() if file.name != "tokens"}
    assert kept == {"audit", "refused"}
    again = World(world.file.parent, USERS).authenticator.audit.recent
    assert [each["action"] for each in again].count("reload") == 1


def test_refusals_for_many_targets_are_summed(world: World) -> None:
    ann = world.login("ann", "open sesame")
    for number in range(3 * REFUSED_MAX):
        with pytest.raises(NotAllowed):
            ann.queue(queue_name(f"q{number}", "web"), Right.SEND)
    world.lab.pass_time(10_001)
    refused = [each for each in world.authenticator.audit.recent if each["outcome"] == "refused"]
    assert len(refused) == REFUSED_MAX + 1
    assert refused[-1]["target"] == "others" and refused[-1]["count"] == 2 * REFUSED_MAX
