"""beanstalkd with -f0, which syncs each write: pipelined puts, then reserve and delete."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from bench.check import Checker, bodies
from bench.peer import PeerJob, Subject, free_port, sending, started
from bench.window import send_window
from bench.wire import BenchError, Wire
from bench.workers import Outcome, Stopwatch

JOB_BYTES_MAX = 1 << 20
"""Set because the default does not allow bodies of 64 KiB."""


@contextlib.contextmanager
def running(program: str, folder: Path) -> Iterator[list[Subject]]:
    address = ("127.0.0.1", free_port())
    listen = ["-l", address[0], "-p", str(address[1])]
    command = [program, *listen, "-b", str(folder), "-f0", "-z", str(JOB_BYTES_MAX)]
    with started(command, folder, address) as process:
        yield [sending("beanstalkd -f0", process, address, beanstalkd_put, beanstalkd_drain, 20_000)]


RESERVED = re.compile(rb"RESERVED (\d+) \d+\r\n([^\r]*+)\r\n|DELETED\r\n")


def _tube(job: PeerJob) -> Wire:
    wire = Wire(job.address)
    wire.send(b"use %s\r\nwatch %s\r\nignore default\r\n" % (job.queue.encode(), job.queue.encode()))
    for _ in range(3):
        wire.receive_until(b"\r\n")
    return wire


def beanstalkd_put(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    head = b"put 0 0 600 %d\r\n" % job.size
    requests = b"".join([b"%s%s\r\n" % (head, one) for one in bodies(0, 0, job.count, job.size)])
    wire = _tube(job)
    rest = b""

    def confirmed_now() -> int:
        nonlocal rest
        *whole, rest = (rest + wire.receive()).split(b"\r\n")
        if any(not line.startswith(b"INSERTED") for line in whole):
            raise BenchError(f"beanstalkd refused: {whole[0]!r}")
        return len(whole)

    return send_window(wire, requests, job.count, job.window, job.seconds, confirmed_now, stopwatch)


def beanstalkd_drain(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    """Keep `window` reserves in flight. Each job is deleted on arrival, which makes room for the next reserve."""
    checker = Checker(job.size, prepare=job.count)
    wire = _tube(job)
    stopwatch.start()
    asked = min(job.window, job.count)
    wire.send(b"reserve\r\n" * asked)
    deleted = 0
    rest = b""
    while deleted < job.count:
        data = rest + wire.receive()
        found = list(RESERVED.finditer(data))
        if not found:
            rest = data
            continue
        rest = data[found[-1].end() :]
        jobs = [one for one in found if one[1] is not None]
        deleted += len(found) - len(jobs)
        checker.take([one[2] for one in jobs])
        more = min(len(jobs), job.count - asked)
        asked += more
        wire.send(b"".join([b"delete %s\r\n" % one[1] for one in jobs]) + b"reserve\r\n" * more)
    stopwatch.stop()
    return Outcome(checker.received, tally=checker.tally((job.count,)))
