"""What a queue that does nothing costs: ten thousand of them have to fit into one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.server import clean_environment

QUEUES = 200
BYTES_MAX = 9_300
"""Of memory for each, as Python counts them: 9,095. Another object for each is 80, an empty deque 760."""

MEASURE = """
import asyncio, gc, os, sys, tracemalloc
from pathlib import Path
from curbstone.core.engine.broker import Broker
from curbstone.core.disk import OsDisk
from curbstone.core.host import AsyncioHost
from curbstone.core.names import queue_name
from curbstone.core.options import QueueOptions, SyncMode

def opened(host):
    return Broker.open(host, OsDisk(Path(sys.argv[1])), defaults=QueueOptions(), sync=SyncMode("never"))

async def made(host):
    broker = opened(host)
    for number in range(int(sys.argv[2])):
        done = asyncio.Event()
        broker.declare(queue_name(f"q{number:05}"), {}, lambda _, done=done: done.set())
        await done.wait()
    done = asyncio.Event()
    broker.shutdown(done.set)
    await done.wait()

async def main():
    host = AsyncioHost(asyncio.get_running_loop())
    await made(host)
    gc.collect()
    tracemalloc.start(1)
    broker = opened(host)
    gc.collect()
    print(tracemalloc.get_traced_memory()[0] // len(broker.queues()), flush=True)
    os._exit(0)

asyncio.run(main())
"""


@pytest.mark.source  # compiled, the objects are others
def test_a_queue_that_does_nothing_takes_little_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEASURE, str(tmp_path), str(QUEUES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment(), timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= BYTES_MAX
