"""The simulated pair finds bugs: each of these plants one, and some history must end in a broken promise."""

from __future__ import annotations

import pytest

from tests.standby.plants import PLANTED_BUGS, histories_until_found

HISTORIES_MAX = 300
FOUND_SOON = (
    "confirms do not wait",
    "only syncs have to be acknowledged",
    "a block is sent again later than it is read",
    "that a copy catches up is not noted",
)
"""Found within a few histories; the others are left to the soak."""

pytestmark = [pytest.mark.source, pytest.mark.usefixtures("quiet")]


@pytest.mark.parametrize("name", FOUND_SOON)
def test_pair_simulation_finds_a_planted_bug_soon(name: str) -> None:
    assert histories_until_found(name, HISTORIES_MAX) is not None


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(PLANTED_BUGS.keys() - {*FOUND_SOON}))
def test_pair_simulation_finds_a_planted_bug(name: str) -> None:
    assert histories_until_found(name, HISTORIES_MAX) is not None
