"""Batches in a simulated run, in queues of their own; only where the run is about that.

What is judged beside the history, across crashes:

- of each batch that something is stored of there is one report in the end, and there never are two
- no message of a batch is handed out once there is a report, so the report comes behind the last settle on the disk
- the report has as many messages as the batch, and each way to end has at least those of which it was confirmed, and
  at most those of which it was asked
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.delivery.consumer import Consumer
from curbstone.core.errors import BadRequest, CurbstoneError, QueueFull
from curbstone.core.message import Delivery, Message
from curbstone.core.names import queue_name
from curbstone.core.orders import changed
from tests.sim.history import Violation

if TYPE_CHECKING:
    from tests.sim.run import Run

NAME, REPORTS = queue_name("jobs"), queue_name("ended")
GROUP = "slow"
"""A declared group, for which the messages have to be copied when those of the batches are settled already."""
CONSUMERS_MAX = 3
ENDS = ("acked", "dead", "expired", "purged", "replaced")
UNKNOWN = "unknown"
"""Only a crash that comes before a settle was confirmed may leave it open how a message has ended."""


@dataclass
class Plan:
    """One batch, and what was asked for its messages, by token."""

    size: int
    asked: dict[int, set[str]] = field(default_factory=dict)
    """How each message may have ended."""
    confirmed: set[int] = field(default_factory=set)


class Batching:
    """The batches of one run; `focus` names them."""

    def __init__(self, run: Run, seed: int, focus: str) -> None:
        self._run = run
        self._rng = Random(f"{seed} batch")
        self.is_on = focus == "batch"
        self._has_group = self._rng.random() < 0.5
        self._plans: dict[str, Plan] = {}
        self._batch_of: dict[int, str] = {}
        """By token, the batch of a message."""
        self._reports: dict[str, tuple[str, int, dict[str, Any]]] = {}
        """By batch, the queue and seq of its report, and what it says."""
        self._sent: list[int] = []
        self._consumers: list[Consumer] = []
        self._collector: Consumer | None = None
        self._sending = 0

    def weights(self) -> dict[str, int]:
        """Return how often its action comes."""
        return {"batch": 20} if self.is_on else {}

    def started(self) -> None:
        """The server was started: nobody holds anything."""
        self._consumers.clear()
        self._collector, self._sending = None, 0
        if any(queue.name == REPORTS for queue in self._run.broker.queues()):
            self._collect()

    def act(self) -> None:
        """Send messages of batches and others, take, settle, purge, or close a consumer."""
        queue = self._run.broker.ensure(NAME)
        self._collect()
        if self._has_group and GROUP not in queue.meta.groups:
            queue.reading.declare(GROUP, 1, None, lambda _error, _info: None)
        what = self._rng.choice(["send"] * 4 + ["fill", "fill", "take", "settle", "settle", "settle", "close", "purge"])
        if what == "send":
            self._send(queue)
        elif what == "fill":
            self._publish(queue, [self._run.history.message(self._rng.randrange(500, 2000)) for _ in range(4)], None)
            self._read_on(queue)
        elif what == "take" and len(self._consumers) < CONSUMERS_MAX:
            self._consumers.append(self._take(queue, self._rng.choice([1, 3, 8])))
        elif what == "purge" and self._rng.random() < 0.2:
            self._purge(queue)
        elif self._consumers:
            consumer = self._rng.choice(self._consumers)
            if what == "settle" and consumer.unsettled:
                self._settle(consumer)
            elif what == "close":
                self._close(consumer)

    def _read_on(self, queue: LocalQueue) -> None:
        """Let the declared group be done with some of what it has."""
        if GROUP in queue.meta.groups:
            seq = self._rng.randrange(queue.reading.position(GROUP) - 1, queue.reading.next)
            queue.reading.ack_to(GROUP, seq, lambda _error, _info: None)

    # --- producers

    def _send(self, queue: LocalQueue) -> None:
        """Send some messages of a batch that may lack some, or of a new one."""
        lacking = [batch for batch in self._plans if self._lacks(batch)]
        batch = self._rng.choice([*lacking[-3:], "new"])
        if batch == "new":
            batch = f"b{len(self._plans)}"
            self._plans[batch] = Plan(self._rng.choice([1, 2, 3, 5, 20]))
        count = min(self._rng.choice([1, 2, 20]), self._lacks(batch))
        self._publish(queue, [self._member(batch) for _ in range(count)], batch, atomic=self._rng.random() < 0.5)

    def _lacks(self, batch: str) -> int:
        """Return how many messages a batch lacks at least: those that were not confirmed may be there all the same."""
        plan = self._plans[batch]
        return plan.size - sum(token not in self._run.history.refused for token in plan.asked)

    def _member(self, batch: str) -> Message:
        history, plan = self._run.history, self._plans[batch]
        message = history.message(self._rng.randrange(10, 300))
        token = history.token(message)
        lines = f"x-batch:{batch}\nx-batch-size:{plan.size}\nx-batch-to:{REPORTS.queue}\n"
        history.names[token] = lines.encode()
        message.headers = history.headers(token)
        message.orders = changed(message.orders, batched=True)
        plan.asked[token] = set()
        self._batch_of[token] = batch
        return message

    def _publish(self, queue: LocalQueue, messages: list[Message], batch: str | None, *, atomic: bool = False) -> None:
        history = self._run.history
        tokens = [history.token(message) for message in messages]
        self._sent += tokens
        epoch = self._run.epoch
        self._sending += 1

        def done(error: CurbstoneError | None, _first_seq: int, count: int) -> None:
            mine = tokens[:count]
            del tokens[:count]
            if not tokens and epoch is self._run.epoch:
                self._sending -= 1
            if error is None:
                history.confirmed.update(mine)
                if batch is not None:
                    self._plans[batch].confirmed.update(mine)
            elif isinstance(error, QueueFull | BadRequest):
                history.refused.update(mine)

        queue.publish(messages, self._run.answers.in_order(queue, len(messages), done), atomic=atomic)

    # --- consumers

    def _take(self, queue: LocalQueue, window: int) -> Consumer:
        def deliver(deliveries: list[Delivery]) -> None:
            for delivery in deliveries:
                self._run.history.delivered(delivery.message, f"a consumer of {NAME}")
                self.see(self._run.history.token(delivery.message))

        return queue.subscribe(deliver, window=window, on_closed=lambda _: None)

    def see(self, token: int) -> None:
        """A message was handed out; what is wrong with that is kept for `History.check`."""
        batch = self._batch_of.get(token)
        if batch in self._reports:
            text = f"token {token} of batch {batch} was handed out, and its report had been sent"
            self._run.history.violations.append(Violation(text))

    def _settle(self, consumer: Consumer) -> None:
        history = self._run.history
        seqs = self._rng.sample(list(consumer.unsettled), self._rng.randrange(1, len(consumer.unsettled) + 1))
        tokens = [history.token(consumer.unsettled[seq].message) for seq in seqs]
        how = self._rng.choice(["acked", "acked", "dead", ""])
        for token in tokens:
            history.live.pop(token, None)
            if how:
                self._asks(token, how)
        if not how:
            consumer.nack(seqs)
            return
        self._run.doom(tokens)

        def done(error: CurbstoneError | None) -> None:
            if error is None:
                history.gone.update(tokens)

        (consumer.ack if how == "acked" else consumer.reject)(seqs, on_done=done)

    def _asks(self, token: int, how: str) -> None:
        """A message may have ended in this way."""
        if token in self._batch_of:
            self._plans[self._batch_of[token]].asked[token].add(how)

    def _purge(self, queue: LocalQueue) -> None:
        for token in self._batch_of:
            self._asks(token, "purged")
        self._run.doom(self._sent)
        queue.purge(lambda _error, _count: None)

    def _close(self, consumer: Consumer) -> None:
        self._run.history.released(consumer)
        self._consumers.remove(consumer)
        consumer.close()

    # --- reports

    def _collect(self) -> None:
        """Read all reports, and let them stay."""
        if self._collector is None or self._collector.closed:  # the queue could not be created
            queue = self._run.broker.ensure(REPORTS)

            def deliver(deliveries: list[Delivery]) -> None:
                for delivery in deliveries:
                    self._read(queue, delivery.message)

            self._collector = queue.subscribe(deliver, window=10_000, on_closed=lambda _: None)

    def _read(self, queue: LocalQueue, message: Message) -> None:
        found = json.loads(message.body)
        key = queue.uid, message.seq
        batch = found["batch"]
        before = self._reports.get(batch)
        if before is not None and before[:2] != key:
            self._run.history.violations.append(Violation(f"batch {batch} has two reports"))
        self._reports[batch] = (*key, found)
        self._run.states.saw("a batch has ended")
        if self._run.crashes:
            self._run.states.saw("a batch has ended after a crash")

    # --- the end

    def drain(self) -> None:
        for consumer in list(self._consumers):
            self._close(consumer)
        if self.is_on:
            self._collect()

    def others(self) -> list[LocalQueue]:
        """Return all queues but that of the reports, which stay."""
        return [queue for queue in self._run.broker.queues() if queue.name != REPORTS]

    def finish(self) -> None:
        """Send what the open batches lack."""
        if not self.is_on or self._sending:
            return
        self._collect()
        queue = self._run.broker.ensure(NAME)
        if GROUP in queue.meta.groups:
            queue.reading.ack_to(GROUP, queue.reading.next - 1, lambda _error, _info: None)
        for each in queue.batches():
            if lacking := each.tally.size - each.tally.stored:
                self._publish(queue, [self._member(each.tally.id) for _ in range(lacking)], each.tally.id)

    def judge(self, drained: list[int]) -> None:
        """Demand one report of each batch, with the right sums."""
        for token in drained:
            self._asks(token, "acked")
        for batch, plan in self._plans.items():
            report = self._reports.get(batch)
            if report is None:
                if plan.confirmed:
                    raise Violation(f"batch {batch} has no report")
                continue
            self._judge(batch, plan, report[2], self._run.history.gone | set(drained))

    @staticmethod
    def _judge(batch: str, plan: Plan, report: dict[str, Any], gone: set[int]) -> None:
        open_ends = sum(bool(asked) and token not in gone for token, asked in plan.asked.items())
        if report["total"] != plan.size or sum(report[end] for end in (*ENDS, UNKNOWN)) != plan.size:
            raise Violation(f"batch {batch} has {plan.size} messages, and its report says {report}")
        if report[UNKNOWN] > open_ends:
            raise Violation(f"of batch {batch} {open_ends} may have an unknown end, and its report says {report}")
        for end in ENDS:
            least = sum(plan.asked[token] == {end} for token in plan.confirmed & gone)
            most = sum(end in asked for asked in plan.asked.values())
            if not least <= report[end] <= most:
                raise Violation(f"of batch {batch} {least} to {most} are {end}, and its report says {report}")
