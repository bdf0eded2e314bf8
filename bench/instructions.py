"""Counts the engine's instructions for a message, which other load on the machine does not change.

    .venv/bin/python bench/instructions.py                               # of this tree
    .venv/bin/python bench/instructions.py --tree ../other --work drain  # of another checkout, one workload
    .venv/bin/python bench/instructions.py --shipped                     # with replication on, without a follower

The engine runs in one process, on a disk in memory and without threads. Each workload runs under valgrind with two
numbers of messages, and the difference is divided, so that the start does not count. A workload takes about a minute.
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
        self, folder: Path, options: dict[str, object], headers: Callable[[int], tuple[bytes, Any]], is_shipped: bool
    ) -> None:
        from curbstone.core.disk import OsDisk
        from curbstone.core.engine.broker import Broker
        from curbstone.core.message import Message
        from curbstone.core.names import queue_name
        from curbstone.core.options import QueueOptions, SyncMode

        self._message, self._headers = Message, headers
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
            parts = [self._headers(number) for number in range(start, start + BATCH)]
            messages = [
                self._message(BODY, block, orders) if orders is not None else self._message(BODY, block)
                for block, orders in parts
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


def _plain(_number: int) -> tuple[bytes, Any]:
    return b"content-type:text/plain\n", None


def _keyed(number: int) -> tuple[bytes, Any]:
    return b"x-key:%d\n" % (number * 7919 % 100), None


def _of_many(number: int) -> tuple[bytes, Any]:
    return b"x-key:%d\n" % (number * 7919 % 10_000), None


def _noisy(number: int) -> tuple[bytes, Any]:
    return b"x-key:%d\n" % (number * 7919 % 10_000 if number % 10 == 0 else 10_000), None


_RANKED: list[tuple[bytes, Any]] = []


def _ranked(number: int) -> tuple[bytes, Any]:
    from curbstone.core.orders import orders_in

    if not _RANKED:
        _RANKED.extend([(block, orders_in(block)) for block in [b"priority:%d\n" % priority for priority in range(10)]])
    return _RANKED[number * 7 % 10]


def _unique(number: int) -> tuple[bytes, Any]:
    from curbstone.core.orders import orders_in

    block = b"x-unique:%d\n" % number
    return block, orders_in(block)


def _batched(number: int) -> tuple[bytes, Any]:
    from curbstone.core.orders import orders_in

    block = b"x-batch:%d\nx-batch-size:1000\nx-batch-to:done\n" % (number // 1000)
    return block, orders_in(block)


SHAPES: dict[str, tuple[dict[str, object], Callable[[int], tuple[bytes, Any]]]] = {
    "plain": ({}, _plain),
    "keyed": ({}, _keyed),
    "ranked": ({}, _ranked),
    "labelled": ({"key_limit": 0}, _of_many),
    "fair": ({"key_limit": 0, "fair": True}, _of_many),
    "noisy": ({"key_limit": 0, "fair": True}, _noisy),
    "limited": ({"key_limit": 5}, _keyed),
    "unique": ({}, _unique),
    "batched": ({}, _batched),
}
"""By name: the options of the queue, and the header block and orders of each message."""
WORK = ("publish", "drain", "pipe")


def run(shape: str, work: str, count: int, is_shipped: bool) -> None:
    """Run one workload; raise AssertionError if a message is missing."""
    gc.disable()  # one collection costs as much as thousands of messages, at a varying point
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        engine = Engine(Path(folder), *SHAPES[shape], is_shipped)
        if work == "pipe":
            engine.consume()
        engine.publish(count)
        if work == "drain":
            engine.consume()
        assert work == "publish" or engine.given == count, f"{engine.given} of {count} were delivered"


def measure(tree: Path, shape: str, work: str, is_shipped: bool) -> float:
    """Return the instructions for each message."""
    counts = []
    environment = {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0", "PATH": "/usr/bin:/bin"}
    program = [sys.executable, str(Path(__file__).resolve()), "--shape", shape, "--work", work]
    program += [*(["--shipped"] if is_shipped else []), "--run"]
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
    parser.add_argument("--run", type=int, help="run a workload with this many messages, and count nothing")
    given = parser.parse_args()
    if given.run is not None:
        run(given.shape[0], given.work[0], given.run, given.shipped)
        return
    for shape in given.shape or ["plain"]:
        for work in given.work or WORK:
            count = measure(given.tree.resolve(), shape, work, given.shipped)
            print(f"{shape:12} {work:8} {count:10,.0f} instructions a message")


if __name__ == "__main__":
    main()
