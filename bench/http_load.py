"""HTTP load: POST with keep-alive over many connections, one request in flight on each, one process with epoll."""

from dataclasses import dataclass

from bench.check import bodies
from bench.many import Line, run_lines
from bench.roles import Gate, Outcome
from bench.wire import Address, BenchError, Wire

END_OF_HEAD = b"\r\n\r\n"


def post_requests(address: Address, queue: str, producer: int, count: int, size: int) -> bytes:
    """`count` requests in a row, each of the same length."""
    project, _, name = queue.partition("/")
    head = (
        f"POST /v2/{project}/queues/{name}/messages HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\n"
        f"Content-Type: application/octet-stream\r\nContent-Length: {size}\r\n\r\n"
    ).encode()
    return head + head.join(bodies(producer, 0, count, size))


def is_created(answer: bytes) -> bool | None:
    """True for a complete 201 without a body, None while its head is incomplete, False for all else."""
    if END_OF_HEAD not in answer:
        return None
    head, _, body = answer.partition(END_OF_HEAD)
    lines = head.lower().split(b"\r\n")
    length = next((line[15:].strip() for line in lines if line.startswith(b"content-length:")), b"0")
    return head.startswith(b"HTTP/1.1 201") and length == b"0" and not body


@dataclass(frozen=True, slots=True)
class PostJob:
    address: Address
    queue: str
    count: int
    size: int
    connections: int
    seconds: float


def post(job: PostJob, gate: Gate) -> Outcome:
    share = job.count // job.connections
    return run_lines([_Poster(job, number, share) for number in range(job.connections)], gate, job.seconds)


class _Poster(Line):
    def __init__(self, job: PostJob, number: int, count: int) -> None:
        super().__init__(
            Wire(job.address, chunk=4096), post_requests(job.address, job.queue, number, count, job.size), count
        )
        self._answer = b""

    def confirmed(self) -> bool:
        self._answer += self.wire.receive()
        created = is_created(self._answer)
        if created is False:
            raise BenchError(f"not a 201: {self._answer[:300].decode(errors='replace')}")
        if created:
            self._answer = b""
        return bool(created)
