"""NATS JetStream with a file store that syncs each write (`sync_interval: always`).

Messages are published with a reply inbox. A pull consumer of a work queue takes them, and acknowledges each message;
the last ack requests an answer.
"""

import contextlib
import json
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping
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

CONFIG = 'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}", sync_interval: always }}\n'
CONFIRM = re.compile(rb"MSG \S+ 1 \d+\r\n(\{[^\r]*+)\r\n")
DELIVERY = re.compile(rb"MSG \S+ 1 (\$JS\.ACK\.\S+) \d+\r\n([^\r]*+)\r\n")


@contextlib.contextmanager
def running(program: str, folder: Path) -> Iterator[list[Subject]]:
    address = ("127.0.0.1", free_port())
    config = folder / "nats.conf"
    config.write_text(CONFIG.format(port=address[1], folder=folder / "store"))
    if b"sync_interval" in subprocess.run([program, "-t", "-c", str(config)], capture_output=True).stderr:
        raise BenchError(f"{program} is too old: it does not support `sync_interval: always`")
    with started([program, "-c", str(config)], folder, address) as process:
        name, loads = "NATS JetStream, sync always", peer_clients.of_nats()
        target = Target(name, process, Account(address))
        subject = sending(name, process, address, nats_publish, nats_drain, 30_000)
        yield [together(subject, peer_clients.names(loads), partial(peer_clients.measured, target, address, loads))]


def connect(job: PeerJob) -> tuple[Wire, bytes]:
    """Return a connection that is subscribed to its inbox, and the inbox."""
    wire = Wire(job.address)
    inbox = b"_INBOX.%d" % wire.fileno() + socket.gethostname().encode()[:1]
    wire.receive_until(b"\r\n")
    wire.send(b'CONNECT {"verbose":false,"pedantic":false,"headers":false}\r\nSUB %s.* 1\r\nPING\r\n' % inbox)
    if wire.receive_until(b"PONG\r\n") != b"PONG\r\n":
        raise BenchError("NATS refused the connection")
    return wire, inbox


def request(wire: Wire, inbox: bytes, subject: str, body: Mapping[str, object]) -> None:
    """Call the JetStream API. Raise BenchError if the call is refused."""
    text = json.dumps(body).encode()
    wire.send(b"PUB %s %s.api %d\r\n%s\r\n" % (subject.encode(), inbox, len(text), text))
    wire.receive_until(b"\r\n")
    answer = json.loads(wire.receive_until(b"\r\n"))
    if "error" in answer:
        raise BenchError(f"NATS: {subject}: {answer['error']}")


def nats_publish(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    wire, inbox = connect(job)
    stream = {"name": job.queue, "subjects": [job.queue], "retention": "workqueue", "storage": "file"}
    request(wire, inbox, f"$JS.API.STREAM.CREATE.{job.queue}", stream)
    head = b"PUB %s %s.p %d\r\n" % (job.queue.encode(), inbox, job.size)
    requests = b"".join([b"%s%s\r\n" % (head, one) for one in bodies(0, 0, job.count, job.size)])
    rest = b""

    def confirmed_now() -> int:
        nonlocal rest
        data = rest + wire.receive()
        found = list(CONFIRM.finditer(data))
        if any(b'"error"' in one[1] for one in found):
            raise BenchError(f"NATS refused: {found[0][1]!r}")
        rest = data[found[-1].end() :] if found else data
        if rest.startswith(b"PING\r\n"):
            wire.send(b"PONG\r\n")
            rest = rest[6:]
        return len(found)

    return send_window(wire, requests, job.count, job.window, job.seconds, confirmed_now, stopwatch)


def nats_drain(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    """Pull `window` messages at a time, and pull again when half of the last ones have arrived."""
    checker = Checker(job.size, prepare=job.count)
    wire, inbox = connect(job)
    config = {"durable_name": "d", "ack_policy": "explicit", "max_ack_pending": job.window * 2}
    body: dict[str, object] = {"stream_name": job.queue, "config": config}
    request(wire, inbox, f"$JS.API.CONSUMER.DURABLE.CREATE.{job.queue}.d", body)
    pull = b'{"batch":%d}' % job.window
    ask = b"PUB $JS.API.CONSUMER.MSG.NEXT.%s.d %s.d %d\r\n%s\r\n" % (job.queue.encode(), inbox, len(pull), pull)
    rest = b""
    asked = 0
    stopwatch.start()
    while checker.received < job.count:
        if asked - checker.received <= job.window // 2 and asked < job.count:
            wire.send(ask)
            asked += job.window
        data = rest + wire.receive()
        found = list(DELIVERY.finditer(data))
        rest = data[found[-1].end() :] if found else data
        if not found:
            continue
        checker.take([one[2] for one in found])
        acks = [b"PUB %s 4\r\n+ACK\r\n" % one[1] for one in found]
        if checker.received >= job.count:
            acks[-1] = b"PUB %s %s.last 4\r\n+ACK\r\n" % (found[-1][1], inbox)
        wire.send(b"".join(acks))
    wire.receive_until(b"\r\n")
    stopwatch.stop()
    return Outcome(checker.received, tally=checker.tally((job.count,)))
