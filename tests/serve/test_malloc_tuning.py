"""Memory that was freed is kept for the next messages, unless the environment says otherwise."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.kit.server import clean_environment

MIB = 2**20
PROGRAM = f"""
import sys
from curbstone.process.malloc_tuning import keep_freed

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096

if sys.argv[1:] == ["keep"]:
    keep_freed()
before = resident()
messages = [b""] * (32 * {MIB} // 65536)
for n in range(len(messages)):
    messages[n] = bytes(65536)
messages[:] = []
print(resident() - before)
"""


def kept(*args: str, **environment: str) -> int:
    """Return how many bytes a process still has after it has made and freed 32 MiB of messages."""
    command = [sys.executable, "-c", PROGRAM, *args]
    return int(subprocess.check_output(command, env=clean_environment(**environment)))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and glibc is asked")
def test_freed_memory_is_reused() -> None:
    assert kept() < MIB
    assert kept("keep") > 16 * MIB
    assert kept("keep", MALLOC_TRIM_THRESHOLD_="131072") < MIB, "the environment decides"
