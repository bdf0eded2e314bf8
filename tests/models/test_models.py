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


@needs_spin
def test_shared_sync_loses_nothing_that_was_confirmed(tmp_path: Path) -> None:
    found = explore("shared_sync.pml", tmp_path)
    assert "errors: 0" in found
    assert "max search depth too small" not in found
    states = re.search(r"(\d+) states, stored", found)
    assert states and int(states[1]) > 100_000, found


@needs_spin
@pytest.mark.parametrize("plant", plants("shared_sync.pml"))
def test_planted_mistake_is_found(tmp_path: Path, plant: str) -> None:
    assert "errors: 1" in explore("shared_sync.pml", tmp_path, f"-D{plant}")
