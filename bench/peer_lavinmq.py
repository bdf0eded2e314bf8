"""LavinMQ over AMQP, with the client that also loads RabbitMQ. A confirm follows a sync of the file system (syncfs).

It has no STOMP and no quorum queues; durable queues replace them.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench import peer_clients
from bench.measure import Target
from bench.peer import Subject, free_port, started
from bench.stomp_load import Account
from bench.wire import BenchError


@contextlib.contextmanager
def running(program: str, folder: Path) -> Iterator[list[Subject]]:
    if not (loads := peer_clients.of_rabbitmq()):
        raise BenchError("its client is not installed: aio-pika")
    address = ("127.0.0.1", free_port())
    ports = [f"--amqp-port={address[1]}", "--http-port=-1", "--mqtt-port=-1", "--metrics-http-port=-1"]
    command = [program, f"--data-dir={folder / 'data'}", f"--control-unix-path={folder / 'control'}", *ports]
    with started(command, folder, address) as process:
        target = Target("LavinMQ", process, Account(address))
        measure = partial(peer_clients.measured, target, address, loads)
        yield [Subject(target.name, measure, peer_clients.names(loads))]
