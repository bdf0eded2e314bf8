"""Other queues, if installed, under the same load, each with its strictest durability.

They run one at a time, each with its own ports and folders, and are stopped afterwards. A variable such as
CURBSTONE_BENCH_RABBITMQ selects the program of another version.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from bench import (
    peer_activemq,
    peer_beanstalkd,
    peer_coilmq,
    peer_compiled,
    peer_lavinmq,
    peer_nats,
    peer_rabbitmq,
    peer_redis,
)
from bench.peer import Running, Subject
from bench.wire import BenchError

# The first precedes the PATH, because Debian's script there changes the user and uses the system's folders.
PLACES = [
    *("/usr/lib/rabbitmq/bin", sysconfig.get_path("scripts"), *os.get_exec_path()),
    *("/usr/sbin", "/usr/local/sbin", "/usr/share/activemq/bin"),
]


@dataclass(frozen=True, slots=True)
class Peer:
    title: str
    program: str
    running: Callable[[str, Path], Running]
    version: tuple[str, ...] = ("", "--version")
    """The command that prints the version: the name of a program in the same folder, or nothing, and its arguments."""


PEERS = {
    "compiled": Peer("Curbstone", str(peer_compiled.PROGRAM), peer_compiled.running),
    "rabbitmq": Peer("RabbitMQ", "rabbitmq-server", peer_rabbitmq.running, ("rabbitmqctl", "version")),
    "lavinmq": Peer("LavinMQ", "lavinmq", peer_lavinmq.running),
    "redis": Peer("Redis", "redis-server", peer_redis.running),
    "beanstalkd": Peer("beanstalkd", "beanstalkd", peer_beanstalkd.running, ("", "-v")),
    "nats": Peer("NATS", "nats-server", peer_nats.running),
    "coilmq": Peer("CoilMQ", "coilmq", peer_coilmq.running),
    "activemq": Peer("ActiveMQ", "activemq", peer_activemq.running),
}

Say = Callable[[str], None]


def each(folder: Path, names: set[str], say: Say) -> Iterator[Subject]:
    """Yield the installed peers in every configuration. A peer that does not start is reported and left out."""
    for name, peer in PEERS.items():
        if names and name not in names:
            continue
        program = os.environ.get(f"CURBSTONE_BENCH_{name.upper()}", peer.program)
        path = shutil.which(program, path=os.pathsep.join(PLACES))
        if not path:
            say(f"{program} is not installed: left out")
            continue
        version = f"{peer.title} {version_of(path, *peer.version)}"
        own = folder / name
        own.mkdir()
        with contextlib.ExitStack() as stack:
            try:
                subjects = stack.enter_context(peer.running(path, own))
            except (BenchError, OSError) as error:
                say(f"  {name} failed to start: {error}")
                continue
            yield from (replace(subject, version=version) for subject in subjects)


def version_of(program: str, beside: str, *arguments: str) -> str:
    """Return the version that a program prints, or the program `beside` in its folder."""
    command = [str(Path(program).with_name(beside)) if beside else program, *arguments]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        if found := re.search(r"\d+(\.\d+)+\S*", done.stdout + done.stderr):
            return found[0]
    return "of unknown version"
