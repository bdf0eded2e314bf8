"""STOMP load: frames are prepared, and answers are read in bulk by their known layout.

Work is done per window and not per message if possible. It relies on two facts: bodies have no NUL (check.py), so every
NUL ends a frame; and all SENDs of a run have the same length.
"""

import re
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.check import Checker, bodies
from bench.many import Line, run_lines
from bench.stats import Weighted, percentiles
from bench.web_wire import web_wire
from bench.window import send_window
from bench.wire import Address, BenchError, Silence, Wire
from bench.workers import Outcome, Stopwatch

RECEIPT = re.compile(rb"RECEIPT\n(?:[^\n\0]++\n)*?receipt-id:([^\n]++)\n[^\0]*+\0")
# The possessive run over the header lines stops at the blank line, because the body after it has no line break.
MESSAGE = re.compile(rb"\nack:([^\n]++)\n(?:[^\n]++\n)*+\n([^\0]*+)\0")
LAST_ACK = b"last-ack"


@dataclass(frozen=True, slots=True)
class Account:
    """The address and login of a STOMP server, ours or another one."""

    address: Address
    login: tuple[str, str] | None = None
    host: str = "localhost"
    send_headers: bytes = b""
    """Extra header lines, each with its line break."""
    subscribe_headers: bytes = b""
    web_path: str = ""
    """The path of STOMP over WebSocket; empty for TCP."""

    def connect(self, **options: int) -> Wire:
        wire = web_wire(self.address, self.web_path, **options) if self.web_path else Wire(self.address, **options)
        credentials = "login:{}\npasscode:{}\n".format(*self.login) if self.login else ""
        wire.send(f"CONNECT\naccept-version:1.2\nhost:{self.host}\nheart-beat:0,0\n{credentials}\n\0".encode())
        answer = wire.receive_until(b"\0")
        if not answer.lstrip().startswith(b"CONNECTED"):
            raise BenchError(f"not CONNECTED: {shown(answer)}")
        return wire


def receipt_id(producer: int, seq: int) -> bytes:
    return b"%03d%011d" % (producer, seq)


@dataclass(frozen=True, slots=True)
class Label:
    """A header that cycles through `values` different values."""

    name: bytes
    values: int


def send_frames(
    destination: str, producer: int, first: int, count: int, size: int, headers: bytes = b"", label: Label | None = None
) -> bytes:
    """Return `count` SENDs in a row, all of the same length."""
    head = b"SEND\ndestination:%s\ncontent-length:%d\n%sreceipt:" % (destination.encode(), size, headers)
    if label is not None:
        name, values = label.name, label.values
        return b"".join(
            [
                b"%s%03d%011d\n%s:%011d\n\n%s\0" % (head, producer, seq, name, seq % values, one)
                for seq, one in enumerate(bodies(producer, first, count, size), first)
            ]
        )
    return b"".join(
        [
            b"%s%03d%011d\n\n%s\0" % (head, producer, seq, one)
            for seq, one in enumerate(bodies(producer, first, count, size), first)
        ]
    )


def ack_frames(acks: Sequence[bytes], *, last: bool = False) -> bytes:
    """Return an ACK for each id. With `last`, the final one asks for a receipt."""
    return b"ACK\nid:" + b"\n\n\0ACK\nid:".join(acks) + (b"\nreceipt:%s\n\n\0" % LAST_ACK if last else b"\n\n\0")


def shown(data: bytes) -> str:
    return data[:300].decode(errors="replace").replace("\0", "␀").strip()


class Frames:
    """Cuts the received bytes after their last NUL, and keeps the rest."""

    def __init__(self) -> None:
        self._rest = b""

    def complete(self, data: bytes) -> bytes:
        cut = data.rfind(b"\0") + 1
        if not cut:
            self._rest += data
            return b""
        whole = self._rest + data[:cut]
        self._rest = data[cut:]
        return whole


def read_receipts(whole: bytes) -> list[bytes]:
    """Return the receipt ids of complete frames, which must all be RECEIPTs."""
    found = RECEIPT.findall(whole)
    if len(found) != whole.count(b"\0"):
        raise BenchError(f"not only RECEIPTs: {_first_other(whole, b'RECEIPT')}")
    return found


def read_messages(whole: bytes) -> list[tuple[bytes, bytes]]:
    """Return (ack header, body) of complete frames, which must be MESSAGEs, except for the receipt of the last ACK."""
    found = MESSAGE.findall(whole)
    if len(found) != whole.count(b"\0"):
        raise BenchError(f"not only MESSAGEs: {_first_other(whole, b'MESSAGE')}")
    return found


def _first_other(whole: bytes, command: bytes) -> str:
    frames = (frame.lstrip(b"\r\n") for frame in whole.split(b"\0"))
    return shown(next((frame for frame in frames if frame and not frame.startswith(command)), whole))


class Receipts:
    """Checks that every receipt arrives once. The order on a single queue is the fast case."""

    def __init__(self, producer: int, first: int, count: int) -> None:
        self._expected = b"".join([receipt_id(producer, seq) for seq in range(first, first + count)])
        self._width = len(receipt_id(producer, 0))
        self._early: set[bytes] = set()
        self._count = 0

    def take(self, ids: Sequence[bytes]) -> int:
        """Return the number of newly confirmed sends, up to the first gap."""
        before = self._count
        if not self._early and self._expected.startswith(b"".join(ids), before * self._width):
            self._count += len(ids)
            return len(ids)
        self._early.update(ids)
        while (wanted := self._at(self._count)) in self._early:
            self._early.remove(wanted)
            self._count += 1
        return self._count - before

    def _at(self, number: int) -> bytes:
        return self._expected[number * self._width : (number + 1) * self._width]


@dataclass(frozen=True, slots=True)
class SendJob:
    account: Account
    destination: str
    count: int
    size: int
    window: int
    seconds: float
    """Sending stops after this time, or after `count` messages, whichever is first."""
    first: int = 0
    label: Label | None = None


def send(job: SendJob, stopwatch: Stopwatch) -> Outcome:
    """Send over one connection with a receipt for every SEND and at most `window` unconfirmed."""
    frames = send_frames(job.destination, 0, job.first, job.count, job.size, job.account.send_headers, job.label)
    receipts = Receipts(0, job.first, job.count)
    wire = job.account.connect(chunk=4096 if job.window == 1 else 262_144)
    incoming = Frames()

    def confirmed_now() -> int:
        return receipts.take(read_receipts(incoming.complete(wire.receive())))

    return send_window(wire, frames, job.count, job.window, job.seconds, confirmed_now, stopwatch)


@dataclass(frozen=True, slots=True)
class ManyJob:
    account: Account
    destination: str
    count: int
    size: int
    producers: int
    seconds: float
    window: int = 1
    """The most unconfirmed SENDs on each connection."""


def send_from_many(job: ManyJob, stopwatch: Stopwatch) -> Outcome:
    """Send over many connections, each with a few SENDs in flight."""
    share = job.count // job.producers
    return run_lines([_Sender(job, number, share) for number in range(job.producers)], stopwatch, job.seconds)


class _Sender(Line):
    def __init__(self, job: ManyJob, number: int, count: int) -> None:
        frames = send_frames(job.destination, number, 0, count, job.size, job.account.send_headers)
        super().__init__(job.account.connect(chunk=4096), frames, count, window=job.window)
        self._receipts = Receipts(number, 0, count)
        self._incoming = Frames()

    def confirmed(self) -> int:
        whole = self._incoming.complete(self.wire.receive())
        return self._receipts.take(read_receipts(whole)) if whole else 0


@dataclass(frozen=True, slots=True)
class DrainJob:
    account: Account
    destination: str
    sent: tuple[int, ...]
    """How many messages were sent, by producer."""
    size: int
    window: int
    silence_s: int = 15
    """The run ends after this long without a message."""


def drain(job: DrainJob, stopwatch: Stopwatch) -> Outcome:
    """Consume, and acknowledge the messages one by one (client-individual). End with the receipt of the last ACK."""
    total = sum(job.sent)
    checker = Checker(job.size, len(job.sent), prepare=total)
    wire = job.account.connect(silence_s=job.silence_s)
    stopwatch.start()
    subscribe(wire, job)
    drain_all(wire, total, checker)
    stopwatch.stop()
    wire.close()
    return Outcome(checker.received, tally=checker.tally(job.sent))


def consume(job: DrainJob, stopwatch: Stopwatch) -> Outcome:
    """Like `drain`, but subscribe before the clock starts, because a producer runs concurrently."""
    total = sum(job.sent)
    checker = Checker(job.size, len(job.sent), prepare=total)
    wire = job.account.connect(silence_s=job.silence_s)
    subscribe(wire, job, receipt=True)
    stopwatch.start()
    drain_all(wire, total, checker)
    stopwatch.stop()
    wire.close()
    return Outcome(checker.received, tally=checker.tally(job.sent))


def subscribe(wire: Wire, job: DrainJob, *, receipt: bool = False) -> None:
    """Subscribe. With `receipt`, return when the server has the subscription; the queue must be empty then."""
    wire.send(
        b"SUBSCRIBE\nid:0\ndestination:%s\nack:client-individual\nprefetch-count:%d\n%s%s\n\0"
        % (job.destination.encode(), job.window, job.account.subscribe_headers, b"receipt:sub\n" if receipt else b"")
    )
    if receipt:
        read_receipts(wire.receive_until(b"\0"))


def drain_all(wire: Wire, total: int, checker: Checker) -> None:
    """Consume until each message arrived and the last ack is confirmed, or until nothing more arrives."""
    incoming = Frames()
    try:
        while checker.distinct < total:
            arrived = read_messages(incoming.complete(wire.receive()))
            if arrived:
                acks, bodies_ = zip(*arrived, strict=True)
                checker.take(bodies_)
                wire.send(ack_frames(acks, last=checker.distinct >= total))
        while not _last_ack_confirmed(incoming.complete(wire.receive()), checker):
            pass
    except Silence:
        pass  # missing messages show in the tally


def _last_ack_confirmed(whole: bytes, checker: Checker) -> bool:
    """Return whether the last ACK is confirmed. Messages that still arrive are checked, as duplicates."""
    extra = MESSAGE.findall(whole)
    checker.take([one for _, one in extra])
    if whole.count(b"\0") == len(extra):
        return False
    if RECEIPT.findall(whole) != [LAST_ACK]:
        raise BenchError(f"not the receipt of the last ACK: {_first_other(whole, b'MESSAGE')}")
    return True


@dataclass(frozen=True, slots=True)
class PingJob:
    account: Account
    destination: str
    count: int
    size: int
    seconds: float


def pingpong(job: PingJob, stopwatch: Stopwatch) -> Outcome:
    """Pass one message at a time through the server: send it with a receipt, consume it, acknowledge it."""
    frames = memoryview(send_frames(job.destination, 0, 0, job.count, job.size, job.account.send_headers))
    length = len(frames) // job.count
    checker = Checker(job.size, prepare=job.count)
    producer = job.account.connect(chunk=4096)
    consumer = job.account.connect(chunk=8192)
    subscribe(consumer, DrainJob(job.account, job.destination, (job.count,), job.size, 1), receipt=True)
    poll = select.epoll()
    poll.register(producer, select.EPOLLIN)
    poll.register(consumer, select.EPOLLIN)
    receipts, messages = Frames(), Frames()
    confirmed: Weighted = []
    delivered: Weighted = []
    sent = 0
    deadline = stopwatch.start() + int(job.seconds * 1e9)
    while sent < job.count and time.perf_counter_ns() < deadline:
        started = time.perf_counter_ns()
        producer.send(frames[sent * length : (sent + 1) * length])
        sent += 1
        while len(confirmed) < sent or len(delivered) < sent:
            ready = poll.poll(30)
            now = time.perf_counter_ns()
            if not ready:
                raise BenchError("the server sent nothing for 30 s")
            for file, _ in ready:
                if file == producer.fileno():
                    confirmed += [(now - started, 1) for _ in read_receipts(receipts.complete(producer.receive()))]
                    continue
                arrived = read_messages(messages.complete(consumer.receive()))
                if arrived:
                    delivered += [(now - started, 1) for _ in arrived]
                    checker.take([one for _, one in arrived])
                    consumer.send(ack_frames([ack for ack, _ in arrived]))
    stopwatch.stop()
    # The last ACK has no receipt. It is settled when the DISCONNECT after it is confirmed.
    consumer.send(b"DISCONNECT\nreceipt:bye\n\n\0")
    read_receipts(consumer.receive_until(b"\0"))
    return Outcome(sent, (sent,), percentiles(confirmed), percentiles(delivered), checker.tally((sent,)))
