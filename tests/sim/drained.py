"""Takes everything out at the end of a simulated run; both simulators ask then whether what was acked is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.message import Delivery, Message
from tests.kit.simulated import SimHost
from tests.sim.history import Violation

if TYPE_CHECKING:
    from tests.sim.run import Run

ROUND_MS = 10_000


def drain_queue(run: Run, queue: LocalQueue, group: str, out: list[Message]) -> None:
    """Consume and ack everything of a group; `out` gets the messages of the unnamed one."""
    history = run.history

    def deliver(deliveries: list[Delivery]) -> None:
        run.fairness.see(queue, group, deliveries)
        for delivery in deliveries:
            token = history.token(delivery.message, group)
            run.turns.handed_out(queue, group, delivery.message)
            history.delivered(delivery.message, "the drain", group)
            run.batching.see(token)
            run.drained.append(token)
            history.live.pop(token, None)
            if not group:
                out.append(delivery.message)
        ack([delivery.message.seq for delivery in deliveries])

    def ack(seqs: list[int]) -> None:
        """Continue until it is taken: a queue that failed refuses settles for a while."""
        consumer.ack(seqs, on_done=lambda error: again(seqs) if error else None)

    def again(seqs: list[int]) -> None:
        run.host.call_later(1000, lambda: ack([seq for seq in seqs if seq in consumer.unsettled]))

    consumer = queue.subscribe(deliver, window=7, group=group, on_closed=lambda _: None)


def see_drained(
    host: SimHost,
    queues: Callable[[], Iterable[LocalQueue]],
    readers: Iterable[str],
    rounds: int,
    each_round: Callable[[], None] = lambda: None,
) -> None:
    """Let so many rounds pass, in which consumers ack what they get; raise Violation where a queue still holds any."""
    for _ in range(rounds):
        host.settle()
        each_round()
        host.pass_time(ROUND_MS)
    host.settle()
    for queue in queues():
        for group in readers:
            counts = queue.counts(group)
            if counts.rdy or counts.delayed or counts.wip:
                raise Violation(f"{queue.name} {group!r} says {counts} after everything was acked")
