"""A declared group in a simulated run: it browses and acks up to a position, and is judged by seq.

- what was confirmed after the group was, lies above every ack that was asked for, and not below the floor: is there
- what lies at or below an ack that was confirmed: is not
- a group that holds has lost nothing but to purges
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import CurbstoneError
from curbstone.core.frames import decode_frame
from curbstone.core.message import Message
from curbstone.core.names import QueueName
from curbstone.core.positions import EARLIEST, Frame, GroupInfo, Wanted
from tests.sim.history import Violation

GROUP = "r"


class Reading:
    """The group on one queue."""

    def __init__(self) -> None:
        self.is_declared = False
        self.asked = 0
        self.acked = 0
        self.expected: dict[int, int] = {}


class Reader:
    """The group on all queues of a run."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._skips = rng.random() < 0.5
        self._readings: dict[QueueName, Reading] = {}
        self.is_purged = False
        self.pages = 0

    def _reading(self, queue: LocalQueue) -> Reading:
        return self._readings.setdefault(queue.name, Reading())

    def published(self, queue: LocalQueue, first_seq: int, tokens: list[int]) -> None:
        """Messages that name no groups were confirmed."""
        reading = self._reading(queue)
        if reading.is_declared:
            reading.expected.update(zip(range(first_seq, first_seq + len(tokens)), tokens, strict=True))

    def step(self, queue: LocalQueue) -> None:
        """Declare the group where it is not, else ack or look."""
        reading = self._reading(queue)
        if GROUP not in queue.meta.groups:
            if reading.is_declared:
                raise Violation(f"group {GROUP} of {queue.name} was confirmed and is gone")

            def declared(error: CurbstoneError | None, _info: GroupInfo | None) -> None:
                reading.is_declared = reading.is_declared or error is None

            queue.reading.declare(GROUP, EARLIEST, self._skips, declared)
        elif self._rng.random() < 0.5:
            self.ack(queue, self._rng.randrange(queue.reading.position(GROUP) - 1, queue.reading.next))
        else:
            self._look(queue, self._rng.choice([1, 3, 1000]), lambda _: None)

    def ack(self, queue: LocalQueue, seq: int) -> None:
        """Be done with everything up to `seq`."""
        reading = self._reading(queue)
        reading.asked = max(reading.asked, seq)

        def acked(error: CurbstoneError | None, info: GroupInfo | None) -> None:
            if error is None:
                reading.acked = max(reading.acked, seq)
                if info is not None and info.position <= seq:
                    raise Violation(f"{queue.name}: acked {seq}, and the position is {info.position}")

        queue.reading.ack_to(GROUP, seq, acked)

    def _look(self, queue: LocalQueue, limit: int, then: Callable[[dict[int, int]], None]) -> None:
        """Check a page from the position on."""
        reading = self._reading(queue)
        start = queue.reading.position(GROUP)
        if reading.acked >= start:
            raise Violation(f"{queue.name}: {reading.acked} was acked, and the position is {start}")

        def render(frames: list[Frame]) -> dict[int, int]:
            pairs = [pair for frame in frames for pair in decode_frame(frame)]
            return {message.seq: int(message.body.partition(b":")[0]) for message, _ in pairs}

        def looked(error: CurbstoneError | None, found: dict[int, int] | None, following: int) -> None:
            if found is None:
                return
            self.pages += 1
            if list(found) != sorted(found) or len(found) > limit or any(seq >= following for seq in found):
                raise Violation(f"{queue.name}: a page of {list(found)}, to continue at {following}")
            wrong = {seq for seq, token in found.items() if reading.expected.get(seq, token) != token}
            if wrong:
                raise Violation(f"{queue.name}: other messages than were published: {wrong}")
            then(found)

        queue.reading.browse(Wanted(start, None, limit, 1 << 24, GROUP), render, looked)

    def judge(self, queue: LocalQueue) -> None:
        """Everything is quiet: look at all of it. The answer comes later."""
        reading = self._reading(queue)
        if GROUP not in queue.meta.groups:
            if reading.is_declared:
                raise Violation(f"group {GROUP} of {queue.name} was confirmed and is gone")
            return
        info = queue.reading.info(GROUP)
        if info.lost and not self._skips and not self.is_purged:
            raise Violation(f"a group that holds has lost something: {info}")

        def judged(found: dict[int, int]) -> None:
            missing = [
                seq for seq in reading.expected if seq > reading.asked and seq >= info.floor and seq not in found
            ]
            if missing:
                raise Violation(f"{queue.name}: {GROUP} lacks {missing}, {info}")
            if len(found) != info.pending:
                raise Violation(f"{queue.name}: {len(found)} found, {info}")

        self._look(queue, 1_000_000, judged)


def is_pending(queue: LocalQueue, message: Message) -> bool:
    """Return whether somebody else than the declared group waits for a message."""
    run = queue.index.runs.find(message.seq)
    others = [bits for name, bits in (run.named or {}).items() if name != GROUP] if run else []
    return run is not None and any(bits >> (message.seq - run.first) & 1 for bits in [run.bits, *others])
