"""MQKS load: prepared lines, publishes with --confirm, and a consumer with --manual-ack."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bench import login
from bench.check import Checker, bodies
from bench.window import send_window
from bench.wire import Address, BenchError, Silence, Wire
from bench.workers import Outcome, Stopwatch

ID_WIDTH = 11
DELIVERY = re.compile(rb"c ok (\S+) event=\S+ ([^\n]*+)\n")
LAST = b"last"


@dataclass(frozen=True, slots=True)
class MqksJob:
    address: Address
    queue: str
    """The queue, and the event that is bound to it."""
    count: int
    size: int
    window: int
    seconds: float


def consume_line(queue: str, window: int) -> bytes:
    return f"c consume --confirm {queue} {queue} --manual-ack --window={window}\n".encode()


def ask(wire: Wire, line: bytes) -> None:
    """Send a request with --confirm and wait until it is done. Raise BenchError on an error."""
    wire.send(line)
    answer = wire.receive_until(b"\n")
    if not answer.startswith(line.split(b" ", 1)[0] + b" ok"):
        raise BenchError(f"refused: {answer[:300].decode(errors='replace')}")


def connect(address: Address, **options: int) -> Wire:
    wire = Wire(address, **options)
    if login.token():
        ask(wire, f"r auth {login.token()}\n".encode())
    return wire


def bind(address: Address, event: str, queues: Sequence[str]) -> None:
    """Bind the queues to the event. The bindings outlive the connection."""
    wire = connect(address)
    for queue in queues:
        ask(wire, f"r rebind --confirm {queue} {event}\n".encode())
    wire.close()


def publish_lines(queue: str, count: int, size: int) -> bytes:
    """Return `count` publishes in a row, all of the same length."""
    word = queue.encode()
    return b"".join(
        [b"%011d publish --confirm %s %s\n" % (seq, word, one) for seq, one in enumerate(bodies(0, 0, count, size))]
    )


class Oks:
    """Checks that publishes are confirmed in order, on one connection for one event."""

    def __init__(self, wire: Wire, count: int) -> None:
        self._wire = wire
        self._expected = b"".join([b"%011d ok \n" % seq for seq in range(count)])
        self._at = 0

    def receive(self) -> int:
        data = self._wire.receive()
        if not self._expected.startswith(data, self._at):
            raise BenchError(f"not the next ok: {data[:300].decode(errors='replace')}")
        before = self._at // (ID_WIDTH + 5)
        self._at += len(data)
        return self._at // (ID_WIDTH + 5) - before


def publish(job: MqksJob, stopwatch: Stopwatch) -> Outcome:
    """Publish over one connection, with at most `window` messages unconfirmed."""
    bind(job.address, job.queue, [job.queue])
    wire = connect(job.address)
    lines = publish_lines(job.queue, job.count, job.size)
    return send_window(wire, lines, job.count, job.window, job.seconds, Oks(wire, job.count).receive, stopwatch)


def ack_lines(ids: Sequence[bytes], *, last: bool = False) -> bytes:
    """Return an ack for each id. With `last`, the final one asks for a confirm."""
    lines = b"".join([b"a ack c %s\n" % one for one in (ids[:-1] if last else ids)])
    return lines + b"%s ack --confirm c %s\n" % (LAST, ids[-1]) if last else lines


def consume(job: MqksJob, sent: tuple[int, ...], stopwatch: Stopwatch) -> Outcome:
    """Consume, and acknowledge the messages one by one. End with the confirm of the last ack."""
    total = sum(sent)
    checker = Checker(job.size, prepare=total)
    wire = connect(job.address, silence_s=15)
    stopwatch.start()
    wire.send(consume_line(job.queue, job.window))
    rest = b""
    try:
        while not rest.startswith(b"c ok \n"):
            rest += wire.receive()
        rest = rest[6:]
        while True:
            lines, end, rest = rest.rpartition(b"\n")
            whole = lines + end
            found = DELIVERY.findall(whole)
            if len(found) != whole.count(b"\n"):
                raise BenchError(f"not only deliveries: {DELIVERY.sub(b'', whole)[:300].decode(errors='replace')}")
            if found:
                checker.take([one for _, one in found])
                wire.send(ack_lines([one for one, _ in found], last=checker.distinct >= total))
            if checker.distinct >= total:
                break
            rest += wire.receive()
        while LAST + b" ok" not in rest:
            rest += wire.receive()
    except Silence:
        pass  # missing messages show in the tally
    stopwatch.stop()
    wire.close()
    return Outcome(checker.received, tally=checker.tally(sent))
