"""What many queues cost: the memory of one that does nothing, and the calls of a message to each of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import FrameType

import pytest

from tests.kit.lab import Lab, message
from tests.kit.server import clean_environment

QUEUES = 200
BYTES_MAX = 9_700
"""Of memory for each, as Python counts them: 9,614. Another object for each is 80, an empty deque 760."""
CALLS_MAX = 80
"""Of the core's functions, for one message to each of many queues at once: 79.9. Each costs about 0.3 us."""

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
def test_idle_queue_takes_little_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEASURE, str(tmp_path), str(QUEUES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment(), timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= BYTES_MAX


@pytest.mark.source
def test_a_message_to_each_of_many_queues_takes_few_calls(lab: Lab) -> None:
    queues = [lab.queue(f"q{number}") for number in range(QUEUES)]
    answers: list[object] = []
    calls = 0

    def publish() -> None:
        for queue in queues:
            queue.publish([message("x" * 100)], lambda error, _seq, _count: answers.append(error))
        lab.host.settle()

    def count(frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call" and "/core/" in frame.f_code.co_filename and "/tests/" not in frame.f_code.co_filename

    publish()  # makes the redo file
    sys.setprofile(count)
    try:
        publish()
    finally:
        sys.setprofile(None)
    assert answers == [None] * 2 * QUEUES
    print(calls / QUEUES, "calls a message")
    assert QUEUES < calls <= CALLS_MAX * QUEUES
