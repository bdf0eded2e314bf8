"""Redis streams with appendfsync always: XADD; then XREADGROUP by the thousand, XACK and XDEL."""

import contextlib
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench import peer_clients
from bench.check import Checker, bodies
from bench.measure import Target
from bench.peer import PeerJob, Subject, free_port, sending, started, together
from bench.stomp_load import Account
from bench.window import send_window
from bench.wire import BenchError, Wire
from bench.workers import Outcome, Stopwatch


@contextlib.contextmanager
def running(program: str, folder: Path) -> Iterator[list[Subject]]:
    address = ("127.0.0.1", free_port())
    listen = ["--bind", address[0], "--port", str(address[1]), "--dir", str(folder)]
    command = [program, *listen, "--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    with started(command, folder, address) as process:
        name, loads = "Redis streams, fsync always", peer_clients.of_redis()
        target = Target(name, process, Account(address))
        subject = sending(name, process, address, redis_send, redis_drain, 100_000)
        yield [together(subject, peer_clients.names(loads), partial(peer_clients.measured, target, address, loads))]


ENTRY = re.compile(rb"\$\d+\r\n(\d+-\d+)\r\n\*2\r\n\$1\r\nb\r\n\$\d+\r\n([^\r]*+)\r\n")
ENTRIES = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n[^\r]+\r\n\*(\d+)\r\n")


def redis_command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%s\r\n" % (len(word), word) for word in words])


def redis_send(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    head = redis_command(b"XADD", job.queue.encode(), b"*", b"b").replace(b"*4", b"*5", 1) + b"$%d\r\n" % job.size
    requests = b"".join([b"%s%s\r\n" % (head, one) for one in bodies(0, 0, job.count, job.size)])
    wire = Wire(job.address)
    rest = b""

    def confirmed_now() -> int:
        nonlocal rest
        # Each answer has two lines: the length of the entry's id, and the id.
        data = rest + wire.receive()
        lines = data.count(b"\r\n") // 2 * 2
        *whole, rest = data.split(b"\r\n", lines)
        if any(not line.startswith(b"$") for line in whole[::2]):
            raise BenchError(f"redis refused: {data[:200]!r}")
        return lines // 2

    return send_window(wire, requests, job.count, job.window, job.seconds, confirmed_now, stopwatch)


def redis_drain(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    queue = job.queue.encode()
    checker = Checker(job.size, prepare=job.count)
    wire = Wire(job.address)
    wire.send(redis_command(b"XGROUP", b"CREATE", queue, b"g", b"0"))
    wire.receive_until(b"\r\n")
    read = redis_command(
        b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", str(job.window).encode(), b"STREAMS", queue, b">"
    )
    stopwatch.start()
    while checker.received < job.count:
        wire.send(read)
        entries = _redis_entries(wire)
        if not entries:
            break
        ids, arrived = zip(*entries, strict=True)
        checker.take(arrived)
        wire.send(redis_command(b"XACK", queue, b"g", *ids) + redis_command(b"XDEL", queue, *ids))
        wire.receive_until(b"\r\n")
        wire.receive_until(b"\r\n")
    stopwatch.stop()
    return Outcome(checker.received, tally=checker.tally((job.count,)))


def _redis_entries(wire: Wire) -> list[tuple[bytes, bytes]]:
    data = b""
    while True:
        data += wire.receive()
        if data in (b"*-1\r\n", b"$-1\r\n"):
            return []
        head = ENTRIES.match(data)
        # An entry has eight lines that end in "\r\n". Counting lines is cheaper than parsing a partial answer again.
        if head and data.count(b"\r\n", head.end()) >= int(head[1]) * 8:
            return ENTRY.findall(data, head.end())
