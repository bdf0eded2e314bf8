"""Fuzzing of codec and session: damaged dialogues in any cut. No crash, no hang, no growth (make soak).

The dialogues begin as good ones and are then damaged: bytes flipped, cut out, doubled, spliced with others. What
must hold: no exception; any cut of the bytes gives the same frames and the same rule broken; output is whole frames,
with at most one ERROR, the last; when the client is gone none of it is left in the engine.
"""

from __future__ import annotations

import gc
import os
import time
import tracemalloc
from random import Random

import pytest

from curbstone.stomp.codec import V12, VERSIONS, Frame, FrameParser
from curbstone.stomp.limits import Limits
from tests.stomp.harness import Client, read_frames
from tests.stomp.test_session import PIECES

LIMITS = Limits(
    header_bytes_max=600, headers_max=12, body_bytes_max=2000, subscriptions_max=5, transactions_max=3,
    transaction_frames_max=20, unconfirmed_max=50,
)  # fmt: skip
TOKENS = [
    b"\n", b"\r\n", b"\n\n", b"\0", b":", b"\\", rb"\c", rb"\n", rb"\r", rb"\t", b"\r", b"\xff", "ü".encode(),
    b"receipt:1\n",
    b"content-length:5\n", b"content-length:99999999999999999999\n", b"transaction:t\n", b"id:1.1.0\n", b"destination:",
    b"/queue/a", b"/topic/e", b"/temp-queue/x", b"/reply-queue/x", b"a/count", b"SEND\n", b"ACK\n", b"CONNECT\n",
    b"x" * 700,
]  # fmt: skip
SOAK_S = float(os.environ.get("CURBSTONE_SIM_SECONDS", "60")) / 4


def dialogue(random: Random) -> bytes:
    version = random.choice(["", *(f"|accept-version:{version}" for version in VERSIONS)])
    frames = [Client.frame(f"CONNECT{version}")] if random.random() < 0.95 else []
    frames += [Client.frame(random.choice(PIECES)) for _ in range(random.randrange(12))]
    return damaged(b"".join(frames), random)


def damaged(data: bytes, random: Random) -> bytes:
    for _ in range(random.choice((0, 0, 1, 1, 2, 5))):
        at = random.randrange(len(data) + 1)
        to = min(len(data), at + random.choice((1, 1, 2, 8, 40)))
        match random.randrange(5):
            case 0:
                data = data[:at] + random.randbytes(to - at) + data[to:]
            case 1:
                data = data[:at] + data[to:]
            case 2:
                data = data[:at] + data[at:to] * random.choice((2, 3, 50)) + data[to:]
            case 3:
                data = data[:at] + random.choice(TOKENS) + data[at:]
            case _:
                data = data[:at] + data[random.randrange(len(data) + 1) :]
    return data


def chunks(data: bytes, random: Random) -> list[bytes]:
    size = random.choice((1, 2, 7, 100, len(data) + 1))
    return [data[at : at + size] for at in range(0, len(data), size)]


def parsed(parts: list[bytes]) -> tuple[list[tuple[str, dict[str, str], bytes | None, bytes]], str]:
    parser = FrameParser(LIMITS)
    found: list[Frame] = []
    for part in parts:
        while got := parser.feed(part):
            found += got
            if got[-1][0].command not in ("CONNECT", "STOMP"):
                break
            part = b""
            parser.version = V12
    assert parser.unfinished_bytes <= LIMITS.header_bytes_max + LIMITS.body_bytes_max + 2
    # The way of the usual ACK has its id in the place of the body.
    frames = [
        (head.command, {"id": body.decode()}, receipt, b"")
        if head.command == "ACK" and not head.headers
        else (head.command, head.having(varied).headers, receipt, body)
        for head, varied, receipt, body in found
    ]
    return frames, str(parser.error)


def check_codec(data: bytes, random: Random) -> None:
    assert parsed([data]) == parsed(chunks(data, random))


def check_session(data: bytes, random: Random) -> None:
    client = Client(version=None, limits=LIMITS)
    output = b""
    for chunk in chunks(data, random):
        client.feed(chunk)
        if random.random() < 0.3:
            client.lab.settle()
        if random.random() < 0.1:
            random.choice((client.session.pause, client.session.resume))()
        output += b"".join(client.session.take_output())
    client.session.resume()
    client.lab.pass_time(20_000)
    client.session.tick(client.now_ms + 20_000)
    output += b"".join(client.session.take_output())
    if not output.startswith(b"HTTP/"):
        commands = [frame.command for frame in read_frames(output)]
        assert "ERROR" not in commands[:-1]
    client.session.connection_lost()
    client.lab.settle()
    assert client.session.take_output() == []
    assert not client.lab.broker.private_queues()
    for queue in client.lab.broker.queues():
        assert not queue.dispatcher.attached and not queue.wakeups.watchers
        assert all(peeked.state != "wip" for peeked in client.lab.peek(queue))


def run(random: Random, rounds: int) -> None:
    for _ in range(rounds):
        seed = random.getrandbits(64)
        try:
            data = dialogue(Random(seed))
            check_codec(data, Random(seed))
            check_session(data, Random(seed))
        except BaseException:
            print(f"seed {seed}")
            raise


def test_a_few_thousand_damaged_dialogues() -> None:
    run(Random(1), 1500)


@pytest.mark.soak
def test_damaged_dialogues_for_a_long_time_do_not_grow_the_memory() -> None:
    random = Random()
    run(random, 2000)  # caches fill
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        end = time.monotonic() + SOAK_S
        while time.monotonic() < end:
            run(random, 200)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 2_000_000


@pytest.mark.soak
def test_one_long_connection_does_not_grow() -> None:
    """Ever new heads, destinations, subscriptions, transactions and receipts on a connection that never ends."""
    client = Client(limits=Limits(window_max=100))
    sizes: list[int] = []
    number = 0
    end = time.monotonic() + SOAK_S
    tracemalloc.start()
    try:
        while time.monotonic() < end or len(sizes) < 6:
            for _ in range(2000):
                number += 1
                n = number
                got = client.send(
                    f"SUBSCRIBE|id:{n}|destination:/queue/a{n % 5}|ack:client-individual|n:{n}",
                    f"BEGIN|transaction:{n}",
                    f"SEND|destination:/queue/a{n % 5}|k:{n}|receipt:{n}|x-delta-t:0|expiration:{n % 9000}||{n}",
                    f"SEND|destination:/queue/a{n % 5}|transaction:{n}||{n}",
                    f"COMMIT|transaction:{n}",
                )
                messages = [frame for frame in got if frame.command == "MESSAGE"]
                assert len(messages) == 2
                client.send(*[f"ACK|id:{frame.headers['ack']}" for frame in messages], f"UNSUBSCRIBE|id:{n}")
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[-1] - sizes[2] < 500_000
