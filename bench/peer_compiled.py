"""Curbstone's compiled build, if `make compiled` has built it, compared with the measured build."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Target
from bench.peer import Subject
from bench.server import CAP, Server, curbstone_command
from bench.stomp_load import Account
from bench.workloads import run_groups

PROGRAM = Path(sys.prefix) / "compiled" / "bin" / "curbstone"
WORKLOADS = frozenset(
    {
        *("send-1", "send-1000", "drain", "pipe", "producers-16", "fanout-100"),
        *(f"queues-{number}{what}" for number in (10, 100, 1000) for what in ("", "-drain")),
    }
)


@contextlib.contextmanager
def running(program: str, folder: Path) -> Iterator[list[Subject]]:
    server = Server(curbstone_command(folder / "data", CAP, program=program), folder / "log")
    target = Target("Curbstone, compiled", server, Account(server.stomp), server.http, server.mqks)
    try:
        yield [Subject(target.name, lambda size, plan: run_groups(target, {*WORKLOADS}, size, plan), WORKLOADS)]
    finally:
        server.stop()
