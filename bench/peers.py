"""Other queues, where they are installed, under the same load: RabbitMQ over STOMP, Redis streams, beanstalkd.

Each runs with its strictest durability, on ports and in folders of its own, and is stopped afterwards.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import peer_beanstalkd, peer_rabbitmq, peer_redis
from bench.peer import Measured
from bench.wire import BenchError
from bench.workloads import Plan

PLACES = [*os.get_exec_path(), "/usr/sbin", "/usr/local/sbin"]
PEERS = {
    "redis-server": peer_redis.measure,
    "beanstalkd": peer_beanstalkd.measure,
    "rabbitmq-server": peer_rabbitmq.measure,
}

Say = Callable[[str], None]


def measure_all(folder: Path, sizes: Sequence[int], plan: Plan, say: Say) -> Measured:
    """One run of each peer that is installed; one that does not start is said and left out."""
    for program, measure in PEERS.items():
        path = shutil.which(program, path=os.pathsep.join(PLACES))
        if not path:
            say(f"{program} is not installed: left out")
            continue
        say(program)
        own = folder / program
        own.mkdir()
        try:
            yield from measure(path, own, sizes, plan)
        except (BenchError, OSError) as error:
            say(f"  failed: {error}")
