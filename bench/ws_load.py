"""WebSocket load on the HTTP server's publish and consume sockets.

Client frames are masked with the key 0, which RFC 6455 §5.3 allows and which changes no byte, so they can be prepared,
too. Bodies and metadata must be ASCII, so that a byte from 0x80 up belongs to the header of a frame.
"""

import base64
import contextlib
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench import login
from bench.check import Checker, bodies
from bench.server import Control
from bench.window import send_window
from bench.wire import Address, BenchError, Silence, Stream, Wire
from bench.workers import Outcome, Stopwatch

TEXT, BINARY, CLOSE, PING, PONG = 0x81, 0x82, 0x88, 0x89, 0x8A
CONFIRM = bytes((TEXT, 0))
SETTLE_LIMIT_S = 15
NO_MASK = b"\0\0\0\0"


def connect(address: Address, path: str, protocol: str, **options: int) -> Wire:
    """Connect and do the opening handshake. `protocol` is publish or consume."""
    wire = Wire(address, **options)
    key = base64.b64encode(os.urandom(16)).decode()
    wire.send(
        (
            f"GET {path} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: {protocol}\r\n"
            f"{login.header()}\r\n"
        ).encode()
    )
    answer = wire.receive_until(b"\r\n\r\n")
    if not answer.startswith(b"HTTP/1.1 101"):
        raise BenchError(f"no WebSocket at {path}: {answer.splitlines()[0].decode(errors='replace')}")
    return wire


def client_frame(opcode: int, payload: bytes) -> bytes:
    return client_head(opcode, len(payload)) + payload


def client_head(opcode: int, length: int) -> bytes:
    if length < 126:
        return bytes((opcode, 0x80 | length)) + NO_MASK
    if length < 65_536:
        return bytes((opcode, 0x80 | 126)) + length.to_bytes(2) + NO_MASK
    return bytes((opcode, 0x80 | 127)) + length.to_bytes(8) + NO_MASK


def server_head(opcode: int, length: int) -> bytes:
    if length < 126:
        return bytes((opcode, length))
    if length < 65_536:
        return bytes((opcode, 126)) + length.to_bytes(2)
    return bytes((opcode, 127)) + length.to_bytes(8)


def publish_frames(producer: int, first: int, count: int, size: int) -> bytes:
    """Return `count` concatenated messages, each an empty metadata frame and a binary payload, as in Narconi."""
    head = client_frame(TEXT, b"") + client_head(BINARY, size)
    return head + head.join(bodies(producer, first, count, size))


def split_frames(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """Return (opcode byte, payload) of the server's complete frames, and the rest. Slow; only for unexpected frames."""
    frames: list[tuple[int, bytes]] = []
    at = 0
    while len(data) - at >= 2:
        opcode, length, start = data[at], data[at + 1], at + 2
        if length in (126, 127):
            width = 2 if length == 126 else 8
            length, start = int.from_bytes(data[start : start + width]), start + width
        if len(data) < start + length:
            break
        frames.append((opcode, data[start : start + length]))
        at = start + length
    return frames, data[at:]


def answer_control(wire: Stream, frames: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Answer pings, and return the data frames. A close, or an error object, ends the run."""
    kept = []
    for opcode, payload in frames:
        if opcode == PING:
            wire.send(client_frame(PONG, payload))
        elif opcode == CLOSE:
            raise BenchError(
                f"the server closed the WebSocket: {payload[:2].hex()} {payload[2:].decode(errors='replace')}"
            )
        elif opcode == TEXT and payload.startswith(b'{"code"'):
            raise BenchError(f"the server refused: {payload.decode(errors='replace')}")
        else:
            kept.append((opcode, payload))
    return kept


class Confirms:
    """Counts the empty text frames that confirm publishes."""

    def __init__(self, wire: Stream) -> None:
        self._wire = wire
        self._rest = b""

    def receive(self) -> int:
        data = self._rest + self._wire.receive()
        count = data.count(CONFIRM)
        if count * 2 == len(data):
            self._rest = b""
            return count
        frames, self._rest = split_frames(data)
        frames = answer_control(self._wire, frames)
        if any(frame != (TEXT, b"") for frame in frames):
            raise BenchError(f"not a confirm: {frames[0]!r}")
        return len(frames)


@dataclass(frozen=True, slots=True)
class PublishJob:
    address: Address
    queue: str
    """project/queue"""
    count: int
    size: int
    window: int
    seconds: float


def publish(job: PublishJob, stopwatch: Stopwatch) -> Outcome:
    """Publish over one socket, with at most `window` messages unconfirmed."""
    frames = publish_frames(0, 0, job.count, job.size)
    project, _, queue = job.queue.partition("/")
    wire = connect(job.address, f"/v2/{project}/queues/{queue}/messages", "publish", chunk=65_536)
    return send_window(wire, frames, job.count, job.window, job.seconds, Confirms(wire).receive, stopwatch)


class Deliveries:
    """Reads (ackId, body) pairs from the metadata and payload frames of a consume socket."""

    def __init__(self, wire: Stream, size: int) -> None:
        self._wire = wire
        self._rest = b""
        # A metadata frame and its payload. The groups are the whole, the ackId and the body.
        self._pair = re.compile(
            rb'(\x81(?:[\0-\x7d]|\x7e..)\{[^\x80-\xff]*?"ackId": ?"([^"]*+)"[^\x80-\xff]*+%s(.{%d}))'
            % (re.escape(server_head(BINARY, size)), size),
            re.DOTALL,
        )

    def receive(self) -> list[tuple[bytes, bytes]]:
        data = self._rest + self._wire.receive()
        found = self._pair.findall(data)
        used = sum([len(whole) for whole, _, _ in found])
        # In an unbroken run the first pair is at the start of the data. Otherwise other frames are between the pairs.
        if found and data.startswith(found[0][0]) and data.endswith(found[-1][0], 0, used):
            self._rest = data[used:]
            return [(ack, body) for _, ack, body in found]
        return self._receive_slowly(data)

    def _receive_slowly(self, data: bytes) -> list[tuple[bytes, bytes]]:
        frames, rest = split_frames(data)
        frames = answer_control(self._wire, frames)
        if len(frames) % 2:
            opcode, metadata = frames.pop()
            rest = server_head(opcode, len(metadata)) + metadata + rest
        self._rest = rest
        pairs = []
        for (_, metadata), (opcode, payload) in zip(frames[::2], frames[1::2], strict=True):
            if opcode != BINARY:
                raise BenchError(f"not a payload frame: {opcode:#x}")
            pairs.append((str(json.loads(metadata)["ackId"]).encode(), payload))
        return pairs


def ack_frames(acks: Sequence[bytes]) -> bytes:
    """Return `{"ackId":"…"}` for each id. It is fast if the ids have the same length."""
    if not acks:
        return b""
    width = len(acks[0])
    joined = b"".join(acks)
    if len(joined) != width * len(acks) or len(acks[-1]) != width or any([len(ack) != width for ack in acks]):
        return b"".join([client_frame(TEXT, b'{"ackId":"%s"}' % ack) for ack in acks])
    head = client_head(TEXT, width + 12) + b'{"ackId":"'
    return head + (b'"}' + head).join(acks) + b'"}'


@dataclass(frozen=True, slots=True)
class ConsumeJob:
    address: Address
    queue: str
    sent: tuple[int, ...]
    size: int
    limit: int


def consume(job: ConsumeJob, stopwatch: Stopwatch) -> Outcome:
    """Consume, and acknowledge one by one. Acks are not confirmed here, so this ends when the queue is empty."""
    total = sum(job.sent)
    checker = Checker(job.size, len(job.sent), prepare=total)
    control = Control(job.address)
    project, _, queue = job.queue.partition("/")
    stopwatch.start()
    wire = connect(job.address, f"/v2/{project}/queues/{queue}/messages?ack=true&limit={job.limit}", "consume")
    deliveries = Deliveries(wire, job.size)
    with contextlib.suppress(Silence):  # missing messages show in the tally
        while checker.distinct < total:
            if arrived := deliveries.receive():
                acks, bodies_ = zip(*arrived, strict=True)
                checker.take(bodies_)
                wire.send(ack_frames(acks))
    until = time.monotonic() + SETTLE_LIMIT_S
    while control.waiting(job.queue) and time.monotonic() < until:
        time.sleep(0.0005)
    stopwatch.stop()
    wire.close()
    return Outcome(checker.received, tally=checker.tally(job.sent))
