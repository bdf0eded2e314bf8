"""Edited data directories: a short run, and a long one for CURBSTONE_FUZZ_SECONDS under `-m soak`."""

from __future__ import annotations

import os
import shutil
import time
from functools import cache
from pathlib import Path
from random import Random, SystemRandom

import pytest

from tests.core.recovery.test_golden import ALL, unpacked, wanted
from tests.fuzz.directories import Files, Original, edited
from tests.kit.results import recorded

EDITED = 20


@cache
def original(version: str) -> Original:
    lab = unpacked(version)
    files: Files = lab.contents()
    return Original(files, wanted(version)["wall_ms"])


def judge(version: str, seed: int, folder: Path) -> None:
    files, edits = edited(original(version).files, Random(f"{version} {seed}"))
    try:
        original(version).judge(files, folder / "data")
    except Exception as error:
        error.add_note(f"{version}, seed {seed}: {edits}; CURBSTONE_FUZZ_SEED={seed} repeats it")
        raise
    finally:
        shutil.rmtree(folder / "data", ignore_errors=True)


def first_seed() -> int:
    seed = int(os.environ.get("CURBSTONE_FUZZ_SEED") or SystemRandom().randrange(1 << 32))
    print(f"CURBSTONE_FUZZ_SEED={seed}")
    return seed


@pytest.mark.parametrize("version", ALL)
def test_edited_directory_is_served_or_refused_without_losing_files(version: str, tmp_path: Path) -> None:
    first = first_seed()
    for seed in range(first, first + EDITED):
        judge(version, seed, tmp_path)


@pytest.mark.parametrize(("version", "seed"), [("0.1.0", 1778544317)])
def test_past_findings_stay_fixed(version: str, seed: int, tmp_path: Path) -> None:
    """A damaged segment before the active one was cut behind its last good batch when its queue was nearly full."""
    judge(version, seed, tmp_path)


@pytest.mark.soak
def test_edited_directories_for_as_long_as_asked(tmp_path: Path) -> None:
    first = first_seed()
    end = time.monotonic() + float(os.environ.get("CURBSTONE_FUZZ_SECONDS", "300"))
    judged = 0
    with recorded("directories", lambda: {"edited directories": judged}):
        while time.monotonic() < end:
            judge(ALL[judged % len(ALL)], first + judged, tmp_path)
            judged += 1
    print(f"{judged} edited directories")
