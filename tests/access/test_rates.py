"""How much a user may publish in a second: what is counted, what a debt costs, and who pays for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from curbstone.access.errors import TooFast
from curbstone.access.jwt_users import rate_of
from curbstone.access.rate_limit import NO_RATE, Meter, Rate, Throttle
from curbstone.access.users import UsersError, load
from tests.access.world import World, hashed
from tests.kit.lab import Lab

USERS = f"""
[users.ann]
password = ["{hashed("open sesame")}"]
grants = ["send shop/*"]
rate = {{ messages = 10, bytes = "10KiB" }}
[users.bob]
password = ["{hashed("open sesame")}"]
grants = ["send shop/*"]
"""


def refused_for(meter: Meter) -> int:
    """Return how many seconds a request is told to wait, 0 for none."""
    try:
        meter.check("http")
    except TooFast as error:
        return error.wait_s
    return 0


def waiting(lab: Lab) -> int:
    """Return how many timers are to go off."""
    return len([timer for _, _, timer in lab.host.timers if timer.fn is not None])


@pytest.fixture
def meter() -> Meter:
    return metered(Lab())


def metered(lab: Lab, messages: int = 10, size: int = 10_000) -> Meter:
    return Meter(Rate(messages, size), lab.host, {})


def test_burst_of_one_second_passes_and_excess_becomes_debt(meter: Meter) -> None:
    meter.count(10, 0)
    assert refused_for(meter) == 0
    meter.count(1, 0)
    assert refused_for(meter) == 1
    meter.count(100, 0)
    assert refused_for(meter) == 11


def test_larger_debt_of_messages_or_bytes_sets_the_delay(meter: Meter) -> None:
    meter.count(5, 50_000)
    assert refused_for(meter) == 4
    meter.count(60, 0)
    assert refused_for(meter) == 6


def test_debt_decreases_over_time_and_credit_is_capped_at_one_second(lab: Lab) -> None:
    meter = metered(lab)
    meter.count(40, 0)
    lab.pass_time(2_999)
    assert refused_for(meter) == 1
    lab.pass_time(1)
    assert refused_for(meter) == 0
    lab.pass_time(3_600_000)
    meter.count(11, 0)
    assert refused_for(meter) == 1


def test_unlimited_rate_is_not_counted() -> None:
    meter = metered(Lab(), 0, 10)
    meter.count(1_000_000, 10)
    assert refused_for(meter) == 0
    meter.count(0, 1)
    assert refused_for(meter) == 1


def test_throttle_lasts_until_the_debt_of_all_connections_is_paid(lab: Lab) -> None:
    meter = metered(lab)
    released: list[str] = []
    one = Throttle("stomp", lambda: released.append("one"))
    two = Throttle("mqks", lambda: released.append("two"))
    assert not one.holds(meter) and not one.holds(None)
    meter.count(20, 0)
    assert one.holds(meter) and one.holds(meter) and two.holds(meter) and one.is_on
    meter.count(10, 0)
    lab.pass_time(1_500)
    assert released == [] and one.is_on
    lab.pass_time(1_000)
    assert released == ["one", "two"] and not one.is_on
    assert not one.holds(meter)


def test_failing_release_callback_does_not_block_others(lab: Lab) -> None:
    meter = metered(lab)
    released: list[str] = []

    def fail() -> None:
        raise ZeroDivisionError

    throttles = [Throttle("stomp", fail), Throttle("mqks", lambda: released.append("it"))]
    meter.count(20, 0)
    assert all([throttle.holds(meter) for throttle in throttles])
    with pytest.raises(ZeroDivisionError):
        lab.pass_time(5_000)
    lab.pass_time(5_000)
    assert released == ["it"]


def test_throttling_is_counted_per_protocol(lab: Lab) -> None:
    held_back: dict[str, int] = {}
    meter = Meter(Rate(1, 0), lab.host, held_back)
    meter.count(2, 0)
    throttle = Throttle("stomp", lambda: None)
    for _ in range(3):
        throttle.holds(meter)
    assert refused_for(meter) and refused_for(meter)
    assert held_back == {"stomp": 1, "http": 2}


def test_closed_connection_is_not_notified_and_leaves_no_timer(lab: Lab) -> None:
    meter = metered(lab)
    released: list[str] = []
    throttle = Throttle("stomp", lambda: released.append("it"))
    meter.count(20, 0)
    timers = waiting(lab)
    assert throttle.holds(meter)
    throttle.close()
    throttle.close()
    assert waiting(lab) == timers
    lab.pass_time(10_000)
    assert released == [] and not throttle.is_on


def test_rate_is_shared_by_all_logins_of_a_user(tmp_path: Path) -> None:
    world = World(tmp_path, USERS)
    ann, bob = world.login("ann", "open sesame"), world.login("bob", "open sesame")
    again = world.login("", str(world.token(ann)))
    assert ann.identity is not again.identity
    assert ann.identity.meter is again.identity.meter
    assert ann.identity.meter is not None and ann.identity.meter.rate == Rate(10, 10 * 1024)
    assert bob.identity.meter is None
    assert world.authenticator.everyone.identity.meter is None and world.authenticator.anonymous.identity.meter is None


def test_reload_changes_rates_and_releases_throttled_connections(tmp_path: Path) -> None:
    world = World(tmp_path, USERS)
    identity = world.login("ann", "open sesame").identity
    first = identity.meter
    assert first is not None
    first.count(10_000, 0)
    released: list[str] = []
    throttle = Throttle("stomp", lambda: released.append("it"))
    assert throttle.holds(first)
    assert world.reload(USERS + "[users.eve]\n") is None
    assert identity.meter is first and released == [], "nothing has changed for ann"
    assert world.reload(USERS.replace("messages = 10,", "messages = 20,")) is None
    assert released == ["it"]
    assert identity.meter is not None and identity.meter.rate.messages == 20 and not refused_for(identity.meter)
    assert world.reload(USERS.replace("rate =", "# rate =")) is None
    assert identity.meter is None


def test_user_rate_overrides_the_largest_rate_of_its_roles() -> None:
    users = load(
        b"""
        [roles.a]
        rate = { messages = 5 }
        [roles.b]
        rate = { messages = 3, bytes = "1MiB" }
        [roles.c]
        [users.x]
        roles = ["a", "b", "c"]
        [users.y]
        roles = ["a", "b", "c"]
        rate = { bytes = 7 }
        [users.z]
        roles = ["c"]
        """
    )
    assert [users.users[name].rate for name in "xyz"] == [Rate(5, 1 << 20), Rate(0, 7), NO_RATE]


def test_issuer_users_have_the_issuer_or_role_rate() -> None:
    users = load(
        b"""
        [roles.a]
        rate = { messages = 5 }
        [roles.b]
        [[issuers]]
        url = "https://id.example"
        name = "corp"
        audience = "q"
        roles_claim = "roles"
        rate = { messages = 9 }
        """
    )
    [issuer] = users.issuers
    assert rate_of(issuer, ("a", "b", "none"), users) == Rate(5, 0)
    assert rate_of(issuer, ("b",), users) == rate_of(issuer, (), users) == Rate(9, 0)
    assert rate_of(issuer._replace(roles_claim=""), ("a",), users) == Rate(9, 0)


@pytest.mark.parametrize(
    "rate", ["7", "{}", "{ messages = 0 }", "{ bytes = -1 }", "{ messages = 1.5 }", "{ messages = true }",
             "{ seconds = 1 }", '{ messages = "10" }', '{ bytes = "much" }'],
)  # fmt: skip
@pytest.mark.parametrize("table", ["[users.a]", "[roles.a]"])
def test_invalid_rate_refuses_the_file(table: str, rate: str) -> None:
    with pytest.raises(UsersError, match="'a': rate|'a': .*bad size|'a': rate: bad size"):
        load(f"{table}\nrate = {rate}\n[users.b]\n".encode())
