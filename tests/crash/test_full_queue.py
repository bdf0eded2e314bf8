"""A queue at its cap, at rest and after a kill: every publish gets an answer, and settling always makes room."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.crash.directory import Sampler, bytes_at_rest
from tests.crash.history import History
from tests.crash.killable import KillableServer
from tests.crash.workload import CAP, A, Worker, drain
from tests.kit.server import ServerProcess

SIZES = [100, 650, 1500]
WINDOW = 1000


def fill(worker: Worker, size: int) -> int:
    """Publish one by one until the queue refuses; return how many it took."""
    count = 0
    while (status := worker.post(A, size)) == 201:
        count += 1
    assert status == 507
    return count


@pytest.mark.parametrize("killed", [False, True], ids=["at rest", "after a kill"])
@pytest.mark.parametrize("size", SIZES)
def test_settling_in_a_full_queue_makes_room_for_publishes(tmp_path: Path, size: int, killed: bool) -> None:
    with ServerProcess(tmp_path / "data", f"--cap={CAP}", "--log-level=warning") as process:
        server = KillableServer(process)
        history = History()
        server.put_queue(A, {})
        producer = Worker(server, history, "producer", queues=())
        with closing(producer) as worker, Sampler(process.data_dir) as sampler:
            fill(worker, size)
            for number in range(3):
                if killed:
                    server.kill()
                    assert max(bytes_at_rest(process.data_dir).values()) <= CAP
                    server.start()
                    server.check_health()
                with closing(Worker(server, history, f"consumer {number}", queues=(A,), window=WINDOW)) as consumer:
                    consumer.collect()
                    # One of ten, scattered over the log: only cleaning makes room of that.
                    assert consumer.ack(list(consumer.held)[::10])
                assert fill(worker, size) > 0
            with closing(Worker(server, history, "last", queues=(A,), window=WINDOW)) as last:
                drain(last)
        assert sampler.largest <= CAP
        verdict = history.judge()
        print(verdict.figures())
        verdict.check()
