"""HTTP load with keep-alive over many connections, one request in flight on each, one process with epoll."""

import json
import select
import time
from dataclasses import dataclass, replace

from bench import login
from bench.check import Checker, bodies
from bench.many import SILENCE_S, Line, run_lines
from bench.wire import Address, BenchError, Wire
from bench.workers import Outcome, Stopwatch

END_OF_HEAD = b"\r\n\r\n"
BATCH = 100


def messages_path(queue: str) -> str:
    project, _, name = queue.partition("/")
    return f"/v2/{project}/queues/{name}/messages"


def request_head(method: str, address: Address, path: str, content_type: str = "", length: int = 0) -> bytes:
    content = f"Content-Type: {content_type}\r\nContent-Length: {length}\r\n" if content_type else ""
    return f"{method} {path} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\n{login.header()}{content}\r\n".encode()


def post_requests(address: Address, queue: str, producer: int, count: int, size: int) -> bytes:
    """Return `count` requests in a row, all of the same length."""
    head = request_head("POST", address, messages_path(queue), "application/octet-stream", size)
    return head + head.join(bodies(producer, 0, count, size))


def batch_requests(address: Address, queue: str, producer: int, count: int, size: int) -> bytes:
    """Return `count` requests in a row, each with BATCH messages as a JSON array."""
    texts = [
        json.dumps([{"message": one.decode()} for one in bodies(producer, first, BATCH, size)]).encode()
        for first in range(0, count * BATCH, BATCH)
    ]
    head = request_head("POST", address, messages_path(queue) + "/batch", "application/json", len(texts[0]))
    return head + head.join(texts)


def answer_of(data: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Return (status, body, rest) of the first complete answer, or None."""
    head, end, rest = data.partition(END_OF_HEAD)
    if not end:
        return None
    lines = head.lower().split(b"\r\n")
    length = int(next((line[15:] for line in lines if line.startswith(b"content-length:")), b"0"))
    return (head[9:12], rest[:length], rest[length:]) if len(rest) >= length else None


def is_created(answer: bytes) -> bool | None:
    """Return True for a complete 201 without a body, None while it is incomplete, and False for anything else."""
    found = answer_of(answer)
    return None if found is None else found == (b"201", b"", b"")


@dataclass(frozen=True, slots=True)
class PostJob:
    address: Address
    queue: str
    count: int
    size: int
    connections: int
    seconds: float


def post(job: PostJob, stopwatch: Stopwatch) -> Outcome:
    """One message in each request."""
    share = job.count // job.connections
    return run_lines([_Poster(job, number, share) for number in range(job.connections)], stopwatch, job.seconds)


class _Poster(Line):
    def __init__(self, job: PostJob, number: int, count: int) -> None:
        super().__init__(
            Wire(job.address, chunk=4096), post_requests(job.address, job.queue, number, count, job.size), count
        )
        self._answer = b""

    def confirmed(self) -> int:
        self._answer += self.wire.receive()
        created = is_created(self._answer)
        if created is False:
            raise BenchError(f"not a 201: {self._answer[:300].decode(errors='replace')}")
        if created:
            self._answer = b""
        return bool(created)


def post_batches(job: PostJob, stopwatch: Stopwatch) -> Outcome:
    """BATCH messages in each request."""
    share = max(1, job.count // job.connections // BATCH)
    return run_lines([_Batcher(job, number, share) for number in range(job.connections)], stopwatch, job.seconds)


class _Batcher(Line):
    def __init__(self, job: PostJob, number: int, count: int) -> None:
        requests = batch_requests(job.address, job.queue, number, count, job.size)
        super().__init__(Wire(job.address), requests, count, messages=BATCH)
        self._answer = b""

    def confirmed(self) -> int:
        self._answer += self.wire.receive()
        found = answer_of(self._answer)
        if not found:
            return 0
        status, body, self._answer = found
        if status != b"201" or len(set(json.loads(body)["ids"])) != BATCH:
            raise BenchError(f"not {BATCH} ids: {status.decode()} {body[:300].decode(errors='replace')}")
        return 1


@dataclass(frozen=True, slots=True)
class PopJob:
    address: Address
    queue: str
    sent: tuple[int, ...]
    size: int
    connections: int


def pop(job: PopJob, stopwatch: Stopwatch) -> Outcome:
    """Pop messages by DELETE until all were received, or a connection gets 204.

    The order is not checked, because answers on different connections may arrive in any order.
    """
    total = sum(job.sent)
    checker = Checker(job.size, len(job.sent))
    request = request_head("DELETE", job.address, messages_path(job.queue))
    wires = {wire.fileno(): wire for wire in [Wire(job.address, chunk=65_536) for _ in range(job.connections)]}
    begun = dict.fromkeys(wires, b"")
    poll = select.epoll()
    for file in wires:
        poll.register(file, select.EPOLLIN)
    stopwatch.start()
    for wire in wires.values():
        wire.send(request)
    until = time.monotonic() + SILENCE_S * 4
    while wires and time.monotonic() < until:
        for file, _ in poll.poll(SILENCE_S):
            data = begun[file] + wires[file].receive()
            found = answer_of(data)
            begun[file] = b"" if found else data
            if found is None:
                continue
            if found[0] == b"200":
                checker.take([found[1]])
            elif found[0] != b"204":
                raise BenchError(f"a pop was answered {found[0].decode()}: {found[1][:300].decode(errors='replace')}")
            if found[0] == b"200" and checker.received + len(wires) <= total:
                wires[file].send(request)
            else:
                poll.unregister(file)
                wires.pop(file).close()
    stopwatch.stop()
    return Outcome(checker.received, tally=replace(checker.tally(job.sent), reordered=0))
