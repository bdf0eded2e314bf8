"""A broker on a simulated disk and clock, and calls that wait for their answer without any time passing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.broker import Broker
from curbstone.core.engine.delivery.consumer import Consumer
from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Delivery, Message
from curbstone.core.names import QueueName, queue_name
from curbstone.core.options import MIB, QueueOptions, SyncMode
from curbstone.core.orders import orders_of
from curbstone.core.values import Lease, Peeked
from curbstone.core.wal.redo_format import RECORDS_AT
from tests.kit.inode import Inode
from tests.kit.simulated import SimDisk, SimHost

REDO_BYTES = RECORDS_AT + 16 * 1024
"""Of a redo file: small, so that they are full, synced and used again."""
START_MS = 1_700_000_000_000


class Lab:
    """One simulated machine; `restart` gives its broker a new life on the same disk."""

    def __init__(self, *, seed: int = 0, sync: str = "always", cap: int = MIB, max_message_size: int = MIB) -> None:
        self.rng = Random(seed)
        self.sync = SyncMode.parse(sync)
        self.defaults = QueueOptions(cap=cap, max_message_size=max_message_size)
        self.disk = SimDisk(self.rng)
        self.expects_faults = False
        self.disk.caps = self._cap_of
        self.start(START_MS)

    def start(self, wall_ms: int) -> None:
        """Open a broker on what the disk holds."""
        self.host = SimHost(self.rng, wall_ms)
        self.broker = Broker.open(
            self.host,
            self.disk,
            defaults=self.defaults,
            sync=self.sync,
            salt=lambda: self.rng.randrange(1 << 32),
        )
        self.broker.syncer.file_bytes = REDO_BYTES
        self.settle()

    def _cap_of(self, directory: str) -> int | None:
        for queue in [*self.broker.queues(), *self.broker.private_queues()] if hasattr(self, "broker") else []:
            if directory == queue.log.directory:
                return queue.options.cap
        return None

    def restart(self, how: str = "shutdown", *, after_ms: int = 1000) -> None:
        """End the broker by "shutdown", "kill" (the process) or "power" (the machine), and open another."""
        if how == "shutdown":
            self.shutdown()
        elif how == "power":
            self.disk.crash()
        self.disk.eio_chance = 0
        self.disk.capacity = 1 << 60
        self.start(self.host.wall_ms() + after_ms)
        self.pass_time(0)

    def shutdown(self) -> None:
        """Shut the broker down; its wait for jobs polls, so a little time passes."""
        ended: list[bool] = []
        self.broker.shutdown(lambda: ended.append(True))
        self.settle()
        if not ended:
            self.pass_time(100)
        assert ended == [True]

    def end(self, queue: LocalQueue, how: str) -> None:
        """Delete a queue, or shut the broker down, in the middle of whatever is under way: it must come to an end."""
        ended: list[object] = []
        if how == "delete":
            self.broker.delete(queue.name, ended.append)
        else:
            self.broker.shutdown(lambda: ended.append(True))
        for _ in range(100):  # not `settle`, which would not come to an end where jobs don't
            if not self.host.turn() and not self.host.work():
                self.host.pass_time(5)
        assert ended == [True] and not self.host.work()

    def settle(self) -> None:
        """Run everything that needs no time, and check the cap."""
        self.host.settle()
        self.see_faults()
        assert not self.disk.over_cap, self.disk.over_cap[0]

    def see_faults(self) -> None:
        """Raise a fault that the test does not expect: the engine only logs it."""
        if self.broker.alarms.faults and not self.expects_faults:
            raise self.broker.alarms.faults[0]

    def pass_time(self, ms: int) -> None:
        """Advance the clock, and run timers in order."""
        end = self.host.now_ms() + ms
        self.settle()
        while self.host.timers and self.host.timers[0][0] <= end:
            self.host.pass_time(max(self.host.timers[0][0] - self.host.now_ms(), 0))
            self.settle()
        self.host.pass_time(end - self.host.now_ms())
        self.settle()

    # --- calls that wait for their answer

    def answer(self, call: Callable[[Callable[..., None]], object], *, passing_ms: int = 0) -> tuple[Any, ...]:
        """Return the arguments of the one call that `call` makes to its callback, and never at once."""
        answers: list[tuple[Any, ...]] = []
        call(lambda *given: answers.append(given))
        assert not answers, "answered before the call returned"
        self.settle()
        if passing_ms and not answers:
            self.pass_time(passing_ms)
        assert len(answers) == 1, f"{len(answers)} answers"
        return answers[0]

    def queue(self, name: str = "q", **options: object) -> LocalQueue:
        """Return a queue, declared with these options."""
        (error,) = self.answer(lambda done: self.broker.declare(queue_name(name), options, done))
        if error is not None:
            raise error
        return self.broker.get(queue_name(name))

    def extend(self, queue: LocalQueue, tokens: list[str], duration_ms: int) -> list[str]:
        """Change the end of leases; return the stale ones."""
        stale: list[str]
        _, stale = self.answer(lambda done: queue.extend(tokens, duration_ms, done))
        return stale

    def reopened(self, queue: LocalQueue) -> LocalQueue:
        """Return the same queue after a restart."""
        return self.broker.get(queue.name)

    def publish(self, queue: LocalQueue, *bodies: bytes | str, **extras: Any) -> list[int]:
        """Publish as one list; return the seqs, or raise what was said of the first that was refused."""
        return self.publish_messages(queue, [message(body, **extras) for body in bodies])

    def publish_messages(self, queue: LocalQueue, messages: list[Message], *, atomic: bool = False) -> list[int]:
        """Publish these; return their seqs, or raise what was said of the first that was refused."""
        answers = self.publish_answers(queue, messages, atomic=atomic)
        for error, _, _ in answers:
            if error is not None:
                raise error
        return [seq for _, first, count in answers for seq in range(first, first + count)]

    def publish_answers(
        self, queue: LocalQueue, messages: list[Message], *, atomic: bool = False
    ) -> list[tuple[CurbstoneError | None, int, int]]:
        """Publish these; return all that was answered, which covers them all."""
        answers: list[tuple[CurbstoneError | None, int, int]] = []
        queue.publish(messages, lambda *given: answers.append(given), atomic=atomic)
        assert not answers, "answered before the call returned"
        self.settle()
        assert sum(count for _, _, count in answers) == len(messages)
        return answers

    def peek(self, queue: LocalQueue, limit: int = 100_000, *, after: int = 0, state: str = "") -> list[Peeked]:
        """Return what the queue shows."""
        (found,) = self.answer(lambda done: queue.peek(limit, done, after=after, state=state))
        if isinstance(found, CurbstoneError):
            raise found
        return list(found)

    def bodies(self, queue: LocalQueue | str) -> list[bytes]:
        """Return the bodies of all messages of a queue, or of the queue of this name, in order."""
        return [found.message.body for found in self.peek(self.named(queue) if isinstance(queue, str) else queue)]

    def named(self, name: str) -> LocalQueue:
        """Return the queue of this name."""
        return self.broker.get(queue_name(name))

    def names(self) -> list[QueueName]:
        """Return the names of all queues, private ones too."""
        return [queue.name for queue in [*self.broker.queues(), *self.broker.private_queues()]]

    def lease(self, queue: LocalQueue, count: int = 1, ms: int = 30_000, group: str = "") -> list[Lease]:
        """Return leases of what is ready now."""
        (leases,) = self.answer(lambda done: queue.lease(count, ms, done, group=group))
        if isinstance(leases, CurbstoneError):
            raise leases
        return list(leases)

    def pop(self, queue: LocalQueue, group: str = "") -> bytes | None:
        """Pop the first ready message; return its body, or None."""
        (given,) = self.answer(lambda done: queue.pop(done, group=group))
        if isinstance(given, CurbstoneError):
            raise given
        return given.message.body if given else None

    def pop_all(self, queue: LocalQueue, group: str = "") -> list[bytes]:
        """Pop until nothing is ready."""
        return list(iter(lambda: self.pop(queue, group), None))

    def purge(self, queue: LocalQueue) -> int:
        """Purge; return the count."""
        error, count = self.answer(queue.purge)
        if error is not None:
            raise error
        return int(count)

    def files(self, queue: LocalQueue) -> dict[str, bytes]:
        """Return the files of a queue's directory."""
        prefix = queue.log.directory + "/"
        return {path: bytes(inode.cache) for path, inode in self.disk.names.items() if path.startswith(prefix)}

    def contents(self) -> dict[str, bytes]:
        """Return all files of the disk."""
        return {path: bytes(inode.cache) for path, inode in self.disk.names.items()}

    def load(self, files: Mapping[str, bytes]) -> None:
        """Replace the files of the disk by these, all of them durable."""
        self.disk.names = {}
        for path, data in files.items():
            inode = self.disk.names[path] = Inode()
            inode.cache[:] = inode.durable[:] = data
        self.disk.durable_names = dict(self.disk.names)
        self.disk.changes.clear()

    def held(self, queue: LocalQueue) -> int:
        """Return how many bytes the queue's directory really holds."""
        return sum(map(len, self.files(queue).values()))


class Peer:
    """A consumer that records its deliveries."""

    def __init__(self, lab: Lab, queue: LocalQueue, *, window: int = 1000, **how: Any) -> None:
        self.lab = lab
        self.received: list[Delivery] = []
        self.closed_with: list[CurbstoneError] = []
        self.consumer: Consumer = queue.subscribe(
            self.received.extend, window=window, on_closed=self.closed_with.append, **how
        )
        assert not self.received, "delivered before the call returned"
        lab.settle()

    @property
    def seqs(self) -> list[int]:
        """The seqs given, in order."""
        return [delivery.message.seq for delivery in self.received]

    @property
    def bodies(self) -> list[bytes]:
        """The bodies given, in order."""
        return [delivery.message.body for delivery in self.received]

    @property
    def tries(self) -> list[int]:
        """The tries of what was given, in order."""
        return [delivery.tries for delivery in self.received]

    def ack(self, *seqs: int) -> None:
        """Settle, and see it on disk."""
        assert self.lab.answer(lambda done: self.consumer.ack(seqs, done)) == (None,)

    def nack(self, *seqs: int, **how: Any) -> None:
        """Give back, and see it on disk."""
        assert self.lab.answer(lambda done: self.consumer.nack(seqs, on_done=done, **how)) == (None,)

    def reject(self, *seqs: int, error: str = "") -> None:
        """Reject, and see it on disk."""
        assert self.lab.answer(lambda done: self.consumer.reject(seqs, error, done)) == (None,)

    def close(self) -> None:
        """End the consumer."""
        self.consumer.close()
        self.lab.settle()


def message(body: bytes | str, **extras: Any) -> Message:
    """Return a message; a text is its UTF-8. `extras` are its headers and its orders."""
    block = extras.pop("headers", b"")
    return Message(body.encode() if isinstance(body, str) else body, block, orders_of(**extras))


def numbered(count: int, size: int = 0) -> list[bytes]:
    """Return bodies that differ, of at least `size` bytes."""
    return [(b"%d:" % number).ljust(size, b"x") for number in range(count)]


def texts(errors: Iterable[CurbstoneError | None]) -> list[str]:
    """Return what errors say."""
    return [str(error) for error in errors]
