"""Other queues, if they are installed, under the same load, each with its strictest durability.

They run one at a time, each on ports and in folders of its own, and are stopped afterwards.
"""

import contextlib
import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import peer_activemq, peer_beanstalkd, peer_coilmq, peer_compiled, peer_nats, peer_rabbitmq, peer_redis
from bench.peer import Running, Subject
from bench.wire import BenchError

PLACES = [sysconfig.get_path("scripts"), *os.get_exec_path(), "/usr/sbin", "/usr/local/sbin", "/usr/share/activemq/bin"]


@dataclass(frozen=True, slots=True)
class Peer:
    program: str
    running: Callable[[str, Path], Running]


PEERS = {
    "compiled": Peer(str(peer_compiled.PROGRAM), peer_compiled.running),
    "rabbitmq": Peer("rabbitmq-server", peer_rabbitmq.running),
    "redis": Peer("redis-server", peer_redis.running),
    "beanstalkd": Peer("beanstalkd", peer_beanstalkd.running),
    "nats": Peer("nats-server", peer_nats.running),
    "coilmq": Peer("coilmq", peer_coilmq.running),
    "activemq": Peer("activemq", peer_activemq.running),
}

Say = Callable[[str], None]


def each(folder: Path, names: set[str], say: Say) -> Iterator[Subject]:
    """Yield the installed peers in every configuration. A peer that does not start is reported and left out."""
    for name, peer in PEERS.items():
        path = shutil.which(peer.program, path=os.pathsep.join(PLACES))
        if names and name not in names:
            continue
        if not path:
            say(f"{peer.program} is not installed: left out")
            continue
        own = folder / name
        own.mkdir()
        with contextlib.ExitStack() as stack:
            try:
                subjects = stack.enter_context(peer.running(path, own))
            except (BenchError, OSError) as error:
                say(f"  {name} failed to start: {error}")
                continue
            yield from subjects
