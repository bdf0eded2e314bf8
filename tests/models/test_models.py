"""Models of the engine's protocols, checked completely by Spin: `spin` and a C compiler are needed.

Each model is clean, and each mistake that can be planted in it is found. So a plant that is not found shows that the
model does not say what it should.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODELS = Path(__file__).parent
MISSING = [name for name in ("spin", "gcc") if shutil.which(name) is None]
needs_spin = pytest.mark.skipif(
    bool(MISSING) and os.environ.get("CURBSTONE_REQUIRE_SPIN") != "1",
    reason=f"there is no {' and no '.join(MISSING)}; `make power-deps` installs spin where it runs as root",
)


def plants(model: str) -> list[str]:
    """Return the mistakes that can be planted in a model."""
    return sorted(set(re.findall(r"PLANT_\w+", (MODELS / model).read_text(encoding="utf-8"))))


def explore(model: str, work: Path, *options: str) -> str:
    """Search all states of a model; return what the search printed."""
    subprocess.run(["spin", *options, "-a", str(MODELS / model)], cwd=work, check=True, capture_output=True)
    subprocess.run(["gcc", "-w", "-O1", "-DSAFETY", "-DNOFAIR", "-o", "pan", "pan.c"], cwd=work, check=True)
    return subprocess.run(["./pan", "-m200000"], cwd=work, check=True, capture_output=True, text=True).stdout


STATES_MIN = {"shared_sync.pml": 100_000, "room_and_cleaner.pml": 100_000}
"""How many states the search of each model has to visit, so that it is known to have searched something."""


@needs_spin
@pytest.mark.parametrize("model", STATES_MIN)
def test_model_keeps_its_invariants_in_all_states(tmp_path: Path, model: str) -> None:
    found = explore(model, tmp_path)
    assert "errors: 0" in found
    assert "max search depth too small" not in found
    states = re.search(r"(\d+) states, stored", found)
    assert states and int(states[1]) > STATES_MIN[model], found


@needs_spin
@pytest.mark.parametrize(("model", "plant"), [(model, plant) for model in STATES_MIN for plant in plants(model)])
def test_planted_mistake_is_found(tmp_path: Path, model: str, plant: str) -> None:
    assert "errors: 1" in explore(model, tmp_path, f"-D{plant}")
