"""A short run of the fuzz targets: their corpus, and changes of it. `make soak-fuzz` runs for longer.

The changes are the same in each run, so that a failure has to do with what was changed in the code;
CURBSTONE_FUZZ_SEED draws others.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
CHANGED = 300


def corpus(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def changed(inputs: list[bytes], rng: Random) -> bytes:
    """Return one of the inputs with a few random changes."""
    data = bytearray(rng.choice(inputs))
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[at : at + rng.randrange(1, 9)] = b""
            case 1:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 2 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 3:
                other = rng.choice(inputs)
                data[at:] = other[rng.randrange(len(other) + 1) :]
            case _:
                data[at : at + 4] = rng.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\n\n", b"9999", b"-1"))
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_give_a_value_or_a_declared_error(name: str) -> None:
    seed = int(os.environ.get("CURBSTONE_FUZZ_SEED", "1"))
    print(f"CURBSTONE_FUZZ_SEED={seed}")
    rng = Random(seed)
    inputs = corpus(name)
    for data in inputs:
        TARGETS[name](data)
    for _ in range(CHANGED):
        data = changed(inputs, rng)
        try:
            TARGETS[name](data)
        except Exception as error:
            raise AssertionError(f"{name}: {data!r}") from error
