"""A durable subscription in a simulated run: a queue bound to an event, with the option `unused`.

It has dice and a queue of its own. What is judged beside the history:

- as long as somebody uses it, and not longer ago than the option says, it is there
- once it was unused for longer, it is gone, with all that was in it
- its binding, once confirmed, is there after a crash with its filter: what is published to the event and passes is in
  the queue, and nothing else
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.delivery.consumer import Consumer
from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Delivery
from curbstone.core.names import DEFAULT_PROJECT, queue_name
from tests.sim.history import Violation

if TYPE_CHECKING:
    from tests.sim.run import Run

NAME = queue_name("durable")
EVENT = "news"
UNUSED_MS = 30_000
FILTERS: dict[str, Callable[[int], bool]] = {
    "": lambda _token: True,
    "n IS NULL OR n < 30": lambda token: token % 3 == 0 or token < 30,
    "NOT n > 50": lambda token: token % 3 != 0 and token <= 50,
    "n LIKE '%1_%' AND n <> '112'": lambda token: token % 3 != 0 and "1" in str(token)[:-1] and token != 112,
}
"""What passes each of them: the header `n` of a message is its token, and each third message has none."""
LATE_MS = 1000
"""So much later than its time, and what it then takes, it is gone where nothing fails."""


class Durable:
    """The subscription of one run; `focus` may name it."""

    def __init__(self, run: Run, seed: int, focus: str) -> None:
        self._run = run
        self._rng = Random(f"{seed} durable")
        self.is_on = self._rng.random() < 0.15 or focus == "durable"
        self._is_focus = focus == "durable"
        self._filters = Random(f"{seed} filter")
        self._filter = self._filters.choice(list(FILTERS))
        self._queue: LocalQueue | None = None
        self._is_confirmed = False
        """Whether it, its option and its binding are on disk."""
        self._may_be_gone = False
        """Whether its time was over when the server stopped."""
        self._consumer: Consumer | None = None
        self._used_ms = 0
        """When it was last used, by engine time."""
        self._turned_ms = 0
        """When its time had begun anew at the latest: in its first turn after a start."""
        self._tokens: list[int] = []

    def weights(self) -> dict[str, int]:
        """Return how often its action comes."""
        return {"durable": 6 if self._is_focus else 1} if self.is_on else {}

    def act(self) -> None:
        """Make it, use it, leave it alone, or publish to its event."""
        run = self._run
        run.host.settle()
        self._turned_ms = self._turned_ms or run.host.now_ms()
        self.look()
        if self._queue is None:
            self._subscribe()
        else:
            step = self._rng.choice([self._publish, self._publish, self._come, self._go, self._wait])
            step(self._queue)
            self.look()  # to bind a queue that has gone makes it again
            if self._is_confirmed and self._queue is not None and self._filters.random() < 0.1:
                self._change(self._queue)

    def _subscribe(self) -> None:
        broker = self._run.broker
        left = 2

        def done(error: CurbstoneError | None) -> None:
            nonlocal left
            left -= error is None
            if not left and self._queue is queue:
                self._is_confirmed = True

        if NAME not in [
            queue.name for queue in broker.queues()
        ]:  # to ask again for one that a crash left is no use of it
            self._used_ms = self._run.host.now_ms()
        queue = self._queue = broker.ensure(NAME)
        self._is_confirmed = False
        self._run.directories.declare(NAME, {"unused": UNUSED_MS / 1000}, done)
        broker.bind(EVENT, NAME, done, filter_text=self._filter)

    def _change(self, queue: LocalQueue) -> None:
        """Bind it again, with another filter."""

        def done(error: CurbstoneError | None) -> None:
            if error is None and self._queue is queue and self._filter == wanted:
                self._is_confirmed = True

        wanted = self._filter = self._filters.choice(list(FILTERS))
        self._is_confirmed = False
        self._run.broker.bind(EVENT, NAME, done, filter_text=wanted)

    def _publish(self, queue: LocalQueue) -> None:
        """Publish some messages to the event; each is stored, or kept out by the filter."""
        run = self._run
        messages = [run.history.message(self._rng.randrange(10, 400)) for _ in range(self._filters.choice([1, 1, 3]))]
        waiting = [run.history.token(message) for message in messages]
        passing = [token for token in waiting if FILTERS[self._filter](token)]
        self._tokens += passing
        run.history.barred.update(set(waiting) - set(passing))
        was_confirmed = self._is_confirmed

        def done(error: CurbstoneError | None, queues: int, count: int) -> None:
            mine = waiting[:count]
            del waiting[:count]
            for token in mine:
                if token not in passing and (error is not None or queues):
                    run.history.violations.append(
                        Violation(f"token {token} passes no filter and got {error}, {queues}")
                    )
                elif token in passing and error is None and was_confirmed and queue is self._queue:
                    run.history.confirmed.add(token)

        run.broker.publish_event(EVENT, messages, done, DEFAULT_PROJECT)

    def _come(self, queue: LocalQueue) -> None:
        if self._consumer is not None:
            return
        run = self._run

        def deliver(deliveries: list[Delivery]) -> None:
            tokens = [run.history.token(each.message) for each in deliveries]
            run.history.see_barred(tokens)
            run.history.doomed.update(tokens)
            run.history.doomed_alone.update(tokens)
            consumer.ack(
                [each.message.seq for each in deliveries],
                lambda error: run.history.gone.update([] if error else tokens),
            )

        consumer = self._consumer = queue.subscribe(deliver, window=3, on_closed=lambda _: None)

    def _go(self, _queue: LocalQueue) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
            self._used_ms = self._run.host.now_ms()

    def _wait(self, _queue: LocalQueue) -> None:
        run = self._run
        run.host.pass_time(self._rng.choice([100, UNUSED_MS // 2, UNUSED_MS + LATE_MS]))
        run.host.settle()

    def look(self) -> None:
        """Compare what is there with what has to be."""
        queue = self._queue
        if queue is None:
            return
        run = self._run
        is_there = queue in run.broker.queues()
        idle_ms = 0 if self._consumer is not None else run.host.now_ms() - self._used_ms
        if not is_there:
            if idle_ms < UNUSED_MS and self._is_confirmed:
                raise Violation(f"{NAME} is gone, and was used {idle_ms} ms ago")
            self._forget()
        elif self._is_confirmed and not run.faults and not queue.state.broken:
            idle_ms = min(idle_ms, run.host.now_ms() - self._turned_ms)
            if idle_ms > UNUSED_MS + LATE_MS:
                raise Violation(f"{NAME} is there, and was not used for {idle_ms} ms")

    def _forget(self) -> None:
        run = self._run
        run.history.doomed.update(self._tokens)
        run.history.doomed_alone.update(self._tokens)
        self._tokens = []
        self._queue = self._consumer = None

    def crashed(self) -> None:
        """The server stops; it may have gone since it was looked at."""
        idle_ms = self._run.host.now_ms() - self._used_ms
        self._may_be_gone = self._consumer is None and idle_ms >= UNUSED_MS

    def forget(self) -> None:
        """What was confirmed may be lost."""
        self._is_confirmed = False

    def started(self) -> None:
        """After a start: what was confirmed is there, and its time begins anew."""
        run = self._run
        found = next((queue for queue in run.broker.queues() if queue.name == NAME), None)
        self._consumer = None
        self._used_ms = run.host.now_ms()
        self._turned_ms = 0
        if self._queue is None or not self._is_confirmed:
            self._forget()  # what is there of it may go without being looked at, until it is asked for again
        elif found is not None:
            if run.broker.bindings(NAME).get(EVENT) != self._filter or found.options.unused != UNUSED_MS / 1000:
                raise Violation(f"{NAME} was bound to {EVENT}, and a start does not find that")
            self._queue = found
        elif self._may_be_gone:
            self._forget()
        else:
            raise Violation(f"{NAME} was confirmed, and a start does not find it")

    def drain(self) -> None:
        """It goes no more, so that what is in it can be taken out."""
        self.look()
        if self._consumer is not None:
            self._consumer.close()
        if NAME in [queue.name for queue in self._run.broker.queues()]:
            self._run.directories.declare(NAME, {"unused": None})
        self._queue = None
