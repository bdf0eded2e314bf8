"""Mutation testing itself, and its score. `make soak-mutation` does the work."""

from __future__ import annotations

from itertools import pairwise

import pytest

from curbstone.core.engine.log import room
from tests.mutation.mutants import mutants_of
from tests.mutation.run import EXPLAINED, NOTICED, SCORE, SURVIVED, TESTS, evenly_spread, load

pytestmark = pytest.mark.source
ROOM = room.__name__


def test_mutant_changes_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room.release_bytes, "__code__", room.release_bytes.__code__)
    (mutant,) = [each for each in mutants_of(ROOM) if each.function == "release_bytes"]
    assert room.release_bytes(3) == 3 * room.RETRY_BYTES
    mutant.apply()
    assert room.release_bytes(3) == room.RETRY_BYTES // 3


def test_the_kinds_of_changes() -> None:
    of_budget = [each.name for each in mutants_of(ROOM) if each.function == "Room.give_back"]
    assert of_budget == ["Room.give_back: left out: self.reserved -= size"]
    kinds = {each.kind for each in mutants_of(ROOM)}
    assert kinds >= {"comparison", "arithmetic", "condition", "number", "left out"}


def test_the_score_is_of_these_modules_and_reasons_are_of_survivors() -> None:
    score, explained = load(SCORE), load(EXPLAINED)
    assert set(score) <= set(TESTS)
    for module, of_module in score.items():
        tried = of_module["tried"]
        assert len(tried) <= of_module["mutants"] and set(tried.values()) <= {NOTICED, SURVIVED}
        reasons = explained.get(module, {})
        assert all(reasons.values()) and {name for name in reasons if tried.get(name) != SURVIVED} == set()


@pytest.mark.parametrize("size", [1, 7, 64, 100])
def test_a_sample_is_spread_evenly(size: int) -> None:
    names = [str(place) for place in range(size)]
    order = evenly_spread(names)
    assert sorted(order) == sorted(names)
    quarter = sorted(int(name) for name in order[: (size + 3) // 4])
    assert all(later - earlier <= 8 for earlier, later in pairwise([*quarter, size]))
