"""Counts the engine's instructions for a message, which other load on the machine does not change.

    .venv/bin/python bench/instructions.py                               # of this tree
    .venv/bin/python bench/instructions.py --tree ../other --work drain  # of another checkout, one workload
    .venv/bin/python bench/instructions.py --shipped                     # with replication on, without a follower
    .venv/bin/python bench/instructions.py --stomp                       # with the frames of a STOMP connection

The engine runs in one process, on a disk in memory and without threads. Each workload runs under valgrind with two
numbers of messages, and the difference is divided, so that the start does not count. A workload takes about a minute.
The few instructions that make the messages or frames, and those that read the answers, are counted, too.
"""

from __future__ import annotations

import argparse
import gc
import re
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHORT, LONG = 1000, 5000
BATCH = 100
"""The number of messages that are published in one turn."""
BODY = b"x" * 100


class Inline:
    """A host without threads: jobs run in the next turn. Implements `core.host.Host`."""

    def __init__(self) -> None:
        self._turn: deque[Callable[[], object]] = deque()
        self._ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self._ms

    def now_us(self) -> int:
        return self._ms * 1000

    def wall_ms(self) -> int:
        return self._ms

    def call_soon(self, fn: Callable[[], object]) -> object:
        self._turn.append(fn)
        return None

    def call_later(self, delay_ms: int, fn: Callable[[], object]) -> Any:
        """Do nothing: no time passes here."""
        return self

    def cancel(self) -> None:
        """Do nothing: no timer is ever due."""

    def submit(
        self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None], begin: object = None
    ) -> None:
        self._turn.append(lambda: done(job(), None))

    def settle(self) -> None:
        """Run until nothing is left to do."""
        while self._turn:
            self._turn.popleft()()


class Engine:
    """A broker with one queue, and a consumer that acks each delivery immediately."""

    def __init__(
        self, folder: Path, options: dict[str, object], block: Callable[[int], bytes], orders: int, is_shipped: bool
    ) -> None:
        from curbstone.core.disk import OsDisk
        from curbstone.core.engine.broker import Broker
        from curbstone.core.message import Message
        from curbstone.core.names import queue_name
        from curbstone.core.options import QueueOptions, SyncMode

        self._message, self._block = Message, block
        self._orders: list[tuple[Any, ...]] = [()]
        if orders:
            from curbstone.core.orders import orders_in

            self._orders = [(orders_in(block(number)),) for number in range(orders)]
        self.host = Inline()
        defaults = QueueOptions(cap=256 << 20)
        disk: Any = OsDisk(folder)
        if is_shipped:
            from curbstone.standby.shipping import ShippingDisk
            from curbstone.standby.stream import Stream

            disk = ShippingDisk(disk, Stream(self.host.wall_ms))
        self.broker = Broker.open(self.host, disk, defaults=defaults, sync=SyncMode("never"))
        name = queue_name("q")
        self.broker.declare(name, options, lambda error: None)
        self.host.settle()
        self.queue = self.broker.get(name)
        self.given = 0

    def publish(self, count: int) -> None:
        for start in range(0, count, BATCH):
            messages = [
                self._message(BODY, self._block(number), *self._orders[number % len(self._orders)])
                for number in range(start, start + BATCH)
            ]
            self.queue.publish(messages, lambda error, first, count: None)
            self.host.settle()

    def consume(self) -> None:
        def deliver(deliveries: list[Any]) -> None:
            self.given += len(deliveries)
            seqs = [delivery.message.seq for delivery in deliveries]
            self.host.call_soon(lambda: consumer.ack(seqs))

        consumer = self.queue.subscribe(deliver, window=1000, on_closed=lambda error: None)
        self.host.settle()


class Stomp(Engine):
    """A STOMP connection to it that sends, and another one that acks what it gets at once."""

    def publish(self, count: int) -> None:
        session, answers = self._session(lambda size: None)
        confirmed = 0
        for start in range(0, count, BATCH):
            sends = [
                b"SEND\ndestination:/queue/q\ncontent-length:%d\n%breceipt:%d\n\n%b\0"
                % (len(BODY), self._block(number), number, BODY)
                for number in range(start, start + BATCH)
            ]
            session.receive(b"".join(sends), 0, self.host.wall_ms())
            self.host.settle()
            confirmed += answers().count(b"RECEIPT")
        assert confirmed == count, f"{confirmed} of {count} were confirmed"

    def consume(self) -> None:
        def changed(_size: int) -> None:
            if not turn:
                turn.append(None)
                self.host.call_soon(ack)

        def ack() -> None:
            turn.clear()
            ids = ACK_ID.findall(answers())
            self.given += len(ids)
            session.receive(b"".join([b"ACK\nid:%b\n\n\0" % each for each in ids]), 0, self.host.wall_ms())

        turn: list[None] = []
        session, answers = self._session(changed)
        frame = b"SUBSCRIBE\nid:0\ndestination:/queue/q\nack:client-individual\nprefetch-count:1000\n\n\0"
        session.receive(frame, 0, self.host.wall_ms())
        self.host.settle()

    def _session(self, changed: Callable[[int], None]) -> tuple[Any, Callable[[], bytes]]:
        """Return a connected session, and a function that returns its output."""
        from curbstone.access.authenticator import OpenAuthenticator
        from curbstone.access.caller import Caller
        from curbstone.stomp.limits import Limits
        from curbstone.stomp.session import Session

        authenticator = OpenAuthenticator(self.broker, self.host)
        session = Session(
            authenticator,
            authenticator.everyone,
            Limits(),
            changed,
            caller=Caller("127.0.0.1", 1, "stomp"),
            name="s",
            now_ms=0,
        )
        connect = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"
        session.receive(connect, 0, self.host.wall_ms())
        session.take_output()
        return session, lambda: b"".join(session.take_output())


ACK_ID = re.compile(rb"\nack:([^\n]+)")


def _plain(_number: int) -> bytes:
    return b"content-type:text/plain\n"


def _keyed(number: int) -> bytes:
    return b"x-key:%d\n" % (number * 7919 % 100)


def _of_many(number: int) -> bytes:
    return b"x-key:%d\n" % (number * 7919 % 10_000)


def _noisy(number: int) -> bytes:
    return b"x-key:%d\n" % (number * 7919 % 10_000 if number % 10 == 0 else 10_000)


_RANKED = [b"priority:%d\n" % priority for priority in range(10)]


def _ranked(number: int) -> bytes:
    return _RANKED[number * 7 % 10]


def _unique(number: int) -> bytes:
    return b"x-unique:%d\n" % number


def _batched(number: int) -> bytes:
    return b"x-batch:%d\nx-batch-size:1000\nx-batch-to:done\n" % (number // 1000)


SHAPES: dict[str, tuple[dict[str, object], Callable[[int], bytes], int]] = {
    "plain": ({}, _plain, 0),
    "keyed": ({}, _keyed, 0),
    "ranked": ({}, _ranked, 10),
    "labelled": ({"key_limit": 0}, _of_many, 0),
    "fair": ({"key_limit": 0, "fair": True}, _of_many, 0),
    "noisy": ({"key_limit": 0, "fair": True}, _noisy, 0),
    "limited": ({"key_limit": 5}, _keyed, 0),
    "unique": ({}, _unique, 1),
    "batched": ({}, _batched, 1),
}
"""By name: the options of the queue, the header block of each message, and after how many the orders repeat."""
WORK = ("publish", "drain", "pipe")


def run(kind: type[Engine], shape: str, work: str, count: int, is_shipped: bool) -> None:
    """Run one workload; raise AssertionError if a message is missing."""
    gc.disable()  # one collection costs as much as thousands of messages, at a varying point
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        engine = kind(Path(folder), *SHAPES[shape], is_shipped)
        if work == "pipe":
            engine.consume()
        engine.publish(count)
        if work == "drain":
            engine.consume()
        assert work == "publish" or engine.given == count, f"{engine.given} of {count} were delivered"


def measure(tree: Path, shape: str, work: str, options: list[str]) -> float:
    """Return the instructions for each message."""
    counts = []
    environment = {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0", "PATH": "/usr/bin:/bin"}
    program = [sys.executable, str(Path(__file__).resolve()), "--shape", shape, "--work", work, *options, "--run"]
    subprocess.run([*program, str(SHORT)], cwd=tree, env=environment, check=True)  # to cache the bytecode
    for length in (SHORT, LONG):
        command = [
            *("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"),
            *program,
            str(length),
        ]
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
        found = re.search(r"I\s+refs:\s+([0-9,]+)", done.stderr)
        if done.returncode or found is None:
            raise SystemExit(f"{shape} {work} failed:\n{done.stderr[-2000:]}")
        counts.append(int(found[1].replace(",", "")))
    return (counts[1] - counts[0]) / (LONG - SHORT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--shape", choices=SHAPES, action="append")
    parser.add_argument("--work", choices=WORK, action="append")
    parser.add_argument("--shipped", action="store_true", help="with --standby-backlog, without a follower")
    parser.add_argument("--stomp", action="store_true", help="over a STOMP connection")
    parser.add_argument("--run", type=int, help="run a workload with this many messages, and count nothing")
    given = parser.parse_args()
    if given.run is not None:
        run(Stomp if given.stomp else Engine, given.shape[0], given.work[0], given.run, given.shipped)
        return
    options = [option for option, is_on in (("--shipped", given.shipped), ("--stomp", given.stomp)) if is_on]
    for shape in given.shape or ["plain"]:
        for work in given.work or WORK:
            count = measure(given.tree.resolve(), shape, work, options)
            print(f"{shape:12} {work:8} {count:10,.0f} instructions a message")


if __name__ == "__main__":
    main()
