"""A queue that drops its oldest messages at the cap, in a simulated run; only where the run is about that.

It has dice and a queue of its own. What is judged beside the history:

- nothing is refused for want of room while nobody holds anything
- what was given up is older than all that is there, but for what somebody has held, and for what was there when the
  server was started: a crash may bring back what was given up, as long as that is not on disk
- the newest message is there
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.delivery.consumer import Consumer
from curbstone.core.errors import CurbstoneError, QueueFull
from curbstone.core.message import Delivery
from curbstone.core.names import queue_name
from tests.sim.history import Violation

if TYPE_CHECKING:
    from tests.sim.run import Run

NAME = queue_name("dropping")
CONSUMERS_MAX = 3


class Overflow:
    """The queue of one run; `focus` names it."""

    def __init__(self, run: Run, seed: int, focus: str) -> None:
        self._run = run
        self._rng = Random(f"{seed} overflow")
        self.is_on = focus == "overflow"
        self._is_declared = False
        self._stored: dict[int, int] = {}
        """Tokens of what was confirmed, by seq."""
        self._settled: set[int] = set()
        """Tokens whose ack was asked for."""
        self._held: set[int] = set()
        """Tokens that somebody has held."""
        self._consumers: list[Consumer] = []
        self._first_new = 1
        """The first seq that was given since the server was started."""
        self.given_up = 0
        """How many of its messages were not there at the end."""

    def weights(self) -> dict[str, int]:
        """Return how often its action comes."""
        return {"overflow": 12} if self.is_on else {}

    def started(self) -> None:
        """The server was started: nobody holds anything."""
        self._consumers.clear()
        queues = [queue for queue in self._run.broker.queues() if queue.name == NAME]
        self._first_new = queues[0].state.next_seq if queues else 1

    def act(self) -> None:
        """Declare it, publish to it, take, settle, or close a consumer."""
        if not self._is_declared:

            def declared(error: CurbstoneError | None) -> None:
                self._is_declared = self._is_declared or error is None

            self._run.broker.declare(NAME, {"overflow": "drop-oldest"}, declared)
            return
        queue = self._run.broker.ensure(NAME)
        what = self._rng.choice(["publish", "publish", "publish", "publish", "take", "settle", "close"])
        if what == "publish":
            self._publish(queue)
        elif what == "take" and len(self._consumers) < CONSUMERS_MAX:
            self._take(queue)
        elif self._consumers:
            consumer = self._rng.choice(self._consumers)
            if what == "settle" and consumer.unsettled:
                self._settle(consumer)
            elif what == "close":
                self._close(consumer)

    def _publish(self, queue: LocalQueue) -> None:
        history = self._run.history
        messages = [history.message(self._rng.randrange(500, 3000)) for _ in range(self._rng.choice([1, 5, 10]))]
        tokens = [history.token(message) for message in messages]
        self._run.doom(tokens)  # each may give way one day

        def done(error: CurbstoneError | None, first_seq: int, count: int) -> None:
            mine = tokens[:count]
            del tokens[:count]
            if error is None:
                self._stored.update(zip(range(first_seq, first_seq + count), mine, strict=True))
            elif isinstance(error, QueueFull) and not self._run.faults and not queue.index.unnamed.in_flight:
                history.violations.append(Violation(f"{NAME} is to drop its oldest, and refused: {error}"))

        queue.publish(messages, self._run.answers.in_order(queue, len(messages), done))

    def _take(self, queue: LocalQueue) -> None:
        def deliver(deliveries: list[Delivery]) -> None:
            for delivery in deliveries:
                self._run.history.delivered(delivery.message, f"a consumer of {NAME}")
                self._held.add(self._run.history.token(delivery.message))

        window = self._rng.choice([1, 3, 8])
        self._consumers.append(queue.subscribe(deliver, window=window, on_closed=lambda _: None))

    def _settle(self, consumer: Consumer) -> None:
        history = self._run.history
        seqs = self._rng.sample(list(consumer.unsettled), self._rng.randrange(1, len(consumer.unsettled) + 1))
        tokens = [history.token(consumer.unsettled[seq].message) for seq in seqs]
        for token in tokens:
            history.live.pop(token, None)
        self._settled.update(tokens)

        def done(error: CurbstoneError | None) -> None:
            if error is None:
                history.gone.update(tokens)

        consumer.ack(seqs, done)

    def _close(self, consumer: Consumer) -> None:
        self._run.history.released(consumer)
        self._consumers.remove(consumer)
        consumer.close()

    def drain(self) -> None:
        for consumer in list(self._consumers):
            self._close(consumer)

    def judge(self, came_out: Iterable[int]) -> None:
        """Judge what gave way; `came_out` has the tokens of all that was there."""
        there = set(came_out)
        rest = {seq: token for seq, token in sorted(self._stored.items()) if token not in self._settled}
        missing = [seq for seq, token in rest.items() if token not in there]
        self.given_up = len(missing)
        if not missing:
            return
        if missing[-1] == next(reversed(rest)):
            raise Violation(f"{NAME}: its newest message {missing[-1]} is not there")
        newer = {seq: token for seq, token in rest.items() if self._first_new <= seq < missing[-1]}
        wrong = [seq for seq, token in newer.items() if token in there and token not in self._held]
        if wrong:
            raise Violation(f"{NAME}: {missing[-1]} was given up before {wrong}")
